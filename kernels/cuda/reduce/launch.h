/*
 * Starting the kernels of reduce.cu and box.cu: the functions that C calls.
 */
#ifndef TUTTI_KERNELS_CUDA_LAUNCH_H
#define TUTTI_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/reduce/box_plan.h"
#include "kernels/cuda/reduce/reduce_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads all of them to the thread's GPU. */
cudaError_t tutti_cuda_launch_prepare(void);
cudaError_t tutti_cuda_launch_prepare_box(void);
/* `processors`: the GPU's multiprocessors, which decide the size of the grid. */
cudaError_t tutti_cuda_launch_reduce(const tutti_cuda_reduce_plan *plan, int processors, cudaStream_t stream);
cudaError_t tutti_cuda_launch_copies(const tutti_cuda_copies *copies, int processors, cudaStream_t stream);
/* Copies *bytes_at bytes, at most the bytes of `most`. */
cudaError_t tutti_cuda_launch_counted(tutti_cuda_move most, const uint64_t *bytes_at, int processors,
                                      cudaStream_t stream);
cudaError_t tutti_cuda_launch_box(const tutti_cuda_box *box, int processors, cudaStream_t stream);
/* *at = value, after the effects of all earlier work of the stream are visible everywhere. */
cudaError_t tutti_cuda_launch_store(uint64_t *at, uint64_t value, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
