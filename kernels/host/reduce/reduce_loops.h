/*
 * All loops of one instruction set and the table of them. A variant's .c file defines REDUCE_VARIANT (the table's
 * name) and REDUCE_VARIANT_NAME, is compiled with the flags of its instruction set, and includes this file.
 *
 * The loops are plain C that gcc and clang vectorise. Every operation in them is exactly rounded or on integers,
 * and a NaN result gets one fixed pattern, so all variants give the same bits.
 */
#include "kernels/host/reduce/reduce_small.h"
#include "kernels/host/reduce/reduce_variant.h"

/* Products and sums of the narrow unsigned types are computed in unsigned int: no signed overflow, same low bits. */
#define INTEGER_OPERATIONS(suffix, element)                                                                            \
    REDUCE_INLINE element start_##suffix(tutti_reduce_fold fold, element x, element factor) {                          \
        return fold == TUTTI_FOLD_PREMUL ? (element)(1u * x * factor) : x;                                             \
    }                                                                                                                  \
    REDUCE_INLINE element combine_##suffix(tutti_reduce_fold fold, element x, element y) {                             \
        switch (fold) {                                                                                                \
        case TUTTI_FOLD_PROD: return (element)(1u * x * y);                                                            \
        case TUTTI_FOLD_MIN: return x < y ? x : y;                                                                     \
        case TUTTI_FOLD_MAX: return x > y ? x : y;                                                                     \
        case TUTTI_FOLD_AND: return x & y;                                                                             \
        case TUTTI_FOLD_OR: return x | y;                                                                              \
        case TUTTI_FOLD_XOR: return x ^ y;                                                                             \
        default: return (element)(1u * x + y);                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    REDUCE_INLINE element finish_##suffix(tutti_reduce_fold fold, element x, element scale) {                          \
        (void)fold, (void)scale;                                                                                       \
        return x;                                                                                                      \
    }

#define SIGNED_ORDER(suffix, element)                                                                                  \
    REDUCE_INLINE element start_##suffix(tutti_reduce_fold fold, element x, element factor) {                          \
        (void)fold, (void)factor;                                                                                      \
        return x;                                                                                                      \
    }                                                                                                                  \
    REDUCE_INLINE element combine_##suffix(tutti_reduce_fold fold, element x, element y) {                             \
        return (fold == TUTTI_FOLD_MIN) == (x < y) ? x : y;                                                            \
    }                                                                                                                  \
    REDUCE_INLINE element finish_##suffix(tutti_reduce_fold fold, element x, element scale) {                          \
        (void)fold, (void)scale;                                                                                       \
        return x;                                                                                                      \
    }

#define FLOAT_OPERATIONS(suffix, element)                                                                              \
    REDUCE_INLINE element quiet_##suffix(element x) {                                                                  \
        return x == x ? x : (element)__builtin_nanf("");                                                               \
    }                                                                                                                  \
    REDUCE_INLINE element start_##suffix(tutti_reduce_fold fold, element x, element factor) {                          \
        return fold == TUTTI_FOLD_PREMUL ? x * factor : x;                                                             \
    }                                                                                                                  \
    REDUCE_INLINE element combine_##suffix(tutti_reduce_fold fold, element x, element y) {                             \
        switch (fold) {                                                                                                \
        case TUTTI_FOLD_PROD: return x * y;                                                                            \
        case TUTTI_FOLD_MIN:                                                                                           \
        case TUTTI_FOLD_MAX: return extreme_##suffix(fold == TUTTI_FOLD_MIN, x, y);                                    \
        default: return x + y;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    REDUCE_INLINE element finish_##suffix(tutti_reduce_fold fold, element x, element scale) {                          \
        if (fold == TUTTI_FOLD_SUM_TIMES) x = x * scale;                                                               \
        if (fold == TUTTI_FOLD_SUM_OVER) x = x / scale;                                                                \
        return quiet_##suffix(x);                                                                                      \
    }

/* Any byte but 0 is true: each input is normalised before it is combined. */
REDUCE_INLINE uint8_t start_b8(tutti_reduce_fold fold, uint8_t x, uint8_t factor) {
    (void)fold, (void)factor;
    return x != 0;
}

REDUCE_INLINE uint8_t combine_b8(tutti_reduce_fold fold, uint8_t x, uint8_t y) {
    return fold == TUTTI_FOLD_AND ? x & y : fold == TUTTI_FOLD_OR ? x | y : x ^ y;
}

REDUCE_INLINE uint8_t finish_b8(tutti_reduce_fold fold, uint8_t x, uint8_t scale) {
    (void)fold, (void)scale;
    return x;
}

INTEGER_OPERATIONS(u8, uint8_t)
INTEGER_OPERATIONS(u16, uint16_t)
INTEGER_OPERATIONS(u32, uint32_t)
INTEGER_OPERATIONS(u64, uint64_t)
SIGNED_ORDER(i8, int8_t)
SIGNED_ORDER(i16, int16_t)
SIGNED_ORDER(i32, int32_t)
SIGNED_ORDER(i64, int64_t)
FLOAT_OPERATIONS(f32, float)
FLOAT_OPERATIONS(f64, double)

#define WHOLE_FACTOR(scalars, input) ((ELEMENT)(scalars)->whole_factor[input])
#define REAL_FACTOR(scalars, input)  ((ELEMENT)(scalars)->factor[input])

#define ELEMENT uint8_t
#define SUFFIX  u8
#define FACTOR  WHOLE_FACTOR
#define STEPS_ARITHMETIC
#define STEPS_ORDER
#define STEPS_BITWISE
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT uint16_t
#define SUFFIX  u16
#define FACTOR  WHOLE_FACTOR
#define STEPS_ARITHMETIC
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT uint32_t
#define SUFFIX  u32
#define FACTOR  WHOLE_FACTOR
#define STEPS_ARITHMETIC
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT uint64_t
#define SUFFIX  u64
#define FACTOR  WHOLE_FACTOR
#define STEPS_ARITHMETIC
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT int8_t
#define SUFFIX  i8
#define FACTOR  WHOLE_FACTOR
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT int16_t
#define SUFFIX  i16
#define FACTOR  WHOLE_FACTOR
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT int32_t
#define SUFFIX  i32
#define FACTOR  WHOLE_FACTOR
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT int64_t
#define SUFFIX  i64
#define FACTOR  WHOLE_FACTOR
#define STEPS_ORDER
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT float
#define SUFFIX  f32
#define FACTOR  REAL_FACTOR
#define STEPS_ARITHMETIC
#define STEPS_ORDER
#define STEPS_SCALED
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT double
#define SUFFIX  f64
#define FACTOR  REAL_FACTOR
#define STEPS_ARITHMETIC
#define STEPS_ORDER
#define STEPS_SCALED
#include "kernels/host/reduce/reduce_steps.h"

#define ELEMENT uint8_t
#define SUFFIX  b8
#define FACTOR  WHOLE_FACTOR
#define STEPS_BITWISE
#include "kernels/host/reduce/reduce_steps.h"

#define TO_2(word, suffix) {word##_1_##suffix, word##_2_##suffix}
#define TO_4(word, suffix) {word##_1_##suffix, word##_2_##suffix, word##_3_##suffix, word##_4_##suffix}
#define ARITHMETIC_STEPS(suffix)                                                                                       \
    [TUTTI_FOLD_SUM] = TO_4(sum, suffix), [TUTTI_FOLD_PROD] = TO_2(prod, suffix),                                      \
    [TUTTI_FOLD_PREMUL] = TO_2(premul, suffix)
#define ORDER_STEPS(suffix)  [TUTTI_FOLD_MIN] = TO_2(min, suffix), [TUTTI_FOLD_MAX] = TO_2(max, suffix)
#define SCALED_STEPS(suffix) [TUTTI_FOLD_SUM_TIMES] = TO_4(times, suffix), [TUTTI_FOLD_SUM_OVER] = TO_4(over, suffix)
#define BITWISE_STEPS(suffix)                                                                                          \
    [TUTTI_FOLD_AND] = TO_2(and, suffix), [TUTTI_FOLD_OR] = TO_2(or, suffix), [TUTTI_FOLD_XOR] = TO_2(xor, suffix)

/* clang-format off: one row per type. Signed sums and products have the bits of the unsigned ones. */
const tutti_reduce_variant REDUCE_VARIANT = {
    .name = REDUCE_VARIANT_NAME,
    .steps =
        {
            [TUTTI_INT8] = {ARITHMETIC_STEPS(u8), ORDER_STEPS(i8)},
            [TUTTI_UINT8] = {ARITHMETIC_STEPS(u8), ORDER_STEPS(u8), BITWISE_STEPS(u8)},
            [TUTTI_INT16] = {ARITHMETIC_STEPS(u16), ORDER_STEPS(i16)},
            [TUTTI_UINT16] = {ARITHMETIC_STEPS(u16), ORDER_STEPS(u16)},
            [TUTTI_INT32] = {ARITHMETIC_STEPS(u32), ORDER_STEPS(i32)},
            [TUTTI_UINT32] = {ARITHMETIC_STEPS(u32), ORDER_STEPS(u32)},
            [TUTTI_INT64] = {ARITHMETIC_STEPS(u64), ORDER_STEPS(i64)},
            [TUTTI_UINT64] = {ARITHMETIC_STEPS(u64), ORDER_STEPS(u64)},
            [TUTTI_BOOL] = {BITWISE_STEPS(b8)},
            [TUTTI_FLOAT32] = {ARITHMETIC_STEPS(f32), ORDER_STEPS(f32), SCALED_STEPS(f32)},
            [TUTTI_FLOAT64] = {ARITHMETIC_STEPS(f64), ORDER_STEPS(f64), SCALED_STEPS(f64)},
        },
    .widen =
        {
            [TUTTI_FLOAT16] = widen_float16,
            [TUTTI_BFLOAT16] = widen_bfloat16,
            [TUTTI_FLOAT8_E4M3] = widen_float8_e4m3,
            [TUTTI_FLOAT8_E5M2] = widen_float8_e5m2,
        },
    .narrow =
        {
            [TUTTI_FLOAT16] = narrow_float16,
            [TUTTI_BFLOAT16] = narrow_bfloat16,
            [TUTTI_FLOAT8_E4M3] = narrow_float8_e4m3,
            [TUTTI_FLOAT8_E5M2] = narrow_float8_e5m2,
        },
};
/* clang-format on */
