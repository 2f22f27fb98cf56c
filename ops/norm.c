/*
 * Batch normalisation over the whole global batch.
 *
 *     x -> statistics (sum, sum of squares; partial where x is split) -> broadcast -> y
 *     dy -> sums (of dy, of dy * xhat)                                -> broadcast -> dx
 *
 * The last two sums are dbeta and dgamma.
 */
#include "ops/norm.h"

#include "kernels/operators.h"
#include "ops/gradient.h"

/* ------------------------------------------------------------------------------------------------ rules */

/* z are the channels; the dimensions before them are summed if `sums`. */
static tutti_status place_norm(tutti_ops_call *call, const char *form, bool sums) {
    int ndims = tutti_ops_input(call, 0)->ndims;
    TUTTI_TRY(tutti_ops_check_float(call));
    if (ndims < 2) return tutti_ops_fail(call, "'%.40s' needs samples and channels", tutti_ops_input(call, 0)->name);
    return tutti_ops_read_form(call, form, ndims - 1, sums, NULL, NULL);
}

static tutti_status check_type(const tutti_ops_call *call, int input, tutti_type type) {
    const tutti_layout *layout = tutti_ops_input(call, input);
    if (layout->type == type) return TUTTI_OK;
    return tutti_ops_fail(call, "'%.40s' is %s, and must be %s", layout->name, tutti_type_name(layout->type),
                          tutti_type_name(type));
}

static tutti_status place_statistics(tutti_ops_call *call) {
    TUTTI_TRY(place_norm(call, ".z->2z", true));
    call->type = TUTTI_FLOAT64;
    return TUTTI_OK;
}

static tutti_status place_normalise(tutti_ops_call *call) {
    TUTTI_TRY(place_norm(call, ".z,z,z,2z->.z", false));
    for (int i = 1; i < 3; i++) TUTTI_TRY(check_type(call, i, tutti_ops_input(call, 0)->type));
    return check_type(call, 3, TUTTI_FLOAT64);
}

static tutti_status place_sums(tutti_ops_call *call) {
    TUTTI_TRY(place_norm(call, ".z,2z,.z->2z", true));
    TUTTI_TRY(check_type(call, 1, TUTTI_FLOAT64));
    TUTTI_TRY(check_type(call, 2, tutti_ops_input(call, 0)->type));
    call->type = TUTTI_FLOAT64;
    return TUTTI_OK;
}

static tutti_status place_dx(tutti_ops_call *call) {
    TUTTI_TRY(place_norm(call, ".z,z,2z,2z,.z->.z", false));
    TUTTI_TRY(check_type(call, 1, tutti_ops_input(call, 0)->type));
    for (int i = 2; i < 4; i++) TUTTI_TRY(check_type(call, i, TUTTI_FLOAT64));
    return check_type(call, 4, tutti_ops_input(call, 0)->type);
}

/* ------------------------------------------------------------------------------------------------ kernels */

static double global_rows(const tutti_ops_operand *x) {
    double rows = 1;
    for (int d = 0; d < x->ndims - 1; d++) rows *= (double)x->whole[d];
    return rows;
}

static size_t channels_of(const tutti_ops_operand *x) {
    return (size_t)x->shape[x->ndims - 1];
}

/* The data of x for the kernels, and memory for its moments and for their sums. */
typedef struct norm {
    tutti_kernel_batch_norm_args args;
    tutti_ops_scratch moments, sums;
} norm;

static void end(const tutti_ops_call *call, norm *n) {
    tutti_ops_scratch_give(call, &n->moments);
    tutti_ops_scratch_give(call, &n->sums);
}

/* Computes the moments from the statistics. */
static tutti_status begin(const tutti_ops_call *call, const tutti_ops_operand *statistics, norm *n) {
    const tutti_ops_operand *x = &call->in[0];
    const size_t channels = channels_of(x), rows = (size_t)tutti_ops_rows(x);
    *n = (norm){.args = {.type = x->type, .rows = rows, .channels = channels, .x = x->data}};
    TUTTI_TRY(tutti_ops_scratch_take(call, 2 * channels * sizeof(double), &n->moments));
    tutti_status status =
        tutti_ops_scratch_take(call, call->kernels->batch_norm_scratch_bytes(rows, channels), &n->sums);
    double *mean = n->moments.memory, *deviation = channels > 0 ? mean + channels : NULL;
    n->args.mean = mean;
    n->args.inverse_deviation = deviation;
    if (status == TUTTI_OK)
        status =
            call->kernels->batch_norm_moments(call->stream, channels, global_rows(x), *(const double *)call->params,
                                              statistics->data, mean, NULL, deviation);
    if (status != TUTTI_OK) end(call, n);
    return status;
}

static tutti_status run_statistics(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    const size_t channels = channels_of(x), rows = (size_t)tutti_ops_rows(x);
    tutti_ops_scratch scratch;
    TUTTI_TRY(tutti_ops_scratch_take(call, call->kernels->batch_norm_scratch_bytes(rows, channels), &scratch));
    tutti_status status = call->kernels->batch_norm_statistics(call->stream, x->type, rows, channels, x->data,
                                                               scratch.memory, call->out.data);
    tutti_ops_scratch_give(call, &scratch);
    return status;
}

static tutti_status run_normalise(const tutti_ops_call *call) {
    norm n;
    TUTTI_TRY(begin(call, &call->in[3], &n));
    n.args.gamma = call->in[1].data;
    n.args.beta = call->in[2].data;
    tutti_status status = call->kernels->batch_norm_normalise(call->stream, &n.args, call->out.data);
    end(call, &n);
    return status;
}

static tutti_status run_sums(const tutti_ops_call *call) {
    norm n;
    TUTTI_TRY(begin(call, &call->in[1], &n));
    tutti_status status =
        call->kernels->batch_norm_backward_sums(call->stream, &n.args, call->in[2].data, n.sums.memory, call->out.data);
    end(call, &n);
    return status;
}

static tutti_status run_dx(const tutti_ops_call *call) {
    norm n;
    TUTTI_TRY(begin(call, &call->in[2], &n));
    n.args.gamma = call->in[1].data;
    tutti_status status = call->kernels->batch_norm_backward(call->stream, &n.args, call->in[4].data, call->in[3].data,
                                                             global_rows(&call->in[0]), call->out.data);
    end(call, &n);
    return status;
}

const tutti_ops_row tutti_ops_row_batch_norm_statistics = {
    .name = "batch_norm_statistics", .ns_per_point = 1, .place = place_statistics, .run = run_statistics};
const tutti_ops_row tutti_ops_row_batch_norm = {
    .name = "batch_norm", .mixes_types = true, .ns_per_point = 1, .place = place_normalise, .run = run_normalise};
const tutti_ops_row tutti_ops_row_batch_norm_sums = {.name = "batch_norm_sums",
                                                     .mixes_types = true,
                                                     .linear = {4},
                                                     .ns_per_point = 1,
                                                     .place = place_sums,
                                                     .run = run_sums};
const tutti_ops_row tutti_ops_row_batch_norm_dx = {.name = "batch_norm_dx",
                                                   .mixes_types = true,
                                                   .linear = {8 | 16},
                                                   .ns_per_point = 1,
                                                   .place = place_dx,
                                                   .run = run_dx};

/* ------------------------------------------------------------------------------------------------ calls */

/* Checks, before the statistics are computed, what the rule would reject only afterwards. */
static tutti_status check_parameters(const tutti_tensor *x, const tutti_tensor *gamma, const tutti_tensor *beta,
                                     const tutti_op_options *options) {
    const tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_batch_norm, .ninputs = 3, .inputs = {x, gamma, beta}, .options = options);
    const tutti_layout *layout = tutti_tensor_layout(x);
    TUTTI_TRY(tutti_ops_check_inputs(&call));
    for (int i = 1; i < 3; i++) {
        const tutti_layout *parameter = tutti_ops_input(&call, i);
        TUTTI_TRY(check_type(&call, i, layout->type));
        if (layout->ndims >= 2 && (parameter->ndims != 1 || parameter->shape[0] != layout->shape[layout->ndims - 1]))
            return tutti_ops_fail(&call, "'%.40s' must have one dimension of %lld, the channels of '%.40s'",
                                  parameter->name, (long long)layout->shape[layout->ndims - 1], layout->name);
    }
    return TUTTI_OK;
}

tutti_status tutti_op_batch_norm(const tutti_tensor *x, const tutti_tensor *gamma, const tutti_tensor *beta,
                                 double epsilon, const tutti_op_options *options, tutti_tensor **y_out,
                                 tutti_tensor **statistics_out) {
    TUTTI_TAKE_OP_OPTIONS("batch_norm");
    tutti_tensor *statistics = NULL, *y = NULL;
    TUTTI_TRY(tutti_ops_check_given("batch_norm", (const tutti_tensor *const[]){x, gamma, beta}, 3));
    if (y_out == NULL || statistics_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "batch_norm: NULL argument");
    TUTTI_TRY(check_parameters(x, gamma, beta, options));
    const tutti_options *collectives = options != NULL ? options->options : NULL;
    const tutti_op_options of_statistics = TUTTI_OP_OPTIONS(.options = collectives);
    tutti_ops_call first = TUTTI_OPS_CALL(&tutti_ops_row_batch_norm_statistics, .params = &epsilon, .ninputs = 1,
                                          .inputs = {x}, .options = &of_statistics);
    tutti_status status = tutti_ops_make_whole(tutti_ops_run(&first, &statistics), collectives, &statistics);
    tutti_ops_call second = TUTTI_OPS_CALL(&tutti_ops_row_batch_norm, .params = &epsilon, .ninputs = 4,
                                           .inputs = {x, gamma, beta, statistics}, .options = options);
    if (status == TUTTI_OK) status = tutti_ops_run(&second, &y);
    return tutti_ops_give(status, (tutti_tensor *[]){y, statistics}, (tutti_tensor * *[]){y_out, statistics_out}, 2);
}

/* Returns row `row` of the sums as the gradient of a parameter. */
static tutti_status take_row(const tutti_tensor *sums, int64_t row, const tutti_tensor *of,
                             tutti_tensor **gradient_out) {
    int64_t channels = tutti_tensor_layout(sums)->shape[1];
    tutti_tensor *slice = NULL, *flat = NULL, *cast = NULL;
    tutti_ops_layout target;
    tutti_status status = tutti_op_slice(sums, (int64_t[]){row, 0}, (int64_t[]){row + 1, channels}, NULL, &slice);
    if (status == TUTTI_OK) status = tutti_op_reshape(slice, 1, &channels, NULL, &flat);
    if (status == TUTTI_OK) status = tutti_op_cast(flat, tutti_tensor_layout(of)->type, NULL, &cast);
    if (status == TUTTI_OK) status = tutti_ops_adjoint(of, &target);
    if (status == TUTTI_OK) status = tutti_ops_convert(cast, &target.view, NULL, gradient_out);
    tutti_ops_tensor_end(slice, NULL);
    tutti_ops_tensor_end(flat, NULL);
    tutti_ops_tensor_end(cast, NULL);
    return status;
}

tutti_status tutti_op_batch_norm_backward(const tutti_tensor *x, const tutti_tensor *gamma, const tutti_tensor *beta,
                                          const tutti_tensor *statistics, double epsilon, const tutti_tensor *dy,
                                          tutti_tensor **dx_out, tutti_tensor **dgamma_out, tutti_tensor **dbeta_out) {
    tutti_tensor *partial = NULL, *sums = NULL, *dx = NULL, *dgamma = NULL, *dbeta = NULL;
    TUTTI_TRY(
        tutti_ops_check_given("batch_norm_backward", (const tutti_tensor *const[]){x, gamma, beta, statistics, dy}, 5));
    tutti_ops_call first =
        TUTTI_OPS_CALL(&tutti_ops_row_batch_norm_sums, .params = &epsilon, .ninputs = 3, .inputs = {x, statistics, dy});
    tutti_status status = tutti_ops_run(&first, &partial);
    if (status == TUTTI_OK && dgamma_out != NULL) status = take_row(partial, 1, gamma, &dgamma);
    if (status == TUTTI_OK && dbeta_out != NULL) status = take_row(partial, 0, beta, &dbeta);
    if (status == TUTTI_OK && dx_out != NULL) {
        sums = partial;
        partial = NULL;
        status = tutti_ops_make_whole(TUTTI_OK, NULL, &sums);
        tutti_ops_call last = TUTTI_OPS_CALL(&tutti_ops_row_batch_norm_dx, .params = &epsilon, .ninputs = 5,
                                             .inputs = {x, gamma, statistics, sums, dy});
        if (status == TUTTI_OK) status = tutti_ops_run_gradient(&last, x, &dx);
    }
    tutti_ops_tensor_end(partial, NULL);
    tutti_ops_tensor_end(sums, NULL);
    return tutti_ops_give(status, (tutti_tensor *[]){dx, dgamma, dbeta},
                          (tutti_tensor * *[]){dx_out, dgamma_out, dbeta_out}, 3);
}
