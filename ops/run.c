/*
 * Runs a call: converts the inputs to the layouts of the signature, computes the shards, and converts the output to
 * the wanted layout.
 */
#include <string.h>

#include "ops/call.h"

static const tutti_options *options_of(const tutti_ops_call *call) {
    return tutti_ops_options(call->options);
}

static bool is_member(const tutti_ops_call *call) {
    return tutti_placement_coordinate(tutti_ops_input(call, 0)->placement, -1) >= 0;
}

/* ------------------------------------------------------------------------------------------------ operands */

static tutti_status see_shard(const tutti_tensor *tensor, tutti_ops_operand *operand_out) {
    const tutti_layout *layout = tutti_tensor_layout(tensor);
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    tutti_ops_operand operand = {.data = local.data, .type = layout->type, .ndims = local.ndims, .count = local.count};
    for (int d = 0; d < local.ndims; d++) {
        operand.shape[d] = local.shape[d];
        operand.first[d] = local.first[d];
        operand.whole[d] = layout->shape[d];
    }
    *operand_out = operand;
    return TUTTI_OK;
}

static tutti_status convert(const tutti_ops_call *call, const tutti_tensor *from, const tutti_layout *to,
                            tutti_tensor **out) {
    TUTTI_TRY(tutti_ops_tensor_make(to, options_of(call), out));
    if (!is_member(call)) return TUTTI_OK;
    tutti_status status = tutti_tensor_redistribute(from, *out, options_of(call));
    if (status == TUTTI_OK) return status;
    tutti_ops_tensor_end(*out, options_of(call));
    *out = NULL;
    return status;
}

/* converted[i] becomes the converted input; NULL: it already has the layout. */
static tutti_status convert_inputs(tutti_ops_call *call, const tutti_ops_signature *signature,
                                   tutti_tensor **converted) {
    for (int i = 0; i < call->ninputs; i++) {
        const tutti_layout *wanted = &signature->inputs[i].view;
        if (!tutti_ops_layouts_are_equal(tutti_ops_input(call, i), wanted))
            TUTTI_TRY(convert(call, call->inputs[i], wanted, &converted[i]));
        TUTTI_TRY(see_shard(converted[i] != NULL ? converted[i] : call->inputs[i], &call->in[i]));
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ output */

static bool has_sbp(const tutti_layout *layout, const tutti_sbp *wanted) {
    for (int axis = 0; axis < tutti_placement_axes(layout->placement); axis++) {
        tutti_sbp is = layout->sbp[axis];
        if (tutti_placement_size(layout->placement, axis) == 1) continue;
        if (is.kind != wanted[axis].kind || (is.kind == TUTTI_SBP_SPLIT && is.dim != wanted[axis].dim) ||
            (is.kind == TUTTI_SBP_PARTIAL && is.reduction != wanted[axis].reduction))
            return false;
    }
    return true;
}

/* A gradient must have the shape of its tensor. */
static tutti_status check_target(const tutti_ops_call *call) {
    const tutti_ops_dims *output = &call->rule.output;
    const tutti_layout *target = call->target;
    if (target == NULL) return TUTTI_OK;
    bool same = target->ndims == output->ndims && target->type == call->type &&
                tutti_placement_is_equal(target->placement, tutti_ops_input(call, 0)->placement);
    for (int d = 0; same && d < output->ndims; d++) same = target->shape[d] == output->shape[d];
    if (same) return TUTTI_OK;
    return tutti_ops_fail(call, "its result must have the shape, type and placement of '%.40s', whose gradient it is",
                          target->name);
}

static tutti_status run_row(void *context) {
    const tutti_ops_call *call = context;
    return call->row->run(call);
}

static tutti_status compute(tutti_ops_call *call, const tutti_ops_signature *signature, tutti_tensor **output_out) {
    tutti_placement *placement = tutti_ops_input(call, 0)->placement;
    TUTTI_TRY(tutti_ops_tensor_make(&signature->output.view, options_of(call), output_out));
    TUTTI_TRY(see_shard(*output_out, &call->out));
    if (!is_member(call)) return TUTTI_OK;
    TUTTI_TRY(tutti_ops_find_kernels(call->row->name, placement, &call->kernels));
    call->stream = options_of(call)->stream;
    return tutti_ops_visit(placement, run_row, call);
}

/* target NULL: the output keeps the layout in which it was computed. */
static tutti_status finish(tutti_ops_call *call, const tutti_layout *target, tutti_tensor **output) {
    tutti_tensor *computed = *output;
    const tutti_layout *is = tutti_tensor_layout(computed);
    if (target == NULL || (call->target == NULL && has_sbp(is, target->sbp)) || tutti_ops_layouts_are_equal(is, target))
        return TUTTI_OK;
    tutti_tensor *converted = NULL;
    TUTTI_TRY(convert(call, computed, target, &converted));
    tutti_ops_tensor_end(computed, options_of(call));
    *output = converted;
    return TUTTI_OK;
}

static tutti_status carry_out(tutti_ops_call *call, const tutti_ops_signature *signature, const tutti_layout *target,
                              tutti_tensor **output_out) {
    tutti_tensor *converted[TUTTI_OPS_INPUTS] = {NULL}, *output = NULL;
    tutti_status status = convert_inputs(call, signature, converted);
    if (status == TUTTI_OK) status = compute(call, signature, &output);
    if (status == TUTTI_OK) status = finish(call, target, &output);
    for (int i = 0; i < call->ninputs; i++) tutti_ops_tensor_end(converted[i], options_of(call));
    if (status == TUTTI_OK) *output_out = output;
    else tutti_ops_tensor_end(output, options_of(call));
    return status;
}

/* ------------------------------------------------------------------------------------------------ all of it */

/* Returns the wanted layout of the output: the call's target, or a layout with the sbp of the options, which this
 * fills in; NULL: any layout. */
static const tutti_layout *find_target(const tutti_ops_call *call, tutti_ops_layout *room) {
    if (call->target != NULL) return call->target;
    if (call->options == NULL || call->options->sbp == NULL) return NULL;
    const tutti_layout *first = tutti_ops_input(call, 0);
    room->view = TUTTI_LAYOUT(.placement = first->placement, .sbp = call->options->sbp, .type = call->type,
                              .ndims = call->rule.output.ndims, .shape = call->rule.output.shape, .rule = first->rule,
                              .name = call->options->name != NULL ? call->options->name : call->row->name);
    return &room->view;
}

tutti_status tutti_ops_run(tutti_ops_call *call, tutti_tensor **output_out) {
    tutti_ops_choice choices[TUTTI_MOST_AXES];
    tutti_ops_signature signature;
    tutti_ops_layout room;
    if (output_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: the result is NULL", call->row->name);
    TUTTI_TRY(tutti_ops_place(call));
    TUTTI_TRY(check_target(call));
    const tutti_layout *target = find_target(call, &room);
    int64_t first[TUTTI_MOST_DIMS], end[TUTTI_MOST_DIMS];
    if (target != NULL)
        TUTTI_TRY(tutti_layout_box(target, 0, first, end)); /* checks the layout before anything is sent */
    if (call->forced != NULL)
        memcpy(choices, call->forced,
               (size_t)tutti_placement_axes(tutti_ops_input(call, 0)->placement) * sizeof *choices);
    else TUTTI_TRY(tutti_ops_choose(call, target, choices));
    TUTTI_TRY(tutti_ops_signature_make(call, choices, &signature));
    tutti_ops_note(call, choices, &signature);
    tutti_status status = carry_out(call, &signature, target, output_out);
    tutti_ops_signature_free(&signature);
    return status;
}
