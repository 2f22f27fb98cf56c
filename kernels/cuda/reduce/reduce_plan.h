/*
 * Reductions and copies as the kernels take them: by value, ready to run. Made on the host, by code that needs no
 * GPU.
 */
#ifndef TUTTI_KERNELS_CUDA_REDUCE_PLAN_H
#define TUTTI_KERNELS_CUDA_REDUCE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/reduce/reduce_element.h"

#define TUTTI_CUDA_MOST_BUFFERS 64

/* The layout of an element; there is one kernel for each. */
typedef enum tutti_cuda_family {
    TUTTI_CUDA_F32,
    TUTTI_CUDA_F64,
    TUTTI_CUDA_F16,
    TUTTI_CUDA_BF16,
    TUTTI_CUDA_E4M3,
    TUTTI_CUDA_E5M2,
    TUTTI_CUDA_U8,
    TUTTI_CUDA_U16,
    TUTTI_CUDA_U32,
    TUTTI_CUDA_U64,
    TUTTI_CUDA_FAMILY_COUNT
} tutti_cuda_family;

/* A kernel's argument: its size must stay below 4 KiB. */
typedef struct tutti_cuda_reduce_plan {
    tutti_cuda_rule rule;
    tutti_cuda_family family;
    int nsrcs, ndsts;
    size_t count;
    size_t head; /* elements before the first address that is a multiple of 16 if all buffers share one; else count */
    size_t vectors; /* of 16 bytes, after the head; the rest is the tail */
    const void *srcs[TUTTI_CUDA_MOST_BUFFERS];
    void *dsts[TUTTI_CUDA_MOST_BUFFERS];
    uint64_t factors[TUTTI_CUDA_MOST_BUFFERS]; /* bits of a float or double, or an integer modulo 2^64 */
} tutti_cuda_reduce_plan;

#define TUTTI_CUDA_MOST_COPIES 64

typedef struct tutti_cuda_move {
    char *dst;
    const char *src;
    size_t bytes;
} tutti_cuda_move;

/* Many copies; also a kernel's argument. */
typedef struct tutti_cuda_copies {
    int count;
    tutti_cuda_move list[TUTTI_CUDA_MOST_COPIES];
} tutti_cuda_copies;

#endif
