/*
 * Models of a GPU's instructions that convert small floats, after NVIDIA's description (PTX ISA, cvt), for kernels
 * that are compiled for the host: kernels/cuda/reduce/small_floats.h then uses the code for a GPU of compute capability
 * 8.9 and newer. The numbers are computed from doubles here, not from bits, so that they have nothing in common with
 * the arithmetic that they replace.
 */
#ifndef TUTTI_TESTS_SMALL_FLOAT_MODELS_H
#define TUTTI_TESTS_SMALL_FLOAT_MODELS_H

#define SMALL_FLOATS_16 1
#define SMALL_FLOATS_8  1

/* The number of a code without its sign, which is neither NaN nor infinite. */
static inline double model_number(uint32_t magnitude, int mantissa_bits, int least_exponent) {
    const uint32_t exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1u << mantissa_bits) - 1);
    const uint32_t whole = exponent > 0 ? mantissa + (1u << mantissa_bits) : mantissa;
    return ldexp(whole, least_exponent + (exponent > 0 ? (int)exponent - 1 : 0) - mantissa_bits);
}

/* The nearest number's code, ties to even, as if exponents were unlimited; at most `most`. */
static inline uint32_t model_code(double number, int mantissa_bits, int least_exponent, uint32_t most) {
    if (isinf(number)) return most;
    int exponent = number == 0 ? least_exponent : ilogb(number);
    if (exponent < least_exponent) exponent = least_exponent;
    const double units = nearbyint(ldexp(number, mantissa_bits - exponent));
    const double code = ldexp(exponent - least_exponent, mantissa_bits) + units;
    return code < most ? (uint32_t)code : most;
}

static inline float convert_f16(uint16_t code) {
    const uint32_t magnitude = code & 0x7fffu;
    const double number = magnitude == 0x7c00 ? INFINITY : model_number(magnitude, 10, -14);
    if (magnitude > 0x7c00) return bits_float(0x7fffffffu);
    return (float)(code >> 15 ? -number : number);
}

static inline uint16_t convert_to_f16(float value) {
    if (isnan(value)) return 0x7fff;
    return (uint16_t)(model_code(fabs((double)value), 10, -14, 0x7c00) | (signbit(value) ? 0x8000u : 0u));
}

static inline uint32_t convert_to_f16_pair(float first, float second) {
    return convert_to_f16(first) | (uint32_t)convert_to_f16(second) << 16;
}

static inline uint32_t nan_halves(uint32_t pair) {
    return (isnan(convert_f16((uint16_t)pair)) ? 0xffffu : 0u) |
           (isnan(convert_f16((uint16_t)(pair >> 16))) ? 0xffff0000u : 0u);
}

static inline uint32_t lower_bytes_to_halves(uint32_t word) {
    return (word & 0xff) << 8 | (word >> 8 & 0xff) << 24;
}

static inline uint32_t upper_bytes_to_halves(uint32_t word) {
    return lower_bytes_to_halves(word >> 16);
}

static inline uint16_t model_e4m3_to_f16(uint32_t code) {
    const double number = model_number(code & 0x7f, 3, -6);
    return (code & 0x7f) == 0x7f ? 0x7fff : convert_to_f16((float)(code >> 7 ? -number : number));
}

static inline uint32_t convert_e4m3_pair_to_f16(uint16_t codes) {
    return model_e4m3_to_f16(codes & 0xffu) | (uint32_t)model_e4m3_to_f16(codes >> 8) << 16;
}

static inline uint32_t model_f8(float value, int mantissa_bits, int least_exponent, uint32_t most) {
    if (isnan(value)) return 0x7f;
    return model_code(fabs((double)value), mantissa_bits, least_exponent, most) | (signbit(value) ? 0x80u : 0u);
}

static inline uint16_t convert_to_e4m3_pair(float first, float second) {
    return (uint16_t)(model_f8(first, 3, -6, 0x7e) | model_f8(second, 3, -6, 0x7e) << 8);
}

static inline uint16_t convert_to_e5m2_pair(float first, float second) {
    return (uint16_t)(model_f8(first, 2, -14, 0x7b) | model_f8(second, 2, -14, 0x7b) << 8);
}

#endif
