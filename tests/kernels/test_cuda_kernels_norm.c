/*
 * Batch norm, average-pooling, and sums with ReLU of kernels/cuda, against the host's. See test_cuda_kernels.c.
 */
#include "tests/support/emulated/arrays.h"

typedef struct norm_arrays {
    float *x, *gamma, *beta, *dy;
    float *moving_mean, *moving_variance, *scratch, *kept; /* arrays of one of the two implementations */
    float *y, *dx, *dgamma, *dbeta;
} norm_arrays;

static float *room(const tutti_batch_norm *norm) {
    return unwritten(tutti_batch_norm_scratch_count(norm));
}

/* The inputs of both, and buffers for the outputs of one. */
static norm_arrays make_arrays(const tutti_batch_norm *norm, size_t rows, const norm_arrays *same) {
    const size_t channels = (size_t)norm->channels, count = rows * channels;
    norm_arrays a = {0};
    if (same != NULL) {
        a = *same;
        a.moving_mean = copy_of(same->moving_mean, channels);
        a.moving_variance = copy_of(same->moving_variance, channels);
    } else {
        a.x = array(count), a.gamma = array(channels), a.beta = array(channels), a.dy = array(count);
        a.moving_mean = array(channels), a.moving_variance = array(channels);
        for (size_t c = 0; c < channels; c++) a.moving_variance[c] = fabsf(a.moving_variance[c]) + 0.5f;
        for (size_t i = 0; i < count; i++) a.x[i] += (float)(i % channels % 7); /* means far from 0 */
    }
    a.scratch = room(norm), a.kept = room(norm);
    a.y = unwritten(count), a.dx = unwritten(count);
    a.dgamma = unwritten(channels), a.dbeta = unwritten(channels);
    return a;
}

static void free_written(norm_arrays *a) {
    FREE(a->moving_mean, a->moving_variance, a->scratch, a->kept, a->y, a->dx, a->dgamma, a->dbeta);
}

static tutti_batch_norm_forward_args forward_args(const norm_arrays *a, size_t rows, bool training) {
    return (tutti_batch_norm_forward_args){rows,           training,           a->x,       a->gamma, a->beta,
                                           a->moving_mean, a->moving_variance, a->scratch, a->kept,  a->y};
}

static tutti_batch_norm_backward_args backward_args(const norm_arrays *a, size_t rows) {
    return (tutti_batch_norm_backward_args){rows,    a->x,       a->gamma,  a->beta,  a->dy,
                                            a->kept, a->scratch, a->dgamma, a->dbeta, a->dx};
}

/* One or two rows: deviations may be almost 0, and rounding errors are divided by them. */
static void check_norm(size_t rows, int channels_of, bool relu) {
    const tutti_batch_norm norm = {channels_of, 1e-3, 0.1, relu};
    const size_t channels = (size_t)channels_of, count = rows * channels;
    const double tolerance = rows < 3 ? 1e-3 : 2e-5;
    norm_arrays host = make_arrays(&norm, rows, NULL), gpu = make_arrays(&norm, rows, &host);
    for (int training = 0; training < 2; training++) {
        const tutti_batch_norm_forward_args on_host = forward_args(&host, rows, training == 1);
        const tutti_batch_norm_forward_args on_gpu = forward_args(&gpu, rows, training == 1);
        tutti_batch_norm_forward(&norm, &on_host);
        tutti_gpu_batch_norm_forward(compute, &norm, &on_gpu);
        expect_near("y", count, gpu.y, host.y, tolerance);
        expect_near("moving mean", channels, gpu.moving_mean, host.moving_mean, 1e-6);
        expect_near("moving variance", channels, gpu.moving_variance, host.moving_variance, 1e-6);
    }
    tutti_batch_norm_backward_args on_host = backward_args(&host, rows), on_gpu = backward_args(&gpu, rows);
    tutti_batch_norm_backward(&norm, &on_host);
    tutti_gpu_batch_norm_backward(compute, &norm, &on_gpu);
    expect_near("dgamma", channels, gpu.dgamma, host.dgamma, 1e-4);
    expect_near("dbeta", channels, gpu.dbeta, host.dbeta, 1e-4);
    expect_near("dx", count, gpu.dx, host.dx, tolerance);
    on_gpu.dx = NULL; /* not wanted */
    float *dx = copy_of(gpu.dx, count);
    tutti_gpu_batch_norm_backward(compute, &norm, &on_gpu);
    expect_near("dx", count, gpu.dx, dx, 0);
    on_gpu.dx = host.dy; /* in place */
    tutti_gpu_batch_norm_backward(compute, &norm, &on_gpu);
    expect_near("dx in place of dy", count, host.dy, dx, 0);
    FREE(dx, host.x, host.gamma, host.beta, host.dy);
    free_written(&host);
    free_written(&gpu);
}

Test(norms, batch_norm_is_the_hosts_within_rounding, .timeout = 100) {
    static const size_t rows_of[] = {1, 2, 3, 17, 256, 1031};
    static const int channels_of[] = {1, 3, 16, 31, 64, 513};
    for (size_t r = 0; r < COUNT_OF(rows_of); r++)
        for (size_t c = 0; c < COUNT_OF(channels_of); c++) check_norm(rows_of[r], channels_of[c], (r + c) % 2 == 0);
    check_norm(20000, 16, true); /* the largest number of groups of rows */
}

/* Then there is no space for the sums of groups, and there is one group. */
Test(norms, more_channels_than_partials_have_room_for_are_normalised, .timeout = 100) {
    check_norm(3, TUTTI_COMPUTE_PARTIALS / 4 + 1, true);
}

Test(norms, nans_stay_in_their_channel) {
    enum { ROWS = 40, CHANNELS = 5 };
    const tutti_batch_norm norm = {CHANNELS, 1e-5, 0.1, true};
    norm_arrays host = make_arrays(&norm, ROWS, NULL);
    host.x[7 * CHANNELS + 2] = NAN;
    norm_arrays gpu = make_arrays(&norm, ROWS, &host);
    const tutti_batch_norm_forward_args on_host = forward_args(&host, ROWS, true),
                                        on_gpu = forward_args(&gpu, ROWS, true);
    tutti_batch_norm_forward(&norm, &on_host);
    tutti_gpu_batch_norm_forward(compute, &norm, &on_gpu);
    for (int i = 0; i < ROWS * CHANNELS; i++) cr_assert_eq(isnan(gpu.y[i]) != 0, i % CHANNELS == 2, "y[%d]", i);
    expect_near("y", ROWS * CHANNELS, gpu.y, host.y, 1e-5);
    const tutti_batch_norm_backward_args back_on_host = backward_args(&host, ROWS), back = backward_args(&gpu, ROWS);
    tutti_batch_norm_backward(&norm, &back_on_host);
    tutti_gpu_batch_norm_backward(compute, &norm, &back);
    for (int c = 0; c < CHANNELS; c++) cr_assert_eq(isnan(gpu.dgamma[c]) != 0, c == 2, "dgamma[%d]", c);
    expect_near("dx", ROWS * CHANNELS, gpu.dx, host.dx, 1e-5);
    FREE(host.x, host.gamma, host.beta, host.dy);
    free_written(&host);
    free_written(&gpu);
}

/* --------------------------------------------------------------------------------------- average-pooling */

static const struct {
    int batch, height, width, channels, kernel, stride;
    tutti_padding padding;
} pool_cases[] = {
    {1, 8, 8, 64, 8, 1, TUTTI_PADDING_VALID}, {3, 7, 7, 5, 7, 1, TUTTI_PADDING_VALID},
    {2, 5, 4, 3, 3, 2, TUTTI_PADDING_SAME},   {2, 1, 1, 1, 1, 1, TUTTI_PADDING_SAME},
    {1, 2, 3, 4, 5, 1, TUTTI_PADDING_SAME},   {2, 9, 9, 4, 2, 3, TUTTI_PADDING_VALID}, /* some pixels in no window */
    {0, 4, 4, 2, 2, 2, TUTTI_PADDING_VALID},  {5, 28, 27, 1, 4, 3, TUTTI_PADDING_SAME},
};

Test(norms, average_pooling_is_the_hosts) {
    for (size_t i = 0; i < COUNT_OF(pool_cases); i++) {
        tutti_window window = {.in_height = pool_cases[i].height,
                               .in_width = pool_cases[i].width,
                               .channels = pool_cases[i].channels,
                               .kernel = pool_cases[i].kernel,
                               .stride = pool_cases[i].stride};
        cr_assert(tutti_window_place(&window, pool_cases[i].padding));
        const int batch = pool_cases[i].batch;
        const size_t count = (size_t)(batch * window.in_height * window.in_width * window.channels);
        const size_t out = (size_t)(batch * window.out_height * window.out_width * window.channels);
        float *x = array(count), *y = unwritten(out), *y_expected = unwritten(out), *dy = array(out);
        float *dx = unwritten(count), *dx_expected = unwritten(count);
        if (count > 9) x[9] = NAN;
        tutti_average_pool_forward(&window, batch, x, y_expected);
        tutti_gpu_average_pool_forward(compute, &window, batch, x, y);
        expect_near("y", out, y, y_expected, 1e-6);
        tutti_average_pool_backward(&window, batch, dy, dx_expected);
        tutti_gpu_average_pool_backward(compute, &window, batch, dy, dx);
        expect_near("dx", count, dx, dx_expected, 1e-6);
        FREE(x, y, y_expected, dy, dx, dx_expected);
    }
}

/* ---------------------------------------------------------------------------------------- sums with ReLU */

Test(norms, sums_with_relu_are_the_hosts) {
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        const size_t count = counts[i];
        float *a = array(count), *b = array(count), *got = unwritten(count), *expected = unwritten(count);
        if (count > 3) a[1] = NAN, a[2] = -0.0f, b[2] = -0.0f, a[3] = -b[3];
        tutti_kernels_host.add_relu(NULL, count, a, b, expected);
        tutti_gpu_add_relu(compute, count, a, b, got);
        expect_same("sum", count, got, expected);
        tutti_gpu_add_relu(compute, count, a, b, a);
        expect_same("sum in place", count, a, expected);
        FREE(a, b, got, expected);
    }
}
