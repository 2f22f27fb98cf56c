/*
 * What happens to one element in a reduction on a GPU: the arithmetic of kernels/host/reduce/reduce_loops.h in a form
 * that nvcc compiles for the GPU and any C compiler for the host, where a test compares it with the host's loops, bit
 * for bit.
 *
 * A stored element is started (widened, multiplied by its source's factor), combined with the result so far, and
 * finished (scaled, rounded, narrowed) once. `fold` is a constant wherever these functions are called. 8- and 16-bit
 * integers are computed in 32 bits: sums and products have the right low bits, and no other operation can exceed the
 * type.
 *
 * Invariant: every operation is exactly rounded or on integers, none is fused, and a computed NaN is the positive
 * quiet NaN without payload. Compiled with -fmad=false, and without flush-to-zero.
 */
#ifndef TUTTI_KERNELS_CUDA_REDUCE_ELEMENT_H
#define TUTTI_KERNELS_CUDA_REDUCE_ELEMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/reduce/small_floats.h"

typedef enum tutti_cuda_fold {
    TUTTI_CUDA_SUM,
    TUTTI_CUDA_MIN,
    TUTTI_CUDA_MAX,
    TUTTI_CUDA_PROD,
    TUTTI_CUDA_AND,
    TUTTI_CUDA_OR,
    TUTTI_CUDA_XOR
} tutti_cuda_fold;

typedef enum tutti_cuda_finish {
    TUTTI_CUDA_AS_IT_IS,
    TUTTI_CUDA_TIMES,         /* avg where 1 / divisor is exact */
    TUTTI_CUDA_OVER,          /* avg of floats otherwise */
    TUTTI_CUDA_OVER_UNSIGNED, /* avg of integers */
    TUTTI_CUDA_OVER_SIGNED
} tutti_cuda_finish;

/* The values that are the same for all elements of a call. */
typedef struct tutti_cuda_rule {
    tutti_cuda_fold fold;
    tutti_cuda_finish finish;
    bool premul;    /* each source has a factor */
    bool normalise; /* bool: any byte other than 0 becomes 1 */
    uint64_t bias;  /* sign bit of signed integers, else 0: compared without it, they have the order of unsigned ones */
    double scale;   /* floats: the operand of TIMES and OVER */
    int32_t divisor;
} tutti_cuda_rule;

/* ------------------------------------------------------------------------------------------------- floats */

ELEMENT_INLINE float widen_bf16(uint16_t code) {
    return bits_float((uint32_t)code << 16);
}
ELEMENT_INLINE uint16_t narrow_bf16(float value) {
    const uint32_t bits = float_bits(value), rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}
ELEMENT_INLINE float widen_f32(float value) {
    return value;
}
ELEMENT_INLINE float narrow_f32(float value) {
    return value;
}

/* Equal numbers differ at most in the sign of zero, which `or` (min) and `and` (max) of the bits settle. Multiplying
 * by 1 changes nothing: one product for all, with or without factors, is less work than a choice for each element. */
#define ELEMENT_FLOATS(name, number, word, nan_bits)                                                                   \
    ELEMENT_INLINE number name##_of(word bits) {                                                                       \
        number value;                                                                                                  \
        memcpy(&value, &bits, sizeof value);                                                                           \
        return value;                                                                                                  \
    }                                                                                                                  \
    ELEMENT_INLINE word name##_bits(number value) {                                                                    \
        word bits;                                                                                                     \
        memcpy(&bits, &value, sizeof bits);                                                                            \
        return bits;                                                                                                   \
    }                                                                                                                  \
    ELEMENT_INLINE number name##_extreme(bool least, number x, number y) {                                             \
        const word a = name##_bits(x), b = name##_bits(y);                                                             \
        const number equal = name##_of(least ? a | b : a & b), other = (least ? x < y : x > y) ? x : y;                \
        return x != x ? x : x == y ? equal : other;                                                                    \
    }                                                                                                                  \
    ELEMENT_INLINE number name##_combine(tutti_cuda_fold fold, number x, number y, uint64_t bias) {                    \
        (void)bias;                                                                                                    \
        if (fold == TUTTI_CUDA_PROD) return x * y;                                                                     \
        if (fold == TUTTI_CUDA_MIN || fold == TUTTI_CUDA_MAX) return name##_extreme(fold == TUTTI_CUDA_MIN, x, y);     \
        return x + y;                                                                                                  \
    }                                                                                                                  \
    ELEMENT_INLINE number name##_start(const tutti_cuda_rule *rule, number x, uint64_t factor) {                       \
        return x * (rule->premul ? name##_of((word)factor) : 1);                                                       \
    }                                                                                                                  \
    ELEMENT_INLINE number name##_finish(tutti_cuda_finish finish, const tutti_cuda_rule *rule, number x) {             \
        if (finish == TUTTI_CUDA_TIMES) x = x * (number)rule->scale;                                                   \
        if (finish == TUTTI_CUDA_OVER) x = x / (number)rule->scale;                                                    \
        return x == x ? x : name##_of(nan_bits);                                                                       \
    }

/* ----------------------------------------------------------------------------------------------- integers */

/* The wide signed type holds every value of the element and the divisor; C's division truncates. */
#define ELEMENT_INTEGERS(name, word, narrow_signed, wide_signed, element)                                              \
    ELEMENT_INLINE word name##_combine(tutti_cuda_fold fold, word x, word y, uint64_t bias) {                          \
        switch (fold) {                                                                                                \
        case TUTTI_CUDA_MIN: return (x ^ (word)bias) < (y ^ (word)bias) ? x : y;                                       \
        case TUTTI_CUDA_MAX: return (x ^ (word)bias) > (y ^ (word)bias) ? x : y;                                       \
        case TUTTI_CUDA_PROD: return x * y;                                                                            \
        case TUTTI_CUDA_AND: return x & y;                                                                             \
        case TUTTI_CUDA_OR: return x | y;                                                                              \
        case TUTTI_CUDA_XOR: return x ^ y;                                                                             \
        default: return x + y;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    ELEMENT_INLINE word name##_start(const tutti_cuda_rule *rule, element x, uint64_t factor) {                        \
        if (rule->normalise) return x != 0;                                                                            \
        return rule->premul ? (word)x * (word)factor : (word)x;                                                        \
    }                                                                                                                  \
    ELEMENT_INLINE element name##_finish(tutti_cuda_finish finish, const tutti_cuda_rule *rule, word x) {              \
        const element low = (element)x;                                                                                \
        if (finish == TUTTI_CUDA_OVER_UNSIGNED) return (element)(low / (word)rule->divisor);                           \
        if (finish == TUTTI_CUDA_OVER_SIGNED)                                                                          \
            return (element)((wide_signed)(narrow_signed)low / (wide_signed)rule->divisor);                            \
        return low;                                                                                                    \
    }

ELEMENT_FLOATS(f32, float, uint32_t, 0x7fc00000u)
ELEMENT_FLOATS(f64, double, uint64_t, UINT64_C(0x7ff8000000000000))
ELEMENT_INTEGERS(u8, uint32_t, int8_t, int32_t, uint8_t)
ELEMENT_INTEGERS(u16, uint32_t, int16_t, int32_t, uint16_t)
ELEMENT_INTEGERS(u32, uint32_t, int32_t, int32_t, uint32_t)
ELEMENT_INTEGERS(u64, uint64_t, int64_t, int64_t, uint64_t)

#endif
