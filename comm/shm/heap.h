/*
 * This process's memory that peers of the host map: one signed, sparse memfd. No /dev/shm, nothing to leak.
 *
 *   base                                base + control_bytes                                      base + bytes
 *    | control: pages, slots, channels   | blocks: tutti_mem_alloc                                 |
 *    | not inherited by fork             | inherited, stays shared                                 |
 *
 * Pieces are fallocated before they are handed out, so shortage is an error here and never SIGBUS later.
 */
#ifndef TUTTI_HEAP_H
#define TUTTI_HEAP_H

#include "bootstrap/base/common.h"

typedef enum tutti_heap_area { TUTTI_HEAP_CONTROL, TUTTI_HEAP_BLOCKS } tutti_heap_area;

/* The first bytes of the control area: a fixed place where peers look for point-to-point channels (p2p.c). Zero
 * at the start. */
#define TUTTI_HEAP_DIRECTORY_BYTES ((size_t)64 << 10)

/* Makes the heap at first use. */
tutti_status tutti_heap_init(void);
char *tutti_heap_base(void);
size_t tutti_heap_bytes(void);
int tutti_heap_fd(void);

/* Control pieces are zeroed and aligned to a page; blocks have any content (see tutti_mem_alloc). Thread-safe. */
tutti_status tutti_heap_alloc(tutti_heap_area area, size_t bytes, void **memory_out);
/* TUTTI_ERR_ARGUMENT when `memory` was not handed out by tutti_heap_alloc. NULL is allowed. */
tutti_status tutti_heap_free(void *memory);
/* Is [memory, memory + bytes) inside the heap's blocks, where peers can read it? */
bool tutti_heap_holds(const void *memory, size_t bytes);
/* The piece that `memory` is in, if it is one of a page or more, as far as real memory is behind it: that stays until
 * tutti_memory_registry_changed (memory_registry.h) names the piece. False: there is none. */
bool tutti_heap_piece_of(const void *memory, void **piece_out, size_t *bytes_out);
/* From now on blocks that are freed are not handed out again: a peer that went wrong may still write into them. */
void tutti_heap_retire_blocks(void);
/* Bytes handed out and bytes of real memory behind them and behind cached pieces. */
void tutti_heap_usage(size_t *used_bytes_out, size_t *committed_bytes_out);

#endif
