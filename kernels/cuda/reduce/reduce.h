/*
 * Reductions and copies by kernels: GPU memory's counterpart of kernels/host/reduce/reduce.c.
 */
#ifndef TUTTI_KERNELS_CUDA_REDUCE_H
#define TUTTI_KERNELS_CUDA_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cuda/reduce/reduce_plan.h"
#include "kernels/reduce.h"

size_t tutti_cuda_type_bytes(tutti_type type);
bool tutti_cuda_reduce_supports(tutti_type type, tutti_reduction reduction);
/* At most TUTTI_CUDA_MOST_BUFFERS of each. */
void tutti_cuda_reduce_make_plan(const tutti_reduce_args *args, void *const *dsts, int ndsts,
                                 tutti_cuda_reduce_plan *plan_out);

#endif
