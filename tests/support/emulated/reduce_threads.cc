/*
 * The GPU's kernels for reductions and copies, compiled for the host: their threads run one after the other, with the
 * grids that a GPU would get. This is sufficient, since the threads share nothing.
 */
#include "tests/support/emulated/reduce_threads.h"

#define __global__
#define __device__
#define __forceinline__
#define __grid_constant__
#define __launch_bounds__(threads)

struct uint4 {
    unsigned x, y, z, w;
};
struct dim3 {
    unsigned x, y;
};
static dim3 threadIdx, blockIdx, blockDim, gridDim;

static void __threadfence_system() {}

#include "kernels/cuda/reduce/reduce_kernels.h"

template <class Kernel, class Argument> static void run(Kernel kernel, const Argument &argument, dim3 grid) {
    gridDim = grid;
    blockDim = {threads_per_block, 1};
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
            for (threadIdx = {0, 0}; threadIdx.x < blockDim.x; threadIdx.x++) kernel(argument);
}

extern "C" void reduce_by_threads(const tutti_cuda_reduce_plan *plan, unsigned blocks) {
    typedef void (*reduce_kernel)(tutti_cuda_reduce_plan);
    static const reduce_kernel kernels[TUTTI_CUDA_FAMILY_COUNT] = {
        reduce<f32>,  reduce<f64>, reduce<f16>, reduce<bf16>, reduce<e4m3>,
        reduce<e5m2>, reduce<u8>,  reduce<u16>, reduce<u32>,  reduce<u64>};
    run(kernels[plan->family], *plan, {blocks, 1});
}

extern "C" void copy_by_threads(const tutti_cuda_copies *copies, unsigned blocks) {
    run(copy_pieces, *copies, {(unsigned)copies->count, blocks});
}

extern "C" void copy_counted_by_threads(tutti_cuda_move most, const uint64_t *bytes_at, unsigned blocks) {
    run([bytes_at](const tutti_cuda_move &move) { copy_counted(move, bytes_at); }, most, {blocks, 1});
}

extern "C" void store_by_thread(uint64_t *at, uint64_t value) {
    store_value(at, value);
}
