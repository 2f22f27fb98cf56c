/*
 * Rows of elementwise operators that other operators use.
 */
#ifndef TUTTI_OPS_ELEMENTWISE_H
#define TUTTI_OPS_ELEMENTWISE_H

#include "ops/call.h"

extern const tutti_ops_row tutti_ops_row_add, tutti_ops_row_sub, tutti_ops_row_mul, tutti_ops_row_div,
    tutti_ops_row_equal, tutti_ops_row_relu_backward, tutti_ops_row_relu, tutti_ops_row_exp, tutti_ops_row_gelu,
    tutti_ops_row_gelu_backward, tutti_ops_row_scale, tutti_ops_row_add_number, tutti_ops_row_cast,
    tutti_ops_row_dropout;

/* Runs a row on two inputs. */
tutti_status tutti_ops_two(const tutti_ops_row *row, const tutti_tensor *a, const tutti_tensor *b,
                           const tutti_op_options *options, tutti_tensor **y_out);

#endif
