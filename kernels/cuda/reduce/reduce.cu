/*
 * Starting the kernels of reductions and copies (reduce_kernels.h).
 */
#include <cuda_runtime.h>

#include "kernels/cuda/reduce/launch.h"
#include "kernels/cuda/reduce/reduce_kernels.h"

namespace {

/* A processor holds 4 to 8 blocks at once, depending on the kernel's registers. With several times as many, all
 * processors stay busy to the end, and the cost of starting a block is still small compared with its work. */
constexpr size_t blocks_per_processor = 32;

unsigned blocks_for(size_t items, size_t most) {
    const size_t wanted = (items + threads_per_block - 1) / threads_per_block;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

typedef void (*reduce_kernel)(tutti_cuda_reduce_plan);

const reduce_kernel reduce_kernels[TUTTI_CUDA_FAMILY_COUNT] = {reduce<f32>,  reduce<f64>,  reduce<f16>, reduce<bf16>,
                                                               reduce<e4m3>, reduce<e5m2>, reduce<u8>,  reduce<u16>,
                                                               reduce<u32>,  reduce<u64>};

} // namespace

extern "C" cudaError_t tutti_cuda_launch_prepare(void) {
    cudaFuncAttributes attributes;
    cudaError_t result = cudaFuncGetAttributes(&attributes, (const void *)copy_pieces);
    if (result == cudaSuccess) result = cudaFuncGetAttributes(&attributes, (const void *)copy_counted);
    if (result == cudaSuccess) result = cudaFuncGetAttributes(&attributes, (const void *)store_value);
    for (int i = 0; i < TUTTI_CUDA_FAMILY_COUNT && result == cudaSuccess; i++)
        result = cudaFuncGetAttributes(&attributes, (const void *)reduce_kernels[i]);
    return result;
}

extern "C" cudaError_t tutti_cuda_launch_reduce(const tutti_cuda_reduce_plan *plan, int processors,
                                                cudaStream_t stream) {
    const size_t most = (size_t)processors * blocks_per_processor;
    const unsigned blocks = blocks_for(plan->vectors > 0 ? plan->vectors : plan->count, most);
    reduce_kernels[plan->family]<<<blocks, threads_per_block, 0, stream>>>(*plan);
    return cudaGetLastError();
}

extern "C" cudaError_t tutti_cuda_launch_copies(const tutti_cuda_copies *copies, int processors, cudaStream_t stream) {
    size_t longest = 0;
    for (int i = 0; i < copies->count; i++)
        if (copies->list[i].bytes > longest) longest = copies->list[i].bytes;
    const size_t most = (size_t)processors * blocks_per_processor / (size_t)copies->count;
    const unsigned blocks = blocks_for(longest / vector_bytes, most > (size_t)processors ? most : (size_t)processors);
    copy_pieces<<<dim3((unsigned)copies->count, blocks), threads_per_block, 0, stream>>>(*copies);
    return cudaGetLastError();
}

/* The host's memory is slow: one block per processor keeps enough loads under way to fill the bus. */
extern "C" cudaError_t tutti_cuda_launch_counted(tutti_cuda_move most, const uint64_t *bytes_at, int processors,
                                                 cudaStream_t stream) {
    const unsigned blocks = blocks_for(most.bytes / vector_bytes, (size_t)processors);
    copy_counted<<<blocks, threads_per_block, 0, stream>>>(most, bytes_at);
    return cudaGetLastError();
}

extern "C" cudaError_t tutti_cuda_launch_store(uint64_t *at, uint64_t value, cudaStream_t stream) {
    store_value<<<1, 1, 0, stream>>>(at, value);
    return cudaGetLastError();
}
