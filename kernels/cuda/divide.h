/*
 * Division by a number that is known before the launch, done as a multiplication: Granlund and Montgomery, "Division
 * by invariant integers using multiplication", PLDI 1994. Dividends must be below 2^31.
 */
#ifndef TUTTI_KERNELS_CUDA_DIVIDE_H
#define TUTTI_KERNELS_CUDA_DIVIDE_H

#include <stdint.h>

typedef struct divider {
    uint32_t divisor, multiplier, shift;
} divider;

static inline divider divider_by(int divisor) {
    divider made = {(uint32_t)divisor, 0, 0};
    while ((UINT64_C(1) << made.shift) < made.divisor) made.shift++;
    made.multiplier =
        (uint32_t)(((UINT64_C(1) << 32) * ((UINT64_C(1) << made.shift) - made.divisor)) / made.divisor + 1);
    return made;
}

#ifdef __cplusplus
static __device__ inline uint32_t divide(uint32_t dividend, divider by) {
    return ((uint32_t)(((uint64_t)dividend * by.multiplier) >> 32) + dividend) >> by.shift;
}

/* Returns the quotient; the dividend becomes the remainder. */
static __device__ inline uint32_t split(uint32_t *dividend, divider by) {
    uint32_t quotient = divide(*dividend, by);
    *dividend -= quotient * by.divisor;
    return quotient;
}
#endif

#endif
