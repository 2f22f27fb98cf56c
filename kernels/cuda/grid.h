/*
 * Launching kernels: the only part that is not plain C++, so that tests can replace it and run the same kernels on
 * the host; and small helpers that kernels share.
 */
#ifndef TUTTI_KERNELS_CUDA_GRID_H
#define TUTTI_KERNELS_CUDA_GRID_H

#include <cuda_runtime.h>

#include "kernels/cuda/compute.h"

template <typename... Parameters, typename... Arguments>
static tutti_status enqueue(tutti_stream stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                            Arguments... arguments) {
    kernel<<<grid, block, 0, (cudaStream_t)stream>>>(arguments...);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "launching a kernel: %s", cudaGetErrorString(error));
}

/* Launches the kernel in the compute's stream. */
template <typename... Parameters, typename... Arguments>
static void launch(tutti_compute *compute, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   Arguments... arguments) {
    tutti_compute_note(compute, enqueue(tutti_cuda_compute_of(compute)->stream, kernel, grid, block, arguments...));
}

#endif
