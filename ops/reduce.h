/*
 * Reductions and their opposite, for other operators.
 */
#ifndef TUTTI_OPS_REDUCE_H
#define TUTTI_OPS_REDUCE_H

#include "ops/call.h"

typedef struct tutti_ops_reduction {
    unsigned dims; /* mask */
    bool keep;     /* keep the dimensions, with extent 1 */
} tutti_ops_reduction;

extern const tutti_ops_row tutti_ops_row_reduce_sum, tutti_ops_row_reduce_mean, tutti_ops_row_reduce_min,
    tutti_ops_row_reduce_max, tutti_ops_row_expand;

/* y = x summed to the target's shape, which must broadcast to that of x. */
tutti_status tutti_ops_sum_to(const tutti_tensor *x, const tutti_layout *target, tutti_tensor **y_out);

/* Params of tutti_ops_row_expand: y = factor * x, repeated along dimensions that x lacks or has with extent 1. */
typedef struct tutti_ops_expansion {
    double factor;
    unsigned dims; /* mask of y's repeated dimensions */
    bool kept;     /* x has them with extent 1 */
    int ndims;     /* dimensions of y */
    const int64_t *shape;
} tutti_ops_expansion;

#endif
