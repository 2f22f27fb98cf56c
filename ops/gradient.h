/*
 * Common parts of gradients: their layouts, and sums over dimensions that were broadcast.
 */
#ifndef TUTTI_OPS_GRADIENT_H
#define TUTTI_OPS_GRADIENT_H

#include "ops/call.h"

/* The adjoint of a layout, with its cuts: valid as long as the tensor. */
tutti_status tutti_ops_adjoint(const tutti_tensor *of, tutti_ops_layout *adjoint_out);
/* A copy of x in another layout of its shape, or of its element count. `options` as for tutti_tensor_redistribute. */
tutti_status tutti_ops_convert(const tutti_tensor *x, const tutti_layout *layout, const tutti_options *options,
                               tutti_tensor **y_out);
/* Makes *tensor broadcast where it is partial: it is reduced once, for all later uses. `status` as below. */
tutti_status tutti_ops_make_whole(tutti_status status, const tutti_options *options, tutti_tensor **tensor);
/* dx = the gradient of `of`, which may have been broadcast to the shape of `wide`; `wide` is the gradient in that
 * shape. Frees `wide` in all cases. `status`: the result of the call that made `wide`; if it is an error, it is
 * returned at once. */
tutti_status tutti_ops_narrow_gradient(tutti_status status, tutti_tensor *wide, const tutti_tensor *of,
                                       tutti_tensor **dx_out);
/* True when `of` was broadcast to the shape of y. */
bool tutti_ops_is_broadcast(const tutti_tensor *of, const tutti_tensor *y);

/* Runs the call with the adjoint of `of` as its target. */
tutti_status tutti_ops_run_gradient(tutti_ops_call *call, const tutti_tensor *of, tutti_tensor **dx_out);

/* Stores the gradients in outs (NULL: not wanted), or on a failure destroys them. */
tutti_status tutti_ops_give(tutti_status status, tutti_tensor *const *made, tutti_tensor **const *outs, int count);

/* Checks that `y`, the result of an elementwise operator on a and b, or its gradient, has that result's shape, and
 * their type and placement. */
tutti_status tutti_ops_check_result(const char *name, const tutti_tensor *a, const tutti_tensor *b,
                                    const tutti_tensor *y);

/* Checks that these are not NULL, for code that uses them before tutti_ops_run checks them. */
tutti_status tutti_ops_check_given(const char *name, const tutti_tensor *const *tensors, int count);

#endif
