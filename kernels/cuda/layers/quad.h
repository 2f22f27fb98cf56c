/*
 * Several floats at once, and the arithmetic on blocks and indices that all kernels share.
 */
#ifndef TUTTI_KERNELS_CUDA_QUAD_H
#define TUTTI_KERNELS_CUDA_QUAD_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/divide.h"
#include "kernels/cuda/grid.h"

#define THREADS 256 /* per block, unless a kernel needs another number */

/* p must be a multiple of 16 bytes. */
static __device__ inline float4 load_quad(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

static __device__ inline void store_quad(float *p, float4 quad) {
    *reinterpret_cast<float4 *>(p) = quad;
}

/* WIDTH neighbours, read and written as one. */
template <int WIDTH, typename Element = float> struct alignas(WIDTH * sizeof(Element)) group { Element at[WIDTH]; };

template <int WIDTH, typename Element> static __device__ inline group<WIDTH, Element> load_group(const Element *p) {
    return *reinterpret_cast<const group<WIDTH, Element> *>(p);
}

template <int WIDTH, typename Element>
static __device__ inline void store_group(Element *p, const group<WIDTH, Element> &values) {
    *reinterpret_cast<group<WIDTH, Element> *>(p) = values;
}

static inline unsigned blocks_for(size_t items) {
    return (unsigned)((items + THREADS - 1) / THREADS);
}

static inline size_t quads_of(size_t count) {
    return (count + 3) / 4;
}

/* This thread's number in a grid of one dimension. */
static __device__ inline size_t thread_number() {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

#endif
