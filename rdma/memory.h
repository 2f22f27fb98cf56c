/*
 * Memory that adapters know: registrations for one transfer, and those that last.
 *
 * An adapter reads and writes physical pages, fixed when memory is registered. If the pages behind an address change
 * afterwards (munmap and mmap, madvise, a hole punched), the adapter goes on with the old ones and nobody notices; and no
 * hook tells of that. So a registration outlives a transfer only where its owner has promised that the pages stay: memory
 * given to tutti_rdma_memory_add, until it is taken back, or what `find` knows (tutti_rdma_memory_ask), until it is forgotten. Of those the cache registers at first use, and gives up what was
 * used longest ago when they exceed TUTTI_RDMA_CACHE_BYTES. All else is registered for one transfer.
 *
 * Invariant: a registration that a transfer uses is not given up.
 */
#ifndef TUTTI_RDMA_MEMORY_H
#define TUTTI_RDMA_MEMORY_H

#include "rdma/devices.h"

struct tutti_rdma_memory_range;

/* A transfer's hold on memory. */
typedef struct tutti_rdma_memory_use {
    char *address;
    size_t bytes;
    struct ibv_mr *mrs[TUTTI_RDMA_DEVICES_PORTS]; /* by adapter's index */
    struct tutti_rdma_memory_range *range;        /* that it is of; NULL: for this transfer only */
} tutti_rdma_memory_use;

/* What the adapter is to do with it. */
typedef enum tutti_rdma_memory_purpose { TUTTI_RDMA_MEMORY_SOURCE, TUTTI_RDMA_MEMORY_TARGET } tutti_rdma_memory_purpose;

/* Registers [address, address + bytes), or its beginning, with the ports' adapters; says how much in use_out. */
tutti_status tutti_rdma_memory_hold(void *address, size_t bytes, tutti_rdma_memory_purpose purpose,
                                    const tutti_rdma_port *const *ports, int nports, tutti_rdma_memory_use *use_out);
/* Accepts one that holds nothing. */
void tutti_rdma_memory_release(tutti_rdma_memory_use *use);
static inline bool tutti_rdma_memory_is_held(const tutti_rdma_memory_use *use) {
    return use->address != NULL;
}

/* Ranges whose pages stay. */
tutti_status tutti_rdma_memory_add(void *memory, size_t bytes, void **registration_out);
tutti_status tutti_rdma_memory_add_dmabuf(int file, uint64_t offset, void *memory, size_t bytes,
                                          void **registration_out);
void tutti_rdma_memory_remove(void *registration);
/* See rdma.h. */
void tutti_rdma_memory_ask(bool (*find)(const void *memory, void **start_out, size_t *bytes_out));
void tutti_rdma_memory_forget(void *start);
/* In a forked child: nothing is registered for it yet. */
void tutti_rdma_memory_forked(void);

#endif
