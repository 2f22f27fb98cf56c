/*
 * The GPU's kernels for copies of boxes, run on the host.
 */
#ifndef TUTTI_TESTS_BOX_THREADS_H
#define TUTTI_TESTS_BOX_THREADS_H

#include "kernels/cuda/reduce/box_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

void copy_box_by_threads(const tutti_cuda_box *box, unsigned blocks);

#ifdef __cplusplus
}
#endif

#endif
