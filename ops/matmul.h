/*
 * Rows of matrix products, and the gradient of a bias.
 */
#ifndef TUTTI_OPS_MATMUL_H
#define TUTTI_OPS_MATMUL_H

#include "ops/call.h"

extern const tutti_ops_row tutti_ops_row_matmul, tutti_ops_row_dense, tutti_ops_row_dense_dx,
    tutti_ops_row_dense_dweight;

/* dy summed over all dimensions but the last. */
tutti_status tutti_ops_bias_backward(const tutti_tensor *bias, const tutti_tensor *dy, tutti_tensor **dbias_out);

#endif
