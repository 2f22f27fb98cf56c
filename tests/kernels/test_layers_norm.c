/*
 * Batch norm, average-pool and add as layers, compiled in double: gradients against central differences, forward and
 * moving values against their definitions.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layers.h"
#include "kernels/random.h"

#define STEP      1e-6
#define TOLERANCE 1e-7
#define MOST      1024

static void fill(double *values, size_t count, uint64_t stream) {
    for (size_t i = 0; i < count; i++) values[i] = 2 * tutti_random_uniform(7, stream, i) - 1;
}

typedef struct norm_data {
    tutti_batch_norm norm;
    size_t rows;
    double x[MOST], y[MOST], weights[MOST], gamma[64], beta[64], moving_mean[64], moving_variance[64];
    double scratch[128], kept[128];
} norm_data;

static double norm_evaluate(void *context) {
    norm_data *d = context;
    tutti_batch_norm_forward_args args = {
        d->rows, true, d->x, d->gamma, d->beta, d->moving_mean, d->moving_variance, d->scratch, d->kept, d->y};
    tutti_batch_norm_forward(&d->norm, &args);
    double sum = 0;
    for (size_t i = 0; i < d->rows * (size_t)d->norm.channels; i++) sum += d->y[i] * d->weights[i];
    return sum;
}

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

static norm_data *make_norm(size_t rows, int channels, bool relu) {
    norm_data *d = calloc(1, sizeof *d);
    size_t count = rows * (size_t)channels;
    *d = (norm_data){.norm = {channels, 1e-3, 0.25, relu}, .rows = rows};
    fill(d->x, count, 1), fill(d->weights, count, 2), fill(d->gamma, (size_t)channels, 3),
        fill(d->beta, (size_t)channels, 4);
    for (int c = 0; c < channels; c++) d->moving_mean[c] = c, d->moving_variance[c] = 2 + c;
    return d;
}

static void check_norm(size_t rows, int channels, bool relu, bool in_place) {
    norm_data *d = make_norm(rows, channels, relu);
    double dx[MOST], dgamma[64], dbeta[64];
    size_t count = rows * (size_t)channels;
    for (size_t i = 0; i < count; i++) dx[i] = in_place ? d->weights[i] : NAN;
    for (int c = 0; c < channels; c++) dgamma[c] = dbeta[c] = NAN;
    norm_evaluate(d);
    tutti_batch_norm_backward_args args = {d->rows, d->x,       d->gamma, d->beta, in_place ? dx : d->weights,
                                           d->kept, d->scratch, dgamma,   dbeta,   dx};
    tutti_batch_norm_backward(&d->norm, &args);
    check_gradient("dx", norm_evaluate, d, count, d->x, dx);
    check_gradient("dgamma", norm_evaluate, d, (size_t)channels, d->gamma, dgamma);
    check_gradient("dbeta", norm_evaluate, d, (size_t)channels, d->beta, dbeta);
    free(d);
}

Test(batch_norm, gradients_match_finite_differences_with_and_without_relu) {
    check_norm(12, 5, false, false);
    check_norm(12, 5, true, false);
    check_norm(7, 64, true, true);
    check_norm(33, 1, true, false);
    check_norm(9, 17, false, true);
}

Test(batch_norm, training_normalises_by_the_batch_and_moves_the_moving_values) {
    enum { ROWS = 6, CHANNELS = 3 };
    norm_data *d = make_norm(ROWS, CHANNELS, false);
    norm_evaluate(d);
    for (int c = 0; c < CHANNELS; c++) {
        double mean = 0, variance = 0;
        for (int r = 0; r < ROWS; r++) mean += d->x[r * CHANNELS + c] / ROWS;
        for (int r = 0; r < ROWS; r++) variance += pow(d->x[r * CHANNELS + c] - mean, 2) / ROWS;
        for (int r = 0; r < ROWS; r++) {
            double expected = d->gamma[c] * (d->x[r * CHANNELS + c] - mean) / sqrt(variance + 1e-3) + d->beta[c];
            cr_assert_float_eq(d->y[r * CHANNELS + c], expected, 1e-12);
        }
        cr_assert_float_eq(d->moving_mean[c], 0.75 * c + 0.25 * mean, 1e-12);
        cr_assert_float_eq(d->moving_variance[c], 0.75 * (2 + c) + 0.25 * variance * ROWS / (ROWS - 1), 1e-12);
    }
    free(d);
}

Test(batch_norm, without_training_the_moving_values_count_and_stay) {
    enum { ROWS = 2, CHANNELS = 3 };
    norm_data *d = make_norm(ROWS, CHANNELS, true);
    tutti_batch_norm_forward_args args = {
        d->rows, false, d->x, d->gamma, d->beta, d->moving_mean, d->moving_variance, d->scratch, d->kept, d->y};
    tutti_batch_norm_forward(&d->norm, &args);
    for (int i = 0; i < ROWS * CHANNELS; i++) {
        int c = i % CHANNELS;
        double value = d->gamma[c] * (d->x[i] - c) / sqrt(2 + c + 1e-3) + d->beta[c];
        cr_assert_float_eq(d->y[i], value > 0 ? value : 0, 1e-12);
        cr_assert(d->moving_mean[c] == c && d->moving_variance[c] == 2 + c);
    }
    free(d);
}

typedef struct pool_data {
    tutti_window window;
    int batch;
    double x[MOST], y[MOST], weights[MOST];
} pool_data;

static double pool_evaluate(void *context) {
    pool_data *d = context;
    size_t count = (size_t)(d->batch * d->window.out_height * d->window.out_width * d->window.channels);
    tutti_average_pool_forward(&d->window, d->batch, d->x, d->y);
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += d->y[i] * d->weights[i];
    return sum;
}

Test(average_pool, gradients_match_finite_differences_and_padding_does_not_count) {
    pool_data d = {.window = {.in_height = 5, .in_width = 4, .channels = 3, .kernel = 3, .stride = 2}, .batch = 2};
    cr_assert(tutti_window_place(&d.window, TUTTI_PADDING_SAME));
    double dx[MOST];
    size_t count = 2 * 5 * 4 * 3;
    for (size_t i = 0; i < count; i++) d.x[i] = 1, dx[i] = NAN;
    fill(d.weights, MOST, 5);
    pool_evaluate(&d);
    for (int i = 0; i < 2 * d.window.out_height * d.window.out_width * 3; i++)
        cr_assert_float_eq(d.y[i], 1, 1e-12, "the mean of ones is %g", d.y[i]);
    fill(d.x, count, 6);
    pool_evaluate(&d);
    tutti_average_pool_backward(&d.window, d.batch, d.weights, dx);
    check_gradient("dx", pool_evaluate, &d, count, d.x, dx);
}

Test(add, relu_cuts_sums_and_may_work_in_place) {
    double a[] = {1, -2, 3, NAN}, b[] = {1, 1, -4, 1}, y[4];
    tutti_add_forward(4, false, a, b, y);
    cr_assert(y[0] == 2 && y[1] == -1 && y[2] == -1 && isnan(y[3]));
    tutti_add_forward(4, true, a, b, a);
    cr_assert(a[0] == 2 && a[1] == 0 && a[2] == 0 && isnan(a[3]));
}
