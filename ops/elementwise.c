/*
 * Elementwise operators: add, sub, mul, scale, relu, gelu, exp, cast, dropout, and their gradients.
 */
#include <math.h>

#include <tutti/ops.h>

#include "kernels/operators.h"
#include "ops/elementwise.h"
#include "ops/gradient.h"
#include "ops/reduce.h"

enum { A = 1, B = 2, MEMORY_NS = 1 }; /* groups of inputs; rough time of one element */

/* ------------------------------------------------------------------------------------------------ two inputs */

/* Strides of an input along the output's dimensions: 0 where it is broadcast. */
static void find_strides(const tutti_ops_call *call, int input, int64_t strides[TUTTI_MOST_DIMS]) {
    const tutti_ops_operand *operand = &call->in[input];
    int missing = call->out.ndims - operand->ndims;
    int64_t stride = 1;
    for (int d = call->out.ndims - 1; d >= 0; d--) {
        int own = d - missing;
        strides[d] = own >= 0 && call->rule.inputs[input].factor[own] >= 0 ? stride : 0;
        if (own >= 0) stride *= operand->shape[own];
    }
}

static tutti_status run_binary(const tutti_ops_call *call, tutti_kernel_binary_kind kind) {
    int64_t a_strides[TUTTI_MOST_DIMS], b_strides[TUTTI_MOST_DIMS];
    find_strides(call, 0, a_strides);
    find_strides(call, 1, b_strides);
    const tutti_kernel_binary_args args = {.type = call->in[0].type,
                                           .ndims = call->out.ndims,
                                           .shape = call->out.shape,
                                           .a = call->in[0].data,
                                           .a_strides = a_strides,
                                           .b = call->in[1].data,
                                           .b_strides = b_strides,
                                           .y = call->out.data};
    return call->kernels->binary(call->stream, kind, &args);
}

static tutti_status place_numbers(tutti_ops_call *call) {
    if (tutti_ops_input(call, 0)->type == TUTTI_BOOL)
        return tutti_ops_fail(call, "bool is not a number; tutti_op_cast changes types");
    return tutti_ops_place_elementwise(call);
}

static bool is_any_float(tutti_type type) {
    return type >= TUTTI_FLOAT16 && type <= TUTTI_FLOAT8_E5M2;
}

static tutti_status place_floats(tutti_ops_call *call) {
    tutti_type type = tutti_ops_input(call, 0)->type;
    if (!is_any_float(type))
        return tutti_ops_fail(call, "it supports only floats, not %s; tutti_op_cast changes types",
                              tutti_type_name(type));
    return tutti_ops_place_elementwise(call);
}

#define BINARY(function, kind_)                                                                                        \
    static tutti_status function(const tutti_ops_call *call) {                                                         \
        return run_binary(call, kind_);                                                                                \
    }
BINARY(run_add, TUTTI_KERNEL_ADD)
BINARY(run_sub, TUTTI_KERNEL_SUB)
BINARY(run_mul, TUTTI_KERNEL_MUL)
BINARY(run_div, TUTTI_KERNEL_DIV)
BINARY(run_equal, TUTTI_KERNEL_EQUAL)
BINARY(run_relu_backward, TUTTI_KERNEL_RELU_BACKWARD)

const tutti_ops_row tutti_ops_row_add = {
    .name = "add", .linear = {A | B}, .ns_per_point = MEMORY_NS, .place = place_numbers, .run = run_add};
const tutti_ops_row tutti_ops_row_sub = {
    .name = "sub", .linear = {A | B}, .ns_per_point = MEMORY_NS, .place = place_numbers, .run = run_sub};
const tutti_ops_row tutti_ops_row_mul = {
    .name = "mul", .linear = {A, B}, .ns_per_point = MEMORY_NS, .place = place_numbers, .run = run_mul};
const tutti_ops_row tutti_ops_row_div = {
    .name = "div", .linear = {A}, .ns_per_point = MEMORY_NS, .place = place_floats, .run = run_div};
const tutti_ops_row tutti_ops_row_equal = {
    .name = "equal", .ns_per_point = MEMORY_NS, .place = place_numbers, .run = run_equal};
const tutti_ops_row tutti_ops_row_relu_backward = {.name = "relu_backward",
                                                   .linear = {B},
                                                   .ns_per_point = MEMORY_NS,
                                                   .place = place_numbers,
                                                   .run = run_relu_backward};

tutti_status tutti_ops_two(const tutti_ops_row *row, const tutti_tensor *a, const tutti_tensor *b,
                           const tutti_op_options *options, tutti_tensor **y_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(row, .ninputs = 2, .inputs = {a, b}, .options = options);
    return tutti_ops_run(&call, y_out);
}

/* The gradient of `of`: the product of the row on a and b, summed to the shape of `of`. */
static tutti_status two_backward(const tutti_ops_row *row, const tutti_tensor *a, const tutti_tensor *b,
                                 const tutti_tensor *of, const tutti_tensor *dy, tutti_tensor **dx_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(row, .ninputs = 2, .inputs = {a, b});
    if (!tutti_ops_is_broadcast(of, dy)) return tutti_ops_run_gradient(&call, of, dx_out);
    tutti_tensor *wide = NULL;
    tutti_status status = tutti_ops_run(&call, &wide);
    return tutti_ops_narrow_gradient(status, wide, of, dx_out);
}

/* The gradient of `of` is dy itself, except for sums and the layout. */
static tutti_status pass_backward(const tutti_tensor *of, const tutti_tensor *dy, tutti_tensor **dx_out) {
    tutti_ops_layout target;
    TUTTI_TRY(tutti_ops_adjoint(of, &target));
    return tutti_ops_is_broadcast(of, dy) ? tutti_ops_sum_to(dy, &target.view, dx_out)
                                          : tutti_ops_convert(dy, &target.view, NULL, dx_out);
}

tutti_status tutti_op_add(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                          tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("add");
    return tutti_ops_two(&tutti_ops_row_add, a, b, options, y_out);
}

tutti_status tutti_op_sub(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                          tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("sub");
    return tutti_ops_two(&tutti_ops_row_sub, a, b, options, y_out);
}

tutti_status tutti_op_mul(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                          tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("mul");
    return tutti_ops_two(&tutti_ops_row_mul, a, b, options, y_out);
}

tutti_status tutti_op_add_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_tensor *dy,
                                   tutti_tensor **da_out, tutti_tensor **db_out) {
    TUTTI_TRY(tutti_ops_check_given("add_backward", (const tutti_tensor *const[]){a, b, dy}, 3));
    TUTTI_TRY(tutti_ops_check_result("add_backward", a, b, dy));
    tutti_tensor *da = NULL, *db = NULL;
    tutti_status status = da_out != NULL ? pass_backward(a, dy, &da) : TUTTI_OK;
    if (db_out != NULL && status == TUTTI_OK) status = pass_backward(b, dy, &db);
    return tutti_ops_give(status, (tutti_tensor *[]){da, db}, (tutti_tensor * *[]){da_out, db_out}, 2);
}

static tutti_status negate_backward(const tutti_tensor *of, const tutti_tensor *dy, tutti_tensor **dx_out) {
    tutti_tensor *negative = NULL;
    tutti_status status = tutti_op_scale(dy, -1, NULL, &negative);
    return tutti_ops_narrow_gradient(status, negative, of, dx_out);
}

tutti_status tutti_op_sub_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_tensor *dy,
                                   tutti_tensor **da_out, tutti_tensor **db_out) {
    TUTTI_TRY(tutti_ops_check_given("sub_backward", (const tutti_tensor *const[]){a, b, dy}, 3));
    TUTTI_TRY(tutti_ops_check_result("sub_backward", a, b, dy));
    tutti_tensor *da = NULL, *db = NULL;
    tutti_status status = da_out != NULL ? pass_backward(a, dy, &da) : TUTTI_OK;
    if (db_out != NULL && status == TUTTI_OK) status = negate_backward(b, dy, &db);
    return tutti_ops_give(status, (tutti_tensor *[]){da, db}, (tutti_tensor * *[]){da_out, db_out}, 2);
}

tutti_status tutti_op_mul_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_tensor *dy,
                                   tutti_tensor **da_out, tutti_tensor **db_out) {
    TUTTI_TRY(tutti_ops_check_given("mul_backward", (const tutti_tensor *const[]){a, b, dy}, 3));
    TUTTI_TRY(tutti_ops_check_result("mul_backward", a, b, dy));
    tutti_tensor *da = NULL, *db = NULL;
    tutti_status status = da_out != NULL ? two_backward(&tutti_ops_row_mul, dy, b, a, dy, &da) : TUTTI_OK;
    if (db_out != NULL && status == TUTTI_OK) status = two_backward(&tutti_ops_row_mul, dy, a, b, dy, &db);
    return tutti_ops_give(status, (tutti_tensor *[]){da, db}, (tutti_tensor * *[]){da_out, db_out}, 2);
}

/* ------------------------------------------------------------------------------------------------ one input */

static tutti_status run_unary(const tutti_ops_call *call, tutti_kernel_unary_kind kind) {
    return call->kernels->unary(call->stream, kind, call->in[0].type, call->out.count, call->in[0].data,
                                call->out.data);
}

static tutti_status run_relu(const tutti_ops_call *call) {
    return run_unary(call, TUTTI_KERNEL_RELU);
}

static tutti_status run_exp(const tutti_ops_call *call) {
    return run_unary(call, TUTTI_KERNEL_EXP);
}

static tutti_gelu gelu_of(const tutti_ops_call *call) {
    return *(const tutti_gelu *)call->params;
}

static tutti_status run_gelu(const tutti_ops_call *call) {
    return run_unary(call, gelu_of(call) == TUTTI_GELU_ERF ? TUTTI_KERNEL_GELU : TUTTI_KERNEL_GELU_TANH);
}

static tutti_status run_gelu_backward(const tutti_ops_call *call) {
    return run_binary(call,
                      gelu_of(call) == TUTTI_GELU_ERF ? TUTTI_KERNEL_GELU_BACKWARD : TUTTI_KERNEL_GELU_TANH_BACKWARD);
}

static tutti_status place_gelu(tutti_ops_call *call) {
    tutti_gelu kind = gelu_of(call);
    if (kind != TUTTI_GELU_ERF && kind != TUTTI_GELU_TANH)
        return tutti_ops_fail(call, "%d is neither TUTTI_GELU_ERF nor TUTTI_GELU_TANH", (int)kind);
    return place_floats(call);
}

static tutti_status run_scale(const tutti_ops_call *call) {
    return call->kernels->scale(call->stream, call->in[0].type, *(const double *)call->params, call->out.count,
                                call->in[0].data, call->out.data);
}

static tutti_status place_scale(tutti_ops_call *call) {
    double factor = *(const double *)call->params;
    call->not_linear =
        !is_any_float(tutti_ops_input(call, 0)->type) && factor != trunc(factor); /* each product is rounded */
    return place_numbers(call);
}

static tutti_status run_add_number(const tutti_ops_call *call) {
    return call->kernels->add_number(call->stream, call->in[0].type, *(const double *)call->params, call->out.count,
                                     call->in[0].data, call->out.data);
}

static tutti_status run_cast(const tutti_ops_call *call) {
    return call->kernels->cast(call->stream, call->in[0].type, call->out.type, call->out.count, call->in[0].data,
                               call->out.data);
}

static tutti_status place_cast(tutti_ops_call *call) {
    call->type = *(const tutti_type *)call->params;
    if (tutti_type_bytes(call->type) == 0) return tutti_ops_fail(call, "%d is not a type", (int)call->type);
    /* Terms may be larger than their sum: rounding them to a shorter float could lose all of it. */
    bool is_close = tutti_ops_is_float(call->type) || call->type == tutti_ops_input(call, 0)->type;
    call->not_linear = !is_close || !is_any_float(tutti_ops_input(call, 0)->type);
    return tutti_ops_place_elementwise(call);
}

static tutti_status place_dropout(tutti_ops_call *call) {
    const tutti_dropout_options *dropout = call->params;
    if (dropout == NULL) return tutti_ops_fail(call, "its options are NULL");
    if (!(dropout->rate >= 0 && dropout->rate < 1))
        return tutti_ops_fail(call, "the rate is %g, and must be at least 0 and below 1", dropout->rate);
    return place_floats(call);
}

static tutti_status run_dropout(const tutti_ops_call *call) {
    const tutti_dropout_options *dropout = call->params;
    const tutti_ops_operand *y = &call->out;
    const tutti_kernel_shard shard = {
        .ndims = y->ndims, .global_shape = y->whole, .first = y->first, .shape = y->shape};
    const tutti_kernel_random random = {.seed = dropout->seed, .stream = dropout->stream};
    return call->kernels->dropout(call->stream, y->type, &shard, &random, dropout->rate, call->in[0].data, y->data);
}

const tutti_ops_row tutti_ops_row_relu = {
    .name = "relu", .ns_per_point = MEMORY_NS, .place = place_numbers, .run = run_relu};
const tutti_ops_row tutti_ops_row_exp = {
    .name = "exp", .ns_per_point = MEMORY_NS, .place = place_floats, .run = run_exp};
const tutti_ops_row tutti_ops_row_gelu = {
    .name = "gelu", .ns_per_point = 3 * MEMORY_NS, .place = place_gelu, .run = run_gelu};
const tutti_ops_row tutti_ops_row_gelu_backward = {.name = "gelu_backward",
                                                   .linear = {B},
                                                   .ns_per_point = 3 * MEMORY_NS,
                                                   .place = place_gelu,
                                                   .run = run_gelu_backward};
const tutti_ops_row tutti_ops_row_scale = {
    .name = "scale", .linear = {A}, .ns_per_point = MEMORY_NS, .place = place_scale, .run = run_scale};
const tutti_ops_row tutti_ops_row_add_number = {
    .name = "add_number", .ns_per_point = MEMORY_NS, .place = place_numbers, .run = run_add_number};
const tutti_ops_row tutti_ops_row_cast = {
    .name = "cast", .linear = {A}, .ns_per_point = MEMORY_NS, .place = place_cast, .run = run_cast};
const tutti_ops_row tutti_ops_row_dropout = {
    .name = "dropout", .linear = {A}, .ns_per_point = 3 * MEMORY_NS, .place = place_dropout, .run = run_dropout};

static tutti_status one(const tutti_ops_row *row, const void *params, const tutti_tensor *x,
                        const tutti_op_options *options, tutti_tensor **y_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(row, .params = params, .ninputs = 1, .inputs = {x}, .options = options);
    return tutti_ops_run(&call, y_out);
}

/* dx = row(x, dy), in the adjoint layout of x; without x: row(dy). */
static tutti_status one_backward(const tutti_ops_row *row, const void *params, const tutti_tensor *of,
                                 const tutti_tensor *x, const tutti_tensor *dy, tutti_tensor **dx_out) {
    tutti_ops_call call =
        TUTTI_OPS_CALL(row, .params = params, .ninputs = x != NULL ? 2 : 1, .inputs = {x != NULL ? x : dy, dy});
    return tutti_ops_run_gradient(&call, of, dx_out);
}

tutti_status tutti_op_scale(const tutti_tensor *x, double factor, const tutti_op_options *options,
                            tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("scale");
    return one(&tutti_ops_row_scale, &factor, x, options, y_out);
}

tutti_status tutti_op_scale_backward(const tutti_tensor *x, double factor, const tutti_tensor *dy,
                                     tutti_tensor **dx_out) {
    return one_backward(&tutti_ops_row_scale, &factor, x, NULL, dy, dx_out);
}

tutti_status tutti_op_add_number(const tutti_tensor *x, double number, const tutti_op_options *options,
                                 tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("add_number");
    return one(&tutti_ops_row_add_number, &number, x, options, y_out);
}

tutti_status tutti_op_relu(const tutti_tensor *x, const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("relu");
    return one(&tutti_ops_row_relu, NULL, x, options, y_out);
}

tutti_status tutti_op_gelu(const tutti_tensor *x, tutti_gelu kind, const tutti_op_options *options,
                           tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("gelu");
    return one(&tutti_ops_row_gelu, &kind, x, options, y_out);
}

tutti_status tutti_op_exp(const tutti_tensor *x, const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("exp");
    return one(&tutti_ops_row_exp, NULL, x, options, y_out);
}

tutti_status tutti_op_relu_backward(const tutti_tensor *x, const tutti_tensor *y, const tutti_tensor *dy,
                                    tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("relu_backward", (const tutti_tensor *const[]){x, y, dy}, 3));
    TUTTI_TRY(tutti_ops_check_result("relu_backward", x, x, y));
    TUTTI_TRY(tutti_ops_check_result("relu_backward", x, x, dy));
    return one_backward(&tutti_ops_row_relu_backward, NULL, x, y, dy, dx_out);
}

tutti_status tutti_op_gelu_backward(const tutti_tensor *x, tutti_gelu kind, const tutti_tensor *dy,
                                    tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("gelu_backward", (const tutti_tensor *const[]){x, dy}, 2));
    TUTTI_TRY(tutti_ops_check_result("gelu_backward", x, x, dy));
    return one_backward(&tutti_ops_row_gelu_backward, &kind, x, x, dy, dx_out);
}

tutti_status tutti_op_exp_backward(const tutti_tensor *x, const tutti_tensor *y, const tutti_tensor *dy,
                                   tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("exp_backward", (const tutti_tensor *const[]){x, y, dy}, 3));
    TUTTI_TRY(tutti_ops_check_result("exp_backward", x, x, y));
    TUTTI_TRY(tutti_ops_check_result("exp_backward", x, x, dy));
    return one_backward(&tutti_ops_row_mul, NULL, x, y, dy, dx_out);
}

tutti_status tutti_op_cast(const tutti_tensor *x, tutti_type type, const tutti_op_options *options,
                           tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("cast");
    return one(&tutti_ops_row_cast, &type, x, options, y_out);
}

tutti_status tutti_op_cast_backward(const tutti_tensor *x, const tutti_tensor *dy, tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("cast_backward", (const tutti_tensor *const[]){x, dy}, 2));
    return one_backward(&tutti_ops_row_cast, &tutti_tensor_layout(x)->type, x, NULL, dy, dx_out);
}

tutti_status tutti_op_dropout(const tutti_tensor *x, const tutti_dropout_options *dropout,
                              const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("dropout");
    return one(&tutti_ops_row_dropout, dropout, x, options, y_out);
}

tutti_status tutti_op_dropout_backward(const tutti_tensor *x, const tutti_dropout_options *dropout,
                                       const tutti_tensor *dy, tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("dropout_backward", (const tutti_tensor *const[]){x, dy}, 2));
    return one_backward(&tutti_ops_row_dropout, dropout, x, NULL, dy, dx_out);
}
