/*
 * Matrix products and convolutions against their definitions in double; gradients of float64 also against finite
 * differences.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/operators.h"
#include "tests/kernels/arrays.h"

static const tutti_type reals[] = {TUTTI_FLOAT32, TUTTI_FLOAT64};

static double tolerance(tutti_type type) {
    return type == TUTTI_FLOAT32 ? 2e-5 : 1e-12;
}

/* ---------------------------------------------------------------------------------------------- matmul */

typedef struct product {
    int64_t m, n, k;
    int batch_ndims;
    int64_t batch[2];
    unsigned a_broadcast, b_broadcast; /* bits of batch dimensions */
} product;

static void check_matmul(tutti_type type, const product *p, bool transpose_a, bool transpose_b, bool with_bias) {
    int64_t a_strides[2], b_strides[2], matrices = 1, a_count = p->m * p->k, b_count = p->k * p->n;
    for (int d = p->batch_ndims - 1; d >= 0; d--) {
        a_strides[d] = p->a_broadcast >> d & 1 ? 0 : a_count;
        b_strides[d] = p->b_broadcast >> d & 1 ? 0 : b_count;
        if (a_strides[d] != 0) a_count *= p->batch[d];
        if (b_strides[d] != 0) b_count *= p->batch[d];
        matrices *= p->batch[d];
    }
    const size_t y_count = (size_t)(matrices * p->m * p->n), bytes = tutti_type_bytes(type);
    void *a = array_random(type, 1, (size_t)a_count), *b = array_random(type, 2, (size_t)b_count);
    void *bias = array_random(type, 3, (size_t)p->n), *y = array_new(y_count * bytes);
    double *as = array_doubles(type, a, (size_t)a_count), *bs = array_doubles(type, b, (size_t)b_count);
    double *biases = array_doubles(type, bias, (size_t)p->n), *expected = array_new(y_count * sizeof *expected);
    for (int64_t x = 0; x < matrices; x++) {
        const int64_t inner = p->batch_ndims == 2 ? p->batch[1] : 1;
        const int64_t index[2] = {p->batch_ndims == 2 ? x / inner : x, x % inner};
        int64_t at_a = 0, at_b = 0;
        for (int d = 0; d < p->batch_ndims; d++) {
            at_a += index[d] * a_strides[d];
            at_b += index[d] * b_strides[d];
        }
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                double sum = with_bias ? biases[j] : 0;
                for (int64_t l = 0; l < p->k; l++)
                    sum += as[at_a + (transpose_a ? l * p->m + i : i * p->k + l)] *
                           bs[at_b + (transpose_b ? j * p->k + l : l * p->n + j)];
                expected[(x * p->m + i) * p->n + j] = sum;
            }
    }
    const tutti_kernel_matmul_args args = {.type = type,
                                           .transpose_a = transpose_a,
                                           .transpose_b = transpose_b,
                                           .m = p->m,
                                           .n = p->n,
                                           .k = p->k,
                                           .batch_ndims = p->batch_ndims,
                                           .batch_shape = p->batch,
                                           .a_strides = a_strides,
                                           .b_strides = b_strides,
                                           .a = a,
                                           .b = b,
                                           .bias = with_bias ? bias : NULL,
                                           .y = y};
    tutti_kernel_matmul(&args);
    array_check_near("product", type, y, expected, y_count, tolerance(type));
    cr_assert(array_is_bounded(y, y_count * bytes));
    void *all[] = {a, b, bias, y, as, bs, biases, expected};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
}

Test(products, matmul_with_transposes_batches_and_bias) {
    static const product cases[] = {
        {.m = 3, .n = 4, .k = 5},
        {.m = 1, .n = 1, .k = 1},
        {.m = 0, .n = 4, .k = 5},
        {.m = 3, .n = 0, .k = 5},
        {.m = 3, .n = 4, .k = 0},
        {.m = 1, .n = 7, .k = 13},
        {.m = 31, .n = 1, .k = 17},
        {.m = 67, .n = 41, .k = 129},
        {.m = 3, .n = 5, .k = 2, .batch_ndims = 1, .batch = {4}},
        {.m = 3, .n = 5, .k = 2, .batch_ndims = 1, .batch = {4}, .b_broadcast = 1},
        {.m = 3, .n = 5, .k = 2, .batch_ndims = 1, .batch = {4}, .a_broadcast = 1},
        {.m = 3, .n = 5, .k = 2, .batch_ndims = 1, .batch = {4}, .a_broadcast = 1, .b_broadcast = 1},
        {.m = 2, .n = 3, .k = 4, .batch_ndims = 2, .batch = {3, 2}, .b_broadcast = 3},
        {.m = 2, .n = 3, .k = 4, .batch_ndims = 2, .batch = {3, 2}, .b_broadcast = 2},
        {.m = 2, .n = 3, .k = 4, .batch_ndims = 2, .batch = {3, 2}, .b_broadcast = 1},
        {.m = 2, .n = 3, .k = 4, .batch_ndims = 2, .batch = {3, 2}, .a_broadcast = 1, .b_broadcast = 2},
        {.m = 2, .n = 3, .k = 4, .batch_ndims = 2, .batch = {3, 0}},
        {.m = 2, .n = 3, .k = 4, .batch_ndims = 2, .batch = {1, 1}, .b_broadcast = 3},
        {.m = 2, .n = 3, .k = 0, .batch_ndims = 1, .batch = {4}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int choice = 0; choice < 16; choice++)
            check_matmul(reals[choice & 1], &cases[i], choice >> 1 & 1, choice >> 2 & 1, choice >> 3 & 1);
}

/* ---------------------------------------------------------------------------------------- convolution */

typedef struct conv_case {
    tutti_kernel_window window; /* padding below and on the right is given by out_height and out_width instead */
    int64_t filters;
} conv_case;

#define CASE(batch, h, w, c, kh, kw, sh, sw, top, left, bottom, right, filters)                                        \
    { {batch, h, w, c, kh, kw, sh, sw, top, left, bottom, right}, filters }
static const conv_case conv_cases[] = {
    CASE(2, 5, 6, 3, 3, 2, 1, 1, 0, 0, 0, 0, 4),
    CASE(1, 7, 5, 2, 3, 3, 2, 1, 1, 1, 1, 1, 3),
    CASE(3, 4, 9, 1, 1, 5, 1, 3, 0, 2, 0, 2, 2),
    CASE(2, 6, 6, 4, 1, 1, 1, 1, 0, 0, 0, 0, 5),
    CASE(2, 6, 5, 3, 1, 1, 2, 2, 0, 0, 0, 0, 2),
    CASE(2, 5, 5, 2, 4, 3, 1, 2, 3, 0, 1, 2, 3),
    CASE(1, 2, 3, 2, 5, 5, 1, 1, 2, 2, 2, 2, 2),
    CASE(2, 8, 7, 2, 3, 3, 1, 1, -2, -1, 1, 0, 2),
    CASE(1, 3, 3, 9, 3, 3, 1, 1, 1, 1, 1, 1, 1),
    CASE(0, 5, 5, 2, 3, 3, 1, 1, 0, 0, 0, 0, 2),
    CASE(2, 5, 5, 0, 3, 3, 1, 1, 0, 0, 0, 0, 2),
    CASE(2, 5, 5, 2, 3, 3, 1, 1, 0, 0, 0, 0, 0),
    CASE(2, 2, 5, 2, 3, 3, 1, 1, 0, 0, 0, 0, 2) /* no window fits */,
    CASE(2, 40, 40, 8, 3, 3, 1, 1, 1, 1, 1, 1, 6),
    CASE(5, 12, 12, 40, 3, 3, 1, 1, 1, 1, 1, 1, 3),
};

static tutti_kernel_window window_of(const conv_case *c) {
    tutti_kernel_window w = c->window;
    const int64_t rows = w.in_height + w.pad_top + w.out_height - w.kernel_height;
    const int64_t columns = w.in_width + w.pad_left + w.out_width - w.kernel_width;
    w.out_height = rows < 0 ? 0 : rows / w.stride_height + 1;
    w.out_width = columns < 0 ? 0 : columns / w.stride_width + 1;
    return w;
}

typedef struct conv_data {
    tutti_kernel_window w;
    int64_t filters;
    size_t x_count, weight_count, y_count;
    double *x, *weight, *bias, *dy, *y, *dx, *dweight, *dbias; /* gradients: 0 at first */
} conv_data;

/* By the definition; optionally with gradients. */
static void convolve(conv_data *d, bool gradients) {
    const tutti_kernel_window *w = &d->w;
    double *y = d->y;
    const double *dy = d->dy;
    for (int64_t b = 0; b < w->batch; b++)
        for (int64_t row = 0; row < w->out_height; row++)
            for (int64_t column = 0; column < w->out_width; column++)
                for (int64_t f = 0; f < d->filters; f++, y++, dy++) {
                    *y = d->bias[f];
                    if (gradients) d->dbias[f] += *dy;
                    for (int64_t ky = 0; ky < w->kernel_height; ky++)
                        for (int64_t kx = 0; kx < w->kernel_width; kx++) {
                            const int64_t iy = row * w->stride_height - w->pad_top + ky,
                                          ix = column * w->stride_width - w->pad_left + kx;
                            if (iy < 0 || iy >= w->in_height || ix < 0 || ix >= w->in_width) continue;
                            for (int64_t c = 0; c < w->channels; c++) {
                                const int64_t at = ((b * w->in_height + iy) * w->in_width + ix) * w->channels + c;
                                const int64_t tap = ((ky * w->kernel_width + kx) * w->channels + c) * d->filters + f;
                                *y += d->x[at] * d->weight[tap];
                                if (!gradients) continue;
                                d->dx[at] += *dy * d->weight[tap];
                                d->dweight[tap] += *dy * d->x[at];
                            }
                        }
                }
}

static double *zeros(size_t count) {
    double *values = array_new(count * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = 0;
    return values;
}

static void check_conv(tutti_type type, const conv_case *shape) {
    conv_data d = {.w = window_of(shape), .filters = shape->filters};
    const size_t bytes = tutti_type_bytes(type), filters = (size_t)d.filters;
    d.x_count = (size_t)(d.w.batch * d.w.in_height * d.w.in_width * d.w.channels);
    d.weight_count = (size_t)(d.w.kernel_height * d.w.kernel_width * d.w.channels) * filters;
    d.y_count = (size_t)(d.w.batch * d.w.out_height * d.w.out_width) * filters;
    void *x = array_random(type, 1, d.x_count), *weight = array_random(type, 2, d.weight_count),
         *bias = array_random(type, 3, filters);
    void *dy = array_random(type, 4, d.y_count), *y = array_new(d.y_count * bytes);
    const size_t scratch_bytes = tutti_kernel_conv_scratch_bytes(type, &d.w);
    void *scratch = array_new(scratch_bytes), *dx = array_new(d.x_count * bytes),
         *dweight = array_new(d.weight_count * bytes);
    void *dbias = array_new(filters * bytes);
    d.x = array_doubles(type, x, d.x_count);
    d.weight = array_doubles(type, weight, d.weight_count);
    d.bias = array_doubles(type, bias, filters);
    d.dy = array_doubles(type, dy, d.y_count);
    d.y = zeros(d.y_count);
    d.dx = zeros(d.x_count);
    d.dweight = zeros(d.weight_count);
    d.dbias = zeros(filters);
    convolve(&d, true);
    tutti_kernel_conv_forward(type, &d.w, d.filters, x, weight, bias, scratch, y);
    array_check_near("y", type, y, d.y, d.y_count, tolerance(type));
    for (size_t i = 0; i < filters; i++) d.bias[i] = 0;
    convolve(&d, false);
    tutti_kernel_conv_forward(type, &d.w, d.filters, x, weight, NULL, scratch, y);
    array_check_near("y without bias", type, y, d.y, d.y_count, tolerance(type));
    /* Each alone: arguments that it does not need may be NULL. */
    tutti_kernel_conv_backward(
        &d.w, &(tutti_kernel_conv_backward_args){type, d.filters, NULL, weight, dy, scratch, dx, NULL, NULL});
    tutti_kernel_conv_backward(
        &d.w, &(tutti_kernel_conv_backward_args){type, d.filters, x, NULL, dy, scratch, NULL, dweight, NULL});
    tutti_kernel_conv_backward(
        &d.w, &(tutti_kernel_conv_backward_args){type, d.filters, NULL, NULL, dy, NULL, NULL, NULL, dbias});
    array_check_near("dx", type, dx, d.dx, d.x_count, tolerance(type));
    array_check_near("dweight", type, dweight, d.dweight, d.weight_count, 10 * tolerance(type));
    array_check_near("dbias", type, dbias, d.dbias, filters, 10 * tolerance(type));
    cr_assert(array_is_bounded(y, d.y_count * bytes) && array_is_bounded(scratch, scratch_bytes));
    cr_assert(array_is_bounded(dx, d.x_count * bytes) && array_is_bounded(dweight, d.weight_count * bytes));
    void *all[] = {x,   weight,   bias,   dy,   y,   scratch, dx,        dweight, dbias,
                   d.x, d.weight, d.bias, d.dy, d.y, d.dx,    d.dweight, d.dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
}

Test(products, convolution_and_its_gradients) {
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
        for (int t = 0; t < 2; t++) check_conv(reals[t], &conv_cases[i]);
}

/* -------------------------------------------------------------------------------------------- pooling */

static const conv_case pool_cases[] = {
    CASE(2, 6, 6, 3, 2, 2, 2, 2, 0, 0, 0, 0, 0), CASE(1, 7, 5, 2, 3, 2, 2, 1, 1, 0, 1, 1, 0),
    CASE(2, 5, 8, 1, 3, 3, 1, 1, 1, 1, 1, 1, 0), CASE(1, 4, 4, 300, 2, 3, 1, 1, 0, 0, 0, 0, 0),
    CASE(2, 5, 5, 3, 1, 1, 3, 2, 0, 0, 0, 0, 0), CASE(1, 3, 3, 2, 2, 2, 2, 2, 3, 3, 2, 2, 0),
    CASE(0, 3, 3, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0), CASE(1, 6, 6, 2, 2, 2, 2, 2, -1, -2, 0, 0, 0),
};

/* y, and dx of dy, by the definition. kind 0: maximum, 1: average of pixels, 2: average with padding. */
static void pool(const tutti_kernel_window *w, int kind, const double *x, const double *dy, double *y, double *dx) {
    for (int64_t b = 0; b < w->batch; b++)
        for (int64_t row = 0; row < w->out_height; row++)
            for (int64_t column = 0; column < w->out_width; column++)
                for (int64_t c = 0; c < w->channels; c++, y++, dy++) {
                    int64_t pixels = 0, best = -1;
                    double sum = 0;
                    for (int pass = 0; pass < 2; pass++)
                        for (int64_t ky = 0; ky < w->kernel_height; ky++)
                            for (int64_t kx = 0; kx < w->kernel_width; kx++) {
                                const int64_t iy = row * w->stride_height - w->pad_top + ky,
                                              ix = column * w->stride_width - w->pad_left + kx;
                                if (iy < 0 || iy >= w->in_height || ix < 0 || ix >= w->in_width) continue;
                                const int64_t at = ((b * w->in_height + iy) * w->in_width + ix) * w->channels + c;
                                if (pass == 0) {
                                    pixels++;
                                    sum += x[at];
                                    if (best < 0 || isnan(x[at]) || x[at] > x[best]) best = at;
                                } else if (kind > 0) {
                                    dx[at] += *dy / (double)(kind == 2 ? w->kernel_height * w->kernel_width : pixels);
                                }
                            }
                    if (kind == 0) {
                        *y = best < 0 ? -INFINITY : x[best];
                        if (best >= 0) dx[best] += *dy;
                    } else {
                        *y = pixels == 0 ? 0 : sum / (double)(kind == 2 ? w->kernel_height * w->kernel_width : pixels);
                    }
                }
}

static void check_pool(tutti_type type, const conv_case *shape, int kind, bool specials) {
    const tutti_kernel_window w = window_of(shape);
    const size_t bytes = tutti_type_bytes(type), x_count = (size_t)(w.batch * w.in_height * w.in_width * w.channels);
    const size_t y_count = (size_t)(w.batch * w.out_height * w.out_width * w.channels);
    float *x = array_random(type, 5, x_count);
    if (specials && type == TUTTI_FLOAT32)
        for (size_t i = 0; i < x_count; i++) { /* equal values, NaN, infinities: the first of equals, the last NaN */
            if (i % 3 == 0) x[i] = 0.5f;
            if (i % 17 == 0) x[i] = NAN;
            if (i % 5 == 0) x[i] = -INFINITY;
        }
    void *dy = array_random(type, 6, y_count), *y = array_new(y_count * bytes), *dx = array_new(x_count * bytes);
    double *xs = array_doubles(type, x, x_count), *dys = array_doubles(type, dy, y_count);
    double *expected_y = zeros(y_count), *expected_dx = zeros(x_count);
    pool(&w, kind, xs, dys, expected_y, expected_dx);
    if (kind == 0) {
        tutti_kernel_max_pool_forward(type, &w, x, y);
        tutti_kernel_max_pool_backward(type, &w, x, dy, dx);
    } else {
        tutti_kernel_average_pool_forward(type, &w, kind == 2, x, y);
        tutti_kernel_average_pool_backward(type, &w, kind == 2, dy, dx);
    }
    array_check_near("pooled", type, y, expected_y, y_count, tolerance(type));
    array_check_near("gradient of pooling", type, dx, expected_dx, x_count, tolerance(type));
    cr_assert(array_is_bounded(y, y_count * bytes) && array_is_bounded(dx, x_count * bytes));
    void *all[] = {x, dy, y, dx, xs, dys, expected_y, expected_dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
}

Test(products, pooling_and_its_gradients) {
    for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++)
        for (int kind = 0; kind < 3; kind++) {
            check_pool(TUTTI_FLOAT64, &pool_cases[i], kind, false);
            check_pool(TUTTI_FLOAT32, &pool_cases[i], kind, false);
            check_pool(TUTTI_FLOAT32, &pool_cases[i], kind, kind == 0);
        }
}
