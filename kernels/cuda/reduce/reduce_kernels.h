/*
 * The kernels of reductions and copies: the GPU code without its launch (reduce.cu), so that a test can compile it
 * for the host and run its threads there (tests/support/emulated/reduce_threads.cc). There is one kernel per layout of
 * an element. The operation on the elements is the same for all threads of a call, and is decided once per 16 bytes of
 * a source: memory is slower than that.
 *
 * A thread takes 16 bytes of the result at a time, at the same place in all sources, which it reads two at a time, in
 * order, and writes to every result. Where buffers are not aligned alike, and at the ends, it takes one element at a
 * time.
 *
 * Invariant: each byte of the sources is read once, by the thread that later writes that place; so a result may be a
 * source.
 */
#ifndef TUTTI_KERNELS_CUDA_REDUCE_KERNELS_H
#define TUTTI_KERNELS_CUDA_REDUCE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/reduce/reduce_plan.h"

namespace {

constexpr int threads_per_block = 256, vector_bytes = 16; // threads; bytes that a thread moves at once

/* Element `stored` of a buffer, `wide` when it is widened, `acc` while it is computed with. */
#define FAMILY(name, stored_type, wide_type, acc_type, widen_element, start_element, combine_element, finish_element,  \
               narrow_element)                                                                                         \
    struct name {                                                                                                      \
        typedef stored_type stored;                                                                                    \
        typedef wide_type wide;                                                                                        \
        typedef acc_type acc;                                                                                          \
        static __device__ __forceinline__ wide widen(stored x) {                                                       \
            return widen_element;                                                                                      \
        }                                                                                                              \
        static __device__ __forceinline__ acc start(const tutti_cuda_rule &rule, wide x, uint64_t factor) {            \
            return start_element(&rule, x, factor);                                                                    \
        }                                                                                                              \
        static __device__ __forceinline__ acc combine(tutti_cuda_fold fold, acc x, acc y, uint64_t bias) {             \
            return combine_element(fold, x, y, bias);                                                                  \
        }                                                                                                              \
        static __device__ __forceinline__ wide finish(tutti_cuda_finish finish, const tutti_cuda_rule &rule, acc x) {  \
            return finish_element(finish, &rule, x);                                                                   \
        }                                                                                                              \
        static __device__ __forceinline__ stored narrow(wide x) {                                                      \
            return narrow_element;                                                                                     \
        }                                                                                                              \
    };
#define REAL(name, stored)                                                                                             \
    FAMILY(name, stored, float, float, widen_##name(x), f32_start, f32_combine, f32_finish, narrow_##name(x))
#define WHOLE(name, stored, acc) FAMILY(name, stored, stored, acc, x, name##_start, name##_combine, name##_finish, x)

REAL(f32, float)
REAL(f16, uint16_t)
REAL(bf16, uint16_t)
REAL(e4m3, uint8_t)
REAL(e5m2, uint8_t)
WHOLE(f64, double, double)
WHOLE(u8, uint8_t, uint32_t)
WHOLE(u16, uint16_t, uint32_t)
WHOLE(u32, uint32_t, uint32_t)
WHOLE(u64, uint64_t, uint64_t)

#define FOR_LANES _Pragma("unroll") for (int i = 0; i < LANES; i++)

/* The elements that are moved at once. */
template <class E, int LANES> struct alignas(LANES * sizeof(typename E::stored)) lanes {
    typename E::stored x[LANES];
    __device__ __forceinline__ void widen(typename E::wide (&wide)[LANES]) const {
        FOR_LANES wide[i] = E::widen(x[i]);
    }
    __device__ __forceinline__ void narrow(const typename E::wide (&wide)[LANES]) {
        FOR_LANES x[i] = E::narrow(wide[i]);
    }
};

/* Small floats lie in words, which are converted as a whole: GPUs have instructions for two floats at once. */
#define IN_WORDS(name)                                                                                                 \
    template <> struct alignas(vector_bytes) lanes<name, (int)(vector_bytes / sizeof(name::stored))> {                 \
        enum { WORDS = vector_bytes / 4, EACH = 4 / sizeof(name::stored) };                                            \
        uint32_t word[WORDS];                                                                                          \
        __device__ __forceinline__ void widen(float (&wide)[WORDS * EACH]) const {                                     \
            _Pragma("unroll") for (int i = 0; i < WORDS; i++) widen_word_##name(word[i], &wide[i * EACH]);             \
        }                                                                                                              \
        __device__ __forceinline__ void narrow(const float (&wide)[WORDS * EACH]) {                                    \
            _Pragma("unroll") for (int i = 0; i < WORDS; i++) word[i] = narrow_word_##name(&wide[i * EACH]);           \
        }                                                                                                              \
    };
IN_WORDS(f16)
IN_WORDS(e4m3)
IN_WORDS(e5m2)

#define CASE(fold)                                                                                                     \
    case fold: FOR_LANES acc[i] = E::combine(fold, acc[i], E::start(rule, wide[i], factor), rule.bias); break

template <class E, int LANES>
__device__ __forceinline__ void combine_all(const tutti_cuda_rule &rule, typename E::acc (&acc)[LANES],
                                            const lanes<E, LANES> &in, uint64_t factor) {
    typename E::wide wide[LANES];
    in.widen(wide);
    switch (rule.fold) {
        CASE(TUTTI_CUDA_SUM);
        CASE(TUTTI_CUDA_MIN);
        CASE(TUTTI_CUDA_MAX);
        CASE(TUTTI_CUDA_PROD);
        CASE(TUTTI_CUDA_AND);
        CASE(TUTTI_CUDA_OR);
        CASE(TUTTI_CUDA_XOR);
    }
}
#undef CASE

template <class E, int LANES>
__device__ __forceinline__ void finish_all(const tutti_cuda_rule &rule, const typename E::acc (&acc)[LANES],
                                           lanes<E, LANES> &out) {
    typename E::wide wide[LANES];
    /* Common rules are decided once for all lanes; a quotient takes so long that a decision per lane costs nothing. */
    if (rule.finish == TUTTI_CUDA_AS_IT_IS) FOR_LANES wide[i] = E::finish(TUTTI_CUDA_AS_IT_IS, rule, acc[i]);
    else if (rule.finish == TUTTI_CUDA_TIMES) FOR_LANES wide[i] = E::finish(TUTTI_CUDA_TIMES, rule, acc[i]);
    else FOR_LANES wide[i] = E::finish(rule.finish, rule, acc[i]);
    out.narrow(wide);
}

/* Result `at`, counted in LANES elements from `start` on. */
template <class E, int LANES>
__device__ __forceinline__ void reduce_at(const tutti_cuda_reduce_plan &plan, size_t start, size_t at) {
    typedef lanes<E, LANES> vector;
    typedef typename E::stored stored;
    const auto read = [&](int k) { return ((const vector *)((const stored *)plan.srcs[k] + start))[at]; };
    typename E::wide wide[LANES];
    typename E::acc acc[LANES];
    vector first = read(0), second, result;
    if (plan.nsrcs > 1) second = read(1);
    first.widen(wide);
    FOR_LANES acc[i] = E::start(plan.rule, wide[i], plan.factors[0]);
    if (plan.nsrcs > 1) combine_all<E, LANES>(plan.rule, acc, second, plan.factors[1]);
#pragma unroll 1
    for (int k = 2; k < plan.nsrcs; k += 2) {
        const bool both = k + 1 < plan.nsrcs;
        first = read(k);
        if (both) second = read(k + 1);
        combine_all<E, LANES>(plan.rule, acc, first, plan.factors[k]);
        if (both) combine_all<E, LANES>(plan.rule, acc, second, plan.factors[k + 1]);
    }
    finish_all<E, LANES>(plan.rule, acc, result);
#pragma unroll 1
    for (int k = 0; k < plan.ndsts; k++) ((vector *)((stored *)plan.dsts[k] + start))[at] = result;
}

template <class E>
__global__ void __launch_bounds__(threads_per_block) reduce(const __grid_constant__ tutti_cuda_reduce_plan plan) {
    constexpr int LANES = vector_bytes / sizeof(typename E::stored);
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (size_t i = thread; i < plan.vectors; i += stride) reduce_at<E, LANES>(plan, plan.head, i);
    const size_t middle = plan.vectors * LANES;
    for (size_t i = thread; i < plan.count - middle; i += stride)
        reduce_at<E, 1>(plan, 0, i < plan.head ? i : i + middle);
}

/* ------------------------------------------------------------------------------------------------- copies */

/* Copies in units of V, to which both sides are aligned after the head; the bytes before and behind go one at a time.
 * Four loads are under way before the first one is needed. */
template <class V> __device__ __forceinline__ void copy_by(const tutti_cuda_move &copy, size_t thread, size_t stride) {
    size_t head = (sizeof(V) - (size_t)copy.dst % sizeof(V)) % sizeof(V);
    if (head > copy.bytes) head = copy.bytes;
    const size_t units = (copy.bytes - head) / sizeof(V), middle = units * sizeof(V);
    const V *from = (const V *)(copy.src + head);
    V *to = (V *)(copy.dst + head);
    size_t i = thread;
#pragma unroll 1
    for (; i + 3 * stride < units; i += 4 * stride) {
        const V a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
        to[i] = a;
        to[i + stride] = b;
        to[i + 2 * stride] = c;
        to[i + 3 * stride] = d;
    }
#pragma unroll 1
    for (; i < units; i += stride) to[i] = from[i];
#pragma unroll 1
    for (i = thread; i < copy.bytes - middle; i += stride) {
        const size_t at = i < head ? i : i + middle;
        copy.dst[at] = copy.src[at];
    }
}

__device__ __forceinline__ void copy_widely(const tutti_cuda_move &copy, size_t thread, size_t stride) {
    const size_t apart = (size_t)copy.dst - (size_t)copy.src;
    if (apart % 16 == 0) copy_by<uint4>(copy, thread, stride);
    else if (apart % 8 == 0) copy_by<uint64_t>(copy, thread, stride);
    else if (apart % 4 == 0) copy_by<uint32_t>(copy, thread, stride);
    else if (apart % 2 == 0) copy_by<uint16_t>(copy, thread, stride);
    else copy_by<char>(copy, thread, stride);
}

/* Neighbouring blocks are at the same place of different copies: a source that several of them read is then fetched
 * from memory once. */
__global__ void __launch_bounds__(threads_per_block) copy_pieces(const __grid_constant__ tutti_cuda_copies copies) {
    const tutti_cuda_move copy = copies.list[blockIdx.x];
    copy_widely(copy, (size_t)blockIdx.y * blockDim.x + threadIdx.x, (size_t)gridDim.y * blockDim.x);
}

/* Copies the bytes of the move that are there now. */
__global__ void __launch_bounds__(threads_per_block) copy_counted(tutti_cuda_move most, const uint64_t *bytes_at) {
    const size_t bytes = (size_t) * (const volatile uint64_t *)bytes_at;
    if (bytes < most.bytes) most.bytes = bytes;
    copy_widely(most, (size_t)blockIdx.x * blockDim.x + threadIdx.x, (size_t)gridDim.x * blockDim.x);
}

__global__ void store_value(uint64_t *at, uint64_t value) {
    __threadfence_system();
    *(volatile uint64_t *)at = value;
}

} // namespace

#endif
