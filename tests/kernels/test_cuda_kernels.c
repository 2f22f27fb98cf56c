/*
 * The kernels of kernels/cuda against those of kernels/host, on the host: compiled as C++, their grids run thread by
 * thread (tests/support/emulated). Bit for bit, except where sums have another order. Loss and optimizers are in
 * test_cuda_kernels_loss.c. A second program of the same files tests the kernels of a module: a GPU's, or the
 * stand-in's (tests/support/emulated/module_kernels.c).
 */
#include "kernels/gemm.h"
#include "tests/support/emulated/arrays.h"

uint32_t emulated_divide(uint32_t dividend, int divisor);

/* -------------------------------------------------------------------------------------------- elements */

Test(elements, add_relu_and_fill_are_the_hosts) {
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        size_t count = counts[i];
        float *a = array(count), *b = array(count), *got = unwritten(count), *expected = unwritten(count);
        if (count > 3) a[1] = NAN, a[2] = -0.0f, a[3] = 0;
        tutti_kernels_host.add(NULL, count, a, b, expected);
        tutti_gpu_add(compute, count, a, b, got);
        expect_same("sum", count, got, expected);
        tutti_relu_forward(count, a, expected);
        tutti_gpu_relu_forward(compute, count, a, got);
        expect_same("relu", count, got, expected);
        tutti_relu_backward(count, expected, b, a);
        tutti_gpu_relu_backward(compute, count, expected, b, got);
        expect_same("dx", count, got, a);
        tutti_gpu_fill(compute, count, 0.25f, got);
        for (size_t e = 0; e < count; e++) cr_assert_eq(got[e], 0.25f);
        tutti_gpu_add(compute, count, b, b, b); /* in place */
        FREE(a, b, got, expected);
    }
}

Test(elements, fill_reaches_the_end_where_a_thread_writes_more_than_once) {
    const size_t count = ((size_t)9 << 20) + 3;
    float *got = unwritten(count);
    tutti_gpu_fill(compute, count, -1.5f, got);
    for (size_t e = 0; e < count; e++) cr_assert_eq(got[e], -1.5f);
    expect_same("fill", count, got, got); /* nor behind it */
    FREE(got);
}

Test(elements, dropout_equals_the_hosts_wherever_a_part_of_the_batch_begins) {
    tutti_step_values values = {.time = 12345};
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        for (uint64_t first = 0; first < 9; first += first < 4 ? 1 : 4) {
            size_t count = counts[i];
            float *src = array(count), *got = unwritten(count), *expected = unwritten(count);
            tutti_dropout dropout = {.rate = 0.3,
                                     .seed = 9,
                                     .stream = tutti_random_stream(TUTTI_RANDOM_DROPOUT, 3, 0),
                                     .first_element = first};
            tutti_kernels_host.dropout(NULL, &dropout, &values, count, src, expected);
            tutti_gpu_dropout(compute, &dropout, &values, count, src, got);
            expect_same("dropout", count, got, expected);
            FREE(src, got, expected);
        }
}

Test(elements, bfloat16_is_the_nearest_and_ties_go_to_even) {
    static const struct {
        float value;
        uint16_t rounded;
    } cases[] = {{1, 0x3f80},         {-2, 0xc000},          {0x1.00p0f, 0x3f80},       {0x1.01p0f, 0x3f80},
                 {0x1.03p0f, 0x3f82}, {0x1.0101p0f, 0x3f81}, {0x1.fffffep127f, 0x7f80}, {INFINITY, 0x7f80},
                 {-0.0f, 0x8000},     {0x1p-140f, 0x0000},   {0x1.02p0f, 0x3f81}};
    for (size_t count = 1; count <= COUNT_OF(cases); count++) {
        float values[16] __attribute__((aligned(16)));
        uint16_t got[17] __attribute__((aligned(16)));
        for (size_t i = 0; i < count; i++) values[i] = cases[i].value;
        got[count] = 7;
        tutti_gpu_round(compute, count, values, got);
        for (size_t i = 0; i < count; i++)
            cr_assert_eq(got[i], cases[i].rounded, "%a: %04x", (double)values[i], got[i]);
        cr_assert_eq(got[count], 7);
    }
    float nan = NAN;
    uint16_t got;
    tutti_gpu_round(compute, 1, &nan, &got);
    cr_assert(isnan(of_bfloat16(got)));
}

Test(elements, the_quotient_by_multiplication_is_the_quotient) {
    static const int divisors[] = {1, 2, 3, 5, 7, 10, 28, 64, 127, 128, 784, 65535, 65536, 1 << 30, INT32_MAX};
    for (size_t d = 0; d < COUNT_OF(divisors); d++)
        for (uint64_t i = 0; i < 20000; i++) {
            uint32_t dividend = (uint32_t)(tutti_random_bits(5, d, i) >> (33 + i % 20));
            if (i < 4) dividend = (uint32_t)INT32_MAX - (uint32_t)i;
            else if (i < 8) dividend = (uint32_t)divisors[d] + (uint32_t)i - 6;
            if (dividend > INT32_MAX) continue;
            cr_assert_eq(emulated_divide(dividend, divisors[d]), dividend / (uint32_t)divisors[d], "%u / %d", dividend,
                         divisors[d]);
        }
}

/* ------------------------------------------------------------------------------------------------ bias */

Test(bias, forward_is_the_hosts_and_backward_within_rounding, .timeout = 100) {
    static const size_t rows_of[] = {0, 1, 7, 127, 128, 129, 300, 2000};
    static const int channels_of[] = {1, 3, 10, 32, 33, 64, 516};
    for (size_t r = 0; r < COUNT_OF(rows_of); r++)
        for (size_t c = 0; c < COUNT_OF(channels_of); c++) {
            size_t rows = rows_of[r], channels = (size_t)channels_of[c], count = rows * channels;
            bool relu = (r + c) % 2 == 0;
            float *bias = array(channels), *y = array(count), *expected = copy_of(y, count);
            tutti_bias_forward(rows, channels, relu, bias, expected);
            tutti_gpu_bias_forward(compute, rows, (int)channels, relu, bias, y);
            expect_same("y", count, y, expected);

            float *dy = array(count), *dy_expected = copy_of(dy, count);
            float *dbias = unwritten(channels), *dbias_expected = array(channels);
            memset(dbias_expected, 0, channels * sizeof *dbias_expected);
            tutti_bias_backward(rows, channels, relu, y, dy_expected, dbias_expected);
            tutti_bias_backward_args args = {rows, (int)channels, relu, y, dy, dbias};
            tutti_gpu_bias_backward(compute, &args);
            expect_same("dy", count, dy, dy_expected);
            expect_near("dbias", channels, dbias, dbias_expected, 1e-4);
            FREE(bias, y, expected, dy, dy_expected, dbias, dbias_expected);
        }
}

Test(bias, rows_are_added_up) {
    static const size_t rows_of[] = {1, 2, 31, 32, 33, 245};
    static const int columns_of[] = {1, 7, 32, 800, 804};
    for (size_t r = 0; r < COUNT_OF(rows_of); r++)
        for (size_t c = 0; c < COUNT_OF(columns_of); c++) {
            size_t rows = rows_of[r], columns = (size_t)columns_of[c];
            float *src = array(rows * columns), *same = copy_of(src, rows * columns), *got = unwritten(columns);
            float *expected = array(columns);
            for (size_t at = 0; at < columns; at++) {
                double sum = 0;
                for (size_t row = 0; row < rows; row++) sum += (double)src[row * columns + at];
                expected[at] = (float)sum;
            }
            tutti_gpu_add_rows(compute, rows, (int)columns, src, got);
            expect_near("sums", columns, got, expected, 1e-4);
            expect_same("src", rows * columns, src, same);
            FREE(src, same, got, expected);
        }
}

/* ---------------------------------------------------------------------------------------------- windows */

typedef struct window_case {
    int batch, height, width, channels, filters, kernel, stride;
    tutti_padding padding;
    bool relu;
} window_case;

static const window_case window_cases[] = {
    {1, 5, 5, 1, 3, 5, 1, TUTTI_PADDING_SAME, true},    {3, 6, 7, 2, 3, 3, 1, TUTTI_PADDING_SAME, false},
    {2, 7, 5, 3, 4, 2, 1, TUTTI_PADDING_SAME, true},    {2, 7, 6, 4, 3, 3, 2, TUTTI_PADDING_SAME, true},
    {1, 5, 8, 8, 1, 4, 3, TUTTI_PADDING_SAME, false},   {2, 6, 5, 12, 3, 3, 1, TUTTI_PADDING_VALID, true},
    {3, 8, 7, 1, 2, 3, 2, TUTTI_PADDING_VALID, false},  {1, 4, 4, 4, 3, 4, 1, TUTTI_PADDING_VALID, true},
    {1, 2, 3, 2, 2, 5, 1, TUTTI_PADDING_SAME, true},    {2, 3, 3, 9, 2, 3, 1, TUTTI_PADDING_SAME, true},
    {2, 5, 4, 2, 2, 1, 2, TUTTI_PADDING_VALID, false},  {2, 14, 14, 32, 64, 5, 1, TUTTI_PADDING_SAME, true},
    {2, 28, 28, 1, 32, 5, 1, TUTTI_PADDING_SAME, true}, {2, 9, 9, 4, 5, 2, 3, TUTTI_PADDING_VALID, false},
    {3, 7, 9, 3, 2, 3, 2, TUTTI_PADDING_SAME, true},    {2, 3, 9, 7, 1, 4, 3, TUTTI_PADDING_SAME, false},
};

/* The last case has so many images that each thread processes several. */
static const window_case *windows_case(size_t i) {
    static const window_case many = {8500, 3, 2, 1, 1, 2, 1, TUTTI_PADDING_SAME, false};
    return i < COUNT_OF(window_cases) ? &window_cases[i] : &many;
}

static tutti_window window_of(const window_case *of) {
    tutti_window window = {.in_height = of->height,
                           .in_width = of->width,
                           .channels = of->channels,
                           .kernel = of->kernel,
                           .stride = of->stride};
    cr_assert(tutti_window_place(&window, of->padding));
    return window;
}

static size_t in_count(const tutti_window *w) {
    return (size_t)(w->in_height * w->in_width * w->channels);
}

static size_t out_count(const tutti_window *w, int channels) {
    return (size_t)(w->out_height * w->out_width * channels);
}

/* Column by column; `add` the other way: x += columns. */
static void walk_columns(const tutti_window *w, int batch, float *x, float *columns, bool add) {
    for (int image = 0; image < batch; image++)
        for (int row = 0; row < w->out_height; row++)
            for (int column = 0; column < w->out_width; column++)
                for (int ky = 0; ky < w->kernel; ky++)
                    for (int kx = 0; kx < w->kernel; kx++)
                        for (int c = 0; c < w->channels; c++, columns++) {
                            int at_y = row * w->stride - w->pad_top + ky, at_x = column * w->stride - w->pad_left + kx;
                            bool inside = at_y >= 0 && at_y < w->in_height && at_x >= 0 && at_x < w->in_width;
                            float *value =
                                inside ? &x[((image * w->in_height + at_y) * w->in_width + at_x) * w->channels + c]
                                       : NULL;
                            if (add && inside) *value += *columns;
                            else if (!add) *columns = inside ? *value : 0;
                        }
}

Test(windows, unfolding_and_folding_are_their_definition) {
    for (size_t i = 0; i <= COUNT_OF(window_cases); i++) {
        const window_case *of = windows_case(i);
        tutti_window window = window_of(of);
        size_t count = (size_t)of->batch * in_count(&window);
        size_t columns_count =
            (size_t)of->batch * out_count(&window, window.channels) * (size_t)(window.kernel * window.kernel);
        float *x = array(count), *expected = unwritten(columns_count);
        walk_columns(&window, of->batch, x, expected, false);
        /* If channels are not a multiple of four, columns need no alignment. */
        for (size_t at = 0; at < (window.channels % 4 == 0 ? 1 : 2); at++) {
            float *got = unwritten(at + columns_count);
            tutti_gpu_unfold(compute, &window, of->batch, x, got + at, false);
            expect_same("columns", columns_count, got + at, expected);
            FREE(got);
        }
        uint16_t *rounded = bytes_array(columns_count * sizeof *rounded), one;
        tutti_gpu_unfold(compute, &window, of->batch, x, rounded, true);
        for (size_t e = 0; e < columns_count; e++) {
            tutti_gpu_round(compute, 1, &expected[e], &one);
            cr_assert_eq(rounded[e], one);
        }
        float *folded = unwritten(count);
        memset(x, 0, count * sizeof *x);
        walk_columns(&window, of->batch, x, expected, true);
        tutti_gpu_fold(compute, &window, of->batch, expected, folded);
        expect_same("folded", count, folded, x);
        FREE(x, expected, rounded, folded);
    }
}

Test(windows, max_pooling_is_the_hosts_with_equals_and_nan) {
    for (size_t i = 0; i <= COUNT_OF(window_cases); i++) {
        const window_case *of = windows_case(i);
        tutti_window window = window_of(of);
        size_t count = (size_t)of->batch * in_count(&window);
        size_t out = (size_t)of->batch * out_count(&window, window.channels);
        float *x = array(count), *y = unwritten(out), *y_expected = unwritten(out), *dy = array(out);
        float *dx = unwritten(count), *dx_expected = unwritten(count);
        int32_t *where = bytes_array(out * sizeof *where), *where_expected = bytes_array(out * sizeof *where);
        for (size_t e = 0; e < count; e++) x[e] = e % 17 == 3 ? NAN : floorf(x[e] * 4); /* many equals */
        tutti_max_pool_forward(&window, of->batch, x, y_expected, where_expected);
        tutti_gpu_max_pool_forward(compute, &window, of->batch, x, y, where);
        expect_same("y", out, y, y_expected);
        for (size_t e = 0; e < out; e++) cr_assert_eq(where[e], where_expected[e], "case %zu, where[%zu]", i, e);
        tutti_max_pool_backward(&window, of->batch, dy, where, dx_expected);
        tutti_gpu_max_pool_backward(compute, &window, of->batch, dy, where, dx);
        expect_same("dx", count, dx, dx_expected);
        FREE(x, y, y_expected, dy, dx, dx_expected, where, where_expected);
    }
}

/* Forwards and backwards; bfloat16 rounds the columns. */
static void check_conv(const window_case *of, tutti_precision precision) {
    tutti_conv conv = {.window = window_of(of), .filters = of->filters, .relu = of->relu};
    double tolerance = precision == TUTTI_PRECISION_BF16 ? 0.1 : 1e-4;
    the_compute.precision = precision;
    size_t count = (size_t)of->batch * in_count(&conv.window);
    size_t out = (size_t)of->batch * out_count(&conv.window, of->filters);
    size_t weights = (size_t)(of->kernel * of->kernel * of->channels * of->filters), filters = (size_t)of->filters;
    float *x = array(count), *weight = array(weights), *bias = array(filters);
    float *scratch = unwritten(tutti_gpu_conv_scratch_count(&conv, of->batch));
    float *kept = unwritten(tutti_gpu_conv_kept_count(&conv, of->batch));
    float *host_scratch = unwritten(tutti_conv_scratch_count(&conv));
    float *y = unwritten(out), *y_expected = unwritten(out), *dy = array(out), *dy_expected = copy_of(dy, out);
    tutti_conv_forward_args forward = {of->batch, x, weight, bias, host_scratch, y_expected, NULL, 0};
    tutti_conv_forward(&conv, &forward);
    forward.scratch = scratch, forward.y = y, forward.kept = kept;
    tutti_gpu_conv_forward(compute, &conv, &forward);
    expect_near("y", out, y, y_expected, tolerance);

    float *dweight = unwritten(weights), *dweight_expected = unwritten(weights);
    float *dbias = unwritten(filters), *dbias_expected = unwritten(filters);
    float *dx = unwritten(count), *dx_expected = unwritten(count);
    tutti_conv_backward_args backward = {
        of->batch, x, weight, y, dy_expected, host_scratch, NULL, dweight_expected, dbias_expected, dx_expected, 0};
    tutti_conv_backward(&conv, &backward);
    backward.dy = dy, backward.scratch = scratch, backward.kept = kept;
    backward.dweight = dweight, backward.dbias = dbias, backward.dx = dx;
    tutti_gpu_conv_backward(compute, &conv, &backward);
    expect_near("dweight", weights, dweight, dweight_expected, tolerance);
    expect_near("dbias", filters, dbias, dbias_expected, tolerance);
    expect_near("dx", count, dx, dx_expected, tolerance);
    the_compute.precision = TUTTI_PRECISION_FP32;
    FREE(x, weight, bias, scratch, kept, host_scratch, y, y_expected, dy, dy_expected);
    FREE(dweight, dweight_expected, dbias, dbias_expected, dx, dx_expected);
}

Test(windows, convolution_is_the_hosts_within_rounding, .timeout = 100) {
    for (size_t i = 0; i < COUNT_OF(window_cases); i++) check_conv(&window_cases[i], TUTTI_PRECISION_FP32);
    check_conv(&window_cases[1], TUTTI_PRECISION_BF16);
    check_conv(&window_cases[3], TUTTI_PRECISION_BF16);
}

static void check_dense(size_t batch, int inputs, int outputs, tutti_precision precision) {
    tutti_dense dense = {inputs, outputs, true};
    size_t in = batch * (size_t)inputs, out = batch * (size_t)outputs, weights = (size_t)inputs * (size_t)outputs;
    double tolerance = precision == TUTTI_PRECISION_BF16 ? 0.5 : 1e-4;
    the_compute.precision = precision;
    float *x = array(in), *weight = array(weights), *bias = array((size_t)outputs);
    float *y = unwritten(out), *y_expected = unwritten(out), *dy = array(out), *dy_expected = copy_of(dy, out);
    float *dweight = unwritten(weights), *dweight_expected = unwritten(weights);
    float *dbias = unwritten((size_t)outputs), *dbias_expected = unwritten((size_t)outputs);
    float *dx = unwritten(in), *dx_expected = unwritten(in);
    tutti_dense_forward_args forward = {(int)batch, x, weight, bias, y_expected};
    tutti_dense_forward(&dense, &forward);
    forward.y = y;
    tutti_gpu_dense_forward(compute, &dense, &forward);
    expect_near("y", out, y, y_expected, tolerance);
    tutti_dense_backward_args backward = {(int)batch,     x,          weight, y, dy_expected, dweight_expected,
                                          dbias_expected, dx_expected};
    tutti_dense_backward(&dense, &backward);
    backward.dy = dy, backward.dweight = dweight, backward.dbias = dbias, backward.dx = dx;
    tutti_gpu_dense_backward(compute, &dense, &backward);
    expect_near("dweight", weights, dweight, dweight_expected, tolerance);
    expect_near("dbias", (size_t)outputs, dbias, dbias_expected, tolerance);
    expect_near("dx", in, dx, dx_expected, tolerance);
    the_compute.precision = TUTTI_PRECISION_FP32;
    FREE(x, weight, bias, y, y_expected, dy, dy_expected, dweight, dweight_expected, dbias, dbias_expected, dx,
         dx_expected);
}

/* Each product of the layer's forward and backward has many terms in one case, so that its sum may be computed in
 * parts. */
Test(windows, a_dense_layer_is_the_hosts_within_rounding) {
    static const struct {
        size_t batch;
        int inputs, outputs;
    } cases[] = {{7, 33, 12}, {3, 2560, 41}, {2, 37, 1536}, {2048, 13, 6}, {100, 1031, 10}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_dense(cases[i].batch, cases[i].inputs, cases[i].outputs, TUTTI_PRECISION_FP32);
        check_dense(cases[i].batch, cases[i].inputs, cases[i].outputs, TUTTI_PRECISION_BF16);
    }
}
