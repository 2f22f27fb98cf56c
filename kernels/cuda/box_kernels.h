/*
 * The kernels of copies of boxes: code of the GPU, without what starts it (box.cu), so that a test can compile it for the host
 * (tests/support/box_threads.cc).
 *
 * Neighbouring threads take words that are neighbours in dst. Where these are far apart in src, but neighbours of another dimension are
 * not (a transpose), a block takes a tile: it reads what lies together in src, exchanges it in shared memory, and writes what lies
 * together in dst. No word is touched by two threads but in a tile.
 */
#ifndef TUTTI_KERNELS_CUDA_BOX_KERNELS_H
#define TUTTI_KERNELS_CUDA_BOX_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/box_plan.h"

namespace {

constexpr unsigned box_threads = 256; // of a block

struct box_place {
    int64_t dst, src; // bytes
};

/* Of item `number` of the dimensions. */
__device__ __forceinline__ box_place find_place(const tutti_cuda_box &box, uint32_t number) {
    box_place place = {0, 0};
#pragma unroll 1
    for (int i = box.ndims - 1; i >= 0; i--) {
        const tutti_cuda_box_dim &dim = box.dims[i];
        uint32_t index = number;
        number = i > 0 ? split(&index, dim.by) : 0;
        place.dst += index * dim.dst_step;
        place.src += index * dim.src_step;
    }
    return place;
}

/* Four words are under way before the first one is written. */
template <class W>
__global__ void __launch_bounds__(box_threads) copy_box_words(const __grid_constant__ tutti_cuda_box box) {
    constexpr uint32_t MANY = 4;
    const uint32_t stride = gridDim.x * blockDim.x;
    uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; number + (MANY - 1) * stride < box.items; number += MANY * stride) {
        W words[MANY];
        int64_t to[MANY];
#pragma unroll
        for (uint32_t k = 0; k < MANY; k++) {
            const box_place place = find_place(box, number + k * stride);
            words[k] = *(const W *)(box.src + place.src);
            to[k] = place.dst;
        }
#pragma unroll
        for (uint32_t k = 0; k < MANY; k++) *(W *)(box.dst + to[k]) = words[k];
    }
#pragma unroll 1
    for (; number < box.items; number += stride) {
        const box_place place = find_place(box, number);
        *(W *)(box.dst + place.dst) = *(const W *)(box.src + place.src);
    }
}

/* Rows of a tile in shared memory are some bytes longer than its side: columns then lie in different banks. */
template <class W>
__global__ void __launch_bounds__(box_threads) copy_box_tiles(const __grid_constant__ tutti_cuda_box box) {
    constexpr uint32_t SIDE = sizeof(W) < 4 ? 64 : 32, ROWS = box_threads / SIDE,
                       GAP = sizeof(W) < 4 ? 4 / sizeof(W) : 1;
    __shared__ W tile[SIDE][SIDE + GAP];
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll 1
    for (uint32_t number = blockIdx.x; number < box.items; number += gridDim.x) {
        uint32_t a = number, rest = split(&a, box.tiles_a), b = rest;
        const box_place place = find_place(box, split(&b, box.tiles_b));
        a *= SIDE;
        b *= SIDE;
#pragma unroll 8
        for (uint32_t row = y; row < SIDE; row += ROWS)
            if (a + row < box.count_a && b + x < box.count_b)
                tile[row][x] = *(const W *)(box.src + place.src + (a + row) * box.src_a + (b + x) * box.src_b);
        __syncthreads();
#pragma unroll 8
        for (uint32_t row = y; row < SIDE; row += ROWS)
            if (b + row < box.count_b && a + x < box.count_a)
                *(W *)(box.dst + place.dst + (a + x) * box.dst_a + (b + row) * box.dst_b) = tile[x][row];
        __syncthreads();
    }
}

typedef void (*box_kernel)(tutti_cuda_box);

/* By the binary logarithm of a word's bytes. */
const box_kernel word_kernels[TUTTI_CUDA_BOX_WORDS] = {copy_box_words<uint8_t>, copy_box_words<uint16_t>,
                                                       copy_box_words<uint32_t>, copy_box_words<uint64_t>,
                                                       copy_box_words<uint4>},
                 tile_kernels[TUTTI_CUDA_BOX_WORDS] = {copy_box_tiles<uint8_t>, copy_box_tiles<uint16_t>,
                                                       copy_box_tiles<uint32_t>, copy_box_tiles<uint64_t>,
                                                       copy_box_tiles<uint4>};

inline box_kernel kernel_for(const tutti_cuda_box &box) {
    int word = 0;
    while (1 << word < box.word_bytes) word++;
    return (box.tiles ? tile_kernels : word_kernels)[word];
}

} // namespace

#endif
