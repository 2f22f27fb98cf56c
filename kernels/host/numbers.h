/*
 * Converts single numbers from one type to another, for loops of casts on the host and for kernels on GPUs.
 *
 * A number that is rounded to a small float must not be rounded to float32 before. So integers and float64 are first
 * rounded to odd (Boldo and Melquiond, 2008): if the float32 is not exact, its last bit becomes 1, which shows the
 * rounding to fewer bits that it was not exact.
 */
#ifndef TUTTI_KERNELS_HOST_NUMBERS_H
#define TUTTI_KERNELS_HOST_NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/host/float_bits.h"

/* The bounds are powers of 2, or 0, and exact in both types. */
#define REAL_TO_INTEGER(real, real_element, suffix, element, smallest, largest, above)                                 \
    REDUCE_INLINE element real##_to_##suffix(real_element x) {                                                         \
        const real_element lower = (real_element)(smallest), upper = (real_element)(above);                            \
        const real_element inside = x >= lower && x < upper ? x : 0;                                                   \
        const element end = x >= upper ? largest : smallest;                                                           \
        return x >= upper || x < lower ? end : (element)inside;                                                        \
    }
#define TO_INTEGER(suffix, element, smallest, largest, above)                                                          \
    REAL_TO_INTEGER(f32, float, suffix, element, smallest, largest, above)                                             \
    REAL_TO_INTEGER(f64, double, suffix, element, smallest, largest, above)
TO_INTEGER(i8, int8_t, INT8_MIN, INT8_MAX, 0x1p7)
TO_INTEGER(u8, uint8_t, 0, UINT8_MAX, 0x1p8)
TO_INTEGER(i16, int16_t, INT16_MIN, INT16_MAX, 0x1p15)
TO_INTEGER(u16, uint16_t, 0, UINT16_MAX, 0x1p16)
TO_INTEGER(i32, int32_t, INT32_MIN, INT32_MAX, 0x1p31)
TO_INTEGER(u32, uint32_t, 0, UINT32_MAX, 0x1p32)
TO_INTEGER(i64, int64_t, INT64_MIN, INT64_MAX, 0x1p63)
TO_INTEGER(u64, uint64_t, 0, UINT64_MAX, 0x1p64)

/* Returns a float32 whose last bit is set if x is not exactly a float32. */
REDUCE_INLINE float f64_to_odd(double x) {
    const float nearest = (float)x;
    uint32_t bits = float_bits(nearest);
    bits -= fabs((double)nearest) > fabs(x); /* towards 0: infinity becomes the largest number */
    bits |= (double)nearest < x || (double)nearest > x;
    return bits_float(bits);
}

/* Returns x if 53 bits hold it; otherwise its last bits are replaced by one that says whether any of them was set. */
REDUCE_INLINE int64_t i64_shorten(int64_t x) {
    const uint64_t low = (uint64_t)x & 0x7ff;
    const uint64_t shorter = ((uint64_t)x & ~UINT64_C(0x7ff)) | (uint64_t)(low != 0) << 11;
    const bool is_short = x < INT64_C(1) << 53 && x > -(INT64_C(1) << 53);
    return is_short ? x : (int64_t)shorter;
}

REDUCE_INLINE uint64_t u64_shorten(uint64_t x) {
    const uint64_t shorter = (x & ~UINT64_C(0xfff)) | (uint64_t)((x & 0xfff) != 0) << 12;
    return x < UINT64_C(1) << 53 ? x : shorter;
}
#undef TO_INTEGER
#undef REAL_TO_INTEGER

#endif
