/*
 * The kernels of copies of boxes: the GPU code without its launch (box.cu), so that a test can compile it for the
 * host (tests/support/emulated/box_threads.cc).
 *
 * Neighbouring threads take words that are neighbours in dst. Where these are far apart in src, but neighbours along
 * another dimension are not (a transpose), a block takes a tile: it reads what lies together in src, exchanges it in
 * shared memory, and writes what lies together in dst. Only within a tile do two threads touch the same word. Where
 * the copy permits it (`packs`), a thread moves four bytes at once; if these are several words, the thread exchanges
 * them in registers with those of as many rows.
 */
#ifndef TUTTI_KERNELS_CUDA_BOX_KERNELS_H
#define TUTTI_KERNELS_CUDA_BOX_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/reduce/box_plan.h"

namespace {

constexpr unsigned box_threads = 256; // per block

struct box_place {
    int64_t dst, src; // bytes
};

/* The place of item `number` of the dimensions. */
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

/* A thread loads four words before it writes the first one. */
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

/* A thread issues the loads of all its words before it waits for the first one. Rows of a tile in shared memory are
 * some bytes longer than its side: columns then lie in different banks. */
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
        W words[SIDE / ROWS];
        const char *src = box.src + place.src + (a + y) * box.src_a + (b + x) * box.src_b;
#pragma unroll
        for (uint32_t i = 0; i < SIDE / ROWS; i++, src += ROWS * box.src_a)
            words[i] = a + i * ROWS + y < box.count_a && b + x < box.count_b ? *(const W *)src : W();
#pragma unroll
        for (uint32_t i = 0; i < SIDE / ROWS; i++) tile[i * ROWS + y][x] = words[i];
        __syncthreads();
        char *dst = box.dst + place.dst + (b + y) * box.dst_b + (a + x) * box.dst_a;
#pragma unroll
        for (uint32_t i = 0; i < SIDE / ROWS; i++, dst += ROWS * box.dst_b)
            if (b + i * ROWS + y < box.count_b && a + x < box.count_a) *(W *)dst = tile[x][i * ROWS + y];
        __syncthreads();
    }
}

/* Turns rows of words, which each fill four bytes, into columns. */
__device__ __forceinline__ void exchange(uint32_t (&rows)[2]) {
    const uint32_t first = rows[0], second = rows[1];
    rows[0] = __byte_perm(first, second, 0x5410);
    rows[1] = __byte_perm(first, second, 0x7632);
}

__device__ __forceinline__ void exchange(uint32_t (&rows)[4]) {
    uint32_t upper[2] = {__byte_perm(rows[0], rows[1], 0x5140), __byte_perm(rows[2], rows[3], 0x5140)};
    uint32_t lower[2] = {__byte_perm(rows[0], rows[1], 0x7362), __byte_perm(rows[2], rows[3], 0x7362)};
    exchange(upper);
    exchange(lower);
    rows[0] = upper[0], rows[1] = upper[1], rows[2] = lower[0], rows[3] = lower[1];
}

__device__ __forceinline__ void exchange(uint32_t (&)[1]) {}

/* A tile is 128 or 256 bytes wide on both sides: a warp reads and writes whole lines. The order of the columns in
 * shared memory puts those that a warp stores at once into different banks. */
template <class W>
__global__ void __launch_bounds__(box_threads) copy_box_packed(const __grid_constant__ tutti_cuda_box box) {
    constexpr uint32_t MANY = 4 / sizeof(W), LANES = 32, WIDE = MANY == 1 ? 2 : 1, PACKS = LANES * WIDE;
    constexpr uint32_t SIDE = PACKS * MANY, ROWS = box_threads / LANES;
    static_assert(ROWS % MANY == 0, "a warp's rows of dst come from the same place of packs");
    __shared__ uint32_t tile[MANY][PACKS][PACKS + 1];
    const uint32_t x = threadIdx.x % LANES, y = threadIdx.x / LANES;
#pragma unroll 1
    for (uint32_t number = blockIdx.x; number < box.items; number += gridDim.x) {
        uint32_t a = number, rest = split(&a, box.tiles_a), b = rest;
        const box_place place = find_place(box, split(&b, box.tiles_b));
        a *= SIDE;
        b *= SIDE;
        uint32_t packs[PACKS / ROWS][WIDE][MANY];
        const char *src = box.src + place.src + (a + y * MANY) * box.src_a + (b + x * MANY) * sizeof(W);
#pragma unroll
        for (uint32_t i = 0; i < PACKS / ROWS; i++) {
            const bool inside = a + (i * ROWS + y) * MANY < box.count_a;
#pragma unroll
            for (uint32_t k = 0; k < MANY; k++, src += box.src_a)
#pragma unroll
                for (uint32_t w = 0; w < WIDE; w++)
                    packs[i][w][k] = inside && b + (w * LANES + x) * MANY < box.count_b
                                         ? *(const uint32_t *)(src + w * LANES * 4)
                                         : 0;
            src += (ROWS - 1) * MANY * box.src_a;
        }
#pragma unroll
        for (uint32_t i = 0; i < PACKS / ROWS; i++)
#pragma unroll
            for (uint32_t w = 0; w < WIDE; w++) {
                exchange(packs[i][w]);
#pragma unroll
                for (uint32_t k = 0; k < MANY; k++) tile[k][w * LANES + x][i * ROWS + y] = packs[i][w][k];
            }
        __syncthreads();
        char *dst = box.dst + place.dst + (b + y) * box.dst_b + (a + x * MANY) * sizeof(W);
#pragma unroll
        for (uint32_t i = 0; i < SIDE / ROWS; i++, dst += ROWS * box.dst_b)
#pragma unroll
            for (uint32_t w = 0; w < WIDE; w++)
                if (b + i * ROWS + y < box.count_b && a + (w * LANES + x) * MANY < box.count_a)
                    *(uint32_t *)(dst + w * LANES * 4) = tile[y % MANY][i * (ROWS / MANY) + y / MANY][w * LANES + x];
        __syncthreads();
    }
}

typedef void (*box_kernel)(tutti_cuda_box);

/* Indexed by the binary logarithm of a word's bytes. */
const box_kernel word_kernels[TUTTI_CUDA_BOX_WORDS] = {copy_box_words<uint8_t>, copy_box_words<uint16_t>,
                                                       copy_box_words<uint32_t>, copy_box_words<uint64_t>,
                                                       copy_box_words<uint4>},
                 tile_kernels[TUTTI_CUDA_BOX_WORDS] = {copy_box_tiles<uint8_t>, copy_box_tiles<uint16_t>,
                                                       copy_box_tiles<uint32_t>, copy_box_tiles<uint64_t>,
                                                       copy_box_tiles<uint4>},
                 packed_kernels[] = {copy_box_packed<uint8_t>, copy_box_packed<uint16_t>, copy_box_packed<uint32_t>};

inline box_kernel kernel_for(const tutti_cuda_box &box) {
    int word = 0;
    while (1 << word < box.word_bytes) word++;
    return (box.packs ? packed_kernels : box.tiles ? tile_kernels : word_kernels)[word];
}

} // namespace

#endif
