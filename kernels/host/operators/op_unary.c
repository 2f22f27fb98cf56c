/*
 * Elementwise operations with one operand, and with an operand and a number.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/float_bits.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/host/vector/op_vector.h"
#include "kernels/real.h"

typedef void (*unary_step)(size_t count, const void *x, void *y);

#define STEP(word, suffix, element, expression)                                                                        \
    TUTTI_VECTOR_CLONES static void word##_step_##suffix(size_t count, const void *x, void *y) {                       \
        const element *xs = x;                                                                                         \
        element *ys = y;                                                                                               \
        REDUCE_SAME_INDEX_ONLY                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const element p = xs[i];                                                                                   \
            ys[i] = expression;                                                                                        \
        }                                                                                                              \
    }
#define RELU_STEP(suffix, element, type) STEP(relu, suffix, element, p <= 0 ? 0 : p)
OP_INTEGER_TYPES(RELU_STEP)
/* These loops are compiled for each instruction set (op_vector.h). */
#define VECTOR_STEP(word, suffix)                                                                                      \
    static void word##_step_##suffix(size_t count, const void *x, void *y) {                                           \
        tutti_vector_in_use()->suffix.word(count, x, y);                                                               \
    }
#define REAL_STEPS(suffix, element, type)                                                                              \
    STEP(relu, suffix, element, p < 0 ? 0 : p)                                                                         \
    VECTOR_STEP(gelu, suffix)                                                                                          \
    VECTOR_STEP(gelu_tanh, suffix)                                                                                     \
    VECTOR_STEP(exp, suffix)                                                                                           \
    VECTOR_STEP(log, suffix)
OP_REAL_TYPES(REAL_STEPS)

#define REAL_ROW(word)                    [TUTTI_FLOAT32] = word##_step_f32, [TUTTI_FLOAT64] = word##_step_f64
#define RELU_ENTRY(suffix, element, type) [type] = relu_step_##suffix,
static const unary_step steps[][TUTTI_TYPE_COUNT] = {
    [TUTTI_KERNEL_RELU] = {OP_INTEGER_TYPES(RELU_ENTRY) REAL_ROW(relu)},
    [TUTTI_KERNEL_GELU] = {REAL_ROW(gelu)},
    [TUTTI_KERNEL_GELU_TANH] = {REAL_ROW(gelu_tanh)},
    [TUTTI_KERNEL_EXP] = {REAL_ROW(exp)},
    [TUTTI_KERNEL_LOG] = {REAL_ROW(log)},
};

void tutti_kernel_unary(tutti_kernel_unary_kind kind, tutti_type type, size_t count, const void *x, void *y) {
    const unary_step step = steps[kind][op_wide_type(type)];
    if (!op_is_small(type)) {
        step(count, x, y);
        return;
    }
    const size_t bytes = op_bytes(type);
    for (size_t at = 0; at < count; at += OP_BLOCK) {
        op_block block;
        const size_t now = op_least(OP_BLOCK, count - at);
        op_widen(type, now, (const unsigned char *)x + at * bytes, block.floats);
        step(now, block.floats, block.floats);
        op_narrow(type, now, block.floats, (unsigned char *)y + at * bytes);
    }
}

/* ---------------------------------------------------------------------------------------- with a number */

/* For integers and a number that is not whole: computed in float64, and cast back by the rules of a cast, but
 * rounded to nearest. */
static void compute_in_float64(tutti_type type, double factor, double addend, size_t count, const void *x, void *y) {
    const size_t bytes = op_bytes(type);
    for (size_t at = 0; at < count; at += OP_BLOCK) {
        double block[OP_BLOCK];
        const size_t now = op_least(OP_BLOCK, count - at);
        tutti_kernel_cast(type, TUTTI_FLOAT64, now, (const unsigned char *)x + at * bytes, block);
        for (size_t i = 0; i < now; i++) block[i] = nearbyint(factor * block[i] + addend);
        tutti_kernel_cast(TUTTI_FLOAT64, type, now, block, (unsigned char *)y + at * bytes);
    }
}

/* y = x kind number */
static void with_number(tutti_kernel_binary_kind kind, tutti_type type, double number, size_t count, const void *x,
                        void *y) {
    const tutti_type wide = op_wide_type(type);
    const tutti_kernel_binary_step step = tutti_kernel_binary_steps[kind][wide];
    const size_t bytes = op_bytes(type), block_count = op_least(count, OP_BLOCK);
    op_block numbers, block;
    if (op_is_integer(type)) { /* modulo 2^bits: the low bits of the number */
        const int64_t whole = (int64_t)number;
        tutti_kernel_cast(TUTTI_INT64, type, 1, &whole, numbers.bytes);
        for (size_t i = 1; i < block_count; i++) memcpy(numbers.bytes + i * bytes, numbers.bytes, bytes);
    } else {
        tutti_kernel_fill(wide, number, block_count, numbers.bytes);
    }
    for (size_t at = 0; at < count; at += OP_BLOCK) {
        const size_t now = op_least(OP_BLOCK, count - at);
        const unsigned char *from = (const unsigned char *)x + at * bytes;
        unsigned char *to = (unsigned char *)y + at * bytes;
        if (wide == type) {
            step(now, from, numbers.bytes, to);
            continue;
        }
        op_widen(type, now, from, block.floats);
        step(now, block.floats, numbers.floats, block.floats);
        op_narrow(type, now, block.floats, to);
    }
}

void tutti_kernel_scale(tutti_type type, double number, size_t count, const void *x, void *y) {
    if (op_is_integer(type) && !op_is_whole(number)) compute_in_float64(type, number, 0, count, x, y);
    else with_number(TUTTI_KERNEL_MUL, type, number, count, x, y);
}

void tutti_kernel_add_number(tutti_type type, double number, size_t count, const void *x, void *y) {
    if (op_is_integer(type) && !op_is_whole(number)) compute_in_float64(type, 1, number, count, x, y);
    else with_number(TUTTI_KERNEL_ADD, type, number, count, x, y);
}
