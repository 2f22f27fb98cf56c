/*
 * Loops of the elementwise operations with two operands, one per operation and type.
 */
#include "kernels/host/float_bits.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/host/vector/op_vector.h"
#include "kernels/real.h"

#define STEP(word, suffix, element, expression)                                                                        \
    TUTTI_VECTOR_CLONES static void word##_##suffix(size_t count, const void *a, const void *b, void *y) {             \
        const element *as = a, *bs = b;                                                                                \
        element *ys = y;                                                                                               \
        REDUCE_SAME_INDEX_ONLY                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const element p = as[i], q = bs[i];                                                                        \
            ys[i] = (element)(expression);                                                                             \
        }                                                                                                              \
    }

/* Sums, differences and products are computed in unsigned numbers: no signed overflow, same low bits. 1u makes
 * promoted narrow types unsigned, too. */
#define WHOLE_STEPS(suffix, element)                                                                                   \
    STEP(add, suffix, element, 1u * p + q)                                                                             \
    STEP(sub, suffix, element, 1u * p - q)                                                                             \
    STEP(mul, suffix, element, 1u * p * q)                                                                             \
    STEP(equal, suffix, element, p == q)
WHOLE_STEPS(u8, uint8_t)
WHOLE_STEPS(u16, uint16_t)
WHOLE_STEPS(u32, uint32_t)
WHOLE_STEPS(u64, uint64_t)

#define ORDERED_STEPS(suffix, element, type)                                                                           \
    STEP(maximum, suffix, element, p > q ? p : q)                                                                      \
    STEP(minimum, suffix, element, p < q ? p : q)                                                                      \
    STEP(relu_backward, suffix, element, p <= 0 ? 0 : q)
OP_INTEGER_TYPES(ORDERED_STEPS)

/* The smallest / -1 would overflow, so a number is divided by -1 by negating it as an unsigned number. */
#define UNSIGNED_DIV(suffix, element) STEP(div, suffix, element, q == 0 ? 0 : p / (q == 0 ? 1 : q))
#define SIGNED_DIV(suffix, element, unsigned_element)                                                                  \
    STEP(div, suffix, element,                                                                                         \
         q == 0    ? 0                                                                                                 \
         : q == -1 ? (element)(1u * (unsigned_element)0 - (unsigned_element)p)                                         \
                   : p / (q == 0 || q == -1 ? 1 : q))
SIGNED_DIV(i8, int8_t, uint8_t)
SIGNED_DIV(i16, int16_t, uint16_t)
SIGNED_DIV(i32, int32_t, uint32_t)
SIGNED_DIV(i64, int64_t, uint64_t)
UNSIGNED_DIV(u8, uint8_t)
UNSIGNED_DIV(u16, uint16_t)
UNSIGNED_DIV(u32, uint32_t)
UNSIGNED_DIV(u64, uint64_t)

#define REAL_STEPS(suffix, element, type)                                                                              \
    STEP(add, suffix, element, p + q)                                                                                  \
    STEP(sub, suffix, element, p - q)                                                                                  \
    STEP(mul, suffix, element, p *q)                                                                                   \
    STEP(div, suffix, element, p / q)                                                                                  \
    STEP(maximum, suffix, element, extreme_##suffix(0, p, q))                                                          \
    STEP(minimum, suffix, element, extreme_##suffix(1, p, q))                                                          \
    STEP(equal, suffix, element, p == q ? 1 : 0)                                                                       \
    STEP(relu_backward, suffix, element, p <= 0 ? 0 : q)
OP_REAL_TYPES(REAL_STEPS)

/* These loops are compiled for each instruction set (op_vector.h). */
#define VECTOR_STEP(word, suffix)                                                                                      \
    static void word##_##suffix(size_t count, const void *a, const void *b, void *y) {                                 \
        tutti_vector_in_use()->suffix.word(count, a, b, y);                                                            \
    }
VECTOR_STEP(gelu_backward, f32)
VECTOR_STEP(gelu_backward, f64)
VECTOR_STEP(gelu_tanh_backward, f32)
VECTOR_STEP(gelu_tanh_backward, f64)

STEP(or, b8, uint8_t, (p | q) != 0)
STEP(and, b8, uint8_t, (p != 0) & (q != 0))
STEP(equal, b8, uint8_t, (p != 0) == (q != 0))

/* clang-format off: one row per type. Signed sums, products and equality have the bits of the unsigned ones. */
#define ROW_WHOLE(word)                                                                                                \
    [TUTTI_INT8] = word##_u8, [TUTTI_UINT8] = word##_u8, [TUTTI_INT16] = word##_u16, [TUTTI_UINT16] = word##_u16,      \
    [TUTTI_INT32] = word##_u32, [TUTTI_UINT32] = word##_u32, [TUTTI_INT64] = word##_u64, [TUTTI_UINT64] = word##_u64
#define ROW_ORDERED(word)                                                                                              \
    [TUTTI_INT8] = word##_i8, [TUTTI_UINT8] = word##_u8, [TUTTI_INT16] = word##_i16, [TUTTI_UINT16] = word##_u16,      \
    [TUTTI_INT32] = word##_i32, [TUTTI_UINT32] = word##_u32, [TUTTI_INT64] = word##_i64, [TUTTI_UINT64] = word##_u64
#define ROW_REAL(word) [TUTTI_FLOAT32] = word##_f32, [TUTTI_FLOAT64] = word##_f64

const tutti_kernel_binary_step tutti_kernel_binary_steps[OP_BINARY_KINDS][TUTTI_TYPE_COUNT] = {
    [TUTTI_KERNEL_ADD] = {ROW_WHOLE(add), ROW_REAL(add), [TUTTI_BOOL] = or_b8},
    [TUTTI_KERNEL_SUB] = {ROW_WHOLE(sub), ROW_REAL(sub)},
    [TUTTI_KERNEL_MUL] = {ROW_WHOLE(mul), ROW_REAL(mul), [TUTTI_BOOL] = and_b8},
    [TUTTI_KERNEL_DIV] = {ROW_ORDERED(div), ROW_REAL(div)},
    [TUTTI_KERNEL_MAXIMUM] = {ROW_ORDERED(maximum), ROW_REAL(maximum), [TUTTI_BOOL] = or_b8},
    [TUTTI_KERNEL_MINIMUM] = {ROW_ORDERED(minimum), ROW_REAL(minimum), [TUTTI_BOOL] = and_b8},
    [TUTTI_KERNEL_EQUAL] = {ROW_WHOLE(equal), ROW_REAL(equal), [TUTTI_BOOL] = equal_b8},
    [TUTTI_KERNEL_RELU_BACKWARD] = {ROW_ORDERED(relu_backward), ROW_REAL(relu_backward)},
    [TUTTI_KERNEL_GELU_BACKWARD] = {ROW_REAL(gelu_backward)},
    [TUTTI_KERNEL_GELU_TANH_BACKWARD] = {ROW_REAL(gelu_tanh_backward)},
};
/* clang-format on */
