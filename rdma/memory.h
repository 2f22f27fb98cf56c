/*
 * Memory registered with adapters: registrations for one transfer, and lasting ones.
 *
 * An adapter reads and writes physical pages, fixed when memory is registered. If the pages behind an address
 * change afterwards (munmap and mmap, madvise, a hole punched), the adapter silently goes on with the old ones, and
 * no hook reports the change. So a registration outlives a transfer only where its owner has promised that the
 * pages stay: memory that `find` reports (tutti_rdma_memory_ask), until it is forgotten. The cache registers such
 * ranges at first use, and drops the least recently used ones when they exceed TUTTI_RDMA_CACHE_BYTES. All other
 * memory is registered for one transfer.
 *
 * Invariant: a registration that a transfer uses is not dropped.
 */
#ifndef TUTTI_RDMA_MEMORY_H
#define TUTTI_RDMA_MEMORY_H

#include "rdma/devices.h"

struct tutti_rdma_memory_range;

/* A registration held by a transfer. */
typedef struct tutti_rdma_memory_use {
    char *address;
    size_t bytes;
    struct ibv_mr *mrs[TUTTI_RDMA_DEVICES_PORTS]; /* by index of the adapter */
    struct tutti_rdma_memory_range
        *range; /* the range that holds the registration; NULL: registered for this transfer only */
} tutti_rdma_memory_use;

/* Whether the adapter reads the memory or writes it. */
typedef enum tutti_rdma_memory_purpose { TUTTI_RDMA_MEMORY_SOURCE, TUTTI_RDMA_MEMORY_TARGET } tutti_rdma_memory_purpose;

/* Registers [address, address + bytes), or the beginning of it, with the ports' adapters; use_out: what is covered. */
tutti_status tutti_rdma_memory_hold(void *address, size_t bytes, tutti_rdma_memory_purpose purpose,
                                    const tutti_rdma_port *const *ports, int nports, tutti_rdma_memory_use *use_out);
/* `use` may be empty. */
void tutti_rdma_memory_release(tutti_rdma_memory_use *use);
static inline bool tutti_rdma_memory_is_held(const tutti_rdma_memory_use *use) {
    return use->address != NULL;
}

/* Ranges whose pages stay; see rdma.h. */
void tutti_rdma_memory_ask(bool (*find)(const void *memory, void **start_out, size_t *bytes_out));
void tutti_rdma_memory_forget(void *start);
/* Resets the state in a forked child, where no range is registered yet. */
void tutti_rdma_memory_forked(void);

#endif
