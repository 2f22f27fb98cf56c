/*
 * Batch normalisation, softmax and its loss, embedding: against definitions in double, and divided over ranks against
 * the whole.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/operators.h"
#include "tests/kernels/arrays.h"

static const tutti_type reals[] = {TUTTI_FLOAT32, TUTTI_FLOAT64};

static double tolerance(tutti_type type) {
    return type == TUTTI_FLOAT32 ? 4e-6 : 1e-12;
}

/* ------------------------------------------------------------------------------------ batch normalisation */

#define EPSILON 1e-5

static const struct {
    size_t rows, channels;
} norm_cases[] = {{1, 1}, {7, 3},    {513, 3}, {100, 64}, {33, 600}, {5, 513},
                  {2, 1}, {1000, 1}, {0, 4},   {4, 0},    {170, 63}};

typedef struct norm {
    tutti_kernel_batch_norm_args args;
    double *sums, *mean, *variance, *inverse;
    double *y;
    const double *dy;
} norm;

/* y, and the weighted sum of y, from x alone, statistics included. */
static double norm_forward(void *context) {
    norm *n = context;
    const size_t rows = n->args.rows, channels = n->args.channels;
    double sum = 0;
    tutti_kernel_batch_norm_statistics(n->args.type, rows, channels, n->args.x, n->sums);
    tutti_kernel_batch_norm_moments(channels, (double)rows, EPSILON, n->sums, n->mean, n->variance, n->inverse);
    tutti_kernel_batch_norm_normalise(&n->args, n->y);
    for (size_t i = 0; i < rows * channels; i++) sum += n->y[i] * n->dy[i];
    return sum;
}

static void check_norm(tutti_type type, size_t rows, size_t channels, bool affine) {
    const size_t count = rows * channels, bytes = tutti_type_bytes(type);
    void *x = array_random(type, 1, count), *dy = array_random(type, 2, count),
         *gamma = array_random(type, 3, channels);
    void *beta = array_random(type, 4, channels), *y = array_new(count * bytes), *dx = array_new(count * bytes);
    double *xs = array_doubles(type, x, count), *dys = array_doubles(type, dy, count),
           *gammas = array_doubles(type, gamma, channels);
    double *betas = array_doubles(type, beta, channels), *expected = array_new(count * 8),
           *expected_dx = array_new(count * 8);
    double *sums = array_new(channels * 16), *back = array_new(channels * 16),
           *expected_back = array_new(channels * 16);
    double *mean = array_new(channels * 8), *variance = array_new(channels * 8), *inverse = array_new(channels * 8);
    tutti_kernel_batch_norm_statistics(type, rows, channels, x, sums);
    tutti_kernel_batch_norm_moments(channels, (double)rows, EPSILON, sums, mean, variance, inverse);
    const tutti_kernel_batch_norm_args args = {
        type, rows, channels, x, mean, inverse, affine ? gamma : NULL, affine ? beta : NULL, false};
    for (size_t c = 0; c < channels; c++) {
        double m = 0, v = 0, db = 0, dg = 0;
        for (size_t r = 0; r < rows; r++) m += xs[r * channels + c] / (double)rows;
        for (size_t r = 0; r < rows; r++) v += (xs[r * channels + c] - m) * (xs[r * channels + c] - m) / (double)rows;
        if (rows > 0)
            cr_assert(fabs(mean[c] - m) < 1e-12 && fabs(variance[c] - v) < 1e-12, "%g, expected %g", variance[c], v);
        else cr_assert(isnan(mean[c]));
        const double i = 1 / sqrt(v + EPSILON), g = affine ? gammas[c] : 1;
        for (size_t r = 0; r < rows; r++) {
            const double hat = (xs[r * channels + c] - m) * i;
            expected[r * channels + c] = hat * g + (affine ? betas[c] : 0);
            db += dys[r * channels + c];
            dg += dys[r * channels + c] * hat;
        }
        expected_back[c] = db;
        expected_back[channels + c] = dg;
        for (size_t r = 0; r < rows; r++) {
            const double hat = (xs[r * channels + c] - m) * i;
            expected_dx[r * channels + c] =
                g * i * (dys[r * channels + c] - db / (double)rows - hat * dg / (double)rows);
        }
    }
    tutti_kernel_batch_norm_normalise(&args, y);
    array_check_near("normalised", type, y, expected, count, 20 * tolerance(type));
    cr_assert(array_is_bounded(y, count * bytes));
    tutti_kernel_batch_norm_backward_sums(&args, dy, back);
    if (rows > 0) array_check_near("sums", TUTTI_FLOAT64, back, expected_back, 2 * channels, 1e-10);
    cr_assert(array_is_bounded(back, channels * 16));
    /* dx may replace dy in place. */
    tutti_kernel_batch_norm_backward(&args, dy, back, (double)rows, dx);
    tutti_kernel_batch_norm_backward(&args, dy, back, (double)rows, dy);
    if (count > 0) cr_assert(memcmp(dx, dy, count * bytes) == 0);
    /* With one row rounding errors get the factor 1 / sqrt(epsilon). */
    array_check_near("dx", type, dx, expected_dx, count, (rows < 3 ? 1000 : 30) * tolerance(type));
    for (size_t i = 0; i < count; i++)
        expected_dx[i] = dys[i] * (affine ? gammas[i % channels] : 1) * inverse[i % channels];
    void *again = array_random(type, 2, count);
    tutti_kernel_batch_norm_backward(&args, again, NULL, 0, dx);
    array_check_near("dx of constants", type, dx, expected_dx, count, 20 * tolerance(type));
    cr_assert(array_is_bounded(dx, count * bytes));
    void *all[] = {x,    dy,   gamma, beta,          y,    dx,       xs,     dys, gammas, betas, expected, expected_dx,
                   sums, back, again, expected_back, mean, variance, inverse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
}

Test(normalise, batch_norm_is_its_definition) {
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++)
        for (int t = 0; t < 4; t++) check_norm(reals[t & 1], norm_cases[i].rows, norm_cases[i].channels, t >> 1);
}

Test(normalise, gradient_of_batch_norm_matches_finite_differences) {
    enum { ROWS = 6, CHANNELS = 5, COUNT = ROWS * CHANNELS };
    double *x = array_random(TUTTI_FLOAT64, 1, COUNT), *dy = array_random(TUTTI_FLOAT64, 2, COUNT);
    double *gamma = array_random(TUTTI_FLOAT64, 3, CHANNELS), *beta = array_random(TUTTI_FLOAT64, 4, CHANNELS);
    double sums[2 * CHANNELS], mean[CHANNELS], variance[CHANNELS], inverse[CHANNELS], y[COUNT], dx[COUNT],
        back[2 * CHANNELS];
    norm n = {
        {TUTTI_FLOAT64, ROWS, CHANNELS, x, mean, inverse, gamma, beta, false}, sums, mean, variance, inverse, y, dy};
    norm_forward(&n);
    tutti_kernel_batch_norm_backward_sums(&n.args, dy, back);
    tutti_kernel_batch_norm_backward(&n.args, dy, back, ROWS, dx);
    array_check_gradient("x", norm_forward, &n, COUNT, x, dx);
    array_check_gradient("beta", norm_forward, &n, CHANNELS, beta, back);
    array_check_gradient("gamma", norm_forward, &n, CHANNELS, gamma, back + CHANNELS);
    void *all[] = {x, dy, gamma, beta};
    for (size_t i = 0; i < 4; i++) array_free(all[i]);
}

/* -------------------------------------------------------------------------------------------- softmax */

static const struct {
    size_t rows, classes;
} softmax_cases[] = {{1, 1},    {7, 10},   {300, 3},  {5, 31}, {5, 32}, {3, 67},
                     {2, 1024}, {3, 1025}, {2, 3100}, {0, 5},  {5, 0},  {1100, 1}};

static void check_softmax(tutti_type type, size_t rows, size_t classes, double spread) {
    const size_t count = rows * classes, bytes = tutti_type_bytes(type);
    void *x = array_random(type, 1, count), *dy = array_random(type, 2, count), *y = array_new(count * bytes);
    void *dx = array_new(count * bytes);
    tutti_kernel_scale(type, spread, count, x, x);
    double *xs = array_doubles(type, x, count), *dys = array_doubles(type, dy, count), *expected = array_new(count * 8);
    for (size_t r = 0; r < rows; r++) {
        double max = -INFINITY, sum = 0;
        for (size_t c = 0; c < classes; c++) max = fmax(max, xs[r * classes + c]);
        for (size_t c = 0; c < classes; c++) sum += exp(xs[r * classes + c] - max);
        for (size_t c = 0; c < classes; c++) expected[r * classes + c] = exp(xs[r * classes + c] - max) / sum;
    }
    tutti_kernel_softmax(type, rows, classes, x, y);
    array_check_near("softmax", type, y, expected, count, tolerance(type) / 8);
    cr_assert(array_is_bounded(y, count * bytes));
    tutti_kernel_softmax(type, rows, classes, x, x);
    if (count > 0) cr_assert(memcmp(x, y, count * bytes) == 0);
    for (size_t r = 0; r < rows; r++) {
        double along = 0;
        for (size_t c = 0; c < classes; c++) along += expected[r * classes + c] * dys[r * classes + c];
        for (size_t c = 0; c < classes; c++) expected[r * classes + c] *= dys[r * classes + c] - along;
    }
    tutti_kernel_softmax_backward(type, rows, classes, y, dy, dx);
    array_check_near("its gradient", type, dx, expected, count, tolerance(type));
    tutti_kernel_softmax_backward(type, rows, classes, y, dy, dy);
    if (count > 0) cr_assert(memcmp(dx, dy, count * bytes) == 0);
    cr_assert(array_is_bounded(dx, count * bytes));
    void *all[] = {x, dy, y, dx, xs, dys, expected};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
}

Test(normalise, softmax_and_its_gradient) {
    for (size_t i = 0; i < sizeof softmax_cases / sizeof *softmax_cases; i++)
        for (int t = 0; t < 2; t++) {
            check_softmax(reals[t], softmax_cases[i].rows, softmax_cases[i].classes, 3);
            check_softmax(reals[t], softmax_cases[i].rows, softmax_cases[i].classes, 1e4);
        }
}

Test(normalise, softmax_of_infinities_and_nan) {
    for (size_t classes = 4; classes < 200; classes += 90) {
        float x[200], y[200];
        for (size_t c = 0; c < classes; c++) x[c] = -INFINITY;
        x[2] = 5;
        tutti_kernel_softmax(TUTTI_FLOAT32, 1, classes, x, y);
        for (size_t c = 0; c < classes; c++) cr_assert(y[c] == (c == 2 ? 1 : 0), "[%zu] %g", c, (double)y[c]);
        x[3] = NAN;
        tutti_kernel_softmax(TUTTI_FLOAT32, 1, classes, x, y);
        for (size_t c = 0; c < classes; c++) cr_assert(isnan(y[c]));
    }
}

/* -------------------------------------------------------------------------------------- cross-entropy */

/* The loss and its gradient with classes divided over `parts` ranks, some of which have none. */
static void loss_in_parts(tutti_type type, size_t rows, size_t classes, const double *xs,
                          const tutti_kernel_labels *labels, const void *dlosses, int parts, double *losses_out,
                          double *dx_out) {
    double *max = array_new(rows * 8), *sums = array_new(rows * 8), *logits = array_new(rows * 8);
    void *part_max = array_new(rows * 8), *part_sums = array_new(rows * 8), *part_logits = array_new(rows * 8);
    for (int pass = 0; pass < 3; pass++) /* maxima, sums, gradients */
        for (int p = 0; p < parts; p++) {
            const size_t first = classes * (size_t)(p * p) / (size_t)(parts * parts);
            const size_t end = classes * (size_t)((p + 1) * (p + 1)) / (size_t)(parts * parts), width = end - first;
            double *columns = array_new(rows * width * 8);
            void *x = array_new(rows * width * 8), *dx = array_new(rows * width * 8);
            const int64_t shape[] = {(int64_t)rows, (int64_t)width};
            const tutti_kernel_labels mine = {labels->type, labels->values, labels->classes, (int64_t)first};
            for (size_t r = 0; r < rows; r++) memcpy(columns + r * width, xs + r * classes + first, width * 8);
            tutti_kernel_cast(TUTTI_FLOAT64, type, rows * width, columns, x);
            double *values = NULL;
            if (pass == 0) {
                tutti_kernel_reduce(TUTTI_MAX, &(tutti_kernel_reduce_args){type, 2, shape, 2, x, part_max});
                values = array_doubles(type, part_max, rows);
                for (size_t r = 0; r < rows; r++) max[r] = p == 0 || values[r] > max[r] ? values[r] : max[r];
            } else {
                tutti_kernel_cast(TUTTI_FLOAT64, type, rows, max, part_max);
            }
            if (pass == 1) {
                tutti_kernel_exp_sums(type, rows, width, x, part_max, part_sums);
                tutti_kernel_label_logits(type, rows, width, x, &mine, part_logits);
                values = array_doubles(type, part_sums, rows);
                double *picked = array_doubles(type, part_logits, rows);
                for (size_t r = 0; r < rows; r++) sums[r] = (p == 0 ? 0 : sums[r]) + values[r];
                for (size_t r = 0; r < rows; r++) logits[r] = (p == 0 ? 0 : logits[r]) + picked[r];
                array_free(picked);
            }
            if (pass == 2) {
                tutti_kernel_cast(TUTTI_FLOAT64, type, rows, sums, part_sums);
                tutti_kernel_cross_entropy_backward(type, rows, width, x, &mine, part_max, part_sums, dlosses, dx);
                values = array_doubles(type, dx, rows * width);
                for (size_t r = 0; r < rows; r++) memcpy(dx_out + r * classes + first, values + r * width, width * 8);
            }
            void *all[] = {columns, x, dx, values};
            for (size_t i = 0; i < 4; i++) array_free(all[i]);
        }
    tutti_kernel_cast(TUTTI_FLOAT64, type, rows, max, part_max);
    tutti_kernel_cast(TUTTI_FLOAT64, type, rows, sums, part_sums);
    tutti_kernel_cast(TUTTI_FLOAT64, type, rows, logits, part_logits);
    void *losses = array_new(rows * 8);
    tutti_kernel_cross_entropy_losses(type, rows, part_max, part_sums, part_logits, labels, losses);
    double *values = array_doubles(type, losses, rows);
    memcpy(losses_out, values, rows * 8);
    void *all[] = {max, sums, logits, part_max, part_sums, part_logits, losses, values};
    for (size_t i = 0; i < 8; i++) array_free(all[i]);
}

static void check_loss(tutti_type type, bool wide_labels, size_t rows, size_t classes) {
    const size_t count = rows * classes, bytes = tutti_type_bytes(type);
    void *x = array_random(type, 1, count), *dlosses = array_random(type, 2, rows);
    tutti_kernel_scale(type, 20, count, x, x);
    double *xs = array_doubles(type, x, count), *dls = array_doubles(type, dlosses, rows),
           *expected = array_new(rows * 8);
    double *expected_dx = array_new(count * 8), *losses_of_parts = array_new(rows * 8),
           *dx_of_parts = array_new(count * 8);
    int32_t *short_labels = array_new(rows * 4);
    int64_t *long_labels = array_new(rows * 8);
    for (size_t r = 0; r < rows; r++) {
        int64_t label = (int64_t)(r * 7919 % (classes + 1)); /* `classes` is one too many */
        if (r % 5 == 4) label = r % 2 ? -1 : INT32_MIN;
        short_labels[r] = (int32_t)label;
        long_labels[r] = label;
        double max = -INFINITY, sum = 0;
        for (size_t c = 0; c < classes; c++) max = fmax(max, xs[r * classes + c]);
        for (size_t c = 0; c < classes; c++) sum += exp(xs[r * classes + c] - max);
        const bool fits = label >= 0 && label < (int64_t)classes;
        expected[r] = fits ? log(sum) + max - xs[r * classes + (size_t)label] : NAN;
        for (size_t c = 0; c < classes; c++)
            expected_dx[r * classes + c] =
                fits ? dls[r] * (exp(xs[r * classes + c] - max) / sum - ((int64_t)c == label)) : NAN;
    }
    const tutti_kernel_labels labels = {wide_labels ? TUTTI_INT64 : TUTTI_INT32,
                                        wide_labels ? (void *)long_labels : short_labels, (int64_t)classes, 0};
    void *max = array_new(rows * bytes), *sums = array_new(rows * bytes), *losses = array_new(rows * bytes),
         *dx = array_new(count * bytes);
    tutti_kernel_cross_entropy(type, rows, classes, x, &labels, max, sums, losses);
    array_check_near("loss", type, losses, expected, rows, tolerance(type));
    cr_assert(array_is_bounded(losses, rows * bytes) && array_is_bounded(max, rows * bytes) &&
              array_is_bounded(sums, rows * bytes));
    tutti_kernel_cross_entropy_backward(type, rows, classes, x, &labels, max, sums, dlosses, dx);
    array_check_near("its gradient", type, dx, expected_dx, count, tolerance(type));
    cr_assert(array_is_bounded(dx, count * bytes));
    for (int parts = 1; parts <= 4 && classes > 0; parts++) {
        loss_in_parts(type, rows, classes, xs, &labels, dlosses, parts, losses_of_parts, dx_of_parts);
        array_check_near("loss of parts", TUTTI_FLOAT64, losses_of_parts, expected, rows, tolerance(type));
        array_check_near("its gradient", TUTTI_FLOAT64, dx_of_parts, expected_dx, count, tolerance(type));
    }
    tutti_kernel_cross_entropy_backward(type, rows, classes, x, &labels, max, sums, dlosses, x);
    if (count > 0) cr_assert(memcmp(x, dx, count * bytes) == 0);
    void *all[] = {x,           dlosses, xs,   dls,    expected, expected_dx,  losses_of_parts,
                   dx_of_parts, max,     sums, losses, dx,       short_labels, long_labels};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) array_free(all[i]);
}

Test(normalise, cross_entropy_whole_and_in_parts) {
    for (size_t i = 0; i < sizeof softmax_cases / sizeof *softmax_cases; i++)
        for (int t = 0; t < 4; t++)
            if (softmax_cases[i].classes > 0)
                check_loss(reals[t & 1], t >> 1, softmax_cases[i].rows, softmax_cases[i].classes);
}

/* ---------------------------------------------------------------------------------------- embedding */

Test(normalise, embedding_in_parts_adds_up_to_the_whole) {
    enum { TOKENS = 40, ROWS = 13, WIDTH = 7 };
    for (int t = 0; t < 2; t++)
        for (int wide = 0; wide < 2; wide++) {
            const tutti_type type = reals[t];
            const size_t bytes = tutti_type_bytes(type);
            int32_t short_indices[TOKENS];
            int64_t long_indices[TOKENS];
            for (int i = 0; i < TOKENS; i++) short_indices[i] = (int32_t)(long_indices[i] = i * 5 % (ROWS + 2) - 1);
            unsigned char *table = array_random(type, 1, ROWS * WIDTH), *y = array_new(TOKENS * WIDTH * bytes);
            void *dy = array_random(type, 2, TOKENS * WIDTH), *dtable = array_new(ROWS * WIDTH * bytes);
            double *tables = array_doubles(type, table, ROWS * WIDTH), *dys = array_doubles(type, dy, TOKENS * WIDTH);
            for (int64_t first = 0; first < ROWS; first += 5)
                for (int64_t rows = 0; rows <= ROWS - first; rows += 4) {
                    double expected[TOKENS * WIDTH] = {0}, expected_table[ROWS * WIDTH] = {0};
                    for (int i = 0; i < TOKENS; i++)
                        for (int c = 0; c < WIDTH; c++) {
                            const int64_t row = long_indices[i] - first;
                            if (row < 0 || row >= rows) continue;
                            expected[i * WIDTH + c] = tables[long_indices[i] * WIDTH + c];
                            expected_table[row * WIDTH + c] += dys[i * WIDTH + c];
                        }
                    const tutti_kernel_embedding_args args = {
                        type, wide ? TUTTI_INT64 : TUTTI_INT32,           TOKENS, WIDTH, first,
                        rows, wide ? (void *)long_indices : short_indices};
                    tutti_kernel_embedding(&args, table + (size_t)first * WIDTH * bytes, y);
                    array_check_near("rows", type, y, expected, TOKENS * WIDTH, 0);
                    tutti_kernel_embedding_backward(&args, dy, dtable);
                    array_check_near("gradient of the table", type, dtable, expected_table, (size_t)rows * WIDTH,
                                     tolerance(type));
                }
            cr_assert(array_is_bounded(y, TOKENS * WIDTH * bytes) && array_is_bounded(dtable, ROWS * WIDTH * bytes));
            void *all[] = {table, y, dy, dtable, tables, dys};
            for (size_t i = 0; i < 6; i++) array_free(all[i]);
        }
}
