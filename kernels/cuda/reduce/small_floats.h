/*
 * Floats of 16 and 8 bits to float32 and back, as kernels/host/reduce/reduce_loops.h converts them: one, or all in a
 * word of 32 bits, the first one in its lowest bits.
 *
 * GPUs have instructions for it: all of them for float16, and from compute capability 8.9 on for float8. Elsewhere,
 * and so on the host, it is integer arithmetic. A test replaces the instructions by models (SMALL_FLOATS_MODEL names
 * the file).
 *
 * Invariant: all three ways convert numbers to the same bits, rounded to nearest even. A NaN stays a NaN; narrowed,
 * it has the code given here and keeps its sign, which may be lost where a whole word is narrowed.
 */
#ifndef TUTTI_KERNELS_CUDA_SMALL_FLOATS_H
#define TUTTI_KERNELS_CUDA_SMALL_FLOATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/host/float_bits.h"

#define ELEMENT_INLINE REDUCE_INLINE

/* -------------------------------------------------------------------------------------- integer arithmetic */

/* A float of one sign bit, exponent and mantissa, laid out like float32 but shorter: moved to float32's place, it is
 * off by a power of two; so are subnormals. */
ELEMENT_INLINE float element_widen(uint32_t code, int bits, int mantissa_bits, int bias, uint32_t special_from) {
    const uint32_t magnitude = code & ((1u << (bits - 1)) - 1), place = magnitude << (23 - mantissa_bits);
    const float number = bits_float(place) * bits_float((uint32_t)(127 + 127 - bias) << 23);
    const uint32_t special = 0x7f800000u | (place & 0x7fffffu);
    return bits_float((magnitude >= special_from ? special : float_bits(number)) | code >> (bits - 1) << 31);
}

/* Rounds to nearest even; magnitudes from `overflow_at` on become `overflow_code`. */
ELEMENT_INLINE uint32_t element_narrow(float value, int bits, int mantissa_bits, int bias, uint32_t overflow_at,
                                       uint32_t overflow_code, uint32_t nan_code) {
    const int shift = 23 - mantissa_bits;
    const uint32_t gap = (uint32_t)(127 - bias);
    const uint32_t sign = float_bits(value) >> 31 << (bits - 1), magnitude = float_bits(value) & 0x7fffffffu;
    /* Adding this power of two leaves the subnormal's mantissa, rounded, in the lowest bits. */
    const uint32_t magic = (gap + 24 - (uint32_t)mantissa_bits) << 23;
    const uint32_t subnormal = float_bits(bits_float(magnitude) + bits_float(magic)) - magic;
    const uint32_t odd = magnitude >> shift & 1;
    const uint32_t normal = (magnitude - (gap << 23) + (1u << (shift - 1)) - 1 + odd) >> shift;
    uint32_t code = magnitude < (gap + 1) << 23 ? subnormal : normal;
    code = magnitude >= overflow_at ? overflow_code : code;
    code = magnitude > 0x7f800000u ? nan_code : code;
    return code | sign;
}

/* -------------------------------------------------------------------------------------------- instructions */

/* In a pair, the first float is in the lower half. NaN becomes 0x7fff in float16, 0x7f in float8, and loses its
 * sign. */
#if defined(__CUDA_ARCH__)

#define SMALL_FLOATS_16 1 /* instructions convert floats of 16 bits; SMALL_FLOATS_8: of 8 bits */
#define SMALL_FLOATS_8  (__CUDA_ARCH__ >= 890)

ELEMENT_INLINE float convert_f16(uint16_t code) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
}
ELEMENT_INLINE uint16_t convert_to_f16(float value) {
    uint16_t code;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    return code;
}
ELEMENT_INLINE uint32_t convert_to_f16_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return convert_to_f16(first) | (uint32_t)convert_to_f16(second) << 16;
#endif
}
/* Sets all bits of each half that is NaN. */
ELEMENT_INLINE uint32_t nan_halves(uint32_t pair) {
    uint32_t halves;
    asm("set.neu.u32.f16x2 %0, %1, %1;" : "=r"(halves) : "r"(pair));
    return halves;
}
/* Bytes of a word, the lower two or the upper two, each above a byte of zeros: float8 e5m2 is the upper byte of
 * float16. */
ELEMENT_INLINE uint32_t lower_bytes_to_halves(uint32_t word) {
    uint32_t halves;
    asm("prmt.b32 %0, %1, 0, 0x1404;" : "=r"(halves) : "r"(word));
    return halves;
}
ELEMENT_INLINE uint32_t upper_bytes_to_halves(uint32_t word) {
    uint32_t halves;
    asm("prmt.b32 %0, %1, 0, 0x3424;" : "=r"(halves) : "r"(word));
    return halves;
}
#if SMALL_FLOATS_8
ELEMENT_INLINE uint32_t convert_e4m3_pair_to_f16(uint16_t codes) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
}
/* Numbers that are too large become the largest number. */
ELEMENT_INLINE uint16_t convert_to_e4m3_pair(float first, float second) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
}
ELEMENT_INLINE uint16_t convert_to_e5m2_pair(float first, float second) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
}
#endif

#elif defined(SMALL_FLOATS_MODEL)
#include SMALL_FLOATS_MODEL
#else
#define SMALL_FLOATS_16 0
#define SMALL_FLOATS_8  0
#endif

/* ------------------------------------------------------------------------------------------------ float16 */

ELEMENT_INLINE float widen_f16(uint16_t code) {
#if SMALL_FLOATS_16
    return convert_f16(code);
#else
    return element_widen(code, 16, 10, 15, 0x7c00);
#endif
}
ELEMENT_INLINE uint16_t narrow_f16(float value) {
#if SMALL_FLOATS_16
    const uint16_t nan = (uint16_t)(float_bits(value) >> 31 << 15 | 0x7e00u);
    return value == value ? convert_to_f16(value) : nan;
#else
    return (uint16_t)element_narrow(value, 16, 10, 15, 143u << 23, 0x7c00, 0x7e00);
#endif
}
ELEMENT_INLINE void widen_word_f16(uint32_t word, float values[2]) {
    values[0] = widen_f16((uint16_t)word);
    values[1] = widen_f16((uint16_t)(word >> 16));
}
ELEMENT_INLINE uint32_t narrow_word_f16(const float values[2]) {
#if SMALL_FLOATS_16
    const uint32_t word = convert_to_f16_pair(values[0], values[1]), nans = nan_halves(word);
    return (word & ~nans) | (0x7e007e00u & nans);
#else
    return narrow_f16(values[0]) | (uint32_t)narrow_f16(values[1]) << 16;
#endif
}

/* ------------------------------------------------------------------------- float8 e4m3, which has no infinity */

ELEMENT_INLINE float widen_e4m3(uint8_t code) {
#if SMALL_FLOATS_8
    return convert_f16((uint16_t)convert_e4m3_pair_to_f16(code));
#else
    return element_widen(code, 8, 3, 7, 0x7f);
#endif
}
ELEMENT_INLINE uint8_t narrow_e4m3(float value) {
#if SMALL_FLOATS_8
    const uint8_t sign = (uint8_t)(float_bits(value) >> 31 << 7);
    return (uint8_t)(convert_to_e4m3_pair(value, 0) | sign);
#else
    return (uint8_t)element_narrow(value, 8, 3, 7, 0x43e00000u, 0x7e, 0x7f);
#endif
}
ELEMENT_INLINE void widen_word_e4m3(uint32_t word, float values[4]) {
#if SMALL_FLOATS_8
    widen_word_f16(convert_e4m3_pair_to_f16((uint16_t)word), values);
    widen_word_f16(convert_e4m3_pair_to_f16((uint16_t)(word >> 16)), values + 2);
#else
    for (int i = 0; i < 4; i++) values[i] = widen_e4m3((uint8_t)(word >> 8 * i));
#endif
}
ELEMENT_INLINE uint32_t narrow_word_e4m3(const float values[4]) {
#if SMALL_FLOATS_8
    return convert_to_e4m3_pair(values[0], values[1]) | (uint32_t)convert_to_e4m3_pair(values[2], values[3]) << 16;
#else
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) word |= (uint32_t)narrow_e4m3(values[i]) << 8 * i;
    return word;
#endif
}

/* ------------------------------------------------------------------- float8 e5m2, which has one: code 0x7c */

ELEMENT_INLINE float widen_e5m2(uint8_t code) {
#if SMALL_FLOATS_16
    return convert_f16((uint16_t)(code << 8));
#else
    return element_widen(code, 8, 2, 15, 0x7c);
#endif
}

#if SMALL_FLOATS_8
/* The instruction stops at the largest number, 57344. From half way to the next power of two on, the result must be
 * infinity: one code more. */
ELEMENT_INLINE uint32_t infinite_e5m2(float value) {
    return fabsf(value) >= 61440 ? 1 : 0;
}
#endif

ELEMENT_INLINE uint8_t narrow_e5m2(float value) {
#if SMALL_FLOATS_8
    const uint8_t sign = (uint8_t)(float_bits(value) >> 31 << 7);
    return (uint8_t)((convert_to_e5m2_pair(value, 0) + infinite_e5m2(value)) | sign);
#else
    return (uint8_t)element_narrow(value, 8, 2, 15, 143u << 23, 0x7c, 0x7f);
#endif
}
ELEMENT_INLINE void widen_word_e5m2(uint32_t word, float values[4]) {
#if SMALL_FLOATS_16
    widen_word_f16(lower_bytes_to_halves(word), values);
    widen_word_f16(upper_bytes_to_halves(word), values + 2);
#else
    for (int i = 0; i < 4; i++) values[i] = widen_e5m2((uint8_t)(word >> 8 * i));
#endif
}
ELEMENT_INLINE uint32_t narrow_word_e5m2(const float values[4]) {
#if SMALL_FLOATS_8
    uint32_t word = convert_to_e5m2_pair(values[0], values[1]);
    word |= (uint32_t)convert_to_e5m2_pair(values[2], values[3]) << 16;
    for (int i = 0; i < 4; i++) word += infinite_e5m2(values[i]) << 8 * i;
    return word;
#else
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) word |= (uint32_t)narrow_e5m2(values[i]) << 8 * i;
    return word;
#endif
}

#endif
