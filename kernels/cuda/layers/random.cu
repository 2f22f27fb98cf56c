/*
 * Truncated normal deviates, as kernels/host/random.c draws them: a thread draws a number until it lies within two
 * standard deviations.
 */
#include <math.h>

#include "kernels/cuda/layers/quad.h"
#include "kernels/cuda/philox.h"

/* Two normal deviates from two words (Box and Muller, 1958). */
static __device__ inline void box_muller(uint32_t word_0, uint32_t word_1, double pair_out[2]) {
    double radius = sqrt(-2 * log(((double)word_0 + 1) * 0x1p-32));
    double angle = 2 * 3.14159265358979323846 * (double)word_1 * 0x1p-32;
    pair_out[0] = radius * cos(angle);
    pair_out[1] = radius * sin(angle);
}

static __device__ double truncated_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    for (uint64_t attempt = 0;; attempt++) {
        uint32_t words[4];
        philox(seed, stream, index | attempt << 48, words);
        for (int half = 0; half < 2; half++) {
            double pair[2];
            box_muller(words[2 * half], words[2 * half + 1], pair);
            if (fabs(pair[0]) <= 2) return pair[0];
            if (fabs(pair[1]) <= 2) return pair[1];
        }
    }
}

static __global__ void draw(tutti_normal normal, size_t count, float *data) {
    size_t at = thread_number();
    if (at < count) data[at] = (float)(normal.stddev * truncated_normal(normal.seed, normal.stream, at));
}

void tutti_gpu_truncated_normal(tutti_compute *compute, const tutti_normal *normal, size_t count, float *data) {
    if (count > 0) launch(compute, draw, blocks_for(count), THREADS, *normal, count, data);
}
