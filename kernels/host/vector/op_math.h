/*
 * exp, log, the normal distribution and the points of a circle in float32, without branches or tables, so that loops
 * over them are vectorised. The float64 versions call the C library.
 *
 * Polynomials were fitted for the least relative error (Lawson, 1961), and are evaluated in pairs (Estrin, 1960),
 * since the latency of a chain of their terms would exceed the time of all their instructions. With rounding, exp is
 * within 1 unit in the last place, log within 1.5, and gelu within 3 near 0 and 11 at -5, where the square in its
 * exponent is rounded; its far tail is within 2e-6. NaN stays NaN, and results below the smallest normal number are
 * rounded, not flushed, except in exp_below. GPUs compute with the same code, without fused operations: float32 has
 * the same bits there.
 */
#ifndef TUTTI_KERNELS_HOST_OP_MATH_H
#define TUTTI_KERNELS_HOST_OP_MATH_H

#include <math.h>
#include <stdint.h>

#include "kernels/host/float_bits.h"

#define OP_INLINE      REDUCE_INLINE
#define ONE_OVER_LN_2  0x1.715476p+0f
#define LN_2_HIGH      0x1.62ep-1f /* 12 bits, so that its products with exponents are exact */
#define LN_2_LOW       0x1.0bfbe8p-15f
#define ROUND_TO_WHOLE 0x1.8p+23f /* adding and subtracting it rounds to the nearest whole number */

/* 2^n for -126 <= n <= 127 */
OP_INLINE float power_of_2(int32_t n) {
    return bits_float((uint32_t)(n + 127) << 23);
}

/* e^x = e^r 2^n; gives e^r and n. */
OP_INLINE float exp_parts(float x, int32_t *n_out) {
    float shifted = x * ONE_OVER_LN_2 + ROUND_TO_WHOLE;
    float n = shifted - ROUND_TO_WHOLE;
    float r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    float square = r * r;
    float p = (4.99999935e-1f + 1.66665207e-1f * r) +
              square * ((4.16683876e-2f + 8.3687110e-3f * r) + square * 1.38146007e-3f);
    *n_out = (int32_t)(float_bits(shifted) - float_bits(ROUND_TO_WHOLE));
    return (p * square + r) + 1;
}

OP_INLINE float exp_f32(float x) {
    float limited = x > 89 ? 89 : x;
    limited = limited < -104 ? -104 : limited;
    int32_t n;
    float p = exp_parts(limited, &n);
    /* The power is applied in two factors: the result may be far below the smallest power of 2 that is a normal
     * number, or just above the largest. */
    int32_t half = n >> 1;
    return p * power_of_2(half) * power_of_2(n - half);
}

/* As exp_f32, for x <= 0; 0 if the result is not a normal number. */
OP_INLINE float exp_below_f32(float x) {
    int32_t n;
    float p = exp_parts(x, &n);
    return x < -87.3f ? 0 : p * power_of_2(n);
}

OP_INLINE float log_f32(float x) {
    float scaled = x < 0x1p-126f ? x * 0x1p+24f : x;
    float below = x < 0x1p-126f ? 24 : 0;
    /* x = m 2^n with m between sqrt(1/2) and sqrt(2) */
    uint32_t bits = float_bits(scaled) - 0x3f3504f3u;
    float n = (float)((int32_t)bits >> 23) - below;
    float f = bits_float((bits & 0x7fffffu) + 0x3f3504f3u) - 1;
    float square = f * f, fourth = square * square;
    float p = ((3.33333255e-1f + -2.50015854e-1f * f) + square * (2.00019848e-1f + -1.66090458e-1f * f)) +
              fourth * ((1.41816306e-1f + -1.32430564e-1f * f) + square * (1.29055371e-1f + -7.62292082e-2f * f));
    float result = n * LN_2_LOW + p * (square * f) - 0.5f * square + f + n * LN_2_HIGH;
    result = x == 0 ? -INFINITY : result;
    result = x < 0 ? NAN : result;
    return x < INFINITY ? result : x; /* infinity and NaN stay */
}

/* Phi(x), the share of a standard normal distribution below x. `density_out`: phi(x). */
OP_INLINE float normal_share_f32(float x, float *density_out) {
    float distance = fabsf(x);
    float peak = exp_below_f32(-0.5f * x * x);
    float t = 1 / (1 + 0.35f * distance);
    float square = t * t, fourth = square * square;
    float p = ((1.39621401e-1f + 1.39861937e-1f * t) + square * (1.19832344e-1f + 1.05510205e-1f * t)) +
              fourth * (((-2.31153153e-2f + 1.59182476e-1f * t) + square * (-2.55721803e-1f + 1.43975463e-1f * t)) +
                        fourth * -2.91467235e-2f);
    float tail = peak * (p * t);
    *density_out = peak * 0.398942280f;
    return x > 0 ? 1 - tail : tail;
}

/* The point of the unit circle at an angle of `turns` (-1/2 to 1/2). */
OP_INLINE void circle_point_f32(float turns, float *cosine_out, float *sine_out) {
    float shifted = turns * 4 + ROUND_TO_WHOLE;
    uint32_t quarter = float_bits(shifted); /* the lowest bits count quarters */
    float r = turns - (shifted - ROUND_TO_WHOLE) * 0.25f, z = r * r;
    float sine = -7.54020570e1f;
    sine = sine * z + 8.15925533e1f;
    sine = sine * z + -4.13416626e1f;
    sine = (sine * z + 6.28318529f) * r;
    float cosine = 5.92204067e1f;
    cosine = cosine * z + -8.54428521e1f;
    cosine = cosine * z + 6.49393167e1f;
    cosine = cosine * z + -1.97392087e1f;
    cosine = cosine * z + 1;
    float along = quarter & 1 ? sine : cosine, across = quarter & 1 ? cosine : sine;
    *cosine_out = bits_float(float_bits(along) ^ ((quarter + 1) >> 1 & 1) << 31);
    *sine_out = bits_float(float_bits(across) ^ (quarter >> 1 & 1) << 31);
}

OP_INLINE double exp_f64(double x) {
    return exp(x);
}

OP_INLINE double exp_below_f64(double x) {
    return exp(x);
}

OP_INLINE double log_f64(double x) {
    return log(x);
}

OP_INLINE double normal_share_f64(double x, double *density_out) {
    *density_out = 0.39894228040143267794 * exp(-0.5 * x * x);
    return 0.5 * erfc(-0.70710678118654752440 * x);
}

OP_INLINE void circle_point_f64(double turns, double *cosine_out, double *sine_out) {
    *cosine_out = cos(6.28318530717958647693 * turns);
    *sine_out = sin(6.28318530717958647693 * turns);
}

/* gelu(x) = x Phi(x), and its derivative. */
#define GELU(suffix, element)                                                                                          \
    OP_INLINE element gelu_##suffix(element x) {                                                                       \
        element density;                                                                                               \
        return x * normal_share_##suffix(x, &density);                                                                 \
    }                                                                                                                  \
    OP_INLINE element gelu_slope_##suffix(element x) {                                                                 \
        element density, share = normal_share_##suffix(x, &density);                                                   \
        return share + x * density;                                                                                    \
    }                                                                                                                  \
    /* (1 + tanh(u / 2)) / 2 = 1 / (1 + exp(-u)) = exp(u) / (1 + exp(u)) */                                            \
    OP_INLINE element gelu_tanh_share_##suffix(element x) {                                                            \
        const element u = (element)1.59576912160573071176 * (x + (element)0.044715 * x * x * x);                       \
        const element peak = exp_below_##suffix(u > 0 ? -u : u);                                                       \
        return (u > 0 ? 1 : peak) / (1 + peak);                                                                        \
    }                                                                                                                  \
    OP_INLINE element gelu_tanh_##suffix(element x) {                                                                  \
        return x * gelu_tanh_share_##suffix(x);                                                                        \
    }                                                                                                                  \
    OP_INLINE element gelu_tanh_slope_##suffix(element x) {                                                            \
        const element share = gelu_tanh_share_##suffix(x);                                                             \
        const element slope = (element)1.59576912160573071176 * (1 + 3 * (element)0.044715 * x * x);                   \
        return share + x * share * (1 - share) * slope;                                                                \
    }
GELU(f32, float)
GELU(f64, double)
#undef GELU

#endif
