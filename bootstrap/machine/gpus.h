/*
 * Which GPU is a rank's, by files alone: no driver is asked, so it may be known before a process starts CUDA, or in one that
 * never does. NVIDIA's only.
 */
#ifndef TUTTI_GPUS_H
#define TUTTI_GPUS_H

#include <stdbool.h>

#define TUTTI_GPU_ADDRESS_BYTES 32

/* PCI address ("0000:3b:00.0") of the GPU that CUDA counts as number `index`; GPUs are counted by address. `visible`:
 * CUDA_VISIBLE_DEVICES, or NULL. False: there is none, or it is told by a UUID. `root` is "" or, for tests, a folder that
 * holds a copy of /proc. */
bool tutti_gpus_address(const char *root, const char *visible, int index, char address_out[TUTTI_GPU_ADDRESS_BYTES]);

#endif
