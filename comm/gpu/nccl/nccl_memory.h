/*
 * GPU memory from ncclMemAlloc: other GPUs and NVLink switches can access it, so collectives on it save a copy. It
 * is registered with each communicator that uses it, at the first use, and so is all other memory of
 * tutti_mem_alloc_cuda.
 */
#ifndef TUTTI_NCCL_MEMORY_H
#define TUTTI_NCCL_MEMORY_H

#include <stddef.h>

#include <tutti/tutti.h>

/* Allocates on the current GPU. TUTTI_ERR_UNSUPPORTED: no communicator of this process uses NCCL, or NCCL is older
 * than 2.19; ordinary memory works as well then. */
tutti_status tutti_nccl_mem_alloc(size_t bytes, void **memory_out);
/* No stream may use the memory any more. */
tutti_status tutti_nccl_mem_free(void *memory);
/* Removes all registrations of a block that is about to be freed. */
void tutti_nccl_memory_forget(const void *block);

#endif
