/*
 * Conversions of float16, bfloat16 and float8 from and to float32, without branches so that compilers vectorise the
 * loops.
 *
 * Rounding is to nearest even, once. Overflow as in PyTorch's casts (2.13): float16, bfloat16 and e5m2 become
 * infinity; e4m3fn, which has no infinity, becomes its largest number, and so does an infinity. Where the F16C
 * instructions are available they convert float16, with the same bits. Nothing here relies on denormal float32
 * numbers, so flush-to-zero modes change nothing.
 */
#ifndef TUTTI_KERNELS_HOST_REDUCE_SMALL_H
#define TUTTI_KERNELS_HOST_REDUCE_SMALL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/host/float_bits.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

/* A format of one sign bit, exponent and mantissa, laid out like float32 but shorter. */
typedef struct small_format {
    int bits;               /* total */
    int mantissa_bits;      /* stored */
    uint32_t bias_gap;      /* 127 - its own bias */
    uint32_t overflow_at;   /* float32 bits of the smallest magnitude that becomes overflow_code */
    uint32_t overflow_code; /* infinity, or the largest number in a format without infinity; without sign */
    uint32_t nan_code;      /* the NaN without payload */
    uint32_t special_from;  /* smallest code that is an infinity or NaN */
} small_format;

#define SMALL_FLOAT16     ((small_format){16, 10, 112, 143u << 23, 0x7c00, 0x7e00, 0x7c00})
#define SMALL_FLOAT8_E5M2 ((small_format){8, 2, 112, 143u << 23, 0x7c, 0x7f, 0x7c})
#define SMALL_FLOAT8_E4M3 ((small_format){8, 3, 120, 0x43e00000u, 0x7e, 0x7f, 0x7f})

REDUCE_INLINE float small_to_float(uint32_t code, small_format format) {
    const int shift = 23 - format.mantissa_bits;
    const uint32_t sign = code >> (format.bits - 1) << 31;
    const uint32_t magnitude = code & ((1u << (format.bits - 1)) - 1);
    const uint32_t mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
    const uint32_t normal = (magnitude << shift) + (format.bias_gap << 23);
    /* The unit of the subnormals: 2^(1 - bias - mantissa_bits), a normal float32. */
    const float unit = bits_float((format.bias_gap + 1 - (uint32_t)format.mantissa_bits) << 23);
    const uint32_t subnormal = float_bits((float)(int32_t)mantissa * unit);
    const uint32_t special = 0x7f800000u | mantissa << shift;
    uint32_t bits = magnitude < 1u << format.mantissa_bits ? subnormal : normal;
    bits = magnitude >= format.special_from ? special : bits;
    return bits_float(bits | sign);
}

REDUCE_INLINE uint32_t float_to_small(float value, small_format format) {
    const int shift = 23 - format.mantissa_bits;
    const uint32_t sign = float_bits(value) >> 31 << (format.bits - 1);
    const uint32_t magnitude = float_bits(value) & 0x7fffffffu;
    /* Adding this power of two leaves the subnormal's mantissa, rounded, in the lowest bits. */
    const uint32_t magic = (format.bias_gap + 24 - (uint32_t)format.mantissa_bits) << 23;
    const uint32_t subnormal = float_bits(bits_float(magnitude) + bits_float(magic)) - magic;
    const uint32_t odd = magnitude >> shift & 1;
    const uint32_t normal = (magnitude - (format.bias_gap << 23) + (1u << (shift - 1)) - 1 + odd) >> shift;
    uint32_t code = magnitude < (format.bias_gap + 1) << 23 ? subnormal : normal;
    code = magnitude >= format.overflow_at ? format.overflow_code : code;
    code = magnitude > 0x7f800000u ? format.nan_code : code;
    return code | sign;
}

REDUCE_INLINE uint32_t float_to_bfloat16(float value) {
    const uint32_t bits = float_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
}

static void widen_float16(float *restrict out, const void *restrict in, size_t count) {
    const uint16_t *codes = in;
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(codes + i))));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(codes + i))));
#endif
    for (; i < count; i++) out[i] = small_to_float(codes[i], SMALL_FLOAT16);
}

static void narrow_float16(void *restrict out, const float *restrict in, size_t count) {
    uint16_t *codes = out;
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((void *)(codes + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((void *)(codes + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++) codes[i] = (uint16_t)float_to_small(in[i], SMALL_FLOAT16);
}

static void widen_bfloat16(float *restrict out, const void *restrict in, size_t count) {
    const uint16_t *codes = in;
    for (size_t i = 0; i < count; i++) out[i] = bits_float((uint32_t)codes[i] << 16);
}

static void narrow_bfloat16(void *restrict out, const float *restrict in, size_t count) {
    uint16_t *codes = out;
    for (size_t i = 0; i < count; i++) codes[i] = (uint16_t)float_to_bfloat16(in[i]);
}

static void widen_float8_e4m3(float *restrict out, const void *restrict in, size_t count) {
    const uint8_t *codes = in;
    for (size_t i = 0; i < count; i++) out[i] = small_to_float(codes[i], SMALL_FLOAT8_E4M3);
}

static void narrow_float8_e4m3(void *restrict out, const float *restrict in, size_t count) {
    uint8_t *codes = out;
    for (size_t i = 0; i < count; i++) codes[i] = (uint8_t)float_to_small(in[i], SMALL_FLOAT8_E4M3);
}

static void widen_float8_e5m2(float *restrict out, const void *restrict in, size_t count) {
    const uint8_t *codes = in;
    for (size_t i = 0; i < count; i++) out[i] = small_to_float(codes[i], SMALL_FLOAT8_E5M2);
}

static void narrow_float8_e5m2(void *restrict out, const float *restrict in, size_t count) {
    uint8_t *codes = out;
    for (size_t i = 0; i < count; i++) codes[i] = (uint8_t)float_to_small(in[i], SMALL_FLOAT8_E5M2);
}

#endif
