/*
 * Memory of this process that peers on the host map: one sealed, sparse memfd. No /dev/shm, nothing can leak.
 *
 *   base                                base + control_bytes                                      base + bytes
 *    | control: pages, slots, channels   | blocks: tutti_mem_alloc                                 |
 *    | not inherited by fork             | inherited, stays shared                                 |
 *
 * Pieces are fallocated before they are handed out, so a shortage is an error here and never a SIGBUS later.
 */
#ifndef TUTTI_HEAP_H
#define TUTTI_HEAP_H

#include "bootstrap/base/common.h"

typedef enum tutti_heap_area { TUTTI_HEAP_CONTROL, TUTTI_HEAP_BLOCKS } tutti_heap_area;

/* The first bytes of the control area: a fixed place where peers look for point-to-point channels. Initially zero. */
#define TUTTI_HEAP_DIRECTORY_BYTES ((size_t)64 << 10)

/* Creates the heap at first use. */
tutti_status tutti_heap_init(void);
char *tutti_heap_base(void);
size_t tutti_heap_bytes(void);
int tutti_heap_fd(void);

/* Control pieces are zeroed and aligned to a page; blocks are undefined (see tutti_mem_alloc). Thread-safe. */
tutti_status tutti_heap_alloc(tutti_heap_area area, size_t bytes, void **memory_out);
/* Fails with TUTTI_ERR_ARGUMENT if `memory` was not returned by tutti_heap_alloc. NULL is allowed. */
tutti_status tutti_heap_free(void *memory);
/* True if [memory, memory + bytes) is inside the heap's blocks, where peers can read it. */
bool tutti_heap_holds(const void *memory, size_t bytes);
/* The memory around `memory` whose pages stay: a piece of a page or more, as far as real memory backs it, or a range
 * that the program has registered (tutti_mem_register). Returns false if there is none. */
bool tutti_heap_find_lasting(const void *memory, void **start_out, size_t *bytes_out);
/* `function` is called with the start of such a piece or range when its pages may change from then on. There is one
 * function per process. It is called with locks held, so it must not call functions of this file. */
void tutti_heap_watch(void (*function)(void *start));
/* Freed blocks are not handed out again from now on: a failed peer may still write into them. */
void tutti_heap_retire_blocks(void);
/* Bytes handed out, and bytes of real memory behind them and behind cached pieces. */
void tutti_heap_usage(size_t *used_bytes_out, size_t *committed_bytes_out);

#endif
