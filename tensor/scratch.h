/*
 * Scratch memory on a GPU for work in streams. A run takes a block, enqueues its work, and returns the block at
 * once; the next taker waits for that work in its stream, not on the host.
 *
 * Invariant: blocks are freed only with the pool. Freeing memory waits for the GPU, and therefore, where ranks are
 * threads of one process, for streams that wait for this rank.
 */
#ifndef TUTTI_TENSOR_SCRATCH_H
#define TUTTI_TENSOR_SCRATCH_H

#include <pthread.h>
#include <stddef.h>

#include "kernels/device.h"

typedef struct tutti_scratch tutti_scratch;

typedef struct tutti_scratch_pool {
    pthread_mutex_t lock;
    tutti_scratch *first; /* guarded by the lock, as are the blocks in the list */
} tutti_scratch_pool;

void tutti_scratch_pool_init(tutti_scratch_pool *pool);
void tutti_scratch_pool_free(tutti_scratch_pool *pool); /* waits for the GPU */

/* Takes a block of the current GPU; later work in the stream may use it. */
tutti_status tutti_scratch_take(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes, tutti_stream stream,
                                tutti_scratch **scratch_out);
/* Makes a new block that no other run takes, for work that is captured into a graph, which may be launched as long
 * as the pool exists. */
tutti_status tutti_scratch_make(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes,
                                tutti_scratch **scratch_out);
void *tutti_scratch_memory(const tutti_scratch *scratch);
/* Returns a block, for use after the present work in the stream. */
tutti_status tutti_scratch_give(tutti_scratch_pool *pool, const tutti_device *device, tutti_scratch *scratch,
                                tutti_stream stream);

#endif
