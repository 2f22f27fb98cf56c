/*
 * GPU memory as NCCL wants it (ncclMemAlloc): peers' GPUs and NVLink's switches can reach it, so that collectives on it skip a
 * copy. That, and all other memory of tutti_mem_alloc_cuda, is registered with each communicator that uses it, at the first
 * use.
 */
#ifndef TUTTI_NCCL_MEMORY_H
#define TUTTI_NCCL_MEMORY_H

#include <stddef.h>

#include <tutti/tutti.h>

/* Of the current GPU. TUTTI_ERR_UNSUPPORTED: no communicator of this process works with NCCL, or it is older than 2.19;
 * ordinary memory does as well then. */
tutti_status tutti_nccl_mem_alloc(size_t bytes, void **memory_out);
/* Nothing in a stream may use it any more. */
tutti_status tutti_nccl_mem_free(void *memory);
/* The block is about to be freed: registered nowhere any more. */
void tutti_nccl_memory_forget(const void *block);

#endif
