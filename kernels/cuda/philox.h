/*
 * Philox4x32-10 on a GPU: the same numbers as kernels/host/random.c.
 */
#ifndef TUTTI_KERNELS_CUDA_PHILOX_H
#define TUTTI_KERNELS_CUDA_PHILOX_H

#include "kernels/cuda/grid.h"

#define PHILOX_ROUNDS 10

static __device__ inline void philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t words_out[4]) {
    uint32_t key_0 = (uint32_t)seed, key_1 = (uint32_t)(seed >> 32);
    uint32_t x0 = (uint32_t)index, x1 = (uint32_t)(index >> 32);
    uint32_t x2 = (uint32_t)stream, x3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t product_0 = (uint64_t)0xD2511F53u * x0;
        uint64_t product_1 = (uint64_t)0xCD9E8D57u * x2;
        x0 = (uint32_t)(product_1 >> 32) ^ x1 ^ key_0;
        x1 = (uint32_t)product_1;
        x2 = (uint32_t)(product_0 >> 32) ^ x3 ^ key_1;
        x3 = (uint32_t)product_0;
        key_0 += 0x9E3779B9u;
        key_1 += 0xBB67AE85u;
    }
    words_out[0] = x0;
    words_out[1] = x1;
    words_out[2] = x2;
    words_out[3] = x3;
}

#endif
