/*
 * What gradients have in common: their layouts, and sums over dimensions that were broadcast.
 */
#ifndef TUTTI_OPS_GRADIENT_H
#define TUTTI_OPS_GRADIENT_H

#include "ops/call.h"

/* The adjoint of a layout, with its cuts: valid as long as it. */
tutti_status tutti_ops_adjoint(const tutti_tensor *of, tutti_ops_layout *adjoint_out);
/* A copy of x in another layout of its shape, or of its element count. `options` as of tutti_tensor_redistribute. */
tutti_status tutti_ops_convert(const tutti_tensor *x, const tutti_layout *layout, const tutti_options *options,
                               tutti_tensor **y_out);
/* *tensor becomes broadcast where it is partial: it is reduced once, for all that follows. `status` as below. */
tutti_status tutti_ops_make_whole(tutti_status status, const tutti_options *options, tutti_tensor **tensor);
/* dx = the gradient of `of`, which may have been broadcast to the shape of `wide`, its gradient there. Frees `wide`,
 * whatever the status; `status` is that of what made it: on a failure it is given back at once. */
tutti_status tutti_ops_narrow_gradient(tutti_status status, tutti_tensor *wide, const tutti_tensor *of,
                                       tutti_tensor **dx_out);
/* Was `of` broadcast to the shape of y? */
bool tutti_ops_is_broadcast(const tutti_tensor *of, const tutti_tensor *y);

/* Runs the call with the adjoint of `of` as its target. */
tutti_status tutti_ops_run_gradient(tutti_ops_call *call, const tutti_tensor *of, tutti_tensor **dx_out);

/* Gives the gradients that were made to outs (NULL: not wanted), or on a failure destroys them. */
tutti_status tutti_ops_give(tutti_status status, tutti_tensor *const *made, tutti_tensor **const *outs, int count);

/* Has `y`, the result of an elementwise operator on a and b, or its gradient, the shape of that, and their type and
 * placement? */
tutti_status tutti_ops_check_result(const char *name, const tutti_tensor *a, const tutti_tensor *b,
                                    const tutti_tensor *y);

/* Are these not NULL? In front of what uses them before tutti_ops_run would look. */
tutti_status tutti_ops_check_given(const char *name, const tutti_tensor *const *tensors, int count);

#endif
