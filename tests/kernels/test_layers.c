/*
 * Layers, compiled in double: every gradient against central differences of a random weighting of the outputs,
 * forward results against plain loops, on awkward shapes (odd sizes, batch 1, stride, padding on one side only).
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layers.h"
#include "kernels/random.h"

#define STEP      1e-6
#define TOLERANCE 1e-7

static uint64_t next_stream = 1;

/* An array of values in (-1, 1), different in every call. */
static double *random_array(size_t count) {
    double *values = malloc((count + 1) * sizeof *values);
    next_stream++;
    for (size_t i = 0; i < count; i++) values[i] = 2 * tutti_random_uniform(7, next_stream, i) - 1;
    return values;
}

/* Filled with NaN, so that elements that backward does not write are visible. */
static double *unwritten_array(size_t count) {
    double *values = malloc((count + 1) * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = NAN;
    return values;
}

static double weighted_sum(size_t count, const double *values, const double *weights) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += values[i] * weights[i];
    return sum;
}

/* evaluate(context) depends on values[0..count); gradient is its derivative by them. */
static void check_gradient(const char *what, double (*evaluate)(void *context), void *context, size_t count,
                           double *values, const double *gradient) {
    for (size_t i = 0; i < count; i++) {
        double old = values[i];
        values[i] = old + STEP;
        double above = evaluate(context);
        values[i] = old - STEP;
        double below = evaluate(context);
        values[i] = old;
        double expected = (above - below) / (2 * STEP);
        cr_assert(fabs(expected - gradient[i]) <= TOLERANCE * (1 + fabs(expected)), "%s[%zu]: %.12g, expected %.12g",
                  what, i, gradient[i], expected);
    }
}

/* ---------------------------------------------------------------------------------------- convolution */

typedef struct conv_case {
    int batch, height, width, channels, filters, kernel, stride;
    tutti_padding padding;
    bool relu;
} conv_case;

static const conv_case conv_cases[] = {
    {1, 5, 5, 1, 3, 5, 1, TUTTI_PADDING_SAME, true},   {3, 6, 7, 2, 3, 3, 1, TUTTI_PADDING_SAME, false},
    {2, 7, 5, 3, 4, 2, 1, TUTTI_PADDING_SAME, true},   {2, 7, 6, 2, 3, 3, 2, TUTTI_PADDING_SAME, true},
    {1, 5, 8, 2, 1, 4, 3, TUTTI_PADDING_SAME, false},  {2, 6, 5, 2, 3, 3, 1, TUTTI_PADDING_VALID, true},
    {3, 8, 7, 1, 2, 3, 2, TUTTI_PADDING_VALID, false}, {1, 4, 4, 2, 3, 4, 1, TUTTI_PADDING_VALID, true},
    {1, 2, 3, 2, 2, 5, 1, TUTTI_PADDING_SAME, true},   {2, 3, 3, 9, 2, 3, 1, TUTTI_PADDING_SAME, true},
    {2, 5, 4, 2, 2, 1, 2, TUTTI_PADDING_VALID, false},
};

typedef struct conv_data {
    tutti_conv conv;
    int batch;
    size_t x_count, weight_count, y_count;
    double *x, *weight, *bias, *y, *scratch, *weights_of_y;
} conv_data;

static conv_data conv_prepare(const conv_case *shape) {
    conv_data data = {.batch = shape->batch};
    data.conv.window = (tutti_window){.in_height = shape->height,
                                      .in_width = shape->width,
                                      .channels = shape->channels,
                                      .kernel = shape->kernel,
                                      .stride = shape->stride};
    data.conv.filters = shape->filters;
    data.conv.relu = shape->relu;
    cr_assert(tutti_window_place(&data.conv.window, shape->padding));
    size_t batch = (size_t)shape->batch;
    data.x_count = batch * (size_t)(shape->height * shape->width * shape->channels);
    data.weight_count = (size_t)(shape->kernel * shape->kernel * shape->channels * shape->filters);
    data.y_count = batch * (size_t)(data.conv.window.out_height * data.conv.window.out_width * shape->filters);
    data.x = random_array(data.x_count);
    data.weight = random_array(data.weight_count);
    data.bias = random_array((size_t)shape->filters);
    data.y = unwritten_array(data.y_count);
    data.scratch = unwritten_array(tutti_conv_scratch_count(&data.conv));
    data.weights_of_y = random_array(data.y_count);
    return data;
}

static void conv_release(conv_data *data) {
    double *all[] = {data->x, data->weight, data->bias, data->y, data->scratch, data->weights_of_y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static double conv_evaluate(void *context) {
    conv_data *data = context;
    tutti_conv_forward_args args = {data->batch, data->x, data->weight, data->bias, data->scratch, data->y, NULL, 0};
    tutti_conv_forward(&data->conv, &args);
    return weighted_sum(data->y_count, data->y, data->weights_of_y);
}

/* One output element by the definition. */
static double conv_by_definition(const conv_data *data, int image, int row, int column, int filter) {
    const tutti_window *w = &data->conv.window;
    double sum = data->bias[filter];
    for (int ky = 0; ky < w->kernel; ky++)
        for (int kx = 0; kx < w->kernel; kx++) {
            int y = row * w->stride - w->pad_top + ky, x = column * w->stride - w->pad_left + kx;
            if (y < 0 || y >= w->in_height || x < 0 || x >= w->in_width) continue;
            for (int c = 0; c < w->channels; c++)
                sum += data->x[((image * w->in_height + y) * w->in_width + x) * w->channels + c] *
                       data->weight[((ky * w->kernel + kx) * w->channels + c) * data->conv.filters + filter];
        }
    return data->conv.relu && sum < 0 ? 0 : sum;
}

Test(conv, forward_is_the_definition) {
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        conv_data data = conv_prepare(&conv_cases[i]);
        const tutti_window *w = &data.conv.window;
        conv_evaluate(&data);
        const double *y = data.y;
        for (int image = 0; image < data.batch; image++)
            for (int row = 0; row < w->out_height; row++)
                for (int column = 0; column < w->out_width; column++)
                    for (int filter = 0; filter < data.conv.filters; filter++, y++) {
                        double expected = conv_by_definition(&data, image, row, column, filter);
                        cr_assert(fabs(*y - expected) < 1e-12, "case %zu: %.15g, expected %.15g", i, *y, expected);
                    }
        conv_release(&data);
    }
}

Test(conv, gradients_of_input_weight_and_bias_match_finite_differences) {
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        conv_data data = conv_prepare(&conv_cases[i]);
        double *dx = unwritten_array(data.x_count), *dweight = unwritten_array(data.weight_count);
        double *dbias = unwritten_array((size_t)data.conv.filters), *dy = malloc(data.y_count * sizeof *dy);
        conv_evaluate(&data);
        memcpy(dy, data.weights_of_y, data.y_count * sizeof *dy);
        tutti_conv_backward_args args = {data.batch, data.x,  data.weight, data.y, dy, data.scratch,
                                         NULL,       dweight, dbias,       dx,     0};
        tutti_conv_backward(&data.conv, &args);
        check_gradient("dx", conv_evaluate, &data, data.x_count, data.x, dx);
        check_gradient("dweight", conv_evaluate, &data, data.weight_count, data.weight, dweight);
        check_gradient("dbias", conv_evaluate, &data, (size_t)data.conv.filters, data.bias, dbias);
        free(dx), free(dweight), free(dbias), free(dy);
        conv_release(&data);
    }
}

Test(conv, many_images_in_one_scratch_give_the_sum_of_their_gradients) {
    /* 40 images of 28x28: several fit into the scratch together, and the last group is short. */
    conv_case shape = {41, 28, 28, 1, 2, 3, 1, TUTTI_PADDING_SAME, true};
    conv_data data = conv_prepare(&shape);
    double *dweight = unwritten_array(data.weight_count), *dbias = unwritten_array(2);
    double *dy = malloc(data.y_count * sizeof *dy);
    conv_evaluate(&data);
    memcpy(dy, data.weights_of_y, data.y_count * sizeof *dy);
    tutti_conv_backward_args args = {data.batch, data.x,  data.weight, data.y, dy, data.scratch,
                                     NULL,       dweight, dbias,       NULL,   0};
    tutti_conv_backward(&data.conv, &args);
    check_gradient("dweight", conv_evaluate, &data, data.weight_count, data.weight, dweight);
    check_gradient("dbias", conv_evaluate, &data, 2, data.bias, dbias);
    free(dweight), free(dbias), free(dy);
    conv_release(&data);
}

Test(window, same_and_valid_place_windows_as_tensorflow_does) {
    tutti_window window = {.in_height = 28, .in_width = 7, .channels = 1, .kernel = 5, .stride = 1};
    cr_assert(tutti_window_place(&window, TUTTI_PADDING_SAME));
    cr_assert(window.out_height == 28 && window.out_width == 7 && window.pad_top == 2 && window.pad_left == 2);
    window = (tutti_window){.in_height = 6, .in_width = 5, .channels = 1, .kernel = 2, .stride = 2};
    cr_assert(tutti_window_place(&window, TUTTI_PADDING_SAME));
    cr_assert(window.out_height == 3 && window.out_width == 3 && window.pad_top == 0 && window.pad_left == 0);
    cr_assert(tutti_window_place(&window, TUTTI_PADDING_VALID));
    cr_assert(window.out_height == 3 && window.out_width == 2);
    window = (tutti_window){.in_height = 4, .in_width = 5, .channels = 1, .kernel = 5, .stride = 1};
    cr_assert_not(tutti_window_place(&window, TUTTI_PADDING_VALID));
}

/* --------------------------------------------------------------------------------------------- pooling */

typedef struct pool_data {
    tutti_window window;
    int batch;
    size_t y_count;
    double *x, *y, *weights_of_y;
    int32_t *where;
} pool_data;

static double pool_evaluate(void *context) {
    pool_data *data = context;
    tutti_max_pool_forward(&data->window, data->batch, data->x, data->y, data->where);
    return weighted_sum(data->y_count, data->y, data->weights_of_y);
}

static void check_pool(int batch, tutti_window window, tutti_padding padding) {
    pool_data data = {.window = window, .batch = batch};
    cr_assert(tutti_window_place(&data.window, padding));
    size_t x_count = (size_t)(batch * window.in_height * window.in_width * window.channels);
    data.y_count = (size_t)(batch * data.window.out_height * data.window.out_width * window.channels);
    data.x = random_array(x_count);
    data.y = unwritten_array(data.y_count);
    data.weights_of_y = random_array(data.y_count);
    data.where = malloc(data.y_count * sizeof *data.where);
    double *dx = unwritten_array(x_count);
    pool_evaluate(&data);
    tutti_max_pool_backward(&data.window, batch, data.weights_of_y, data.where, dx);
    check_gradient("dx", pool_evaluate, &data, x_count, data.x, dx);
    free(dx), free(data.x), free(data.y), free(data.weights_of_y), free(data.where);
}

Test(max_pool, gradients_match_finite_differences) {
    check_pool(2, (tutti_window){.in_height = 4, .in_width = 6, .channels = 3, .kernel = 2, .stride = 2},
               TUTTI_PADDING_SAME);
    check_pool(1, (tutti_window){.in_height = 5, .in_width = 7, .channels = 2, .kernel = 2, .stride = 2},
               TUTTI_PADDING_SAME);
    check_pool(2, (tutti_window){.in_height = 5, .in_width = 7, .channels = 1, .kernel = 2, .stride = 2},
               TUTTI_PADDING_VALID);
    check_pool(3, (tutti_window){.in_height = 6, .in_width = 5, .channels = 2, .kernel = 3, .stride = 1},
               TUTTI_PADDING_SAME);
    check_pool(1, (tutti_window){.in_height = 7, .in_width = 7, .channels = 17, .kernel = 3, .stride = 2},
               TUTTI_PADDING_VALID);
}

Test(max_pool, padding_never_wins_and_the_first_of_equals_gets_the_gradient) {
    tutti_window window = {.in_height = 2, .in_width = 2, .channels = 1, .kernel = 3, .stride = 1};
    cr_assert(tutti_window_place(&window, TUTTI_PADDING_SAME));
    double x[4] = {-5, -5, -7, -6}, y[4], dx[4], ones[4] = {1, 1, 1, 1};
    int32_t where[4];
    tutti_max_pool_forward(&window, 1, x, y, where);
    tutti_max_pool_backward(&window, 1, ones, where, dx);
    for (int i = 0; i < 4; i++) cr_assert_eq(y[i], -5);
    cr_assert(dx[0] == 4 && dx[1] == 0 && dx[2] == 0 && dx[3] == 0);
}

Test(max_pool, a_nan_in_the_window_is_the_maximum) {
    tutti_window window = {.in_height = 2, .in_width = 2, .channels = 1, .kernel = 2, .stride = 2};
    cr_assert(tutti_window_place(&window, TUTTI_PADDING_SAME));
    for (int at = 0; at < 4; at++) {
        double x[4] = {1, 2, 3, 4}, y;
        int32_t where;
        x[at] = NAN;
        tutti_max_pool_forward(&window, 1, x, &y, &where);
        cr_assert(isnan(y) && where == at, "NaN at %d: %g from %d", at, y, where);
    }
}

/* ----------------------------------------------------------------------------------- dense, ReLU, loss */

typedef struct dense_data {
    tutti_dense dense;
    int batch;
    double *x, *weight, *bias, *y, *weights_of_y;
} dense_data;

static double dense_evaluate(void *context) {
    dense_data *data = context;
    tutti_dense_forward_args args = {data->batch, data->x, data->weight, data->bias, data->y};
    tutti_dense_forward(&data->dense, &args);
    return weighted_sum((size_t)(data->batch * data->dense.outputs), data->y, data->weights_of_y);
}

static void check_dense(int batch, tutti_dense dense) {
    dense_data data = {.dense = dense, .batch = batch};
    size_t x_count = (size_t)(batch * dense.inputs), y_count = (size_t)(batch * dense.outputs);
    size_t weight_count = (size_t)(dense.inputs * dense.outputs), outputs = (size_t)dense.outputs;
    data.x = random_array(x_count);
    data.weight = random_array(weight_count);
    data.bias = random_array(outputs);
    data.y = unwritten_array(y_count);
    data.weights_of_y = random_array(y_count);
    double *dx = unwritten_array(x_count), *dweight = unwritten_array(weight_count), *dbias = unwritten_array(outputs);
    double *dy = malloc(y_count * sizeof *dy);
    dense_evaluate(&data);
    memcpy(dy, data.weights_of_y, y_count * sizeof *dy);
    tutti_dense_backward_args args = {batch, data.x, data.weight, data.y, dy, dweight, dbias, dx};
    tutti_dense_backward(&dense, &args);
    check_gradient("dx", dense_evaluate, &data, x_count, data.x, dx);
    check_gradient("dweight", dense_evaluate, &data, weight_count, data.weight, dweight);
    check_gradient("dbias", dense_evaluate, &data, outputs, data.bias, dbias);
    double *all[] = {data.x, data.weight, data.bias, data.y, data.weights_of_y, dx, dweight, dbias, dy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

Test(dense, gradients_match_finite_differences) {
    check_dense(1, (tutti_dense){1, 1, false});
    check_dense(1, (tutti_dense){7, 5, true});
    check_dense(5, (tutti_dense){3, 11, true});
    check_dense(4, (tutti_dense){13, 1, false});
}

Test(relu, forward_clears_negatives_and_backward_follows_the_output) {
    double x[] = {-1, -0.0, 0, 2, NAN, INFINITY, -INFINITY}, y[7], dy[7] = {1, 2, 3, 4, 5, 6, 7}, dx[7];
    tutti_relu_forward(7, x, y);
    tutti_relu_backward(7, y, dy, dx);
    double expected_dx[] = {0, 0, 0, 4, 5, 6, 0};
    for (int i = 0; i < 7; i++) {
        cr_assert(isnan(x[i]) ? isnan(y[i]) : y[i] == (x[i] > 0 ? x[i] : 0), "y[%d] = %g", i, y[i]);
        cr_assert_eq(dx[i], expected_dx[i], "dx[%d] = %g", i, dx[i]);
    }
}

typedef struct loss_data {
    tutti_softmax_loss_args args;
} loss_data;

static double loss_evaluate(void *context) {
    return tutti_softmax_loss(&((loss_data *)context)->args);
}

Test(softmax_loss, gradients_match_finite_differences) {
    int32_t labels[] = {3, 0, 6};
    double *logits = random_array(3 * 7), *dlogits = unwritten_array(3 * 7);
    loss_data data = {{.batch = 3, .classes = 7, .logits = logits, .labels = labels, .scale = 1}};
    tutti_softmax_loss_args backward = data.args;
    backward.dlogits = dlogits;
    tutti_softmax_loss(&backward);
    check_gradient("dlogits", loss_evaluate, &data, 3 * 7, logits, dlogits);
    free(logits), free(dlogits);
}

Test(softmax_loss, is_stable_for_huge_logits_and_counts_right_answers) {
    double logits[] = {1e4, -1e4, 0, 0, 0, 0, -1e300, 1e300, 5}, dlogits[9];
    int32_t labels[] = {0, 2, 0};
    int64_t correct = -1;
    tutti_softmax_loss_args args = {.batch = 2,
                                    .classes = 3,
                                    .logits = logits,
                                    .labels = labels,
                                    .scale = 0.5,
                                    .dlogits = dlogits,
                                    .correct_out = &correct};
    double loss = tutti_softmax_loss(&args);
    cr_assert(fabs(loss - log(3)) < 1e-12, "%.15g", loss);
    cr_assert_eq(correct, 1); /* the first of the equal logits counts, which is not the label */
    cr_assert(fabs(dlogits[5] - 0.5 * (1 / 3.0 - 1)) < 1e-15);
    args.batch = 3;
    cr_assert(isfinite(tutti_softmax_loss(&args)));
}

/* In parts: 7 classes as 3 and 4. The parts' maxima and sums are combined here. */
typedef struct parts_data {
    int32_t labels[3];
    double *logits, *distributions; /* [3, 7]; NULL: labels count */
    double *dlogits;                /* [3, 7], NULL: none */
} parts_data;

static double evaluate_parts(const parts_data *data, double scale) {
    static const int first[] = {0, 3}, end[] = {3, 7};
    double part[2][3 * 4], gradient[3 * 4], largest[2][3], sums[2][3], loss = 0;
    tutti_softmax_parts parts[2];
    for (int p = 0; p < 2; p++) {
        const int classes = end[p] - first[p];
        for (int i = 0; i < 3 * classes; i++) part[p][i] = data->logits[i / classes * 7 + first[p] + i % classes];
        parts[p] = (tutti_softmax_parts){.batch = 3,
                                         .classes = classes,
                                         .first_class = first[p],
                                         .logits = part[p],
                                         .labels = data->labels,
                                         .distributions = data->distributions,
                                         .all_classes = 7,
                                         .largest = largest[p],
                                         .sums = sums[p]};
        tutti_softmax_largest(&parts[p]);
    }
    for (int b = 0; b < 3; b++) largest[0][b] = largest[1][b] = fmax(largest[0][b], largest[1][b]);
    for (int p = 0; p < 2; p++) tutti_softmax_sums(&parts[p]);
    for (int b = 0; b < 3; b++) sums[0][b] = sums[1][b] = sums[0][b] + sums[1][b];
    for (int p = 0; p < 2; p++) {
        const int classes = end[p] - first[p];
        loss += tutti_softmax_losses(&parts[p], scale, data->dlogits != NULL ? gradient : NULL, NULL);
        for (int i = 0; i < 3 * classes && data->dlogits != NULL; i++)
            data->dlogits[i / classes * 7 + first[p] + i % classes] = gradient[i];
    }
    return loss;
}

static double parts_evaluate(void *context) {
    parts_data data = *(parts_data *)context;
    data.dlogits = NULL;
    return evaluate_parts(&data, 1);
}

Test(softmax_parts, losses_and_gradients_are_those_of_the_whole) {
    double *logits = random_array(3 * 7), dlogits[3 * 7], expected[3 * 7];
    parts_data data = {.labels = {3, 0, 6}, .logits = logits, .dlogits = dlogits};
    tutti_softmax_loss_args whole = {
        .batch = 3, .classes = 7, .logits = logits, .labels = data.labels, .scale = 0.5, .dlogits = expected};
    const double loss = evaluate_parts(&data, 0.5);
    cr_assert(fabs(loss - tutti_softmax_loss(&whole)) < 1e-12);
    for (int i = 0; i < 3 * 7; i++) cr_assert(fabs(dlogits[i] - expected[i]) < 1e-15, "dlogits[%d]", i);
    free(logits);
}

Test(softmax_parts, gradients_with_distributions_match_finite_differences) {
    double *logits = random_array(3 * 7), *distributions = random_array(3 * 7), *dlogits = unwritten_array(3 * 7);
    for (int i = 0; i < 3 * 7; i++) distributions[i] = fabs(distributions[i]);
    parts_data data = {.logits = logits, .distributions = distributions, .dlogits = dlogits};
    evaluate_parts(&data, 1);
    check_gradient("dlogits", parts_evaluate, &data, 3 * 7, logits, dlogits);
    free(logits), free(distributions), free(dlogits);
}

/* exp underflows, and its logarithm times 0 would be NaN. */
Test(softmax_parts, losses_of_finite_logits_are_finite) {
    double logits[3 * 7] = {1e4, -1e4, 0, 0, 1e30, -1e30, 5}, distributions[3 * 7] = {1, 0, 0, 0, 0, 0, 0},
                      dlogits[3 * 7];
    parts_data data = {.labels = {1, 2, 3}, .logits = logits, .dlogits = dlogits};
    cr_assert(isfinite(evaluate_parts(&data, 1)));
    data.distributions = distributions;
    const double loss = evaluate_parts(&data, 1);
    cr_assert(fabs(loss - (1e30 - 1e4)) <= 1e15, "%g", loss);
    for (int i = 0; i < 3 * 7; i++) cr_assert(isfinite(dlogits[i]), "dlogits[%d] = %g", i, dlogits[i]);
}

/* --------------------------------------------------------------------------------------------- dropout */

Test(dropout, keeps_the_expected_share_and_scales_it) {
    enum { COUNT = 100000 };
    double *x = random_array(COUNT), *y = unwritten_array(COUNT);
    tutti_dropout dropout = {.rate = 0.3, .seed = 5, .stream = 9};
    tutti_dropout_apply(&dropout, COUNT, x, y);
    int dropped = 0;
    for (int i = 0; i < COUNT; i++) {
        dropped += y[i] == 0;
        cr_assert(y[i] == 0 || fabs(y[i] - x[i] / 0.7) < 1e-12);
    }
    /* five standard deviations of the binomial */
    cr_assert(abs(dropped - 30000) < 5 * sqrt(COUNT * 0.3 * 0.7), "%d dropped", dropped);
    free(x), free(y);
}

Test(dropout, depends_on_the_element_not_on_how_a_batch_is_cut) {
    enum { COUNT = 103 };
    double *x = random_array(COUNT), whole[COUNT], parts[COUNT];
    tutti_dropout dropout = {.rate = 0.5, .seed = 5, .stream = 9, .first_element = 6};
    tutti_dropout_apply(&dropout, COUNT, x, whole);
    for (size_t at = 0, part = 1; at < COUNT; at += part, part += 3) {
        dropout.first_element = 6 + at;
        tutti_dropout_apply(&dropout, part < COUNT - at ? part : COUNT - at, x + at, parts + at);
    }
    cr_assert_arr_eq(whole, parts, sizeof whole);
    dropout.stream = 10;
    dropout.first_element = 6;
    tutti_dropout_apply(&dropout, COUNT, x, parts);
    cr_assert_neq(memcmp(whole, parts, sizeof whole), 0);
    free(x);
}
