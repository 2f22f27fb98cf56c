/*
 * CUDA memory allocated by this library: the only kind that peers on the same GPU may map.
 */
#ifndef TUTTI_DEVICE_MEMORY_H
#define TUTTI_DEVICE_MEMORY_H

#include "kernels/device.h"

/* Finds the block of tutti_mem_alloc_cuda that contains [memory, memory + bytes). False: there is none. */
bool tutti_device_memory_find(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out);
/* The same for a block that a peer will map; also false if peers cannot map it. After free, such a block is reused
 * but never returned to CUDA, since the peer may still have it mapped. So its address stays unique. */
bool tutti_device_memory_share(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out);
/* A communicator opens (1) or is destroyed (-1) in which peers on the same GPU map blocks of this process: new
 * blocks are then allocated so that peers can map them. */
void tutti_device_memory_expect_peers(int change);
/* Frees such a block. False: `memory` is not one. */
bool tutti_device_memory_free(void *memory, tutti_status *status_out);

#endif
