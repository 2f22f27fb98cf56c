/*
 * CUDA memory allocated by this library: the only kind that peers on the same GPU may map.
 */
#ifndef TUTTI_DEVICE_MEMORY_H
#define TUTTI_DEVICE_MEMORY_H

#include "kernels/device.h"

/* An allocator that is preferred to CUDA's own; comm/gpu/nccl/nccl_memory.h has one. */
typedef struct tutti_device_allocator {
    /* Allocates on the current GPU. Any failure: CUDA's own is used instead. */
    tutti_status (*alloc)(size_t bytes, void **memory_out);
    tutti_status (*free_)(void *memory);
    /* The block, of this allocator or of CUDA's own, is about to be freed. */
    void (*forget)(const void *block);
} tutti_device_allocator;

/* For tutti_mem_alloc_cuda. */
tutti_status tutti_device_memory_alloc(size_t bytes, const tutti_device_allocator *allocator, void **memory_out);
/* Finds the block of tutti_mem_alloc_cuda that contains [memory, memory + bytes). False: there is none. */
bool tutti_device_memory_find(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out);
/* The same for a block that a peer will map; also false if peers cannot map it. After free, such a block is reused
 * but never returned to CUDA, since the peer may still have it mapped. So its address stays unique. */
bool tutti_device_memory_share(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out);
/* A communicator opens (1) or is destroyed (-1) in which peers on the same GPU map blocks of this process: new
 * blocks are then allocated so that peers can map them. */
void tutti_device_memory_expect_peers(int change);
/* Frees such a block. False: `memory` is not one. */
bool tutti_device_memory_free(void *memory, const tutti_device_allocator *allocator, tutti_status *status_out);

#endif
