/*
 * Reductions over dimensions, and their opposite. Their gradients are in reduce_backward.c.
 */
#include "ops/reduce.h"

#include <string.h>

#include "kernels/operators.h"

/* ------------------------------------------------------------------------------------------------ rules */

/* Writes the wide side, then the narrow one: "abc->ac", or with `keep` "abc->a1c". Returns the number of letters
 * written, without the arrow. */
static void write_sides(int ndims, unsigned dims, bool keep, char wide[TUTTI_MOST_DIMS + 1],
                        char narrow[TUTTI_MOST_DIMS + 1], char sums[TUTTI_MOST_DIMS + 1]) {
    int narrows = 0, summed = 0;
    for (int d = 0; d < ndims; d++) {
        bool is_reduced = (dims >> d & 1) != 0;
        wide[d] = (char)('a' + d);
        if (!is_reduced) narrow[narrows++] = wide[d];
        else if (keep) narrow[narrows++] = '1';
        if (is_reduced) sums[summed++] = wide[d];
    }
    wide[ndims] = narrow[narrows] = sums[summed] = '\0';
}

static tutti_status read_rule(tutti_ops_call *call, const char *from, const char *to, const char *sums) {
    char text[TUTTI_OPS_RULE_TEXT];
    memcpy(text, from, strlen(from) + 1);
    strcat(strcat(text, "->"), to);
    return tutti_ops_rule_read(text, sums, NULL, &call->rule) ? TUTTI_OK
                                                              : tutti_ops_fail(call, "%s is not a rule", text);
}

static tutti_status place_reduce(tutti_ops_call *call) {
    const tutti_ops_reduction *reduction = call->params;
    const tutti_layout *x = tutti_ops_input(call, 0);
    char wide[TUTTI_MOST_DIMS + 1], narrow[TUTTI_MOST_DIMS + 1], sums[TUTTI_MOST_DIMS + 1];
    if (reduction->dims >> x->ndims != 0)
        return tutti_ops_fail(call, "the mask 0x%x names dimensions beyond the %d that there are", reduction->dims,
                              x->ndims);
    if (x->type == TUTTI_BOOL) return tutti_ops_fail(call, "bool is not a number; tutti_op_cast changes types");
    write_sides(x->ndims, reduction->dims, reduction->keep, wide, narrow, sums);
    return read_rule(call, wide, narrow, sums);
}

static tutti_status place_mean(tutti_ops_call *call) {
    TUTTI_TRY(tutti_ops_check_float(call));
    return place_reduce(call);
}

/* ------------------------------------------------------------------------------------------------ reductions */

static tutti_status reduce(const tutti_ops_call *call, tutti_reduction reduction, unsigned dims) {
    const tutti_ops_operand *x = &call->in[0];
    const tutti_kernel_reduce_args args = {
        .type = x->type, .ndims = x->ndims, .shape = x->shape, .dims = dims, .x = x->data, .y = call->out.data};
    tutti_ops_scratch scratch;
    TUTTI_TRY(tutti_ops_scratch_take(call, call->kernels->reduce_scratch_bytes(&args), &scratch));
    tutti_status status = call->kernels->reduce(call->stream, reduction, &args, scratch.memory);
    tutti_ops_scratch_give(call, &scratch);
    return status;
}

static unsigned dims_of(const tutti_ops_call *call) {
    return ((const tutti_ops_reduction *)call->params)->dims;
}

static tutti_status run_sum(const tutti_ops_call *call) {
    return reduce(call, TUTTI_SUM, dims_of(call));
}

static tutti_status run_min(const tutti_ops_call *call) {
    return reduce(call, TUTTI_MIN, dims_of(call));
}

static tutti_status run_max(const tutti_ops_call *call) {
    return reduce(call, TUTTI_MAX, dims_of(call));
}

/* Each rank's sum divided by the number of elements of the whole tensor: an average of averages would be wrong
 * where shards differ in size. */
static tutti_status run_mean(const tutti_ops_call *call) {
    double count = 1;
    for (int d = 0; d < call->in[0].ndims; d++)
        if ((dims_of(call) >> d & 1) != 0) count *= (double)call->in[0].whole[d];
    TUTTI_TRY(reduce(call, TUTTI_SUM, dims_of(call)));
    return call->kernels->scale(call->stream, call->out.type, 1 / count, call->out.count, call->out.data,
                                call->out.data);
}

const tutti_ops_row tutti_ops_row_reduce_sum = {
    .name = "reduce_sum", .linear = {1}, .ns_per_point = 1, .place = place_reduce, .run = run_sum};
const tutti_ops_row tutti_ops_row_reduce_mean = {
    .name = "reduce_mean", .linear = {1}, .ns_per_point = 1, .place = place_mean, .run = run_mean};
const tutti_ops_row tutti_ops_row_reduce_min = {.name = "reduce_min",
                                                .reduction = TUTTI_MIN,
                                                .has_keeps = true,
                                                .keeps = TUTTI_MIN,
                                                .ns_per_point = 1,
                                                .place = place_reduce,
                                                .run = run_min};
const tutti_ops_row tutti_ops_row_reduce_max = {.name = "reduce_max",
                                                .reduction = TUTTI_MAX,
                                                .has_keeps = true,
                                                .keeps = TUTTI_MAX,
                                                .ns_per_point = 1,
                                                .place = place_reduce,
                                                .run = run_max};

static const tutti_ops_row *row_of(tutti_reduction reduction) {
    switch (reduction) {
    case TUTTI_SUM: return &tutti_ops_row_reduce_sum;
    case TUTTI_AVG: return &tutti_ops_row_reduce_mean;
    case TUTTI_MIN: return &tutti_ops_row_reduce_min;
    case TUTTI_MAX: return &tutti_ops_row_reduce_max;
    default: return NULL;
    }
}

tutti_status tutti_op_reduce(const tutti_tensor *x, tutti_reduction reduction, unsigned dims, bool keep,
                             const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("reduce");
    const tutti_ops_reduction params = {.dims = dims, .keep = keep};
    const tutti_ops_row *row = row_of(reduction);
    if (row == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "reduce: %d is none of TUTTI_SUM, TUTTI_AVG, TUTTI_MIN and TUTTI_MAX",
                          (int)reduction);
    tutti_ops_call call = TUTTI_OPS_CALL(row, .params = &params, .ninputs = 1, .inputs = {x}, .options = options);
    return tutti_ops_run(&call, y_out);
}

/* ------------------------------------------------------------------------------------------------ sum_to */

/* params: the target's layout. Dimensions that it lacks, or has with extent 1, are summed. */
static tutti_status place_sum_to(tutti_ops_call *call) {
    const tutti_layout *x = tutti_ops_input(call, 0), *target = call->target;
    char wide[TUTTI_MOST_DIMS + 1] = "", narrow[TUTTI_MOST_DIMS + 1] = "", sums[TUTTI_MOST_DIMS + 1] = "";
    int missing = x->ndims - target->ndims, summed = 0;
    if (missing < 0)
        return tutti_ops_fail(call, "its gradient has %d dimensions, more than it has itself", target->ndims);
    for (int d = 0; d < x->ndims; d++) {
        bool is_summed = d < missing || (target->shape[d - missing] == 1 && x->shape[d] != 1);
        wide[d] = (char)('a' + d);
        if (is_summed) sums[summed++] = wide[d];
        if (d >= missing) narrow[d - missing] = is_summed ? '1' : wide[d];
    }
    return read_rule(call, wide, narrow, sums);
}

static tutti_status run_sum_to(const tutti_ops_call *call) {
    unsigned dims = 0;
    for (int d = 0; d < call->in[0].ndims; d++)
        if ((call->rule.sums >> call->rule.inputs[0].factor[d] & 1) != 0) dims |= 1u << d;
    return reduce(call, TUTTI_SUM, dims);
}

static const tutti_ops_row row_sum_to = {
    .name = "sum_to", .linear = {1}, .ns_per_point = 1, .place = place_sum_to, .run = run_sum_to};

tutti_status tutti_ops_sum_to(const tutti_tensor *x, const tutti_layout *target, tutti_tensor **y_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(&row_sum_to, .ninputs = 1, .inputs = {x}, .target = target);
    return tutti_ops_run(&call, y_out);
}

/* ------------------------------------------------------------------------------------------------ expand */

static tutti_status place_expand(tutti_ops_call *call) {
    const tutti_ops_expansion *expansion = call->params;
    char wide[TUTTI_MOST_DIMS + 1], narrow[TUTTI_MOST_DIMS + 1], sums[TUTTI_MOST_DIMS + 1];
    TUTTI_TRY(tutti_ops_check_float(call));
    write_sides(expansion->ndims, expansion->dims, expansion->kept, wide, narrow, sums);
    TUTTI_TRY(read_rule(call, narrow, wide, NULL));
    for (int d = 0; d < expansion->ndims; d++)
        if ((expansion->dims >> d & 1) != 0) tutti_ops_set_extent(call, wide[d], expansion->shape[d]);
    return TUTTI_OK;
}

static tutti_status run_expand(const tutti_ops_call *call) {
    const tutti_ops_expansion *expansion = call->params;
    const tutti_ops_operand *x = &call->in[0], *y = &call->out;
    int64_t strides[TUTTI_MOST_DIMS], none[TUTTI_MOST_DIMS] = {0}, stride = 1;
    for (int d = y->ndims - 1; d >= 0; d--) {
        bool is_repeated = (expansion->dims >> d & 1) != 0;
        strides[d] = is_repeated ? 0 : stride;
        if (!is_repeated) stride *= y->shape[d];
    }
    tutti_ops_scratch factor; /* one element */
    TUTTI_TRY(tutti_ops_scratch_take(call, tutti_type_bytes(y->type), &factor));
    const tutti_kernel_binary_args args = {.type = y->type,
                                           .ndims = y->ndims,
                                           .shape = y->shape,
                                           .a = x->data,
                                           .a_strides = strides,
                                           .b = factor.memory,
                                           .b_strides = none,
                                           .y = y->data};
    tutti_status status = call->kernels->fill(call->stream, y->type, expansion->factor, 1, factor.memory);
    if (status == TUTTI_OK) status = call->kernels->binary(call->stream, TUTTI_KERNEL_MUL, &args);
    tutti_ops_scratch_give(call, &factor);
    return status;
}

const tutti_ops_row tutti_ops_row_expand = {
    .name = "expand", .linear = {1}, .ns_per_point = 1, .place = place_expand, .run = run_expand};
