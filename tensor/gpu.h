/*
 * GPU operations for tensors in CUDA memory, through the table of kernels/device.h: copies of blocks, fills, and
 * queries of where memory is.
 *
 * Functions with a stream only enqueue; the GPU is the calling thread's current one, between tutti_gpu_enter and
 * tutti_gpu_leave.
 */
#ifndef TUTTI_TENSOR_GPU_H
#define TUTTI_TENSOR_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "tensor/pieces.h"

/* Returns the calling thread's current GPU; fails with the reason where this process can use no GPU. Creates no
 * context. */
tutti_status tutti_gpu_current(int *gpu_out);

typedef struct tutti_gpu_visit {
    const tutti_device *device;
    int gpu, before;
} tutti_gpu_visit;

tutti_status tutti_gpu_enter(int gpu, tutti_gpu_visit *visit_out);
void tutti_gpu_leave(const tutti_gpu_visit *visit);

/* Allocates memory of tutti_mem_alloc_cuda. */
tutti_status tutti_gpu_alloc(int gpu, size_t bytes, void **memory_out);
/* Waits for the GPU; the next call reports a failure there. */
void tutti_gpu_sync(int gpu);
/* Waits for all work in the GPU's streams, then calls `read` with each piece of the memory, copied to the host. */
tutti_status tutti_gpu_read(int gpu, const void *memory, size_t bytes,
                            void (*read)(void *context, const void *piece, size_t bytes), void *context);

/* Checks that the memory is of that GPU, or, for -1, of no GPU. `words_out`: where the memory is instead. */
tutti_status tutti_gpu_check_place(int gpu, const void *memory, bool *fits_out, char *words_out, size_t capacity);

/* As tutti_blocks_run. */
tutti_status tutti_gpu_run_blocks(const tutti_device *device, const tutti_blocks *blocks, size_t element_bytes,
                                  void *dst, const void *src, tutti_stream stream);
/* Fills `bytes` with copies of one element. */
tutti_status tutti_gpu_fill(const tutti_device *device, void *dst, uint64_t element, size_t element_bytes, size_t bytes,
                            tutti_stream stream);

#endif
