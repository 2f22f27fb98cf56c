/*
 * Casts between all types, and arrays of one value.
 *
 * Types that are computed in themselves, and bool, are cast directly, with a loop for each pair. Small floats go
 * through float32 in blocks.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/numbers.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/real.h"

#define CAST(from, to, x_element, y_element, expression)                                                               \
    TUTTI_VECTOR_CLONES static void from##_as_##to(size_t count, const void *x, void *y) {                             \
        const x_element *xs = x;                                                                                       \
        y_element *ys = y;                                                                                             \
        REDUCE_SAME_INDEX_ONLY                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const x_element p = xs[i];                                                                                 \
            ys[i] = (y_element)(expression);                                                                           \
        }                                                                                                              \
    }
/* Casts to signed integers give the same low bits as casts to unsigned ones. `odd`: to a float32 that is rounded
 * once more. */
#define CASTS_OF_INTEGER(suffix, element, to_odd)                                                                      \
    CAST(suffix, u8, element, uint8_t, p)                                                                              \
    CAST(suffix, u16, element, uint16_t, p)                                                                            \
    CAST(suffix, u32, element, uint32_t, p)                                                                            \
    CAST(suffix, u64, element, uint64_t, p)                                                                            \
    CAST(suffix, b8, element, uint8_t, p != 0)                                                                         \
    CAST(suffix, f32, element, float, p)                                                                               \
    CAST(suffix, f64, element, double, p)                                                                              \
    CAST(suffix, odd, element, float, to_odd)
CASTS_OF_INTEGER(i8, int8_t, p)
CASTS_OF_INTEGER(u8, uint8_t, p)
CASTS_OF_INTEGER(i16, int16_t, p)
CASTS_OF_INTEGER(u16, uint16_t, p)
CASTS_OF_INTEGER(i32, int32_t, f64_to_odd(p))
CASTS_OF_INTEGER(u32, uint32_t, f64_to_odd(p))
CASTS_OF_INTEGER(i64, int64_t, f64_to_odd((double)i64_shorten(p)))
CASTS_OF_INTEGER(u64, uint64_t, f64_to_odd((double)u64_shorten(p)))
/* Any byte but 0 is true. */
#define CAST_OF_BOOL(to, element) CAST(b8, to, uint8_t, element, p != 0)
CAST_OF_BOOL(u8, uint8_t)
CAST_OF_BOOL(u16, uint16_t)
CAST_OF_BOOL(u32, uint32_t)
CAST_OF_BOOL(u64, uint64_t)
CAST_OF_BOOL(b8, uint8_t)
CAST_OF_BOOL(f32, float)
CAST_OF_BOOL(f64, double)
CAST_OF_BOOL(odd, float)
#define CASTS_OF_REAL(suffix, element, to_odd)                                                                         \
    CAST(suffix, i8, element, int8_t, suffix##_to_i8(p))                                                               \
    CAST(suffix, u8, element, uint8_t, suffix##_to_u8(p))                                                              \
    CAST(suffix, i16, element, int16_t, suffix##_to_i16(p))                                                            \
    CAST(suffix, u16, element, uint16_t, suffix##_to_u16(p))                                                           \
    CAST(suffix, i32, element, int32_t, suffix##_to_i32(p))                                                            \
    CAST(suffix, u32, element, uint32_t, suffix##_to_u32(p))                                                           \
    CAST(suffix, i64, element, int64_t, suffix##_to_i64(p))                                                            \
    CAST(suffix, u64, element, uint64_t, suffix##_to_u64(p))                                                           \
    CAST(suffix, b8, element, uint8_t, p != 0)                                                                         \
    CAST(suffix, f32, element, float, p)                                                                               \
    CAST(suffix, f64, element, double, p)                                                                              \
    CAST(suffix, odd, element, float, to_odd)
CASTS_OF_REAL(f32, float, p)
CASTS_OF_REAL(f64, double, f64_to_odd(p))

/* clang-format off: one row per type. A small float's entry gives float32 that is ready to be narrowed. */
#define TO_FLOATS(from)                                                                                                \
    [TUTTI_BOOL] = from##_as_b8, [TUTTI_FLOAT32] = from##_as_f32, [TUTTI_FLOAT64] = from##_as_f64,                     \
    [TUTTI_FLOAT16] = from##_as_odd, [TUTTI_BFLOAT16] = from##_as_odd, [TUTTI_FLOAT8_E4M3] = from##_as_odd,            \
    [TUTTI_FLOAT8_E5M2] = from##_as_odd
#define OF_INTEGER(from)                                                                                               \
    {                                                                                                                  \
        [TUTTI_INT8] = from##_as_u8, [TUTTI_UINT8] = from##_as_u8, [TUTTI_INT16] = from##_as_u16,                      \
        [TUTTI_UINT16] = from##_as_u16, [TUTTI_INT32] = from##_as_u32, [TUTTI_UINT32] = from##_as_u32,                 \
        [TUTTI_INT64] = from##_as_u64, [TUTTI_UINT64] = from##_as_u64, TO_FLOATS(from)                                 \
    }
#define OF_REAL(from)                                                                                                  \
    {                                                                                                                  \
        [TUTTI_INT8] = from##_as_i8, [TUTTI_UINT8] = from##_as_u8, [TUTTI_INT16] = from##_as_i16,                      \
        [TUTTI_UINT16] = from##_as_u16, [TUTTI_INT32] = from##_as_i32, [TUTTI_UINT32] = from##_as_u32,                 \
        [TUTTI_INT64] = from##_as_i64, [TUTTI_UINT64] = from##_as_u64, TO_FLOATS(from)                                 \
    }
typedef void (*cast_step)(size_t count, const void *x, void *y);
static const cast_step casts[TUTTI_TYPE_COUNT][TUTTI_TYPE_COUNT] = {
    [TUTTI_INT8] = OF_INTEGER(i8),    [TUTTI_UINT8] = OF_INTEGER(u8),   [TUTTI_INT16] = OF_INTEGER(i16),
    [TUTTI_UINT16] = OF_INTEGER(u16), [TUTTI_INT32] = OF_INTEGER(i32),  [TUTTI_UINT32] = OF_INTEGER(u32),
    [TUTTI_INT64] = OF_INTEGER(i64),  [TUTTI_UINT64] = OF_INTEGER(u64), [TUTTI_BOOL] = OF_INTEGER(b8),
    [TUTTI_FLOAT32] = OF_REAL(f32),   [TUTTI_FLOAT64] = OF_REAL(f64),
};
/* clang-format on */

void tutti_kernel_cast(tutti_type x_type, tutti_type y_type, size_t count, const void *x, void *y) {
    const size_t x_bytes = op_bytes(x_type), y_bytes = op_bytes(y_type);
    if (x_type == y_type && x_type != TUTTI_BOOL) { /* a bool becomes 0 or 1 */
        if (x != y && count > 0) memmove(y, x, count * x_bytes);
        return;
    }
    const cast_step step = casts[op_wide_type(x_type)][y_type];
    if (!op_is_small(x_type) && !op_is_small(y_type)) {
        step(count, x, y);
        return;
    }
    for (size_t at = 0; at < count; at += OP_BLOCK) {
        op_block wide, narrow;
        const size_t now = op_least(OP_BLOCK, count - at);
        const void *from = (const unsigned char *)x + at * x_bytes;
        void *to = (unsigned char *)y + at * y_bytes;
        if (op_is_small(x_type)) {
            op_widen(x_type, now, from, wide.floats);
            from = wide.floats;
        }
        step(now, from, op_is_small(y_type) ? narrow.bytes : to);
        if (op_is_small(y_type)) op_narrow(y_type, now, narrow.floats, to);
    }
}

void tutti_kernel_fill(tutti_type type, double value, size_t count, void *y) {
    if (count == 0) return;
    op_block block;
    const size_t bytes = op_bytes(type), first = op_least(count, OP_BLOCK);
    tutti_kernel_cast(TUTTI_FLOAT64, type, 1, &value, block.bytes);
    for (size_t filled = bytes; filled < first * bytes; filled *= 2)
        memcpy(block.bytes + filled, block.bytes, op_least(filled, first * bytes - filled));
    for (size_t at = 0; at < count; at += OP_BLOCK)
        memcpy((unsigned char *)y + at * bytes, block.bytes, op_least(OP_BLOCK, count - at) * bytes);
}
