/*
 * Convolution and pooling. Images are [batch, height, width, channels]; height and width stay whole.
 */
#include "ops/images.h"

#include "kernels/operators.h"
#include "ops/gradient.h"
#include "ops/matmul.h"

static const double FLOP_NS = 0.05, PIXEL_NS = 1;

/* ------------------------------------------------------------------------------------------------ windows */

static tutti_windows windows_of(const tutti_ops_call *call) {
    tutti_windows windows = ((const tutti_ops_windows *)call->params)->user;
    for (int i = 0; i < 2; i++)
        if (windows.stride[i] == 0) windows.stride[i] = 1;
    return windows;
}

static int64_t count_windows(int64_t extent, int64_t before, int64_t after, int64_t kernel, int64_t stride) {
    int64_t room = extent + before + after - kernel;
    return room < 0 ? 0 : room / stride + 1;
}

/* Numbers of windows over height and width. */
static tutti_status count_output(const tutti_ops_call *call, const int64_t *x_shape, const int64_t kernel[2],
                                 int64_t out[2]) {
    const tutti_windows w = windows_of(call);
    if (w.stride[0] < 1 || w.stride[1] < 1 || kernel[0] < 1 || kernel[1] < 1)
        return tutti_ops_fail(call, "kernel %lldx%lld and stride %dx%d must be positive", (long long)kernel[0],
                              (long long)kernel[1], w.stride[0], w.stride[1]);
    if (w.pad_top < 0 || w.pad_bottom < 0 || w.pad_left < 0 || w.pad_right < 0)
        return tutti_ops_fail(call, "a padding of %d,%d,%d,%d is negative", w.pad_top, w.pad_bottom, w.pad_left,
                              w.pad_right);
    out[0] = count_windows(x_shape[1], w.pad_top, w.pad_bottom, kernel[0], w.stride[0]);
    out[1] = count_windows(x_shape[2], w.pad_left, w.pad_right, kernel[1], w.stride[1]);
    return TUTTI_OK;
}

/* Describes the windows to the kernels, for the local images. */
static tutti_kernel_window place_window(const tutti_ops_call *call, const int64_t *x, const int64_t *y,
                                        const int64_t kernel[2]) {
    const tutti_windows w = windows_of(call);
    return (tutti_kernel_window){.batch = x[0],
                                 .in_height = x[1],
                                 .in_width = x[2],
                                 .channels = x[3],
                                 .kernel_height = kernel[0],
                                 .kernel_width = kernel[1],
                                 .stride_height = w.stride[0],
                                 .stride_width = w.stride[1],
                                 .pad_top = w.pad_top,
                                 .pad_left = w.pad_left,
                                 .out_height = y[1],
                                 .out_width = y[2]};
}

/* dy must have the extents of the output. */
static tutti_status check_gradient(const tutti_ops_call *call, const tutti_layout *dy, const int64_t *x_shape,
                                   const int64_t kernel[2]) {
    int64_t out[2] = {0, 0};
    TUTTI_TRY(count_output(call, x_shape, kernel, out));
    if (dy->shape[1] == out[0] && dy->shape[2] == out[1]) return TUTTI_OK;
    return tutti_ops_fail(call, "'%.40s' has %lldx%lld pixels, and the output of these windows %lldx%lld", dy->name,
                          (long long)dy->shape[1], (long long)dy->shape[2], (long long)out[0], (long long)out[1]);
}

/* ------------------------------------------------------------------------------------------------ convolution */

static tutti_status take_scratch(const tutti_ops_call *call, const tutti_kernel_window *window, int64_t filters,
                                 tutti_ops_scratch *scratch_out) {
    return tutti_ops_scratch_take(call, call->kernels->conv_scratch_bytes(call->out.type, window, filters),
                                  scratch_out);
}

/* Runs with the scratch memory in the arguments. */
static tutti_status run_backward(const tutti_ops_call *call, const tutti_kernel_window *window,
                                 tutti_kernel_conv_backward_args args) {
    tutti_ops_scratch scratch;
    TUTTI_TRY(take_scratch(call, window, args.filters, &scratch));
    args.scratch = scratch.memory;
    tutti_status status = call->kernels->conv_backward(call->stream, window, &args);
    tutti_ops_scratch_give(call, &scratch);
    return status;
}

static tutti_status place_conv2d(tutti_ops_call *call) {
    const tutti_layout *weight = tutti_ops_input(call, 1);
    int64_t out[2] = {0, 0};
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    if (tutti_ops_input(call, 0)->ndims != 4 || weight->ndims != 4)
        return tutti_ops_fail(
            call, "images are [batch, height, width, channels], weights [height, width, channels, filters]");
    if (!tutti_ops_rule_read(call->ninputs == 3 ? "nhwi,klif,f->nHWf" : "nhwi,klif->nHWf", "i", "hwklHW", &call->rule))
        return tutti_ops_fail(call, "not a rule");
    TUTTI_TRY(count_output(call, tutti_ops_input(call, 0)->shape, weight->shape, out));
    tutti_ops_set_extent(call, 'H', out[0]);
    tutti_ops_set_extent(call, 'W', out[1]);
    return TUTTI_OK;
}

static tutti_status run_conv2d(const tutti_ops_call *call) {
    const tutti_ops_operand *weight = &call->in[1];
    const tutti_kernel_window window = place_window(call, call->in[0].shape, call->out.shape, weight->shape);
    tutti_ops_scratch scratch;
    TUTTI_TRY(take_scratch(call, &window, weight->shape[3], &scratch));
    tutti_status status = call->kernels->conv_forward(
        call->stream, call->out.type, &window, weight->shape[3], call->in[0].data, weight->data,
        call->ninputs == 3 ? call->in[2].data : NULL, scratch.memory, call->out.data);
    tutti_ops_scratch_give(call, &scratch);
    return status;
}

const tutti_ops_row tutti_ops_row_conv2d = {.name = "conv2d",
                                            .linear = {1 | 4, 2 | 4},
                                            .added = 4,
                                            .ns_per_point = FLOP_NS,
                                            .place = place_conv2d,
                                            .run = run_conv2d};

/* Inputs dy, weight. */
static tutti_status place_conv2d_dx(tutti_ops_call *call) {
    const tutti_ops_windows *windows = call->params;
    const tutti_layout *dy = tutti_ops_input(call, 0), *weight = tutti_ops_input(call, 1);
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    if (dy->ndims != 4 || weight->ndims != 4) return tutti_ops_fail(call, "images and weights have 4 dimensions");
    if (!tutti_ops_rule_read("nHWf,klif->nhwi", "f", "hwklHW", &call->rule)) return tutti_ops_fail(call, "not a rule");
    TUTTI_TRY(check_gradient(call, dy, windows->x_shape, weight->shape));
    tutti_ops_set_extent(call, 'h', windows->x_shape[1]);
    tutti_ops_set_extent(call, 'w', windows->x_shape[2]);
    return TUTTI_OK;
}

static tutti_status run_conv2d_dx(const tutti_ops_call *call) {
    const tutti_ops_operand *weight = &call->in[1];
    const tutti_kernel_window window = place_window(call, call->out.shape, call->in[0].shape, weight->shape);
    const tutti_kernel_conv_backward_args args = {.type = call->out.type,
                                                  .filters = weight->shape[3],
                                                  .weight = weight->data,
                                                  .dy = call->in[0].data,
                                                  .dx = call->out.data};
    return run_backward(call, &window, args);
}

const tutti_ops_row tutti_ops_row_conv2d_dx = {
    .name = "conv2d_dx", .linear = {1, 2}, .ns_per_point = FLOP_NS, .place = place_conv2d_dx, .run = run_conv2d_dx};

/* Inputs x, dy. */
static tutti_status place_conv2d_dweight(tutti_ops_call *call) {
    const tutti_ops_windows *windows = call->params;
    const tutti_layout *x = tutti_ops_input(call, 0), *dy = tutti_ops_input(call, 1);
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    if (dy->ndims != 4 || x->ndims != 4) return tutti_ops_fail(call, "images have 4 dimensions");
    if (!tutti_ops_rule_read("nhwi,nHWf->klif", "n", "hwklHW", &call->rule)) return tutti_ops_fail(call, "not a rule");
    TUTTI_TRY(check_gradient(call, dy, x->shape, windows->kernel));
    tutti_ops_set_extent(call, 'k', windows->kernel[0]);
    tutti_ops_set_extent(call, 'l', windows->kernel[1]);
    return TUTTI_OK;
}

static tutti_status run_conv2d_dweight(const tutti_ops_call *call) {
    const tutti_ops_operand *dy = &call->in[1];
    const tutti_kernel_window window = place_window(call, call->in[0].shape, dy->shape, call->out.shape);
    const tutti_kernel_conv_backward_args args = {.type = call->out.type,
                                                  .filters = dy->shape[3],
                                                  .x = call->in[0].data,
                                                  .dy = dy->data,
                                                  .dweight = call->out.data};
    return run_backward(call, &window, args);
}

const tutti_ops_row tutti_ops_row_conv2d_dweight = {.name = "conv2d_dweight",
                                                    .linear = {1, 2},
                                                    .ns_per_point = FLOP_NS,
                                                    .place = place_conv2d_dweight,
                                                    .run = run_conv2d_dweight};

static tutti_status check_windows(const char *name, const tutti_windows *windows) {
    return windows != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_ARGUMENT, "%s: its windows are NULL", name);
}

tutti_status tutti_op_conv2d(const tutti_tensor *x, const tutti_tensor *weight, const tutti_tensor *bias,
                             const tutti_windows *windows, const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("conv2d");
    TUTTI_TRY(check_windows("conv2d", windows));
    const tutti_ops_windows params = {.user = *windows};
    tutti_ops_call call = TUTTI_OPS_CALL(&tutti_ops_row_conv2d, .params = &params, .ninputs = bias != NULL ? 3 : 2,
                                         .inputs = {x, weight, bias}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_op_conv2d_backward(const tutti_tensor *x, const tutti_tensor *weight, const tutti_tensor *bias,
                                      const tutti_windows *windows, const tutti_tensor *dy, tutti_tensor **dx_out,
                                      tutti_tensor **dweight_out, tutti_tensor **dbias_out) {
    TUTTI_TRY(check_windows("conv2d_backward", windows));
    TUTTI_TRY(tutti_ops_check_given("conv2d_backward", (const tutti_tensor *const[]){x, weight, dy}, 3));
    const tutti_layout *of_x = tutti_tensor_layout(x), *of_weight = tutti_tensor_layout(weight);
    if (of_x->ndims != 4 || of_weight->ndims != 4)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "conv2d_backward: '%.40s' and '%.40s' must have 4 dimensions", of_x->name,
                          of_weight->name);
    const tutti_ops_windows params = {
        .user = *windows, .x_shape = of_x->shape, .kernel = {of_weight->shape[0], of_weight->shape[1]}};
    tutti_ops_call dx_call =
        TUTTI_OPS_CALL(&tutti_ops_row_conv2d_dx, .params = &params, .ninputs = 2, .inputs = {dy, weight});
    tutti_ops_call dw_call =
        TUTTI_OPS_CALL(&tutti_ops_row_conv2d_dweight, .params = &params, .ninputs = 2, .inputs = {x, dy});
    tutti_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
    tutti_status status = TUTTI_OK;
    if (dx_out != NULL) status = tutti_ops_run_gradient(&dx_call, x, &dx);
    if (dweight_out != NULL && status == TUTTI_OK) status = tutti_ops_run_gradient(&dw_call, weight, &dweight);
    if (dbias_out != NULL && status == TUTTI_OK) status = tutti_ops_bias_backward(bias, dy, &dbias);
    return tutti_ops_give(status, (tutti_tensor *[]){dx, dweight, dbias},
                          (tutti_tensor * *[]){dx_out, dweight_out, dbias_out}, 3);
}

/* ------------------------------------------------------------------------------------------------ pooling */

static void kernel_of(const tutti_ops_call *call, int64_t kernel[2]) {
    const tutti_windows windows = windows_of(call);
    kernel[0] = windows.kernel[0];
    kernel[1] = windows.kernel[1];
}

static tutti_status place_pool(tutti_ops_call *call) {
    int64_t kernel[2], out[2] = {0, 0};
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    kernel_of(call, kernel);
    TUTTI_TRY(count_output(call, tutti_ops_input(call, 0)->shape, kernel, out));
    tutti_ops_set_extent(call, 'H', out[0]);
    tutti_ops_set_extent(call, 'W', out[1]);
    return TUTTI_OK;
}

static tutti_kernel_window pool_window(const tutti_ops_call *call, const tutti_ops_operand *x,
                                       const tutti_ops_operand *y) {
    int64_t kernel[2];
    kernel_of(call, kernel);
    return place_window(call, x->shape, y->shape, kernel);
}

static tutti_status run_max_pool2d(const tutti_ops_call *call) {
    const tutti_kernel_window window = pool_window(call, &call->in[0], &call->out);
    return call->kernels->max_pool_forward(call->stream, call->out.type, &window, call->in[0].data, call->out.data);
}

static tutti_status run_avg_pool2d(const tutti_ops_call *call) {
    const tutti_kernel_window window = pool_window(call, &call->in[0], &call->out);
    return call->kernels->average_pool_forward(call->stream, call->out.type, &window, windows_of(call).count_padding,
                                               call->in[0].data, call->out.data);
}

/* Inputs x, dy. */
static tutti_status place_max_pool2d_backward(tutti_ops_call *call) {
    int64_t kernel[2];
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    kernel_of(call, kernel);
    return check_gradient(call, tutti_ops_input(call, 1), tutti_ops_input(call, 0)->shape, kernel);
}

static tutti_status run_max_pool2d_backward(const tutti_ops_call *call) {
    const tutti_kernel_window window = pool_window(call, &call->in[0], &call->in[1]);
    return call->kernels->max_pool_backward(call->stream, call->out.type, &window, call->in[0].data, call->in[1].data,
                                            call->out.data);
}

/* Input dy. */
static tutti_status place_avg_pool2d_backward(tutti_ops_call *call) {
    const int64_t *x_shape = ((const tutti_ops_windows *)call->params)->x_shape;
    int64_t kernel[2];
    TUTTI_TRY(tutti_ops_check_float(call));
    TUTTI_TRY(tutti_ops_check_extents(call));
    kernel_of(call, kernel);
    TUTTI_TRY(check_gradient(call, tutti_ops_input(call, 0), x_shape, kernel));
    tutti_ops_set_extent(call, 'h', x_shape[1]);
    tutti_ops_set_extent(call, 'w', x_shape[2]);
    return TUTTI_OK;
}

static tutti_status run_avg_pool2d_backward(const tutti_ops_call *call) {
    const tutti_kernel_window window = pool_window(call, &call->out, &call->in[0]);
    return call->kernels->average_pool_backward(call->stream, call->out.type, &window, windows_of(call).count_padding,
                                                call->in[0].data, call->out.data);
}

const tutti_ops_row tutti_ops_row_max_pool2d = {.name = "max_pool2d",
                                                .rule = "nhwc->nHWc",
                                                .whole = "hwHW",
                                                .ns_per_point = PIXEL_NS,
                                                .place = place_pool,
                                                .run = run_max_pool2d};
const tutti_ops_row tutti_ops_row_avg_pool2d = {.name = "avg_pool2d",
                                                .rule = "nhwc->nHWc",
                                                .whole = "hwHW",
                                                .linear = {1},
                                                .ns_per_point = PIXEL_NS,
                                                .place = place_pool,
                                                .run = run_avg_pool2d};
const tutti_ops_row tutti_ops_row_max_pool2d_backward = {.name = "max_pool2d_backward",
                                                         .rule = "nhwc,nHWc->nhwc",
                                                         .whole = "hwHW",
                                                         .linear = {2},
                                                         .ns_per_point = PIXEL_NS,
                                                         .place = place_max_pool2d_backward,
                                                         .run = run_max_pool2d_backward};
const tutti_ops_row tutti_ops_row_avg_pool2d_backward = {.name = "avg_pool2d_backward",
                                                         .rule = "nHWc->nhwc",
                                                         .whole = "hwHW",
                                                         .linear = {1},
                                                         .ns_per_point = PIXEL_NS,
                                                         .place = place_avg_pool2d_backward,
                                                         .run = run_avg_pool2d_backward};

static tutti_status pool(const tutti_ops_row *row, const tutti_tensor *x, const tutti_windows *windows,
                         const tutti_op_options *options, tutti_tensor **y_out) {
    TUTTI_TRY(check_windows(row->name, windows));
    const tutti_ops_windows params = {.user = *windows};
    tutti_ops_call call = TUTTI_OPS_CALL(row, .params = &params, .ninputs = 1, .inputs = {x}, .options = options);
    return tutti_ops_run(&call, y_out);
}

tutti_status tutti_op_max_pool2d(const tutti_tensor *x, const tutti_windows *windows, const tutti_op_options *options,
                                 tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("max_pool2d");
    return pool(&tutti_ops_row_max_pool2d, x, windows, options, y_out);
}

tutti_status tutti_op_avg_pool2d(const tutti_tensor *x, const tutti_windows *windows, const tutti_op_options *options,
                                 tutti_tensor **y_out) {
    TUTTI_TAKE_OP_OPTIONS("avg_pool2d");
    return pool(&tutti_ops_row_avg_pool2d, x, windows, options, y_out);
}

tutti_status tutti_op_max_pool2d_backward(const tutti_tensor *x, const tutti_windows *windows, const tutti_tensor *dy,
                                          tutti_tensor **dx_out) {
    TUTTI_TRY(check_windows("max_pool2d_backward", windows));
    const tutti_ops_windows params = {.user = *windows};
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_max_pool2d_backward, .params = &params, .ninputs = 2, .inputs = {x, dy});
    return tutti_ops_run_gradient(&call, x, dx_out);
}

tutti_status tutti_op_avg_pool2d_backward(const tutti_tensor *x, const tutti_windows *windows, const tutti_tensor *dy,
                                          tutti_tensor **dx_out) {
    TUTTI_TRY(check_windows("avg_pool2d_backward", windows));
    TUTTI_TRY(tutti_ops_check_given("avg_pool2d_backward", (const tutti_tensor *const[]){x, dy}, 2));
    if (tutti_tensor_layout(x)->ndims != 4)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "avg_pool2d_backward: images have 4 dimensions");
    const tutti_ops_windows params = {.user = *windows, .x_shape = tutti_tensor_layout(x)->shape};
    tutti_ops_call call =
        TUTTI_OPS_CALL(&tutti_ops_row_avg_pool2d_backward, .params = &params, .ninputs = 1, .inputs = {dy});
    return tutti_ops_run_gradient(&call, x, dx_out);
}
