/*
 * Philox4x32-10 (Salmon et al., 2011), one block; loops over it are vectorised.
 */
#ifndef TUTTI_KERNELS_HOST_PHILOX_H
#define TUTTI_KERNELS_HOST_PHILOX_H

#include <stdint.h>

#define PHILOX_ROUNDS       10
#define PHILOX_MULTIPLIER_0 UINT32_C(0xD2511F53)
#define PHILOX_MULTIPLIER_1 UINT32_C(0xCD9E8D57)
#define PHILOX_WEYL_0       UINT32_C(0x9E3779B9)
#define PHILOX_WEYL_1       UINT32_C(0xBB67AE85)

static inline __attribute__((always_inline)) void philox_block(uint64_t seed, uint64_t stream, uint64_t index,
                                                               uint32_t *restrict words_out) {
    uint32_t key_0 = (uint32_t)seed, key_1 = (uint32_t)(seed >> 32);
    uint32_t x0 = (uint32_t)index, x1 = (uint32_t)(index >> 32);
    uint32_t x2 = (uint32_t)stream, x3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t product_0 = (uint64_t)PHILOX_MULTIPLIER_0 * x0;
        const uint64_t product_1 = (uint64_t)PHILOX_MULTIPLIER_1 * x2;
        x0 = (uint32_t)(product_1 >> 32) ^ x1 ^ key_0;
        x1 = (uint32_t)product_1;
        x2 = (uint32_t)(product_0 >> 32) ^ x3 ^ key_1;
        x3 = (uint32_t)product_0;
        key_0 += PHILOX_WEYL_0;
        key_1 += PHILOX_WEYL_1;
    }
    words_out[0] = x0;
    words_out[1] = x1;
    words_out[2] = x2;
    words_out[3] = x3;
}

#endif
