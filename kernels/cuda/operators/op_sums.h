/*
 * Sums over many elements in two steps: each of `groups` groups takes every groups-th term, then the groups of a
 * result are added in their order. The number of groups, and so the order, depends on the shape only.
 */
#ifndef TUTTI_KERNELS_CUDA_OP_SUMS_H
#define TUTTI_KERNELS_CUDA_OP_SUMS_H

#include "kernels/cuda/operators/op_element.h"

#define WANTED_THREADS ((size_t)1 << 16) /* roughly enough to keep a large GPU busy */
#define MOST_GROUPS    1024
#define LEAST_TERMS    16 /* per group */

/* For `results` sums of `terms` terms, one thread for each group. */
static inline size_t groups_for(size_t results, size_t terms) {
    size_t groups = results == 0 ? 1 : WANTED_THREADS / results;
    if (groups > terms / LEAST_TERMS) groups = terms / LEAST_TERMS;
    if (groups > MOST_GROUPS) groups = MOST_GROUPS;
    return groups < 1 ? 1 : groups;
}

#endif
