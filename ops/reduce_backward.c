/*
 * The gradients of reductions. They use elementwise operators, which use reduce.c for the gradients of inputs that were
 * broadcast.
 */
#include "ops/elementwise.h"
#include "ops/gradient.h"
#include "ops/reduce.h"

static tutti_status expand_backward(const tutti_tensor *x, double factor, unsigned dims, bool keep,
                                    const tutti_tensor *dy, tutti_tensor **dx_out) {
    const tutti_layout *layout = tutti_tensor_layout(x);
    const tutti_ops_expansion expansion = {
        .factor = factor, .dims = dims, .kept = keep, .ndims = layout->ndims, .shape = layout->shape};
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_expand, .params = &expansion, .ninputs = 1, .inputs = {dy});
    return tutti_ops_run_gradient(&call, x, dx_out);
}

/* Checks that `y`, the result or its gradient, has the shape and type of the result. */
static tutti_status check_extreme(const tutti_tensor *x, const tutti_tensor *y, unsigned dims, bool keep) {
    const tutti_layout *wide = tutti_tensor_layout(x), *is = tutti_tensor_layout(y);
    int64_t shape[TUTTI_MOST_DIMS];
    int ndims = 0;
    for (int d = 0; d < wide->ndims; d++) {
        bool is_reduced = (dims >> d & 1) != 0;
        if (!is_reduced || keep) shape[ndims++] = is_reduced ? 1 : wide->shape[d];
    }
    if (is->type != wide->type)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "reduce_backward: '%.40s' is %s, and '%.40s' %s; tutti_op_cast changes one", is->name,
                          tutti_type_name(is->type), wide->name, tutti_type_name(wide->type));
    if (is->ndims != ndims)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "reduce_backward: '%.40s' has %d dimensions, and the result %d", is->name,
                          is->ndims, ndims);
    for (int d = 0; d < ndims; d++)
        if (is->shape[d] != shape[d])
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "reduce_backward: dimension %d of '%.40s' is %lld, and of the result %lld", d, is->name,
                              (long long)is->shape[d], (long long)shape[d]);
    return TUTTI_OK;
}

/* y or dy with the reduced dimensions, of extent 1. */
static tutti_status keep_dims(const tutti_tensor *x, const tutti_tensor *y, unsigned dims, tutti_tensor **out) {
    const tutti_layout *layout = tutti_tensor_layout(x);
    int64_t shape[TUTTI_MOST_DIMS];
    for (int d = 0; d < layout->ndims; d++) shape[d] = (dims >> d & 1) != 0 ? 1 : layout->shape[d];
    return tutti_op_reshape(y, layout->ndims, shape, NULL, out);
}

/* Where x is the extreme, its gradient is dy divided by the number of such places, else 0. */
static tutti_status extreme_backward(const tutti_tensor *x, const tutti_tensor *y, unsigned dims,
                                     const tutti_tensor *dy, tutti_tensor **dx_out) {
    tutti_tensor *extremes = NULL, *gradient = NULL, *mask = NULL, *count = NULL, *share = NULL;
    tutti_status status = keep_dims(x, y, dims, &extremes);
    if (status == TUTTI_OK) status = keep_dims(x, dy, dims, &gradient);
    if (status == TUTTI_OK) status = tutti_ops_two(&tutti_ops_row_equal, x, extremes, NULL, &mask);
    if (status == TUTTI_OK) status = tutti_op_reduce(mask, TUTTI_SUM, dims, true, NULL, &count);
    if (status == TUTTI_OK) status = tutti_ops_two(&tutti_ops_row_div, gradient, count, NULL, &share);
    if (status == TUTTI_OK) {
        tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_mul, .ninputs = 2, .inputs = {mask, share});
        status = tutti_ops_run_gradient(&call, x, dx_out);
    }
    tutti_tensor *made[] = {extremes, gradient, mask, count, share};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) tutti_ops_tensor_end(made[i], NULL);
    return status;
}

tutti_status tutti_op_reduce_backward(const tutti_tensor *x, const tutti_tensor *y, tutti_reduction reduction,
                                      unsigned dims, bool keep, const tutti_tensor *dy, tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("reduce_backward", (const tutti_tensor *const[]){x, dy}, 2));
    const tutti_layout *layout = tutti_tensor_layout(x);
    const bool is_extreme = reduction == TUTTI_MIN || reduction == TUTTI_MAX;
    double count = 1;
    if (dims >> layout->ndims != 0 || (reduction != TUTTI_SUM && reduction != TUTTI_AVG && !is_extreme))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "reduce_backward: the mask 0x%x or the reduction %d is wrong", dims,
                          (int)reduction);
    for (int d = 0; d < layout->ndims; d++)
        if ((dims >> d & 1) != 0) count *= (double)layout->shape[d];
    if (reduction == TUTTI_SUM) return expand_backward(x, 1, dims, keep, dy, dx_out);
    if (reduction == TUTTI_AVG) return expand_backward(x, 1 / count, dims, keep, dy, dx_out);
    TUTTI_TRY(tutti_ops_check_given("reduce_backward of min and max", (const tutti_tensor *const[]){y}, 1));
    if (dx_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "reduce_backward: the result is NULL");
    TUTTI_TRY(check_extreme(x, y, dims, keep));
    TUTTI_TRY(check_extreme(x, dy, dims, keep));
    return extreme_backward(x, y, dims, dy, dx_out);
}
