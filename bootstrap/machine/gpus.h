/*
 * Which GPU belongs to a rank, determined from files alone without calling a driver. The result is therefore
 * available before a process initializes CUDA, and in processes that never do. Only NVIDIA GPUs are supported.
 */
#ifndef TUTTI_GPUS_H
#define TUTTI_GPUS_H

#include <stdbool.h>

#define TUTTI_GPU_ADDRESS_BYTES 32

/* Writes the PCI address ("0000:3b:00.0") of CUDA's GPU number `index`; GPUs are numbered by address. `visible` is
 * CUDA_VISIBLE_DEVICES or NULL. Returns false when the GPU does not exist or is given by a UUID. `root` is "" or,
 * for tests, a folder that holds a copy of /proc. */
bool tutti_gpus_address(const char *root, const char *visible, int index, char address_out[TUTTI_GPU_ADDRESS_BYTES]);

#endif
