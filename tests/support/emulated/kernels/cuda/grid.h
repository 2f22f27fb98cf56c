/*
 * In place of kernels/cuda/grid.h: the kernels of kernels/cuda, compiled as C++ and run on the host, block by block
 * and thread by thread, with the same grids that a GPU would get. Concurrency is not emulated: results show neither
 * speed nor races between threads.
 *
 * The threads of a block run one after the other. The first one of each block has a stack of its own: if it comes to a
 * __syncthreads(), so have the others, and they take turns there.
 */
#ifndef TUTTI_TESTS_EMULATED_GRID_H
#define TUTTI_TESTS_EMULATED_GRID_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <tuple>

#include "kernels/cuda/compute.h"
#include "tests/support/emulated/enqueue.h"

using std::min;

#define __host__
#define __global__
#define __device__
#define __shared__ static

/* Aligned as on a GPU: the host's own moves of such values fail where a GPU's would. */
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1) : x(width), y(height), z(depth) {}
};

static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}

extern dim3 threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();

/* Runs a kernel's threads: body(context) once for each. One kernel at a time, from whichever thread. */
void emulated_run(dim3 grid, dim3 block, void (*body)(void *context), void *context);

/* ------------------------------------------------------------- arguments, with their addresses made host addresses */

template <typename T> static T reach(T value) {
    return value;
}
template <typename T> static T *reach(T *address) {
    return (T *)emulated_reach((const void *)address);
}
static inline tutti_bias_backward_args reach(tutti_bias_backward_args args) {
    args.y = reach(args.y), args.dy = reach(args.dy), args.dbias = reach(args.dbias);
    return args;
}
static inline tutti_softmax_loss_args reach(tutti_softmax_loss_args args) {
    args.logits = reach(args.logits), args.labels = reach(args.labels), args.dlogits = reach(args.dlogits);
    return args;
}
static inline tutti_softmax_parts reach(tutti_softmax_parts parts) {
    parts.logits = reach(parts.logits), parts.labels = reach(parts.labels);
    parts.distributions = reach(parts.distributions), parts.largest = reach(parts.largest);
    parts.sums = reach(parts.sums), parts.best = reach(parts.best);
    return parts;
}
/* For other structures with addresses, reach() is defined beside their kernel (kernels.cc). */

/* ------------------------------------------------------------------------------------------------- launch */

template <typename... Parameters> struct launched {
    void (*kernel)(Parameters...);
    dim3 grid, block;
    std::tuple<Parameters...> arguments, reached;

    static void thread(void *context) {
        launched *self = (launched *)context;
        std::apply(self->kernel, self->reached);
    }
    static void run(void *context) {
        launched *self = (launched *)context;
        self->reached =
            std::apply([](auto... each) { return std::tuple<Parameters...>(reach(each)...); }, self->arguments);
        emulated_run(self->grid, self->block, thread, self);
    }
    static void forget(void *context) {
        delete (launched *)context;
    }
};

template <typename... Parameters, typename... Arguments>
static tutti_status enqueue(tutti_stream stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                            Arguments... arguments) {
    std::tuple<Parameters...> all(arguments...);
    auto *made = new launched<Parameters...>{kernel, grid, block, all, all};
    emulated_enqueue(stream, launched<Parameters...>::run, launched<Parameters...>::forget, made);
    return TUTTI_OK;
}

template <typename... Parameters, typename... Arguments>
static void launch(tutti_compute *compute, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   Arguments... arguments) {
    (void)enqueue(tutti_cuda_compute_of(compute)->stream, kernel, grid, block, arguments...);
}

#endif
