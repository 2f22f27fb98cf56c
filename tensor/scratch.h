/*
 * Scratch memory on a GPU for what runs in streams. A run takes a block, enqueues its work, and gives the block back at once;
 * whoever takes it next waits for that work in the stream, not on the host.
 *
 * Invariant: blocks are freed with the pool only. To free memory waits for the GPU, and so, where ranks are threads of one process,
 * for streams that wait for this rank.
 */
#ifndef TUTTI_TENSOR_SCRATCH_H
#define TUTTI_TENSOR_SCRATCH_H

#include <pthread.h>
#include <stddef.h>

#include "kernels/device.h"

typedef struct tutti_scratch tutti_scratch;

typedef struct tutti_scratch_pool {
    pthread_mutex_t lock;
    tutti_scratch *first; /* guarded by the lock, as is what is in the list */
} tutti_scratch_pool;

void tutti_scratch_pool_init(tutti_scratch_pool *pool);
void tutti_scratch_pool_free(tutti_scratch_pool *pool); /* waits for the GPU */

/* A block of the current GPU: what follows in the stream may use it. */
tutti_status tutti_scratch_take(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes, tutti_stream stream,
                                tutti_scratch **scratch_out);
/* A new block that nobody else will get, for work that is captured into a graph, which may be launched as long as the pool is
 * there. */
tutti_status tutti_scratch_make(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes,
                                tutti_scratch **scratch_out);
void *tutti_scratch_memory(const tutti_scratch *scratch);
/* Behind what is in the stream now. */
tutti_status tutti_scratch_give(tutti_scratch_pool *pool, const tutti_device *device, tutti_scratch *scratch,
                                tutti_stream stream);

#endif
