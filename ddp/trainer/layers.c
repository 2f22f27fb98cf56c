/*
 * The table of layers: each row binds a kind to its kernels.
 */
#include "ddp/trainer/layers.h"

static tutti_cost element_wise_cost(const tutti_node *node) {
    double in = (double)tutti_shape_count(node->in), out = (double)tutti_shape_count(node->out);
    return (tutti_cost){.flops = out, .bytes = sizeof(float) * (in + out)};
}

/* Of a matrix product that gives `outputs` elements, each a sum over `terms`. */
static tutti_cost product_cost(const tutti_node *node, double terms) {
    double in = (double)tutti_shape_count(node->in), out = (double)tutti_shape_count(node->out);
    double parameters = (double)(node->parameter_counts[0] + node->parameter_counts[1]);
    return (tutti_cost){.flops = out * (2 * terms + 1), .bytes = sizeof(float) * (in + out + parameters)};
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
    conv->filters = node->layer->units;
    conv->relu = node->layer->relu;
    node->out = (tutti_shape){conv->window.out_height, conv->window.out_width, conv->filters};
    size_t taps = (size_t)conv->window.kernel * (size_t)conv->window.kernel * (size_t)conv->window.channels;
    node->parameter_counts[0] = taps * (size_t)conv->filters;
    node->parameter_counts[1] = (size_t)conv->filters;
    return TUTTI_OK;
}

static void conv_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                         float *scratch) {
    tutti_conv_forward_args args = {
        .batch = pass->batch,
        .x = x[0],
        .weight = node->parameters[0],
        .bias = node->parameters[1],
        .scratch = scratch,
        .y = node->y,
        .kept = node->kept,
    };
    compute->kernels->conv_forward(compute, &node->plan.conv, &args);
}

static void conv_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                          float *scratch, const tutti_layer_gradients *gradients) {
    tutti_conv_backward_args args = {
        .batch = pass->batch,
        .x = x[0],
        .weight = node->parameters[0],
        .y = node->y,
        .dy = node->dy,
        .scratch = scratch,
        .kept = node->kept,
        .dweight = gradients->parameters[0],
        .dbias = gradients->parameters[1],
        .dx = gradients->dx[0],
    };
    compute->kernels->conv_backward(compute, &node->plan.conv, &args);
}

static tutti_cost conv_cost(const tutti_node *node) {
    return product_cost(node, (double)node->parameter_counts[0] / (double)node->plan.conv.filters);
}

/* --------------------------------------------------------------------------------------------- pooling */

static tutti_status max_pool_place(tutti_node *node) {
    TUTTI_TRY(place_window(node, &node->plan.pool));
    node->out = (tutti_shape){node->plan.pool.out_height, node->plan.pool.out_width, node->in.channels};
    return TUTTI_OK;
}

static void max_pool_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                             const float *const *x, float *scratch) {
    (void)scratch;
    compute->kernels->max_pool_forward(compute, &node->plan.pool, pass->batch, x[0], node->y, node->where);
}

static void max_pool_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                              const float *const *x, float *scratch, const tutti_layer_gradients *gradients) {
    (void)x, (void)scratch;
    compute->kernels->max_pool_backward(compute, &node->plan.pool, pass->batch, node->dy, node->where,
                                        gradients->dx[0]);
}

static tutti_cost max_pool_cost(const tutti_node *node) {
    tutti_cost cost = element_wise_cost(node);
    cost.flops *= (double)node->plan.pool.kernel * (double)node->plan.pool.kernel;
    return cost;
}

/* ------------------------------------------------------------------------------------------------ ReLU */

static tutti_status same_shape_place(tutti_node *node) {
    node->out = node->in;
    return TUTTI_OK;
}

static size_t batch_count(const tutti_node *node, const tutti_pass *pass) {
    return (size_t)pass->batch * tutti_shape_count(node->out);
}

static void relu_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                         float *scratch) {
    (void)scratch;
    compute->kernels->relu_forward(compute, batch_count(node, pass), x[0], node->y);
}

static void relu_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                          float *scratch, const tutti_layer_gradients *gradients) {
    (void)x, (void)scratch;
    compute->kernels->relu_backward(compute, batch_count(node, pass), node->y, node->dy, gradients->dx[0]);
}

/* ----------------------------------------------------------------------------------------------- dense */

static tutti_status dense_place(tutti_node *node) {
    size_t inputs = tutti_shape_count(node->in);
    node->plan.dense = (tutti_dense){(int)inputs, node->layer->units, node->layer->relu};
    node->out = (tutti_shape){1, 1, node->layer->units};
    node->parameter_counts[0] = inputs * (size_t)node->layer->units;
    node->parameter_counts[1] = (size_t)node->layer->units;
    return TUTTI_OK;
}

static void dense_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                          float *scratch) {
    (void)scratch;
    tutti_dense_forward_args args = {
        .batch = pass->batch,
        .x = x[0],
        .weight = node->parameters[0],
        .bias = node->parameters[1],
        .y = node->y,
    };
    compute->kernels->dense_forward(compute, &node->plan.dense, &args);
}

static void dense_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                           const float *const *x, float *scratch, const tutti_layer_gradients *gradients) {
    (void)scratch;
    tutti_dense_backward_args args = {
        .batch = pass->batch,
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

static tutti_cost dense_cost(const tutti_node *node) {
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
        .stream = tutti_random_stream(TUTTI_RANDOM_DROPOUT, (uint64_t)node->index, 0),
        .first_element = pass->first_sample * tutti_shape_count(node->out),
    };
    compute->kernels->dropout(compute, &dropout, pass->values, count, src, dst);
}

static void dropout_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                            const float *const *x, float *scratch) {
    (void)scratch;
    drop(compute, node, pass, x[0], node->y);
}

static void dropout_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass,
                             const float *const *x, float *scratch, const tutti_layer_gradients *gradients) {
    (void)x, (void)scratch;
    drop(compute, node, pass, node->dy, gradients->dx[0]);
}

/* ------------------------------------------------------------------------------------------------- add */

static void add_forward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                        float *scratch) {
    (void)scratch;
    compute->kernels->add(compute, batch_count(node, pass), x[0], x[1], node->y);
}

static void add_backward(tutti_compute *compute, const tutti_node *node, const tutti_pass *pass, const float *const *x,
                         float *scratch, const tutti_layer_gradients *gradients) {
    (void)x, (void)scratch;
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++)
        if (gradients->dx[i] != NULL)
            compute->kernels->copy(compute, gradients->dx[i], node->dy, batch_count(node, pass) * sizeof(float));
}

static tutti_cost add_cost(const tutti_node *node) {
    double count = (double)tutti_shape_count(node->out);
    return (tutti_cost){.flops = count, .bytes = sizeof(float) * 3 * count};
}

/* ----------------------------------------------------------------------------------------------- table */

#define SPLIT_ELEMENTS (TUTTI_SPLIT_SAMPLES | TUTTI_SPLIT_OUTPUTS | TUTTI_SPLIT_PIXELS)

static const tutti_layer_row rows[TUTTI_LAYER_KIND_COUNT] = {
    [TUTTI_LAYER_CONV] = {.name = "conv",
                          .ninputs = 1,
                          .split_axes = SPLIT_ELEMENTS | TUTTI_SPLIT_INPUTS,
                          .parameter_names = {"weight", "bias"},
                          .place = conv_place,
                          .forward = conv_forward,
                          .backward = conv_backward,
                          .cost = conv_cost},
    [TUTTI_LAYER_MAX_POOL] = {.name = "max_pool",
                              .ninputs = 1,
                              .split_axes = SPLIT_ELEMENTS,
                              .place = max_pool_place,
                              .forward = max_pool_forward,
                              .backward = max_pool_backward,
                              .cost = max_pool_cost},
    [TUTTI_LAYER_RELU] = {.name = "relu",
                          .ninputs = 1,
                          .split_axes = SPLIT_ELEMENTS,
                          .place = same_shape_place,
                          .forward = relu_forward,
                          .backward = relu_backward,
                          .cost = element_wise_cost},
    [TUTTI_LAYER_DENSE] = {.name = "dense",
                           .ninputs = 1,
                           .split_axes = TUTTI_SPLIT_SAMPLES | TUTTI_SPLIT_INPUTS | TUTTI_SPLIT_OUTPUTS,
                           .parameter_names = {"weight", "bias"},
                           .place = dense_place,
                           .forward = dense_forward,
                           .backward = dense_backward,
                           .cost = dense_cost},
    [TUTTI_LAYER_DROPOUT] = {.name = "dropout",
                             .ninputs = 1,
                             .split_axes = SPLIT_ELEMENTS,
                             .place = same_shape_place,
                             .forward = dropout_forward,
                             .backward = dropout_backward,
                             .cost = element_wise_cost},
    [TUTTI_LAYER_ADD] = {.name = "add",
                         .ninputs = 2,
                         .split_axes = SPLIT_ELEMENTS,
                         .place = same_shape_place,
                         .forward = add_forward,
                         .backward = add_backward,
                         .cost = add_cost},
};

const tutti_layer_row *tutti_layers_row(tutti_layer_kind kind) {
    return &rows[kind];
}
