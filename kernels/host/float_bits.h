/*
 * Floats and their bits, and the smaller and the larger of two floats, for the reductions and the operators. Nothing
 * branches.
 */
#ifndef TUTTI_KERNELS_HOST_FLOAT_BITS_H
#define TUTTI_KERNELS_HOST_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* the operators' kernels compute with the same functions */
#define REDUCE_INLINE static __host__ __device__ __forceinline__
#else
#define REDUCE_INLINE static inline __attribute__((always_inline))
#endif

/* The output may be one of the inputs, since an iteration reads and writes only its own index. */
#if defined(__clang__)
#define REDUCE_SAME_INDEX_ONLY _Pragma("clang loop vectorize(assume_safety)")
#else
#define REDUCE_SAME_INDEX_ONLY _Pragma("GCC ivdep")
#endif

REDUCE_INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

REDUCE_INLINE float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns the smaller or the larger number; NaN wins. Equal numbers differ at most in the sign of zero, which a
 * bitwise or (smaller) or and (larger) settles. */
#define FLOAT_EXTREME(suffix, element, word)                                                                           \
    REDUCE_INLINE element extreme_##suffix(int smaller, element x, element y) {                                        \
        word bits_x, bits_y;                                                                                           \
        memcpy(&bits_x, &x, sizeof x);                                                                                 \
        memcpy(&bits_y, &y, sizeof y);                                                                                 \
        const word bits_equal = smaller ? bits_x | bits_y : bits_x & bits_y;                                           \
        element equal;                                                                                                 \
        memcpy(&equal, &bits_equal, sizeof equal);                                                                     \
        const element other = (smaller ? x < y : x > y) ? x : y;                                                       \
        const element number = x == y ? equal : other;                                                                 \
        return x == x ? number : x;                                                                                    \
    }
FLOAT_EXTREME(f32, float, uint32_t)
FLOAT_EXTREME(f64, double, uint64_t)
#undef FLOAT_EXTREME

#endif
