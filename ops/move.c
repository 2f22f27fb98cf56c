/*
 * Transpose, slice and concat: elements keep their values, and stay partial with the same reductions.
 */
#include "ops/move.h"

#include <string.h>

#include "kernels/box.h"
#include "ops/gradient.h"

/* ------------------------------------------------------------------------------------------------ copies */

static void dense_strides(const tutti_ops_operand *operand, int64_t strides[TUTTI_MOST_DIMS]) {
    int64_t stride = 1;
    for (int d = operand->ndims - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= operand->shape[d];
    }
}

/* Copies the common part of x and y, where element i of y's dimension d is element i + shift[d] of x's. */
static tutti_status copy_common(const tutti_ops_call *call, const tutti_ops_operand *x, const int64_t *shift) {
    const tutti_ops_operand *y = &call->out;
    tutti_box box = {.ndims = y->ndims, .element_bytes = tutti_type_bytes(y->type)};
    tutti_box_copy copy;
    int64_t x_at = 0, y_at = 0;
    dense_strides(x, box.src_strides);
    dense_strides(y, box.dst_strides);
    for (int d = 0; d < y->ndims; d++) {
        int64_t y_first = y->first[d], x_first = x->first[d] - shift[d];
        int64_t first = y_first > x_first ? y_first : x_first;
        int64_t y_end = y_first + y->shape[d], x_end = x_first + x->shape[d];
        int64_t end = y_end < x_end ? y_end : x_end;
        if (end <= first) return TUTTI_OK;
        box.shape[d] = end - first;
        y_at += (first - y_first) * box.dst_strides[d];
        x_at += (first - x_first) * box.src_strides[d];
    }
    if (x->count == 0 || y->count == 0) return TUTTI_OK;
    tutti_box_plan(&box, &copy);
    return call->kernels->copy_box(call->stream, &copy, (char *)y->data + y_at * (int64_t)box.element_bytes,
                                   (const char *)x->data + x_at * (int64_t)box.element_bytes);
}

static tutti_status read_letters(tutti_ops_call *call, const char *text) {
    return tutti_ops_rule_read(text, NULL, NULL, &call->rule) ? TUTTI_OK
                                                              : tutti_ops_fail(call, "%s is not a rule", text);
}

/* ------------------------------------------------------------------------------------------------ transpose */

static tutti_status check_order(const tutti_ops_call *call, const int *order, int ndims) {
    unsigned seen = 0;
    if (order == NULL && ndims > 0) return tutti_ops_fail(call, "the order is NULL");
    for (int d = 0; d < ndims; d++) {
        if (order[d] < 0 || order[d] >= ndims || (seen >> order[d] & 1) != 0)
            return tutti_ops_fail(call, "order[%d] is %d: each of 0 to %d must come once", d, order[d], ndims - 1);
        seen |= 1u << order[d];
    }
    return TUTTI_OK;
}

static tutti_status place_transpose(tutti_ops_call *call) {
    const int *order = call->params;
    int ndims = tutti_ops_input(call, 0)->ndims;
    char text[TUTTI_OPS_RULE_TEXT], *at = text;
    TUTTI_TRY(check_order(call, order, ndims));
    for (int d = 0; d < ndims; d++) *at++ = (char)('a' + d);
    at = stpcpy(at, "->");
    for (int d = 0; d < ndims; d++) *at++ = (char)('a' + order[d]);
    *at = '\0';
    return read_letters(call, text);
}

static tutti_status run_transpose(const tutti_ops_call *call) {
    const int *order = call->params;
    const tutti_ops_operand *x = &call->in[0], *y = &call->out;
    tutti_box box = {.ndims = y->ndims, .element_bytes = tutti_type_bytes(y->type)};
    tutti_box_copy copy;
    int64_t strides[TUTTI_MOST_DIMS];
    if (y->count == 0) return TUTTI_OK;
    dense_strides(x, strides);
    dense_strides(y, box.dst_strides);
    for (int d = 0; d < y->ndims; d++) {
        box.shape[d] = y->shape[d];
        box.src_strides[d] = strides[order[d]];
    }
    tutti_box_plan(&box, &copy);
    return call->kernels->copy_box(call->stream, &copy, y->data, x->data);
}

const tutti_ops_row tutti_ops_row_transpose = {.name = "transpose",
                                               .moves = true,
                                               .linear = {1},
                                               .ns_per_point = 1,
                                               .place = place_transpose,
                                               .run = run_transpose};

tutti_status tutti_op_transpose(const tutti_tensor *x, const int *order, const tutti_op_options *options,
                                tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("transpose");
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_transpose, .params = order, .ninputs = 1, .inputs = {x}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_op_transpose_backward(const tutti_tensor *x, const int *order, const tutti_tensor *dy,
                                         tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("transpose_backward", (const tutti_tensor *const[]){x, dy}, 2));
    int ndims = tutti_tensor_layout(x)->ndims, back[TUTTI_MOST_DIMS] = {0};
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_transpose, .params = back, .ninputs = 1, .inputs = {dy});
    TUTTI_TRY(check_order(&call, order, ndims));
    for (int d = 0; d < ndims; d++) back[order[d]] = d;
    return tutti_ops_run_gradient(&call, x, dx_out);
}

/* ------------------------------------------------------------------------------------------------ slice */

static tutti_status place_same(tutti_ops_call *call) {
    char text[TUTTI_OPS_RULE_TEXT], *at = text;
    for (int i = 0; i <= call->ninputs; i++) {
        if (i > 0) at = stpcpy(at, i < call->ninputs ? "," : "->");
        for (int d = 0; d < tutti_ops_input(call, 0)->ndims; d++) *at++ = (char)('a' + d);
    }
    *at = '\0';
    return read_letters(call, text);
}

static tutti_status check_slice(const tutti_ops_call *call, const int64_t *whole) {
    const tutti_ops_slice_of *slice = call->params;
    int ndims = tutti_ops_input(call, 0)->ndims;
    if (ndims > 0 && (slice->first == NULL || slice->end == NULL)) return tutti_ops_fail(call, "first or end is NULL");
    for (int d = 0; d < ndims; d++)
        if (slice->first[d] < 0 || slice->end[d] < slice->first[d] || slice->end[d] > whole[d])
            return tutti_ops_fail(call, "[%lld, %lld) of dimension %d is not within its extent %lld",
                                  (long long)slice->first[d], (long long)slice->end[d], d, (long long)whole[d]);
    return TUTTI_OK;
}

static tutti_status place_slice(tutti_ops_call *call) {
    const tutti_ops_slice_of *slice = call->params;
    TUTTI_TRY(check_slice(call, tutti_ops_input(call, 0)->shape));
    TUTTI_TRY(place_same(call));
    for (int d = 0; d < call->rule.output.ndims; d++) {
        call->rule.output.offset[d] = slice->first[d];
        call->rule.output.shape[d] = slice->end[d] - slice->first[d];
    }
    return TUTTI_OK;
}

static tutti_status run_slice(const tutti_ops_call *call) {
    return copy_common(call, &call->in[0], ((const tutti_ops_slice_of *)call->params)->first);
}

/* Input dy. */
static tutti_status place_slice_backward(tutti_ops_call *call) {
    const tutti_ops_slice_of *slice = call->params;
    const tutti_layout *dy = tutti_ops_input(call, 0);
    TUTTI_TRY(check_slice(call, slice->whole));
    TUTTI_TRY(place_same(call));
    for (int d = 0; d < dy->ndims; d++) {
        if (dy->shape[d] != slice->end[d] - slice->first[d])
            return tutti_ops_fail(call, "dimension %d is %lld, but that of the slice is %lld", d,
                                  (long long)dy->shape[d], (long long)(slice->end[d] - slice->first[d]));
        call->rule.inputs[0].offset[d] = slice->first[d];
        tutti_ops_set_extent(call, (char)('a' + d), slice->whole[d]);
    }
    return TUTTI_OK;
}

static tutti_status run_slice_backward(const tutti_ops_call *call) {
    const tutti_ops_slice_of *slice = call->params;
    int64_t shift[TUTTI_MOST_DIMS];
    for (int d = 0; d < call->out.ndims; d++) shift[d] = -slice->first[d];
    TUTTI_TRY(call->kernels->zero(call->stream, call->out.data, call->out.count * tutti_type_bytes(call->out.type)));
    return copy_common(call, &call->in[0], shift);
}

const tutti_ops_row tutti_ops_row_slice = {.name = "slice",
                                           .moves = true,
                                           .ranges = true,
                                           .linear = {1},
                                           .ns_per_point = 1,
                                           .place = place_slice,
                                           .run = run_slice};
const tutti_ops_row tutti_ops_row_slice_backward = {.name = "slice_backward",
                                                    .ranges = true,
                                                    .linear = {1},
                                                    .ns_per_point = 1,
                                                    .place = place_slice_backward,
                                                    .run = run_slice_backward};

tutti_status tutti_op_slice(const tutti_tensor *x, const int64_t *first, const int64_t *end,
                            const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("slice");
    const tutti_ops_slice_of slice = {.first = first, .end = end};
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_slice, .params = &slice, .ninputs = 1, .inputs = {x}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_op_slice_backward(const tutti_tensor *x, const int64_t *first, const int64_t *end,
                                     const tutti_tensor *dy, tutti_tensor **dx_out) {
    TUTTI_TRY(tutti_ops_check_given("slice_backward", (const tutti_tensor *const[]){x, dy}, 2));
    const tutti_layout *layout = tutti_tensor_layout(x);
    if (tutti_tensor_layout(dy)->ndims != layout->ndims)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "slice_backward: '%.40s' has %d dimensions, its gradient %d",
                          layout->name, layout->ndims, tutti_tensor_layout(dy)->ndims);
    const tutti_ops_slice_of slice = {.first = first, .end = end, .whole = layout->shape};
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_slice_backward, .params = &slice, .ninputs = 1, .inputs = {dy});
    return tutti_ops_run_gradient(&call, x, dx_out);
}

/* ------------------------------------------------------------------------------------------------ concat */

static tutti_status place_concat(tutti_ops_call *call) {
    int dim = *(const int *)call->params, ndims = tutti_ops_input(call, 0)->ndims;
    int64_t at = 0;
    if (dim < 0 || dim >= ndims)
        return tutti_ops_fail(call, "dimension %d is not there: there are 0 to %d", dim, ndims - 1);
    TUTTI_TRY(place_same(call));
    for (int i = 0; i < call->ninputs; i++) {
        const tutti_layout *layout = tutti_ops_input(call, i);
        for (int d = 0; d < ndims; d++)
            if (layout->ndims != ndims || (d != dim && layout->shape[d] != tutti_ops_input(call, 0)->shape[d]))
                return tutti_ops_fail(call, "'%.40s' differs from '%.40s' in another dimension than %d", layout->name,
                                      tutti_ops_input(call, 0)->name, dim);
        call->rule.inputs[i].offset[dim] = at;
        at += layout->shape[dim];
    }
    tutti_ops_set_extent(call, (char)('a' + dim), at);
    return TUTTI_OK;
}

static tutti_status run_concat(const tutti_ops_call *call) {
    int dim = *(const int *)call->params;
    for (int i = 0; i < call->ninputs; i++) {
        int64_t shift[TUTTI_MOST_DIMS] = {0};
        shift[dim] = -call->rule.inputs[i].offset[dim];
        TUTTI_TRY(copy_common(call, &call->in[i], shift));
    }
    return TUTTI_OK;
}

const tutti_ops_row tutti_ops_row_concat = {
    .name = "concat", .moves = true, .ranges = true, .ns_per_point = 1, .place = place_concat, .run = run_concat};

static tutti_status check_count(const char *name, const tutti_tensor *const *xs, int count) {
    if (xs != NULL && count >= 1 && count <= TUTTI_OP_MOST_CONCAT) return tutti_ops_check_given(name, xs, count);
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s: %d tensors; there may be 1 to %d", name, count, TUTTI_OP_MOST_CONCAT);
}

tutti_status tutti_op_concat(const tutti_tensor *const *xs, int count, int dim, const tutti_op_options *options,
                             tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("concat");
    TUTTI_TRY(check_count("concat", xs, count));
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_concat, .params = &dim, .ninputs = count, .options = options);
    memcpy(call.inputs, xs, (size_t)count * sizeof *xs);
    return tutti_ops_run(&call, y_out);
}

/* Checks that the gradient has the extents of all xs together. */
static tutti_status check_concat_gradient(const tutti_tensor *const *xs, int count, int dim, const tutti_layout *dy) {
    int64_t extent = 0;
    if (dim < 0 || dim >= dy->ndims)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "concat_backward of '%.40s': dimension %d is not there: there are 0 to %d", dy->name, dim,
                          dy->ndims - 1);
    for (int i = 0; i < count; i++) {
        const tutti_layout *x = tutti_tensor_layout(xs[i]);
        for (int d = 0; d < dy->ndims; d++)
            if (x->ndims != dy->ndims || (d != dim && x->shape[d] != dy->shape[d]))
                return tutti_fail(TUTTI_ERR_ARGUMENT,
                                  "concat_backward of '%.40s': '%.40s' differs from it in another dimension than %d",
                                  dy->name, x->name, dim);
        extent += x->shape[dim];
    }
    if (extent == dy->shape[dim]) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT,
                      "concat_backward of '%.40s': dimension %d is %lld, and of the tensors together %lld", dy->name,
                      dim, (long long)dy->shape[dim], (long long)extent);
}

tutti_status tutti_op_concat_backward(const tutti_tensor *const *xs, int count, int dim, const tutti_tensor *dy,
                                      tutti_tensor **dxs_out) {
    tutti_tensor *made[TUTTI_OP_MOST_CONCAT] = {NULL}, **outs[TUTTI_OP_MOST_CONCAT];
    TUTTI_TRY(check_count("concat_backward", xs, count));
    TUTTI_TRY(tutti_ops_check_given("concat_backward", &dy, 1));
    const tutti_layout *layout = tutti_tensor_layout(dy);
    if (dxs_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "concat_backward: the array of results is NULL");
    TUTTI_TRY(check_concat_gradient(xs, count, dim, layout));
    int64_t first[TUTTI_MOST_DIMS] = {0}, end[TUTTI_MOST_DIMS];
    memcpy(end, layout->shape, (size_t)layout->ndims * sizeof *end);
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        const tutti_ops_slice_of slice = {.first = first, .end = end};
        end[dim] = first[dim] + tutti_tensor_layout(xs[i])->shape[dim];
        tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_slice, .params = &slice, .ninputs = 1, .inputs = {dy});
        status = tutti_ops_run_gradient(&call, xs[i], &made[i]);
        first[dim] = end[dim];
    }
    for (int i = 0; i < count; i++) outs[i] = &dxs_out[i];
    return tutti_ops_give(status, made, outs, count);
}
