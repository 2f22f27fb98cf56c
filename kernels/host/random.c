/*
 * Philox4x32-10 and the numbers that are drawn from it.
 */
#include "kernels/random.h"

#include <math.h>

#include "kernels/host/philox.h"

void tutti_random_block(uint64_t seed, uint64_t stream, uint64_t index, uint32_t words_out[4]) {
    philox_block(seed, stream, index, words_out);
}

uint64_t tutti_random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    tutti_random_block(seed, stream, index, words);
    return (uint64_t)words[1] << 32 | words[0];
}

double tutti_random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(tutti_random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

/* Two normal deviates from two words (Box and Muller, 1958). */
static void box_muller(uint32_t word_0, uint32_t word_1, double pair_out[2]) {
    double radius = sqrt(-2 * log(((double)word_0 + 1) * 0x1p-32));
    double angle = 2 * 3.14159265358979323846 * (double)word_1 * 0x1p-32;
    pair_out[0] = radius * cos(angle);
    pair_out[1] = radius * sin(angle);
}

/* Returns the first of a sequence of deviates that lies within two standard deviations; 95 % of them do. */
static double truncated_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    for (uint64_t attempt = 0;; attempt++) {
        uint32_t words[4];
        tutti_random_block(seed, stream, index | attempt << 48, words);
        for (int half = 0; half < 2; half++) {
            double pair[2];
            box_muller(words[2 * half], words[2 * half + 1], pair);
            if (fabs(pair[0]) <= 2) return pair[0];
            if (fabs(pair[1]) <= 2) return pair[1];
        }
    }
}

void tutti_random_truncated_normal(uint64_t seed, uint64_t stream, double stddev, size_t count, tutti_real *data) {
    for (size_t i = 0; i < count; i++) data[i] = (tutti_real)(stddev * truncated_normal(seed, stream, i));
}
