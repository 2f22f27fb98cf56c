/*
 * Softmax over the last dimension, and cross-entropy with labels. Where the classes are split the loss is computed
 * from the ranks' maxima and sums (as in vocabulary parallelism: Shoeybi et al., Megatron-LM, 2019): logits do not
 * move.
 */
#include "ops/loss.h"

#include "kernels/operators.h"
#include "ops/gradient.h"

static const double CLASS_NS = 4;

/* ------------------------------------------------------------------------------------------------ rules */

/* z are the classes. */
static tutti_status place_rows(tutti_ops_call *call, int leading, const char *form, const char *sums,
                               const char *whole) {
    TUTTI_TRY(tutti_ops_check_float(call));
    if (leading < 0) return tutti_ops_fail(call, "a scalar has no classes");
    return tutti_ops_read_form(call, form, leading, false, sums, whole);
}

static tutti_status check_labels(const tutti_ops_call *call, int input) {
    tutti_type type = tutti_ops_input(call, input)->type;
    if (type == TUTTI_INT32 || type == TUTTI_INT64) return TUTTI_OK;
    return tutti_ops_fail(call, "labels are int32 or int64, not %s", tutti_type_name(type));
}

static int leading_of(const tutti_ops_call *call) {
    return tutti_ops_input(call, 0)->ndims - 1;
}

static size_t classes_of(const tutti_ops_operand *x) {
    return (size_t)x->shape[x->ndims - 1];
}

static size_t rows_of(const tutti_ops_operand *x) {
    return (size_t)tutti_ops_rows(x);
}

/* ------------------------------------------------------------------------------------------------ softmax */

static tutti_status place_softmax(tutti_ops_call *call) {
    return place_rows(call, leading_of(call), ".z->.z", NULL, "z");
}

static tutti_status run_softmax(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    return call->kernels->softmax(call->stream, x->type, rows_of(x), classes_of(x), x->data, call->out.data);
}

static tutti_status place_softmax_backward(tutti_ops_call *call) {
    return place_rows(call, leading_of(call), ".z,.z->.z", NULL, "z");
}

static tutti_status run_softmax_backward(const tutti_ops_call *call) {
    const tutti_ops_operand *y = &call->in[0];
    return call->kernels->softmax_backward(call->stream, y->type, rows_of(y), classes_of(y), y->data, call->in[1].data,
                                           call->out.data);
}

const tutti_ops_row tutti_ops_row_softmax = {
    .name = "softmax", .ns_per_point = CLASS_NS, .place = place_softmax, .run = run_softmax};
const tutti_ops_row tutti_ops_row_softmax_backward = {.name = "softmax_backward",
                                                      .linear = {2},
                                                      .ns_per_point = CLASS_NS,
                                                      .place = place_softmax_backward,
                                                      .run = run_softmax_backward};

tutti_status tutti_op_softmax(const tutti_tensor *x, const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("softmax");
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_softmax, .ninputs = 1, .inputs = {x}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_op_softmax_backward(const tutti_tensor *x, const tutti_tensor *y, const tutti_tensor *dy,
                                       tutti_tensor **dx_out) {
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_softmax_backward, .ninputs = 2, .inputs = {y, dy});
    return tutti_ops_run_gradient(&call, x, dx_out);
}

/* ------------------------------------------------------------------------------------------------ parts of the loss */

static tutti_kernel_labels labels_of(const tutti_ops_call *call, const tutti_ops_operand *labels, int64_t first) {
    return (tutti_kernel_labels){.type = labels->type,
                                 .values = labels->data,
                                 .first = first,
                                 .classes = ((const tutti_ops_classes *)call->params)->count};
}

static int64_t first_class(const tutti_ops_operand *x) {
    return x->first[x->ndims - 1];
}

static tutti_status place_cross_entropy(tutti_ops_call *call) {
    TUTTI_TRY(check_labels(call, 1));
    return place_rows(call, leading_of(call), ".z,.->.", NULL, "z");
}

static tutti_status run_cross_entropy(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    const tutti_kernel_labels labels = labels_of(call, &call->in[1], 0);
    size_t rows = rows_of(x), bytes = tutti_type_bytes(x->type);
    tutti_ops_scratch scratch; /* maxima, sums */
    TUTTI_TRY(tutti_ops_scratch_take(call, 2 * rows * bytes, &scratch));
    char *sums = rows > 0 ? (char *)scratch.memory + rows * bytes : NULL;
    tutti_status status = call->kernels->cross_entropy(call->stream, x->type, rows, classes_of(x), x->data, &labels,
                                                       scratch.memory, sums, call->out.data);
    tutti_ops_scratch_give(call, &scratch);
    return status;
}

static tutti_status place_exp_sums(tutti_ops_call *call) {
    return place_rows(call, leading_of(call), ".z,.->.", "z", NULL);
}

static tutti_status run_exp_sums(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    return call->kernels->exp_sums(call->stream, x->type, rows_of(x), classes_of(x), x->data, call->in[1].data,
                                   call->out.data);
}

static tutti_status place_label_logits(tutti_ops_call *call) {
    TUTTI_TRY(check_labels(call, 1));
    return place_exp_sums(call);
}

static tutti_status run_label_logits(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    const tutti_kernel_labels labels = labels_of(call, &call->in[1], first_class(x));
    return call->kernels->label_logits(call->stream, x->type, rows_of(x), classes_of(x), x->data, &labels,
                                       call->out.data);
}

static tutti_status place_losses(tutti_ops_call *call) {
    TUTTI_TRY(check_labels(call, 3));
    return place_rows(call, leading_of(call) + 1, ".,.,.,.->.", NULL, NULL);
}

static tutti_status run_losses(const tutti_ops_call *call) {
    const tutti_kernel_labels labels = labels_of(call, &call->in[3], 0);
    return call->kernels->cross_entropy_losses(call->stream, call->out.type, call->out.count, call->in[0].data,
                                               call->in[1].data, call->in[2].data, &labels, call->out.data);
}

static tutti_status place_cross_entropy_backward(tutti_ops_call *call) {
    TUTTI_TRY(check_labels(call, 1));
    for (int i = 2; i < call->ninputs; i++)
        if (tutti_ops_input(call, i)->type != tutti_ops_input(call, 0)->type)
            return tutti_ops_fail(call, "'%.40s' is %s, and must be %s", tutti_ops_input(call, i)->name,
                                  tutti_type_name(tutti_ops_input(call, i)->type),
                                  tutti_type_name(tutti_ops_input(call, 0)->type));
    return place_rows(call, leading_of(call), ".z,.,.,.,.->.z", NULL, NULL);
}

static tutti_status run_cross_entropy_backward(const tutti_ops_call *call) {
    const tutti_ops_operand *x = &call->in[0];
    const tutti_kernel_labels labels = labels_of(call, &call->in[1], first_class(x));
    return call->kernels->cross_entropy_backward(call->stream, x->type, rows_of(x), classes_of(x), x->data, &labels,
                                                 call->in[2].data, call->in[3].data, call->in[4].data, call->out.data);
}

const tutti_ops_row tutti_ops_row_cross_entropy = {.name = "softmax_cross_entropy",
                                                   .mixes_types = true,
                                                   .ns_per_point = CLASS_NS,
                                                   .place = place_cross_entropy,
                                                   .run = run_cross_entropy};
const tutti_ops_row tutti_ops_row_exp_sums = {
    .name = "exp_sums", .ns_per_point = CLASS_NS, .place = place_exp_sums, .run = run_exp_sums};
const tutti_ops_row tutti_ops_row_label_logits = {.name = "label_logits",
                                                  .mixes_types = true,
                                                  .linear = {1},
                                                  .ns_per_point = 0.1,
                                                  .place = place_label_logits,
                                                  .run = run_label_logits};
const tutti_ops_row tutti_ops_row_losses = {
    .name = "losses", .mixes_types = true, .ns_per_point = 10, .place = place_losses, .run = run_losses};
const tutti_ops_row tutti_ops_row_cross_entropy_backward = {.name = "softmax_cross_entropy_backward",
                                                            .mixes_types = true,
                                                            .linear = {16},
                                                            .ns_per_point = CLASS_NS,
                                                            .place = place_cross_entropy_backward,
                                                            .run = run_cross_entropy_backward};

/* ------------------------------------------------------------------------------------------------ the loss */

static bool classes_are_split(const tutti_layout *logits) {
    for (int axis = 0; axis < tutti_placement_axes(logits->placement); axis++)
        if (logits->sbp[axis].kind == TUTTI_SBP_SPLIT && logits->sbp[axis].dim == logits->ndims - 1 &&
            tutti_placement_size(logits->placement, axis) > 1)
            return true;
    return false;
}

/* The largest logit of each row, and the sum of exp(logit - largest), over the classes of all ranks. */
static tutti_status find_sums(const tutti_tensor *logits, const tutti_options *options, tutti_tensor **max_out,
                              tutti_tensor **sums_out) {
    const tutti_layout *layout = tutti_tensor_layout(logits);
    tutti_tensor *max = NULL, *sums = NULL;
    const tutti_op_options of_each = TUTTI_OP_OPTIONS(.options = options);
    tutti_status status = tutti_op_reduce(logits, TUTTI_MAX, 1u << (layout->ndims - 1), false, &of_each, &max);
    status = tutti_ops_make_whole(status, options, &max);
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_exp_sums, .ninputs = 2, .inputs = {logits, max}, .options = &of_each);
    if (status == TUTTI_OK) status = tutti_ops_make_whole(tutti_ops_run(&call, &sums), options, &sums);
    return tutti_ops_give(status, (tutti_tensor *[]){max, sums}, (tutti_tensor * *[]){max_out, sums_out}, 2);
}

static tutti_status check(const char *name, const tutti_tensor *logits) {
    TUTTI_TRY(tutti_ops_check_given(name, &logits, 1));
    if (tutti_tensor_layout(logits)->ndims >= 1) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s of '%.40s': a scalar has no classes", name,
                      tutti_tensor_layout(logits)->name);
}

tutti_status tutti_op_softmax_cross_entropy(const tutti_tensor *logits, const tutti_tensor *labels,
                                            const tutti_op_options *options, tutti_tensor **losses_out) {
    TUTTI_TAKE_OP_OPTIONS("softmax_cross_entropy");
    TUTTI_TRY(check("softmax_cross_entropy", logits));
    const tutti_layout *layout = tutti_tensor_layout(logits);
    const tutti_ops_classes classes = {.count = layout->shape[layout->ndims - 1]};
    tutti_ops_call whole = TUTTI_OPS_CALL(&tutti_ops_row_cross_entropy, .params = &classes, .ninputs = 2,
                                          .inputs = {logits, labels}, .options = options);
    if (!classes_are_split(layout)) return tutti_ops_run(&whole, losses_out);
    TUTTI_TRY(tutti_ops_place(&whole)); /* checks the arguments before anything is sent */
    tutti_tensor *max = NULL, *sums = NULL, *own = NULL;
    const tutti_options *collectives = options != NULL ? options->options : NULL;
    const tutti_op_options of_each = TUTTI_OP_OPTIONS(.options = collectives);
    tutti_status status = find_sums(logits, collectives, &max, &sums);
    tutti_ops_call part = TUTTI_OPS_CALL(&tutti_ops_row_label_logits, .params = &classes, .ninputs = 2,
                                         .inputs = {logits, labels}, .options = &of_each);
    if (status == TUTTI_OK) status = tutti_ops_run(&part, &own);
    tutti_ops_call last = TUTTI_OPS_CALL(&tutti_ops_row_losses, .params = &classes, .ninputs = 4,
                                         .inputs = {max, sums, own, labels}, .options = options);
    if (status == TUTTI_OK) status = tutti_ops_run(&last, losses_out);
    tutti_ops_tensor_end(max, collectives);
    tutti_ops_tensor_end(sums, collectives);
    tutti_ops_tensor_end(own, collectives);
    return status;
}

tutti_status tutti_op_softmax_cross_entropy_backward(const tutti_tensor *logits, const tutti_tensor *labels,
                                                     const tutti_tensor *dlosses, tutti_tensor **dlogits_out) {
    TUTTI_TRY(check("softmax_cross_entropy_backward", logits));
    TUTTI_TRY(
        tutti_ops_check_given("softmax_cross_entropy_backward", (const tutti_tensor *const[]){labels, dlosses}, 2));
    const tutti_layout *layout = tutti_tensor_layout(logits);
    const tutti_ops_classes classes = {.count = layout->shape[layout->ndims - 1]};
    tutti_tensor *max = NULL, *sums = NULL;
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_cross_entropy_backward, .params = &classes, .ninputs = 5,
                                         .inputs = {logits, labels, dlosses, dlosses, dlosses});
    tutti_ops_layout adjoint;
    if (dlogits_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "softmax_cross_entropy_backward: the result is NULL");
    TUTTI_TRY(
        /* checks the arguments before anything is sent: maxima and sums have the extents of dlosses */
        tutti_ops_place(&call));
    TUTTI_TRY(tutti_ops_adjoint(logits, &adjoint));
    tutti_status status = find_sums(logits, NULL, &max, &sums);
    call.inputs[2] = max;
    call.inputs[3] = sums;
    if (status == TUTTI_OK) status = tutti_ops_run_gradient(&call, logits, dlogits_out);
    tutti_ops_tensor_end(max, NULL);
    tutti_ops_tensor_end(sums, NULL);
    return status;
}
