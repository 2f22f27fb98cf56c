/*
 * GPU memory from ncclMemAlloc: other GPUs and NVLink switches can access it, so collectives on it save a copy. It
 * is registered with each communicator that uses it, at the first use, and so is all other memory of
 * tutti_mem_alloc_cuda.
 */
#ifndef TUTTI_NCCL_MEMORY_H
#define TUTTI_NCCL_MEMORY_H

#include <stddef.h>

#include <tutti/tutti.h>

#include "comm/gpu/device_memory.h"

/* alloc returns TUTTI_ERR_UNSUPPORTED if no communicator of this process uses NCCL, or NCCL is older than 2.19. For
 * free_, no stream may use the memory any more. forget removes all registrations of the block. */
extern const tutti_device_allocator tutti_nccl_allocator;

#endif
