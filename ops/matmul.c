/*
 * Matrix products: batched, and of dense layers.
 */
#include <string.h>

#include "kernels/operators.h"
#include "ops/gradient.h"
#include "ops/matmul.h"
#include "ops/reduce.h"

enum { MOST_BATCH_DIMS = TUTTI_MOST_DIMS - 2 };

static const double FLOP_NS = 0.05; /* rough time of a multiplication and an addition on one core */

/* ------------------------------------------------------------------------------------------------ matmul */

static const tutti_matmul *how_of(const tutti_ops_call *call) {
    static const tutti_matmul plain;
    return call->params != NULL ? call->params : &plain;
}

/* Writes the letters of an input's batch dimensions; a repeated dimension is written as 1. */
static tutti_status write_batch(const tutti_ops_call *call, int input, int nbatch, const int64_t *extents, char *text) {
    const tutti_layout *layout = tutti_ops_input(call, input);
    for (int own = 0; own < layout->ndims - 2; own++) {
        int d = own + nbatch - (layout->ndims - 2);
        if (layout->shape[own] != extents[d] && layout->shape[own] != 1)
            return tutti_ops_fail(
                call, "the leading dimensions do not broadcast: dimension %d of '%.40s' is %lld, of the result %lld",
                own, layout->name, (long long)layout->shape[own], (long long)extents[d]);
        *text++ = layout->shape[own] == extents[d] ? (char)('a' + d) : '1';
    }
    *text = '\0';
    return TUTTI_OK;
}

static tutti_status place_matmul(tutti_ops_call *call) {
    const tutti_layout *a = tutti_ops_input(call, 0), *b = tutti_ops_input(call, 1);
    char text[TUTTI_OPS_RULE_TEXT], of_a[TUTTI_MOST_DIMS], of_b[TUTTI_MOST_DIMS];
    int64_t extents[MOST_BATCH_DIMS];
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    if (a->ndims < 2 || b->ndims < 2) return tutti_ops_fail(call, "matrices have at least two dimensions");
    int nbatch = (a->ndims > b->ndims ? a->ndims : b->ndims) - 2;
    for (int d = 0; d < nbatch; d++) {
        int in_a = d - (nbatch - (a->ndims - 2)), in_b = d - (nbatch - (b->ndims - 2));
        extents[d] = in_a >= 0 && a->shape[in_a] != 1 ? a->shape[in_a] : in_b >= 0 ? b->shape[in_b] : 1;
    }
    TUTTI_TRY(write_batch(call, 0, nbatch, extents, of_a));
    TUTTI_TRY(write_batch(call, 1, nbatch, extents, of_b));
    strcat(strcpy(text, of_a), how_of(call)->transpose_a ? "km," : "mk,");
    strcat(strcat(text, of_b), how_of(call)->transpose_b ? "nk->" : "kn->");
    char *end = text + strlen(text);
    for (int d = 0; d < nbatch; d++) *end++ = (char)('a' + d);
    memcpy(end, "mn", 3);
    if (!tutti_ops_rule_read(text, "k", NULL, &call->rule)) return tutti_ops_fail(call, "%s is not a rule", text);
    for (int d = 0; d < nbatch; d++) tutti_ops_set_extent(call, (char)('a' + d), extents[d]);
    return TUTTI_OK;
}

/* Strides along the output's batch dimensions: 0 where the input is repeated. */
static void batch_strides(const tutti_ops_call *call, int input, int nbatch, int64_t *strides) {
    const tutti_ops_operand *operand = &call->in[input];
    int own_batch = operand->ndims - 2;
    int64_t stride = operand->shape[own_batch] * operand->shape[own_batch + 1];
    for (int d = nbatch - 1; d >= 0; d--) {
        int own = d - (nbatch - own_batch);
        strides[d] = own >= 0 && call->rule.inputs[input].factor[own] >= 0 ? stride : 0;
        if (own >= 0) stride *= operand->shape[own];
    }
}

static tutti_status multiply(const tutti_ops_call *call, const tutti_kernel_matmul_args *args) {
    tutti_ops_scratch scratch;
    TUTTI_TRY(tutti_ops_scratch_take(call, call->kernels->matmul_scratch_bytes(args), &scratch));
    tutti_status status = call->kernels->matmul(call->stream, args, scratch.memory);
    tutti_ops_scratch_give(call, &scratch);
    return status;
}

static tutti_status run_matmul(const tutti_ops_call *call) {
    const tutti_ops_operand *a = &call->in[0], *y = &call->out;
    const tutti_matmul *how = how_of(call);
    int nbatch = y->ndims - 2;
    int64_t a_strides[TUTTI_MOST_DIMS], b_strides[TUTTI_MOST_DIMS];
    batch_strides(call, 0, nbatch, a_strides);
    batch_strides(call, 1, nbatch, b_strides);
    const tutti_kernel_matmul_args args = {.type = y->type,
                                           .transpose_a = how->transpose_a,
                                           .transpose_b = how->transpose_b,
                                           .m = y->shape[nbatch],
                                           .n = y->shape[nbatch + 1],
                                           .k = a->shape[a->ndims - (how->transpose_a ? 2 : 1)],
                                           .batch_ndims = nbatch,
                                           .batch_shape = y->shape,
                                           .a_strides = a_strides,
                                           .b_strides = b_strides,
                                           .a = a->data,
                                           .b = call->in[1].data,
                                           .y = y->data};
    return multiply(call, &args);
}

const tutti_ops_row tutti_ops_row_matmul = {
    .name = "matmul", .linear = {1, 2}, .ns_per_point = FLOP_NS, .place = place_matmul, .run = run_matmul};

tutti_status tutti_op_matmul(const tutti_tensor *a, const tutti_tensor *b, const tutti_matmul *how,
                             const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("matmul");
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_matmul, .params = how, .ninputs = 2, .inputs = {a, b}, .options = options);
    return tutti_ops_run(&call, y_out);
}

/* The gradient of `of` is the product of left and right, summed where `of` was repeated. */
static tutti_status product_backward(const tutti_tensor *of, const tutti_tensor *left, bool transpose_left,
                                     const tutti_tensor *right, bool transpose_right, tutti_tensor **dx_out) {
    const tutti_matmul how = {.transpose_a = transpose_left, .transpose_b = transpose_right};
    const tutti_layout *a = tutti_tensor_layout(left), *b = tutti_tensor_layout(right), *x = tutti_tensor_layout(of);
    int nbatch = (a->ndims > b->ndims ? a->ndims : b->ndims) - 2;
    bool is_repeated = x->ndims - 2 != nbatch;
    for (int d = 0; d < nbatch && !is_repeated; d++)
        is_repeated =
            x->shape[d] == 1 && ((d >= nbatch - (a->ndims - 2) && a->shape[d - (nbatch - (a->ndims - 2))] != 1) ||
                                 (d >= nbatch - (b->ndims - 2) && b->shape[d - (nbatch - (b->ndims - 2))] != 1));
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_matmul, .params = &how, .ninputs = 2, .inputs = {left, right});
    if (!is_repeated) return tutti_ops_run_gradient(&call, of, dx_out);
    tutti_tensor *wide = NULL;
    tutti_status status = tutti_ops_run(&call, &wide);
    return tutti_ops_narrow_gradient(status, wide, of, dx_out);
}

tutti_status tutti_op_matmul_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_matmul *how,
                                      const tutti_tensor *dy, tutti_tensor **da_out, tutti_tensor **db_out) {
    bool ta = how != NULL && how->transpose_a, tb = how != NULL && how->transpose_b;
    TUTTI_TRY(tutti_ops_check_given("matmul_backward", (const tutti_tensor *const[]){a, b, dy}, 3));
    tutti_tensor *da = NULL, *db = NULL;
    tutti_status status = TUTTI_OK;
    if (da_out != NULL)
        status = ta ? product_backward(a, b, tb, dy, true, &da) : product_backward(a, dy, false, b, !tb, &da);
    if (db_out != NULL && status == TUTTI_OK)
        status = tb ? product_backward(b, dy, true, a, ta, &db) : product_backward(b, a, !ta, dy, false, &db);
    return tutti_ops_give(status, (tutti_tensor *[]){da, db}, (tutti_tensor * *[]){da_out, db_out}, 2);
}

/* ------------------------------------------------------------------------------------------------ dense */

static tutti_status check_dense(const tutti_ops_call *call, int *leading_out) {
    int ndims = tutti_ops_input(call, 0)->ndims;
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    if (ndims < 1) return tutti_ops_fail(call, "a scalar has no features");
    *leading_out = ndims - 1;
    return TUTTI_OK;
}

static tutti_status place_dense(tutti_ops_call *call) {
    int leading = 0;
    TUTTI_TRY(check_dense(call, &leading));
    return tutti_ops_read_form(call, call->ninputs == 3 ? ".i,io,o->.o" : ".i,io->.o", leading, false, "i", NULL);
}

static tutti_status run_dense(const tutti_ops_call *call) {
    const tutti_ops_operand *weight = &call->in[1];
    const tutti_kernel_matmul_args args = {.type = call->out.type,
                                           .m = tutti_ops_rows(&call->in[0]),
                                           .n = weight->shape[1],
                                           .k = weight->shape[0],
                                           .a = call->in[0].data,
                                           .b = weight->data,
                                           .bias = call->ninputs == 3 ? call->in[2].data : NULL,
                                           .y = call->out.data};
    return multiply(call, &args);
}

/* Without a bias the bits of input 2 have no effect. */
const tutti_ops_row tutti_ops_row_dense = {.name = "dense",
                                           .linear = {1 | 4, 2 | 4},
                                           .added = 4,
                                           .ns_per_point = FLOP_NS,
                                           .place = place_dense,
                                           .run = run_dense};

/* Inputs dy, weight. */
static tutti_status place_dense_dx(tutti_ops_call *call) {
    int leading = 0;
    TUTTI_TRY(check_dense(call, &leading));
    return tutti_ops_read_form(call, ".o,io->.i", leading, false, "o", NULL);
}

static tutti_status run_dense_dx(const tutti_ops_call *call) {
    const tutti_ops_operand *weight = &call->in[1];
    const tutti_kernel_matmul_args args = {.type = call->out.type,
                                           .transpose_b = true,
                                           .m = tutti_ops_rows(&call->in[0]),
                                           .n = weight->shape[0],
                                           .k = weight->shape[1],
                                           .a = call->in[0].data,
                                           .b = weight->data,
                                           .y = call->out.data};
    return multiply(call, &args);
}

const tutti_ops_row tutti_ops_row_dense_dx = {
    .name = "dense_dx", .linear = {1, 2}, .ns_per_point = FLOP_NS, .place = place_dense_dx, .run = run_dense_dx};

/* Inputs x, dy. */
static tutti_status place_dense_dweight(tutti_ops_call *call) {
    int leading = 0;
    TUTTI_TRY(check_dense(call, &leading));
    return tutti_ops_read_form(call, ".i,.o->io", leading, true, NULL, NULL);
}

static tutti_status run_dense_dweight(const tutti_ops_call *call) {
    const tutti_kernel_matmul_args args = {.type = call->out.type,
                                           .transpose_a = true,
                                           .m = call->out.shape[0],
                                           .n = call->out.shape[1],
                                           .k = tutti_ops_rows(&call->in[0]),
                                           .a = call->in[0].data,
                                           .b = call->in[1].data,
                                           .y = call->out.data};
    return multiply(call, &args);
}

const tutti_ops_row tutti_ops_row_dense_dweight = {.name = "dense_dweight",
                                                   .linear = {1, 2},
                                                   .ns_per_point = FLOP_NS,
                                                   .place = place_dense_dweight,
                                                   .run = run_dense_dweight};

tutti_status tutti_op_dense(const tutti_tensor *x, const tutti_tensor *weight, const tutti_tensor *bias,
                            const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("dense");
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_dense, .ninputs = bias != NULL ? 3 : 2,
                                         .inputs = {x, weight, bias}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_ops_bias_backward(const tutti_tensor *bias, const tutti_tensor *dy, tutti_tensor **dbias_out) {
    tutti_ops_layout target;
    if (bias == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "gradient of a bias: the bias is NULL");
    TUTTI_TRY(tutti_ops_adjoint(bias, &target));
    return tutti_ops_sum_to(dy, &target.view, dbias_out);
}

tutti_status tutti_op_dense_backward(const tutti_tensor *x, const tutti_tensor *weight, const tutti_tensor *bias,
                                     const tutti_tensor *dy, tutti_tensor **dx_out, tutti_tensor **dweight_out,
                                     tutti_tensor **dbias_out) {
    tutti_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
    tutti_ops_call of_x = TUTTI_OPS_CALL(&tutti_ops_row_dense_dx, .ninputs = 2, .inputs = {dy, weight});
    tutti_ops_call of_weight = TUTTI_OPS_CALL(&tutti_ops_row_dense_dweight, .ninputs = 2, .inputs = {x, dy});
    TUTTI_TRY(tutti_ops_check_given("dense_backward", (const tutti_tensor *const[]){x, weight, dy}, 3));
    tutti_status status = TUTTI_OK;
    if (dx_out != NULL) status = tutti_ops_run_gradient(&of_x, x, &dx);
    if (dweight_out != NULL && status == TUTTI_OK) status = tutti_ops_run_gradient(&of_weight, weight, &dweight);
    if (dbias_out != NULL && status == TUTTI_OK) status = tutti_ops_bias_backward(bias, dy, &dbias);
    return tutti_ops_give(status, (tutti_tensor *[]){dx, dweight, dbias},
                          (tutti_tensor * *[]){dx_out, dweight_out, dbias_out}, 3);
}
