/*
 * GPU memory of tensors that are gone, for tensors that come after them in a stream: giving it back to CUDA waits for the
 * whole GPU.
 *
 * Each block carries an event behind the work that used it last; a taker in another stream waits there, not on the host. A
 * block that came back while its stream was being captured belongs to the graph from then on: it is never handed out again.
 *
 * Invariant: a block is in the pool or a tensor's, never both. The pool's blocks are freed with it, or where there is no
 * memory left.
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
    tutti_reuse_block *first; /* guarded by the lock, as is what is in the list */
} tutti_reuse_pool;

void tutti_reuse_pool_init(tutti_reuse_pool *pool);
void tutti_reuse_pool_free(tutti_reuse_pool *pool); /* waits for the GPU */

/* Memory of tutti_mem_alloc_cuda on the current GPU, which what follows in the stream may use; of at least so many bytes:
 * capacity_out says how many. */
tutti_status tutti_reuse_take(tutti_reuse_pool *pool, const tutti_device *device, size_t bytes, tutti_stream stream,
                              void **memory_out, size_t *capacity_out);
/* Behind what is in the stream now. False: the memory is still the caller's. */
bool tutti_reuse_give(tutti_reuse_pool *pool, const tutti_device *device, void *memory, size_t capacity,
                      tutti_stream stream);

#endif
