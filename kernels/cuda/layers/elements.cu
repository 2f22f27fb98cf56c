/*
 * Elementwise kernels: a thread takes four elements, so that memory is read and written 16 bytes at a time.
 */
#include "kernels/cuda/layers/bfloat16.h"
#include "kernels/cuda/layers/quad.h"
#include "kernels/cuda/philox.h"

/* -------------------------------------------------------------------------------- y = op(a, b), y = op(a) */

struct plus {
    __device__ float operator()(float a, float b) const {
        return a + b;
    }
};

struct rectified {
    __device__ float operator()(float x, float) const {
        return x < 0 ? 0 : x;
    }
};

struct rectified_plus {
    __device__ float operator()(float a, float b) const {
        return rectified()(a + b, 0);
    }
};

/* The gradient of ReLU: dy where y is not 0. */
struct passed {
    __device__ float operator()(float y, float dy) const {
        return y == 0 ? 0 : dy;
    }
};

template <typename Op> static __global__ void combine(size_t count, const float *a, const float *b, float *y, Op op) {
    size_t at = 4 * thread_number();
    if (at >= count) return;
    if (count - at >= 4) {
        float4 u = load_quad(a + at), v = load_quad(b + at);
        store_quad(y + at, make_float4(op(u.x, v.x), op(u.y, v.y), op(u.z, v.z), op(u.w, v.w)));
        return;
    }
    for (; at < count; at++) y[at] = op(a[at], b[at]);
}

template <typename Op>
static void launch_combine(tutti_compute *compute, size_t count, const float *a, const float *b, float *y, Op op) {
    if (count > 0) launch(compute, combine<Op>, blocks_for(quads_of(count)), THREADS, count, a, b, y, op);
}

void tutti_gpu_add(tutti_compute *compute, size_t count, const float *a, const float *b, float *y) {
    launch_combine(compute, count, a, b, y, plus());
}

void tutti_gpu_add_relu(tutti_compute *compute, size_t count, const float *a, const float *b, float *y) {
    launch_combine(compute, count, a, b, y, rectified_plus());
}

void tutti_gpu_relu_forward(tutti_compute *compute, size_t count, const float *x, float *y) {
    launch_combine(compute, count, x, x, y, rectified());
}

void tutti_gpu_relu_backward(tutti_compute *compute, size_t count, const float *y, const float *dy, float *dx) {
    launch_combine(compute, count, y, dy, dx, passed());
}

/* ------------------------------------------------------------------------------------------- fill, round */

#define MOST_FILLING 4096 /* blocks: several waves on a large GPU, at little cost compared with the writes */

static __global__ void fill(size_t count, float value, float *data) {
    const size_t step = (size_t)gridDim.x * blockDim.x, quads = count / 4;
    for (size_t quad = thread_number(); quad < quads; quad += step)
        store_quad(data + 4 * quad, make_float4(value, value, value, value));
    const size_t at = 4 * quads + thread_number();
    if (at < count) data[at] = value;
}

void tutti_gpu_fill(tutti_compute *compute, size_t count, float value, float *data) {
    const unsigned blocks = count / 4 < (size_t)MOST_FILLING * THREADS ? blocks_for(quads_of(count)) : MOST_FILLING;
    if (count > 0) launch(compute, fill, blocks, THREADS, count, value, data);
}

static __global__ void round_to_bfloat16(size_t count, const float *src, uint16_t *dst) {
    size_t at = 4 * thread_number();
    if (at >= count) return;
    if (count - at >= 4) {
        float4 quad = load_quad(src + at);
        uint2 packed = make_uint2(bfloat16_of(quad.x) | (uint32_t)bfloat16_of(quad.y) << 16,
                                  bfloat16_of(quad.z) | (uint32_t)bfloat16_of(quad.w) << 16);
        *reinterpret_cast<uint2 *>(dst + at) = packed;
        return;
    }
    for (; at < count; at++) dst[at] = bfloat16_of(src[at]);
}

void tutti_gpu_round(tutti_compute *compute, size_t count, const float *src, uint16_t *dst) {
    if (count > 0) launch(compute, round_to_bfloat16, blocks_for(quads_of(count)), THREADS, count, src, dst);
}

/* ----------------------------------------------------------------------------------------------- dropout */

struct dropping {
    uint64_t seed, stream, first_element;
    uint32_t threshold; /* a word below it drops its element */
    float factor;
};

/* A thread takes one block of random words: elements 4b ... 4b + 3 of the global batch. */
static __global__ void drop(dropping how, const tutti_step_values *values, size_t count, const float *src, float *dst) {
    uint64_t block = how.first_element / 4 + thread_number();
    if (block * 4 >= how.first_element + count) return;
    uint32_t words[4];
    philox(how.seed, how.stream | values->time % TUTTI_RANDOM_TIMES, block, words);
    if (how.first_element % 4 == 0 && block * 4 + 4 <= how.first_element + count) {
        size_t at = block * 4 - how.first_element;
        float4 x = load_quad(src + at);
        store_quad(dst + at, make_float4(words[0] < how.threshold ? 0 : x.x * how.factor,
                                         words[1] < how.threshold ? 0 : x.y * how.factor,
                                         words[2] < how.threshold ? 0 : x.z * how.factor,
                                         words[3] < how.threshold ? 0 : x.w * how.factor));
        return;
    }
    for (int lane = 0; lane < 4; lane++) {
        uint64_t element = block * 4 + lane;
        if (element < how.first_element || element >= how.first_element + count) continue;
        size_t at = element - how.first_element;
        dst[at] = words[lane] < how.threshold ? 0 : src[at] * how.factor;
    }
}

void tutti_gpu_dropout(tutti_compute *compute, const tutti_dropout *dropout, const tutti_step_values *values,
                       size_t count, const float *src, float *dst) {
    if (count == 0) return;
    dropping how = {dropout->seed, dropout->stream, dropout->first_element, (uint32_t)(dropout->rate * 0x1p32),
                    (float)(1 / (1 - dropout->rate))};
    uint64_t first_block = dropout->first_element / 4, last_block = (dropout->first_element + count - 1) / 4;
    launch(compute, drop, blocks_for(last_block - first_block + 1), THREADS, how, values, count, src, dst);
}
