/*
 * Batch normalisation of x[rows, channels], by parts of the channels whose sums and factors stay in the first-level
 * cache. If there are few channels, several rows are handled as one, so that inner loops are long.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/float_bits.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/real.h"

#define PART 512 /* channels */
#define FEW  64  /* channels */
#define WIDE 128 /* elements of rows that are handled as one; with 512, sums of 3 channels took twice as long */

/* Rows of `columns` elements from element `at` on, at a distance of `stride`. */
typedef struct piece {
    size_t count, columns, stride, at;
} piece;

/* Channels [first, first + channels), `groups` rows as one; the second piece has the remaining rows. */
typedef struct part {
    size_t rows, first, channels, groups;
    piece pieces[2];
} part;

static part make_part(size_t rows, size_t first, size_t channels) {
    part p = {.rows = rows, .first = first, .channels = op_least(PART, channels - first), .groups = 1};
    if (p.channels == 0 || rows == 0) return p;
    if (channels < FEW && rows > 1) p.groups = op_least(WIDE / channels, rows);
    const size_t left = rows % p.groups;
    p.pieces[0] = (piece){rows / p.groups, p.groups * p.channels, p.groups * channels, first};
    p.pieces[1] = (piece){left > 0, left * p.channels, 0, (rows - left) * channels + first};
    return p;
}

static part first_part(size_t rows, size_t channels) {
    return make_part(rows, 0, channels);
}

/* Returns a part without channels if there is none. */
static part next_part(part p, size_t channels) {
    return make_part(p.rows, p.first + p.channels, channels);
}

/* sums[channels] = totals of all groups. */
static void join_groups(part p, const double *totals, double *sums) {
    memcpy(sums, totals, p.channels * sizeof *sums);
    for (size_t group = 1; group < p.groups; group++)
        for (size_t c = 0; c < p.channels; c++) sums[c] += totals[group * p.channels + c];
}

#define OP_TEMPLATE "kernels/host/operators/op_batch_norm_real.h"
#include "kernels/host/operators/op_both_reals.h"

void tutti_kernel_batch_norm_statistics(tutti_type type, size_t rows, size_t channels, const void *x, double *sums) {
    if (type == TUTTI_FLOAT32) statistics_f32(rows, channels, x, sums);
    else statistics_f64(rows, channels, x, sums);
}

void tutti_kernel_batch_norm_moments(size_t channels, double count, double epsilon, const double *sums, double *mean,
                                     double *variance, double *inverse_deviation) {
    for (size_t c = 0; c < channels; c++) {
        mean[c] = sums[c] / count;
        const double difference = sums[channels + c] / count - mean[c] * mean[c];
        const double spread = difference < 0 ? 0 : difference;
        if (variance != NULL) variance[c] = spread;
        inverse_deviation[c] = 1 / sqrt(spread + epsilon);
    }
}

void tutti_kernel_batch_norm_normalise(const tutti_kernel_batch_norm_args *args, void *y) {
    if (args->type == TUTTI_FLOAT32) normalise_all_f32(args, y);
    else normalise_all_f64(args, y);
}

void tutti_kernel_batch_norm_backward_sums(const tutti_kernel_batch_norm_args *args, const void *dy, double *sums) {
    if (args->type == TUTTI_FLOAT32) backward_sums_f32(args, dy, sums);
    else backward_sums_f64(args, dy, sums);
}

void tutti_kernel_batch_norm_backward(const tutti_kernel_batch_norm_args *args, const void *dy, const double *sums,
                                      double count, void *dx) {
    if (args->type == TUTTI_FLOAT32) differentiate_all_f32(args, dy, sums, count, dx);
    else differentiate_all_f64(args, dy, sums, count, dx);
}
