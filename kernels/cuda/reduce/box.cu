/*
 * Starting the kernels of copies of boxes (box_kernels.h).
 */
#include <cuda_runtime.h>

#include "kernels/cuda/reduce/box_kernels.h"
#include "kernels/cuda/reduce/launch.h"

/* As for reductions (reduce.cu): enough blocks that all processors are busy to the end. */
static constexpr size_t blocks_per_processor = 32;

extern "C" cudaError_t tutti_cuda_launch_prepare_box(void) {
    cudaFuncAttributes attributes;
    cudaError_t result = cudaSuccess;
    for (int i = 0; i < TUTTI_CUDA_BOX_WORDS && result == cudaSuccess; i++) {
        result = cudaFuncGetAttributes(&attributes, (const void *)word_kernels[i]);
        if (result == cudaSuccess) result = cudaFuncGetAttributes(&attributes, (const void *)tile_kernels[i]);
    }
    for (box_kernel kernel : packed_kernels)
        if (result == cudaSuccess) result = cudaFuncGetAttributes(&attributes, (const void *)kernel);
    return result;
}

extern "C" cudaError_t tutti_cuda_launch_box(const tutti_cuda_box *box, int processors, cudaStream_t stream) {
    const size_t most = (size_t)processors * blocks_per_processor;
    const size_t wanted = box->tiles ? box->items : ((size_t)box->items + box_threads - 1) / box_threads;
    kernel_for(*box)<<<(unsigned)(wanted < most ? wanted : most), box_threads, 0, stream>>>(*box);
    return cudaGetLastError();
}
