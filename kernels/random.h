/*
 * Counter-based random numbers: a number depends only on (seed, stream, index), so any rank, thread or later run
 * computes the same number without keeping state. Every use has its own stream.
 *
 * Method: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 */
#ifndef TUTTI_KERNELS_RANDOM_H
#define TUTTI_KERNELS_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/real.h"

typedef enum tutti_random_use {
    TUTTI_RANDOM_INITIALIZER = 1,
    TUTTI_RANDOM_DROPOUT,
    TUTTI_RANDOM_PERMUTATION,
    TUTTI_RANDOM_DIGITS,
    TUTTI_RANDOM_AUGMENT,
    TUTTI_RANDOM_SHUFFLE_BUFFER,
    TUTTI_RANDOM_FILES
} tutti_random_use;

#define TUTTI_RANDOM_TIMES (UINT64_C(1) << 40)

/* The stream of a use, for example of dropout in layer `item` (below 2^16) at step `time` (below 2^40). */
static inline uint64_t tutti_random_stream(tutti_random_use use, uint64_t item, uint64_t time) {
    return (uint64_t)use << 56 | (item & 0xffff) << 40 | time % TUTTI_RANDOM_TIMES;
}

/* The stream at another time, from the stream at time 0. */
static inline uint64_t tutti_random_stream_at(uint64_t stream, uint64_t time) {
    return stream | time % TUTTI_RANDOM_TIMES;
}

/* Four words of 32 random bits. */
void tutti_random_block(uint64_t seed, uint64_t stream, uint64_t index, uint32_t words_out[4]);

/* 64 random bits. */
uint64_t tutti_random_bits(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in [0, 1), a multiple of 2^-53. */
double tutti_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);

/* Parameters of normal deviates. */
typedef struct tutti_normal {
    uint64_t seed, stream;
    double stddev;
} tutti_normal;

/* data[i] = a normal deviate of the given standard deviation, mean 0, cut off at two standard deviations
 * (drawn again, not clamped). */
void tutti_random_truncated_normal(uint64_t seed, uint64_t stream, double stddev, size_t count, tutti_real *data);

#endif
