/*
 * float32 to bfloat16, on any device.
 */
#ifndef TUTTI_KERNELS_CUDA_BFLOAT16_H
#define TUTTI_KERNELS_CUDA_BFLOAT16_H

#include <stdint.h>
#include <string.h>

#include "kernels/cuda/grid.h"

/* Rounds to the nearest, ties to even; a NaN stays a NaN. */
static __device__ inline uint16_t bfloat16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
