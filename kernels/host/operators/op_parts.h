/*
 * Shared by the files of the operators (op_*.c): conversions of small floats in blocks, loops over dense elements,
 * and a template for both reals.
 *
 * Broadcast and converted operands go through blocks on the stack that stay in the first-level cache. So every inner
 * loop runs over dense arrays, and there is one loop per operation and type.
 */
#ifndef TUTTI_KERNELS_HOST_OP_PARTS_H
#define TUTTI_KERNELS_HOST_OP_PARTS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/host/vector/op_vector.h"
#include "kernels/operators.h"

#define OP_BLOCK 1024 /* elements */

/* For each type that is computed in itself: X(suffix, element, type). */
#define OP_INTEGER_TYPES(X)                                                                                            \
    X(i8, int8_t, TUTTI_INT8)                                                                                          \
    X(u8, uint8_t, TUTTI_UINT8)                                                                                        \
    X(i16, int16_t, TUTTI_INT16)                                                                                       \
    X(u16, uint16_t, TUTTI_UINT16)                                                                                     \
    X(i32, int32_t, TUTTI_INT32)                                                                                       \
    X(u32, uint32_t, TUTTI_UINT32)                                                                                     \
    X(i64, int64_t, TUTTI_INT64)                                                                                       \
    X(u64, uint64_t, TUTTI_UINT64)
#define OP_REAL_TYPES(X)                                                                                               \
    X(f32, float, TUTTI_FLOAT32)                                                                                       \
    X(f64, double, TUTTI_FLOAT64)

static inline size_t op_least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* memset, which must not be given NULL even for no bytes. */
static inline void op_zero(void *y, size_t bytes) {
    if (bytes > 0) memset(y, 0, bytes);
}

static inline bool op_is_integer(tutti_type type) {
    return type <= TUTTI_UINT64;
}

/* Returns whether it is a whole number that int64 holds. */
static inline bool op_is_whole(double number) {
    return floor(number) == number && fabs(number) < 0x1p63;
}

/* float16, bfloat16 and float8: computed in float32. */
static inline bool op_is_small(tutti_type type) {
    return type == TUTTI_FLOAT16 || type == TUTTI_BFLOAT16 || type == TUTTI_FLOAT8_E4M3 || type == TUTTI_FLOAT8_E5M2;
}

/* The type in which elements of a type are computed. */
static inline tutti_type op_wide_type(tutti_type type) {
    return op_is_small(type) ? TUTTI_FLOAT32 : type;
}

static inline size_t op_bytes(tutti_type type) {
    static const unsigned char bytes[TUTTI_TYPE_COUNT] = {
        [TUTTI_INT8] = 1,    [TUTTI_UINT8] = 1,       [TUTTI_INT16] = 2,       [TUTTI_UINT16] = 2,
        [TUTTI_INT32] = 4,   [TUTTI_UINT32] = 4,      [TUTTI_INT64] = 8,       [TUTTI_UINT64] = 8,
        [TUTTI_BOOL] = 1,    [TUTTI_FLOAT16] = 2,     [TUTTI_BFLOAT16] = 2,    [TUTTI_FLOAT32] = 4,
        [TUTTI_FLOAT64] = 8, [TUTTI_FLOAT8_E4M3] = 1, [TUTTI_FLOAT8_E5M2] = 1,
    };
    return bytes[type];
}

/* A block of elements in any type. */
typedef union op_block {
    float floats[OP_BLOCK];
    unsigned char bytes[OP_BLOCK * 8];
    _Alignas(64) unsigned char line[64];
} op_block;

/* Small types only; rounded to nearest even. x and y do not overlap. */
static inline void op_widen(tutti_type type, size_t count, const void *x, float *y) {
    tutti_vector_in_use()->widen[type](y, x, count);
}

static inline void op_narrow(tutti_type type, size_t count, const float *x, void *y) {
    tutti_vector_in_use()->narrow[type](y, x, count);
}

/* A loop over `count` dense elements of a type that is computed in itself; y may be an operand. NULL in the table:
 * the type does not have this operation. */
typedef void (*tutti_kernel_binary_step)(size_t count, const void *a, const void *b, void *y);
#define OP_BINARY_KINDS (TUTTI_KERNEL_GELU_TANH_BACKWARD + 1)
extern const tutti_kernel_binary_step tutti_kernel_binary_steps[OP_BINARY_KINDS][TUTTI_TYPE_COUNT];

/* c[m, n] = op(a) op(b), or with `adds` c += op(a) op(b), for one product as in tutti_kernel_matmul. */
void tutti_kernel_product_f32(bool transpose_a, bool transpose_b, int m, int n, int k, const float *a, const float *b,
                              bool adds, float *c);
void tutti_kernel_product_f64(bool transpose_a, bool transpose_b, int m, int n, int k, const double *a, const double *b,
                              bool adds, double *c);

#endif
