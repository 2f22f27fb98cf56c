/*
 * The table of layers: each row binds a kind to its kernels.
 */
#include "ddp/trainer/layers/layers.h"

static tutti_layer_cost element_wise_cost(const tutti_node *node) {
    double in = (double)tutti_shape_count(node->in), out = (double)tutti_shape_count(node->out);
    return (tutti_layer_cost){.flops = out, .bytes = sizeof(float) * (in + out)};
}

/* The cost of a matrix product with `outputs` results, each a sum over `terms`. */
static tutti_layer_cost product_cost(const tutti_node *node, double terms) {
    double in = (double)tutti_shape_count(node->in), out = (double)tutti_shape_count(node->out);
    double parameters = (double)(node->parameter_counts[0] + node->parameter_counts[1]);
    return (tutti_layer_cost){.flops = out * (2 * terms + 1), .bytes = sizeof(float) * (in + out + parameters)};
}

static tutti_status place_window(const tutti_node *node, tutti_window *window) {
    const tutti_layer *layer = node->layer;
    *window = (tutti_window){
        .in_height = node->in.height,
        .in_width = node->in.width,
        .channels = node->in.channels,
        .kernel = layer->kernel,
        .stride = layer->stride,
    };
    if (layer->kernel < 1 || layer->stride < 1)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: kernel %d and stride %d must be at least 1", layer->name,
                          layer->kernel, layer->stride);
    if (!tutti_window_place(window, layer->padding))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: a window of %dx%d does not fit into an image of %dx%d",
                          layer->name, layer->kernel, layer->kernel, node->in.height, node->in.width);
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------- convolution */

static tutti_status conv_place(tutti_node *node) {
    tutti_conv *conv = &node->plan.conv;
    TUTTI_TRY(place_window(node, &conv->window));
    conv->filters = node->units;
    conv->relu = node->layer->relu;
    conv->no_bias = node->layer->no_bias;
    node->out = (tutti_shape){conv->window.out_height, conv->window.out_width, conv->filters};
    size_t taps = (size_t)conv->window.kernel * (size_t)conv->window.kernel * (size_t)conv->window.channels;
    node->parameter_counts[0] = taps * (size_t)conv->filters;
    node->parameter_counts[1] = node->layer->no_bias ? 0 : (size_t)conv->filters;
    return TUTTI_OK;
}

/* The cost of a layer with a fused ReLU. */
static bool has_relu(const tutti_node *node) {
    return node->layer->relu;
}

static unsigned reads_x_and_mask(const tutti_node *node) {
    return TUTTI_READS_X | (has_relu(node) ? TUTTI_READS_Y : 0u);
}

static size_t conv_scratch_count(const tutti_compute *compute, const tutti_node *node, int batch) {
    return compute->kernels->conv_scratch_count(&node->plan.conv, batch);
}

static size_t conv_kept_count(const tutti_compute *compute, const tutti_node *node, int batch) {
    return compute->kernels->conv_kept_count(&node->plan.conv, batch);
}

static void conv_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                         const float *const *x) {
    tutti_conv_forward_args args = {
        .batch = tutti_node_batch(node, pass->batch),
        .x = x[0],
        .weight = node->parameters[0],
        .bias = node->parameters[1],
        .scratch = node->scratch,
        .y = node->y,
        .kept = node->kept,
        .scratch_count = node->scratch_count,
    };
    compute->kernels->conv_forward(compute, &node->plan.conv, &args);
}

static void conv_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                          const tutti_layer_gradients *gradients) {
    tutti_conv_backward_args args = {
        .batch = tutti_node_batch(node, pass->batch),
        .x = x[0],
        .weight = node->parameters[0],
        .y = node->y,
        .dy = node->dy,
        .scratch = node->scratch,
        .kept = node->kept,
        .dweight = gradients->parameters[0],
        .dbias = gradients->parameters[1],
        .dx = gradients->dx[0],
        .scratch_count = node->scratch_count,
    };
    compute->kernels->conv_backward(compute, &node->plan.conv, &args);
}

static tutti_layer_cost conv_cost(const tutti_node *node) {
    return product_cost(node, (double)node->parameter_counts[0] / (double)node->plan.conv.filters);
}

/* --------------------------------------------------------------------------------------------- pooling */

static tutti_status max_pool_place(tutti_node *node) {
    TUTTI_TRY(place_window(node, &node->plan.pool));
    node->out = (tutti_shape){node->plan.pool.out_height, node->plan.pool.out_width, node->in.channels};
    return TUTTI_OK;
}

static size_t max_pool_kept_count(const tutti_compute *compute, const tutti_node *node, int batch) {
    (void)compute;
    _Static_assert(sizeof(int32_t) == sizeof(float), "the index of a maximum has the size of a float");
    return (size_t)batch * tutti_shape_count(node->out);
}

static void max_pool_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                             const float *const *x) {
    compute->kernels->max_pool_forward(compute, &node->plan.pool, tutti_node_batch(node, pass->batch), x[0], node->y,
                                       (void *)node->kept);
}

static void max_pool_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                              const float *const *x, const tutti_layer_gradients *gradients) {
    (void)x;
    compute->kernels->max_pool_backward(compute, &node->plan.pool, tutti_node_batch(node, pass->batch), node->dy,
                                        (const void *)node->kept, gradients->dx[0]);
}

static tutti_layer_cost max_pool_cost(const tutti_node *node) {
    tutti_layer_cost cost = element_wise_cost(node);
    cost.flops *= (double)node->plan.pool.kernel * (double)node->plan.pool.kernel;
    return cost;
}

/* ------------------------------------------------------------------------------------------------ ReLU */

static tutti_status same_shape_place(tutti_node *node) {
    node->out = node->in;
    return TUTTI_OK;
}

static size_t batch_count(const tutti_node *node, const tutti_pass *pass) {
    return (size_t)tutti_node_batch(node, pass->batch) * tutti_shape_count(node->out);
}

static unsigned reads_y(const tutti_node *node) {
    (void)node;
    return TUTTI_READS_Y;
}

static void relu_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                         const float *const *x) {
    compute->kernels->relu_forward(compute, batch_count(node, pass), x[0], node->y);
}

static void relu_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                          const tutti_layer_gradients *gradients) {
    (void)x;
    compute->kernels->relu_backward(compute, batch_count(node, pass), node->y, node->dy, gradients->dx[0]);
}

/* ----------------------------------------------------------------------------------------------- dense */

static tutti_status dense_place(tutti_node *node) {
    size_t inputs = tutti_shape_count(node->in);
    node->plan.dense = (tutti_dense){(int)inputs, node->units, node->layer->relu};
    node->out = (tutti_shape){1, 1, node->units};
    node->parameter_counts[0] = inputs * (size_t)node->units;
    node->parameter_counts[1] = node->layer->no_bias ? 0 : (size_t)node->units;
    return TUTTI_OK;
}

static void dense_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                          const float *const *x) {
    tutti_dense_forward_args args = {
        .batch = tutti_node_batch(node, pass->batch),
        .x = x[0],
        .weight = node->parameters[0],
        .bias = node->parameters[1],
        .y = node->y,
    };
    compute->kernels->dense_forward(compute, &node->plan.dense, &args);
}

static void dense_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                           const float *const *x, const tutti_layer_gradients *gradients) {
    tutti_dense_backward_args args = {
        .batch = tutti_node_batch(node, pass->batch),
        .x = x[0],
        .weight = node->parameters[0],
        .y = node->y,
        .dy = node->dy,
        .dweight = gradients->parameters[0],
        .dbias = gradients->parameters[1],
        .dx = gradients->dx[0],
    };
    compute->kernels->dense_backward(compute, &node->plan.dense, &args);
}

static tutti_layer_cost dense_cost(const tutti_node *node) {
    return product_cost(node, (double)tutti_shape_count(node->in));
}

/* --------------------------------------------------------------------------------------------- dropout */

static void drop(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *src, float *dst) {
    size_t count = batch_count(node, pass);
    if (!pass->training || node->layer->rate == 0) {
        compute->kernels->copy(compute, dst, src, count * sizeof *dst);
        return;
    }
    tutti_dropout dropout = {
        .rate = node->layer->rate,
        .seed = pass->seed,
        .stream = tutti_random_stream(TUTTI_RANDOM_DROPOUT, (uint64_t)node->number, 0),
        .first_element = pass->first_sample * tutti_shape_count(node->out),
    };
    if (node->part == NULL) {
        compute->kernels->dropout(compute, &dropout, pass->values, count, src, dst);
        return;
    }
    /* This rank has the channels of each pixel from first_channel on. */
    const tutti_part *part = node->part;
    const size_t whole = (size_t)part->out.channels, run = (size_t)node->out.channels;
    const size_t at_once = run == whole ? count : run; /* elements that are adjacent in the whole array */
    const uint64_t first = part->first_sample * tutti_shape_count(part->out) + (uint64_t)part->first_channel;
    for (size_t i = 0; i < count; i += at_once) {
        dropout.first_element = first + i / run * whole;
        compute->kernels->dropout(compute, &dropout, pass->values, at_once, src + i, dst + i);
    }
}

/* GPU kernels need rows that begin at multiples of 16 bytes. */
static bool dropout_runs_on(const tutti_node *node, const tutti_kernels *kernels) {
    const bool divided = node->part != NULL && node->part->out.channels != node->out.channels;
    return kernels->memory == TUTTI_MEMORY_HOST || !divided || node->out.channels % 4 == 0;
}

static void dropout_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                            const float *const *x) {
    drop(compute, node, pass, x[0], node->y);
}

static void dropout_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                             const float *const *x, const tutti_layer_gradients *gradients) {
    (void)x;
    drop(compute, node, pass, node->dy, gradients->dx[0]);
}

/* ------------------------------------------------------------------------------------------------- add */

static unsigned add_reads(const tutti_node *node) {
    return has_relu(node) ? TUTTI_READS_Y : 0u;
}

static void add_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x) {
    const size_t count = batch_count(node, pass);
    if (has_relu(node)) compute->kernels->add_relu(compute, count, x[0], x[1], node->y);
    else compute->kernels->add(compute, count, x[0], x[1], node->y);
}

static void add_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                         const tutti_layer_gradients *gradients) {
    (void)x;
    const size_t count = batch_count(node, pass);
    if (has_relu(node)) compute->kernels->relu_backward(compute, count, node->y, node->dy, node->dy);
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++)
        if (gradients->dx[i] != NULL)
            compute->kernels->copy(compute, gradients->dx[i], node->dy, count * sizeof(float));
}

static tutti_layer_cost add_cost(const tutti_node *node) {
    double count = (double)tutti_shape_count(node->out);
    return (tutti_layer_cost){.flops = count, .bytes = sizeof(float) * 3 * count};
}

/* ----------------------------------------------------------------------------------------- batch norm */

static tutti_status batch_norm_place(tutti_node *node) {
    const tutti_layer *layer = node->layer;
    if (!(layer->epsilon > 0) || !(layer->momentum >= 0 && layer->momentum <= 1))
        return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: epsilon %g must be above 0, momentum %g in [0, 1]",
                          layer->name, layer->epsilon, layer->momentum);
    const size_t channels = (size_t)node->in.channels;
    node->plan.norm = (tutti_batch_norm){node->in.channels, layer->epsilon, layer->momentum, layer->relu};
    node->out = node->in;
    for (int i = 0; i < 2; i++) node->parameter_counts[i] = node->state_counts[i] = channels;
    return TUTTI_OK;
}

static unsigned reads_x(const tutti_node *node) {
    (void)node;
    return TUTTI_READS_X;
}

static size_t batch_norm_room(const tutti_compute *compute, const tutti_node *node, int batch) {
    (void)compute, (void)batch;
    return tutti_batch_norm_scratch_count(&node->plan.norm);
}

static size_t row_count(const tutti_node *node, const tutti_pass *pass) {
    return (size_t)tutti_node_batch(node, pass->batch) * (size_t)node->in.height * (size_t)node->in.width;
}

static void batch_norm_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                               const float *const *x) {
    tutti_batch_norm_forward_args args = {
        .rows = row_count(node, pass),
        .training = pass->training,
        .x = x[0],
        .gamma = node->parameters[0],
        .beta = node->parameters[1],
        .moving_mean = node->states[0],
        .moving_variance = node->states[1],
        .scratch = node->scratch,
        .kept = node->kept,
        .y = node->y,
    };
    compute->kernels->batch_norm_forward(compute, &node->plan.norm, &args);
}

static void batch_norm_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                                const float *const *x, const tutti_layer_gradients *gradients) {
    tutti_batch_norm_backward_args args = {
        .rows = row_count(node, pass),
        .x = x[0],
        .gamma = node->parameters[0],
        .beta = node->parameters[1],
        .dy = node->dy,
        .kept = node->kept,
        .scratch = node->scratch,
        .dgamma = gradients->parameters[0],
        .dbeta = gradients->parameters[1],
        .dx = gradients->dx[0],
    };
    compute->kernels->batch_norm_backward(compute, &node->plan.norm, &args);
}

static tutti_layer_cost batch_norm_cost(const tutti_node *node) {
    tutti_layer_cost cost = element_wise_cost(node);
    cost.flops *= 4;
    return cost;
}

/* ----------------------------------------------------------------------------------------- average pool */

static tutti_status average_pool_place(tutti_node *node) {
    if (node->layer->kernel > 0) {
        TUTTI_TRY(place_window(node, &node->plan.pool));
    } else {
        if (node->in.height != node->in.width)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: the mean of all pixels needs square images, not %dx%d",
                              node->layer->name, node->in.height, node->in.width);
        node->plan.pool = (tutti_window){.in_height = node->in.height,
                                         .in_width = node->in.width,
                                         .channels = node->in.channels,
                                         .kernel = node->in.height,
                                         .stride = 1,
                                         .out_height = 1,
                                         .out_width = 1};
    }
    node->out = (tutti_shape){node->plan.pool.out_height, node->plan.pool.out_width, node->in.channels};
    return TUTTI_OK;
}

static void average_pool_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                                 const float *const *x) {
    compute->kernels->average_pool_forward(compute, &node->plan.pool, tutti_node_batch(node, pass->batch), x[0],
                                           node->y);
}

static void average_pool_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                                  const float *const *x, const tutti_layer_gradients *gradients) {
    (void)x;
    compute->kernels->average_pool_backward(compute, &node->plan.pool, tutti_node_batch(node, pass->batch), node->dy,
                                            gradients->dx[0]);
}

/* ------------------------------------------------------------------------------- bias behind partial sums */

static tutti_status bias_place(tutti_node *node) {
    node->out = node->in;
    node->parameter_counts[0] = node->layer->no_bias ? 0 : (size_t)node->in.channels;
    return TUTTI_OK;
}

static void bias_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                         const float *const *x) {
    const size_t count = batch_count(node, pass);
    if (node->parameters[0] == NULL) {
        compute->kernels->relu_forward(compute, count, x[0], node->y);
        return;
    }
    compute->kernels->copy(compute, node->y, x[0], count * sizeof *node->y);
    compute->kernels->bias_forward(compute, row_count(node, pass), node->in.channels, has_relu(node),
                                   node->parameters[0], node->y);
}

static void bias_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                          const tutti_layer_gradients *gradients) {
    (void)x;
    const size_t count = batch_count(node, pass);
    tutti_bias_backward_args args = {
        .rows = row_count(node, pass),
        .channels = node->in.channels,
        .relu = has_relu(node),
        .y = node->y,
        .dy = node->dy,
        .dbias = gradients->parameters[0],
    };
    if (args.dbias != NULL) compute->kernels->bias_backward(compute, &args);
    else compute->kernels->relu_backward(compute, count, node->y, node->dy, node->dy);
    if (gradients->dx[0] != NULL) compute->kernels->copy(compute, gradients->dx[0], node->dy, count * sizeof(float));
}

/* --------------------------------------------------------------------------------------- redistribution */

/* parallel.c has placed it. */
static tutti_status redistribute_place(tutti_node *node) {
    (void)node;
    return TUTTI_OK;
}

static tutti_layer_cost no_cost(const tutti_node *node) {
    (void)node;
    return (tutti_layer_cost){0, 0};
}

/* ----------------------------------------------------------------------------------------------- table */

#define SPLIT_ELEMENTS (TUTTI_SPLIT_SAMPLES | TUTTI_SPLIT_OUTPUTS | TUTTI_SPLIT_PIXELS)

static const tutti_layer_row rows[TUTTI_LAYER_KIND_COUNT] = {
    [TUTTI_LAYER_CONV] = {.name = "conv",
                          .ninputs = 1,
                          .split_axes = SPLIT_ELEMENTS | TUTTI_SPLIT_INPUTS,
                          .parameter_names = {"weight", "bias"},
                          .place = conv_place,
                          .backward_reads = reads_x_and_mask,
                          .changes_dy = has_relu,
                          .scratch_count = conv_scratch_count,
                          .kept_count = conv_kept_count,
                          .forward = conv_forward,
                          .backward = conv_backward,
                          .cost = conv_cost},
    [TUTTI_LAYER_MAX_POOL] = {.name = "max_pool",
                              .ninputs = 1,
                              .split_axes = SPLIT_ELEMENTS,
                              .place = max_pool_place,
                              .kept_count = max_pool_kept_count,
                              .forward = max_pool_forward,
                              .backward = max_pool_backward,
                              .cost = max_pool_cost},
    [TUTTI_LAYER_RELU] = {.name = "relu",
                          .ninputs = 1,
                          .split_axes = SPLIT_ELEMENTS,
                          .place = same_shape_place,
                          .backward_reads = reads_y,
                          .forward = relu_forward,
                          .backward = relu_backward,
                          .cost = element_wise_cost},
    [TUTTI_LAYER_DENSE] = {.name = "dense",
                           .ninputs = 1,
                           .split_axes = TUTTI_SPLIT_SAMPLES | TUTTI_SPLIT_INPUTS | TUTTI_SPLIT_OUTPUTS,
                           .parameter_names = {"weight", "bias"},
                           .place = dense_place,
                           .backward_reads = reads_x_and_mask,
                           .changes_dy = has_relu,
                           .forward = dense_forward,
                           .backward = dense_backward,
                           .cost = dense_cost},
    [TUTTI_LAYER_DROPOUT] = {.name = "dropout",
                             .ninputs = 1,
                             .split_axes = SPLIT_ELEMENTS,
                             .place = same_shape_place,
                             .runs_on = dropout_runs_on,
                             .forward = dropout_forward,
                             .backward = dropout_backward,
                             .cost = element_wise_cost},
    [TUTTI_LAYER_ADD] = {.name = "add",
                         .ninputs = 2,
                         .split_axes = SPLIT_ELEMENTS,
                         .passes_gradient = true,
                         .place = same_shape_place,
                         .backward_reads = add_reads,
                         .changes_dy = has_relu,
                         .forward = add_forward,
                         .backward = add_backward,
                         .cost = add_cost},
    [TUTTI_LAYER_BATCH_NORM] = {.name = "batch_norm",
                                .ninputs = 1,
                                .split_axes = TUTTI_SPLIT_SAMPLES | TUTTI_SPLIT_OUTPUTS,
                                .parameter_names = {"gamma", "beta"},
                                .state_names = {"moving_mean", "moving_variance"},
                                .state_starts = {0, 1},
                                .place = batch_norm_place,
                                .backward_reads = reads_x,
                                .scratch_count = batch_norm_room,
                                .kept_count = batch_norm_room,
                                .forward = batch_norm_forward,
                                .backward = batch_norm_backward,
                                .cost = batch_norm_cost},
    [TUTTI_LAYER_AVERAGE_POOL] = {.name = "average_pool",
                                  .ninputs = 1,
                                  .split_axes = SPLIT_ELEMENTS,
                                  .place = average_pool_place,
                                  .forward = average_pool_forward,
                                  .backward = average_pool_backward,
                                  .cost = max_pool_cost},
    [TUTTI_LAYER_BIAS] = {.name = "bias",
                          .ninputs = 1,
                          .split_axes = SPLIT_ELEMENTS,
                          .parameter_names = {"bias"},
                          .passes_gradient = true,
                          .place = bias_place,
                          .backward_reads = add_reads,
                          .changes_dy = has_relu,
                          .forward = bias_forward,
                          .backward = bias_backward,
                          .cost = element_wise_cost},
    [TUTTI_LAYER_REDISTRIBUTE] = {.name = "redistribute", .ninputs = 1, .place = redistribute_place, .cost = no_cost},
};

const tutti_layer_row *tutti_layers_row(tutti_layer_kind kind) {
    return &rows[kind];
}
