/*
 * The GPU's kernels for reductions and copies, run on the host (reduce_threads.cc).
 */
#ifndef TUTTI_TESTS_REDUCE_THREADS_H
#define TUTTI_TESTS_REDUCE_THREADS_H

#include "kernels/cuda/reduce/reduce_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

void reduce_by_threads(const tutti_cuda_reduce_plan *plan, unsigned blocks);
void copy_by_threads(const tutti_cuda_copies *copies, unsigned blocks);
void copy_counted_by_threads(tutti_cuda_move most, const uint64_t *bytes_at, unsigned blocks);
void store_by_thread(uint64_t *at, uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
