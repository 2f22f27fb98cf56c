/*
 * The loops of op_vector.h, for the instruction set that the compiler targets. A file per instruction set defines
 * OP_VECTOR, the table's name, and includes this file.
 */
#include <stdbool.h>

#include "kernels/host/philox.h"
#include "kernels/host/reduce/reduce_small.h"
#include "kernels/host/vector/op_math.h"
#include "kernels/host/vector/op_vector.h"

#if defined(__AVX512F__)
#define REGISTER_BYTES 64
#elif defined(__AVX2__)
#define REGISTER_BYTES 32
#else
#define REGISTER_BYTES 16
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#define LANES 64

#define OP_TEMPLATE "kernels/host/vector/op_vector_real.h"
#include "kernels/host/operators/op_both_reals.h"

/* ---------------------------------------------------------------------------------------- random words */

/* Each 64-bit lane holds a word of a block in its lower half; its upper half is ignored. */
typedef uint64_t wide_words __attribute__((vector_size(REGISTER_BYTES)));

static inline __attribute__((always_inline)) wide_words multiply(wide_words a, uint32_t factor) {
#if defined(__AVX512F__)
    return (wide_words)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(factor));
#elif defined(__AVX2__)
    return (wide_words)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(factor));
#elif defined(__SSE2__)
    return (wide_words)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(factor));
#else
    return (a & UINT32_MAX) * factor;
#endif
}

static void draw_words(uint64_t seed, uint64_t stream, uint64_t first, size_t blocks, uint32_t *words) {
    enum { EACH = REGISTER_BYTES / 8 };
    wide_words step;
    for (int l = 0; l < EACH; l++) step[l] = (uint64_t)l;
    for (size_t i = 0; i < blocks; i += EACH, words += 4 * EACH) {
        const wide_words index = step + (first + i);
        wide_words x0 = index, x1 = index >> 32, x2 = (wide_words){0} + stream, x3 = x2 >> 32;
        uint32_t key_0 = (uint32_t)seed, key_1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            const wide_words product_0 = multiply(x0, PHILOX_MULTIPLIER_0),
                             product_1 = multiply(x2, PHILOX_MULTIPLIER_1);
            x0 = (product_1 >> 32) ^ x1 ^ key_0;
            x1 = product_1;
            x2 = (product_0 >> 32) ^ x3 ^ key_1;
            x3 = product_0;
            key_0 += PHILOX_WEYL_0;
            key_1 += PHILOX_WEYL_1;
        }
        const wide_words front = (x0 & UINT32_MAX) | x1 << 32, back = (x2 & UINT32_MAX) | x3 << 32;
        uint64_t pairs[2 * EACH];
        for (int l = 0; l < EACH; l++) {
            pairs[2 * l] = front[l];
            pairs[2 * l + 1] = back[l];
        }
        memcpy(words, pairs, sizeof pairs); /* little endian: word 0 first */
    }
}

static void uniform_step(size_t count, const uint32_t *restrict words, float low, float span, float last,
                         float *restrict y) {
    for (size_t i = 0; i < count; i++) {
        const float value = low + (float)(int32_t)(words[i] >> 8) * 0x1p-24f * span;
        y[i] = value > last ? last : value;
    }
}

static void normal_step(size_t pairs, const uint32_t *restrict words, float mean, float deviation, float *restrict y) {
    for (size_t i = 0; i < pairs; i++) {
        const float share = ((float)(int32_t)(words[2 * i] >> 1) + 1) * 0x1p-31f;
        const float radius = deviation * sqrtf(-2 * log_f32(share));
        float cosine, sine;
        circle_point_f32((float)(int32_t)words[2 * i + 1] * 0x1p-32f, &cosine, &sine);
        y[2 * i] = mean + radius * cosine;
        y[2 * i + 1] = mean + radius * sine;
    }
}

/* -------------------------------------------------------------------------------------------- the table */

#define LOOPS(suffix)                                                                                                  \
    {.exp = exp_step_##suffix,                                                                                         \
     .log = log_step_##suffix,                                                                                         \
     .gelu = gelu_step_##suffix,                                                                                       \
     .gelu_tanh = gelu_tanh_step_##suffix,                                                                             \
     .gelu_backward = gelu_backward_step_##suffix,                                                                     \
     .gelu_tanh_backward = gelu_tanh_backward_step_##suffix,                                                           \
     .exp_below = exp_below_step_##suffix,                                                                             \
     .exp_below_times = exp_below_times_step_##suffix,                                                                 \
     .largest = largest_step_##suffix,                                                                                 \
     .total = total_step_##suffix,                                                                                     \
     .products = products_step_##suffix}

const tutti_vector OP_VECTOR = {
    .f32 = LOOPS(f32),
    .f64 = LOOPS(f64),
    .widen = {[TUTTI_FLOAT16] = widen_float16,
              [TUTTI_BFLOAT16] = widen_bfloat16,
              [TUTTI_FLOAT8_E4M3] = widen_float8_e4m3,
              [TUTTI_FLOAT8_E5M2] = widen_float8_e5m2},
    .narrow = {[TUTTI_FLOAT16] = narrow_float16,
               [TUTTI_BFLOAT16] = narrow_bfloat16,
               [TUTTI_FLOAT8_E4M3] = narrow_float8_e4m3,
               [TUTTI_FLOAT8_E5M2] = narrow_float8_e5m2},
    .draw = draw_words,
    .uniform = uniform_step,
    .normal = normal_step,
};
