/*
 * Sums, minima and maxima over a set of dimensions.
 *
 * Dimensions are merged until kept and reduced ones alternate. One loop does all the work: it folds dense rows into
 * accumulators [columns].
 *   last dimension kept:            the rows are those of the array, in blocks of columns
 *   last dimension reduced, long:   a row of the array is folded into LANES accumulators, and these into one
 *   last dimension reduced, short:  many rows of the array, transposed
 * Sums of floats accumulate in float64; everything else in the type in which it is computed.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/float_bits.h"
#include "kernels/host/operators/op_parts.h"
#include "kernels/real.h"

#define LANES 64
#define SHORT 32 /* rows with at most this many elements do not use lanes */

/* Folds x[row * stride + column] into accumulators[column], for each row. */
typedef void (*fold_columns)(size_t rows, size_t columns, size_t stride, const void *x, void *accumulators);
#define FOLDS(word, suffix, element, total, expression)                                                                \
    TUTTI_VECTOR_CLONES static void word##_columns_##suffix(size_t rows, size_t columns, size_t stride, const void *x, \
                                                            void *accumulators) {                                      \
        total *restrict totals = accumulators;                                                                         \
        const element *restrict xs = x;                                                                                \
        for (size_t row = 0; row < rows; row++, xs += stride)                                                          \
            for (size_t column = 0; column < columns; column++) {                                                      \
                const total t = totals[column];                                                                        \
                const element p = xs[column];                                                                          \
                totals[column] = (total)(expression);                                                                  \
            }                                                                                                          \
    }
#define INTEGER_FOLDS(suffix, element, type)                                                                           \
    FOLDS(min, suffix, element, element, t < p ? t : p)                                                                \
    FOLDS(max, suffix, element, element, t > p ? t : p)
#define REAL_FOLDS(suffix, element, type)                                                                              \
    FOLDS(sum, suffix, element, double, t + (double)p)                                                                 \
    FOLDS(min, suffix, element, element, extreme_##suffix(1, t, p))                                                    \
    FOLDS(max, suffix, element, element, extreme_##suffix(0, t, p))
OP_INTEGER_TYPES(INTEGER_FOLDS)
OP_REAL_TYPES(REAL_FOLDS)
/* Signed sums have the bits of the unsigned ones. */
FOLDS(sum, u8, uint8_t, uint8_t, 1u * t + p)
FOLDS(sum, u16, uint16_t, uint16_t, 1u * t + p)
FOLDS(sum, u32, uint32_t, uint32_t, t + p)
FOLDS(sum, u64, uint64_t, uint64_t, t + p)
FOLDS(or, b8, uint8_t, uint8_t, t | (p != 0))
FOLDS(and, b8, uint8_t, uint8_t, t &(p != 0))

/* clang-format off */
#define ORDER(word)                                                                                                    \
    {[TUTTI_INT8] = word##_columns_i8, [TUTTI_UINT8] = word##_columns_u8, [TUTTI_INT16] = word##_columns_i16,                   \
     [TUTTI_UINT16] = word##_columns_u16, [TUTTI_INT32] = word##_columns_i32, [TUTTI_UINT32] = word##_columns_u32,              \
     [TUTTI_INT64] = word##_columns_i64, [TUTTI_UINT64] = word##_columns_u64, [TUTTI_FLOAT32] = word##_columns_f32,             \
     [TUTTI_FLOAT64] = word##_columns_f64
static const fold_columns folds[TUTTI_REDUCTION_COUNT][TUTTI_TYPE_COUNT] = {
    [TUTTI_SUM] = {[TUTTI_INT8] = sum_columns_u8, [TUTTI_UINT8] = sum_columns_u8, [TUTTI_INT16] = sum_columns_u16,
                   [TUTTI_UINT16] = sum_columns_u16, [TUTTI_INT32] = sum_columns_u32, [TUTTI_UINT32] = sum_columns_u32,
                   [TUTTI_INT64] = sum_columns_u64, [TUTTI_UINT64] = sum_columns_u64, [TUTTI_FLOAT32] = sum_columns_f32,
                   [TUTTI_FLOAT64] = sum_columns_f64, [TUTTI_BOOL] = or_columns_b8},
    [TUTTI_MIN] = ORDER(min), [TUTTI_BOOL] = and_columns_b8},
    [TUTTI_MAX] = ORDER(max), [TUTTI_BOOL] = or_columns_b8},
};
/* clang-format on */

/* --------------------------------------------------------------------------------------------- the nest */

typedef struct nest {
    tutti_reduction reduction;
    tutti_type type, total_type; /* of x and y; of the accumulators */
    size_t bytes, total_bytes;
    double identity;
    fold_columns step;       /* of elements */
    fold_columns total_step; /* of accumulators */
    int ndims;
    size_t shape[TUTTI_KERNEL_MOST_DIMS];
    size_t strides[TUTTI_KERNEL_MOST_DIMS]; /* in elements */
    bool reduced[TUTTI_KERNEL_MOST_DIMS];
} nest;

static nest make_nest(tutti_reduction reduction, const tutti_kernel_reduce_args *args) {
    const tutti_type wide = op_wide_type(args->type);
    const bool is_real = wide == TUTTI_FLOAT32 || wide == TUTTI_FLOAT64;
    nest n = {.reduction = reduction, .type = args->type, .bytes = op_bytes(args->type)};
    n.total_type = reduction == TUTTI_SUM && is_real ? TUTTI_FLOAT64 : wide;
    n.total_bytes = op_bytes(n.total_type);
    n.step = folds[reduction][wide];
    n.total_step = folds[reduction][n.total_type];
    /* A cast turns infinity into the limit of an integer type. */
    n.identity = reduction == TUTTI_SUM ? 0 : reduction == TUTTI_MIN ? INFINITY : -INFINITY;
    if (args->type == TUTTI_BOOL) n.identity = reduction == TUTTI_MIN;
    for (int d = 0; d < args->ndims; d++) {
        const bool reduced = args->dims >> d & 1;
        if (args->shape[d] == 1) continue;
        if (n.ndims > 0 && n.reduced[n.ndims - 1] == reduced) {
            n.shape[n.ndims - 1] *= (size_t)args->shape[d];
            continue;
        }
        n.shape[n.ndims] = (size_t)args->shape[d];
        n.reduced[n.ndims++] = reduced;
    }
    size_t stride = 1;
    for (int d = n.ndims - 1; d >= 0; d--) {
        n.strides[d] = stride;
        stride *= n.shape[d];
    }
    return n;
}

/* Moves index and x to the next index over the outer dimensions [0, end) of one kind; returns false after the last. */
static bool next_index(const nest *n, int end, bool reduced, size_t *index, const unsigned char **x) {
    for (int d = end - 1; d >= 0; d--) {
        if (n->reduced[d] != reduced) continue;
        *x += n->strides[d] * n->bytes;
        if (++index[d] < n->shape[d]) return true;
        *x -= n->strides[d] * n->shape[d] * n->bytes;
        index[d] = 0;
    }
    return false;
}

/* Runs n->step; small floats are widened to blocks of float32 first. */
static void take_in(const nest *n, size_t rows, size_t columns, size_t stride, const unsigned char *x, void *totals) {
    if (!op_is_small(n->type)) {
        n->step(rows, columns, stride, x, totals);
        return;
    }
    op_block block;
    const size_t step = stride == columns ? OP_BLOCK / columns : 1;
    for (size_t row = 0; row < rows; row += step) {
        const size_t now = op_least(step, rows - row);
        op_widen(n->type, now * columns, x + row * stride * n->bytes, block.floats);
        n->step(now, columns, columns, block.floats, totals);
    }
}

/* totals[columns] = the totals of `groups` groups, which lie one after the other, folded into one. */
static void join_groups(const nest *n, size_t groups, size_t columns, unsigned char *totals) {
    if (groups > 1) n->total_step(groups - 1, columns, columns, totals + columns * n->total_bytes, totals);
}

/* For a last dimension that is kept. */
static void reduce_columns(const nest *n, const unsigned char *x, unsigned char *y) {
    const int last = n->ndims - 1;
    const bool has_rows = last > 0;
    const size_t columns = n->shape[last], rows = has_rows ? n->shape[last - 1] : 1;
    const int outer = has_rows ? last - 1 : 0;
    /* Several short rows are handled as one. */
    const size_t groups = columns < LANES ? op_least(4 * LANES / columns, rows) : 1;
    size_t kept[TUTTI_KERNEL_MOST_DIMS] = {0};
    do {
        for (size_t column = 0; column < columns; column += OP_BLOCK) {
            const size_t now = op_least(OP_BLOCK, columns - column);
            const unsigned char *part = x + column * n->bytes;
            size_t index[TUTTI_KERNEL_MOST_DIMS] = {0};
            op_block totals;
            tutti_kernel_fill(n->total_type, n->identity, now * groups, totals.bytes);
            do {
                if (groups == 1) take_in(n, rows, now, columns, part, totals.bytes);
                else {
                    const size_t rest = rows % groups, wide = columns * groups;
                    take_in(n, rows / groups, wide, wide, part, totals.bytes);
                    if (rest > 0) /* into the first groups */
                        take_in(n, 1, rest * columns, rest * columns, part + (rows - rest) * columns * n->bytes,
                                totals.bytes);
                }
            } while (next_index(n, outer, true, index, &part));
            join_groups(n, groups, now, totals.bytes);
            tutti_kernel_cast(n->total_type, n->type, now, totals.bytes, y);
            y += now * n->bytes;
        }
    } while (next_index(n, outer, false, kept, &x));
}

/* For a last dimension that is reduced and long. */
static void reduce_long_rows(const nest *n, const unsigned char *x, unsigned char *y) {
    const int last = n->ndims - 1;
    const size_t columns = n->shape[last], rest = columns % LANES;
    size_t kept[TUTTI_KERNEL_MOST_DIMS] = {0};
    do {
        const unsigned char *part = x;
        size_t index[TUTTI_KERNEL_MOST_DIMS] = {0};
        op_block totals;
        tutti_kernel_fill(n->total_type, n->identity, LANES, totals.bytes);
        do {
            take_in(n, columns / LANES, LANES, LANES, part, totals.bytes);
            if (rest > 0) take_in(n, 1, rest, rest, part + (columns - rest) * n->bytes, totals.bytes);
        } while (next_index(n, last, true, index, &part));
        for (size_t lanes = LANES; lanes > 1; lanes /= 2) join_groups(n, 2, lanes / 2, totals.bytes);
        tutti_kernel_cast(n->total_type, n->type, 1, totals.bytes, y);
        y += n->bytes;
    } while (next_index(n, last, false, kept, &x));
}

#define TRANSPOSE(element)                                                                                             \
    {                                                                                                                  \
        const element *xs = x;                                                                                         \
        element *ys = y;                                                                                               \
        for (size_t column = 0; column < columns; column++)                                                            \
            for (size_t row = 0; row < rows; row++) *ys++ = xs[row * columns + column];                                \
    }

/* y[column, row] = x[row, column] */
static void transpose(size_t element_bytes, size_t rows, size_t columns, const void *x, void *y) {
    switch (element_bytes) {
    case 1: TRANSPOSE(uint8_t) break;
    case 2: TRANSPOSE(uint16_t) break;
    case 4: TRANSPOSE(uint32_t) break;
    default: TRANSPOSE(uint64_t)
    }
}

/* For a last dimension that is reduced and short; the dimension before it is kept, or there is none. */
static void reduce_short_rows(const nest *n, const unsigned char *x, unsigned char *y) {
    const int last = n->ndims - 1, outer = last > 0 ? last - 1 : 0;
    const size_t columns = n->shape[last], rows = last > 0 ? n->shape[last - 1] : 1;
    const size_t step = OP_BLOCK / columns;
    size_t kept[TUTTI_KERNEL_MOST_DIMS] = {0};
    do {
        for (size_t row = 0; row < rows; row += step) {
            const size_t now = op_least(step, rows - row);
            const unsigned char *part = x + row * columns * n->bytes;
            size_t index[TUTTI_KERNEL_MOST_DIMS] = {0};
            op_block totals, turned;
            tutti_kernel_fill(n->total_type, n->identity, now, totals.bytes);
            do {
                transpose(n->bytes, now, columns, part, turned.bytes);
                take_in(n, columns, now, now, turned.bytes, totals.bytes);
            } while (next_index(n, outer, true, index, &part));
            tutti_kernel_cast(n->total_type, n->type, now, totals.bytes, y);
            y += now * n->bytes;
        }
    } while (next_index(n, outer, false, kept, &x));
}

void tutti_kernel_reduce(tutti_reduction reduction, const tutti_kernel_reduce_args *args) {
    const nest n = make_nest(reduction, args);
    size_t results = 1, each = 1;
    bool any_reduced = false;
    for (int d = 0; d < n.ndims; d++) {
        if (n.reduced[d]) each *= n.shape[d];
        else results *= n.shape[d];
        any_reduced |= n.reduced[d];
    }
    if (results == 0) return;
    if (each == 0) tutti_kernel_fill(args->type, n.identity, results, args->y);
    else if (!any_reduced) tutti_kernel_cast(args->type, args->type, results, args->x, args->y);
    else if (!n.reduced[n.ndims - 1]) reduce_columns(&n, args->x, args->y);
    else if (n.shape[n.ndims - 1] > SHORT) reduce_long_rows(&n, args->x, args->y);
    else reduce_short_rows(&n, args->x, args->y);
}
