/*
 * CUDA memory that this library has allocated: the only kind that peers on the same GPU may map.
 */
#ifndef TUTTI_DEVICE_MEMORY_H
#define TUTTI_DEVICE_MEMORY_H

#include "kernels/device.h"

/* The block of tutti_mem_alloc_cuda that [memory, memory + bytes) lies in. False: in none. */
bool tutti_device_memory_find(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out);
/* The same, of a block that a peer is going to map; false as well where none can. Once freed it is handed out again, but never
 * given back to CUDA, since the peer may still have it mapped. So its address stays its own. */
bool tutti_device_memory_share(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out);
/* A communicator opens (1), or goes (-1), in which peers on the same GPU map blocks of this process: new ones are made so that
 * they can. */
void tutti_device_memory_expect_peers(int change);
/* Frees such a block; false: it is none. */
bool tutti_device_memory_free(void *memory, tutti_status *status_out);

#endif
