/*
 * GPU memory of destroyed tensors, for later tensors in a stream: freeing memory with CUDA waits for the whole GPU.
 *
 * Each block has an event after the work that used it last; a taker in another stream waits for the event in that
 * stream, not on the host. A block that was returned while its stream was being captured belongs to the graph from
 * then on: it is never handed out again.
 *
 * Invariant: a block is owned by the pool or by a tensor, never both. The pool's blocks are freed with the pool, or
 * when memory has run out.
 */
#ifndef TUTTI_TENSOR_REUSE_H
#define TUTTI_TENSOR_REUSE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/device.h"

typedef struct tutti_reuse_block tutti_reuse_block;

typedef struct tutti_reuse_pool {
    pthread_mutex_t lock;
    tutti_reuse_block *first; /* guarded by the lock, as are the blocks in the list */
} tutti_reuse_pool;

void tutti_reuse_pool_init(tutti_reuse_pool *pool);
void tutti_reuse_pool_free(tutti_reuse_pool *pool); /* waits for the GPU */

/* Takes memory of tutti_mem_alloc_cuda on the current GPU, of at least `bytes` bytes, which later work in the
 * stream may use; capacity_out: its size. */
tutti_status tutti_reuse_take(tutti_reuse_pool *pool, const tutti_device *device, size_t bytes, tutti_stream stream,
                              void **memory_out, size_t *capacity_out);
/* Returns memory to the pool, for reuse after the present work in the stream. False: the caller still owns the
 * memory. */
bool tutti_reuse_give(tutti_reuse_pool *pool, const tutti_device *device, void *memory, size_t capacity,
                      tutti_stream stream);

#endif
