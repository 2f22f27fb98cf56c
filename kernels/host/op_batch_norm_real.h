/* Batch normalisation of one real type; a template (op_both_reals.h). Each loop does the rows of a piece. */

TUTTI_VECTOR_CLONES
static void OF(add_moments)(piece rows, const REAL *restrict x, double *restrict sums, double *restrict squares) {
    x += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride)
        for (size_t c = 0; c < rows.columns; c++) {
            const double value = (double)x[c];
            sums[c] += value;
            squares[c] += value * value;
        }
}

TUTTI_VECTOR_CLONES
static void OF(add_products)(piece rows, const REAL *restrict x, const REAL *restrict dy, const double *restrict mean,
                             double *restrict sums, double *restrict products) {
    x += rows.at;
    dy += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride, dy += rows.stride)
        for (size_t c = 0; c < rows.columns; c++) {
            const double value = (double)dy[c];
            sums[c] += value;
            products[c] += value * ((double)x[c] - mean[c]);
        }
}

/* What is the same for all rows. */
typedef struct OF(factors) {
    REAL mean[PART], scale[PART], shift[PART], slope[PART];
} OF(factors);

TUTTI_VECTOR_CLONES
static void OF(normalise)(piece rows, const OF(factors) * f, const REAL *x, REAL *y) {
    x += rows.at;
    y += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride, y += rows.stride) {
        REDUCE_SAME_INDEX_ONLY
        for (size_t c = 0; c < rows.columns; c++) y[c] = (x[c] - f->mean[c]) * f->scale[c] + f->shift[c];
    }
}

TUTTI_VECTOR_CLONES
static void OF(differentiate)(piece rows, const OF(factors) * f, const REAL *x, const REAL *dy, REAL *dx) {
    x += rows.at;
    dy += rows.at;
    dx += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride, dy += rows.stride, dx += rows.stride) {
        REDUCE_SAME_INDEX_ONLY
        for (size_t c = 0; c < rows.columns; c++)
            dx[c] = (dy[c] - f->shift[c] - (x[c] - f->mean[c]) * f->slope[c]) * f->scale[c];
    }
}

static void OF(statistics)(size_t rows, size_t channels, const REAL *x, double *sums) {
    for (part p = first_part(rows, channels); p.channels > 0; p = next_part(p, channels)) {
        double totals[2][PART] = {{0}};
        for (int i = 0; i < 2; i++) OF(add_moments)(p.pieces[i], x, totals[0], totals[1]);
        join_groups(p, totals[0], sums + p.first);
        join_groups(p, totals[1], sums + channels + p.first);
    }
}

static void OF(backward_sums)(const tutti_kernel_batch_norm_args *args, const REAL *dy, double *sums) {
    const size_t channels = args->channels;
    for (part p = first_part(args->rows, channels); p.channels > 0; p = next_part(p, channels)) {
        double totals[2][PART] = {{0}}, mean[PART];
        for (size_t i = 0; i < p.groups * p.channels; i++) mean[i] = args->mean[p.first + i % p.channels];
        for (int i = 0; i < 2; i++) OF(add_products)(p.pieces[i], args->x, dy, mean, totals[0], totals[1]);
        join_groups(p, totals[0], sums + p.first);
        join_groups(p, totals[1], sums + channels + p.first);
        for (size_t c = p.first; c < p.first + p.channels; c++) sums[channels + c] *= args->inverse_deviation[c];
    }
}

static inline double OF(gamma)(const tutti_kernel_batch_norm_args *args, size_t channel) {
    return args->gamma != NULL ? (double)((const REAL *)args->gamma)[channel] : 1;
}

static void OF(normalise_all)(const tutti_kernel_batch_norm_args *args, REAL *y) {
    const REAL *beta = args->beta;
    for (part p = first_part(args->rows, args->channels); p.channels > 0; p = next_part(p, args->channels)) {
        OF(factors) f;
        for (size_t i = 0; i < p.groups * p.channels; i++) {
            const size_t c = p.first + i % p.channels;
            f.mean[i] = (REAL)args->mean[c];
            f.scale[i] = (REAL)(args->inverse_deviation[c] * OF(gamma)(args, c));
            f.shift[i] = beta != NULL ? beta[c] : 0;
        }
        for (int i = 0; i < 2; i++) OF(normalise)(p.pieces[i], &f, args->x, y);
    }
}

static void OF(differentiate_all)(const tutti_kernel_batch_norm_args *args, const REAL *dy, const double *sums,
                                  double count, REAL *dx) {
    const size_t channels = args->channels;
    for (part p = first_part(args->rows, channels); p.channels > 0; p = next_part(p, channels)) {
        OF(factors) f;
        for (size_t i = 0; i < p.groups * p.channels; i++) {
            const size_t c = p.first + i % p.channels;
            f.mean[i] = (REAL)args->mean[c];
            f.scale[i] = (REAL)(args->inverse_deviation[c] * OF(gamma)(args, c));
            f.shift[i] = sums != NULL ? (REAL)(sums[c] / count) : 0;
            f.slope[i] = sums != NULL ? (REAL)(args->inverse_deviation[c] * sums[channels + c] / count) : 0;
        }
        for (int i = 0; i < 2; i++) OF(differentiate)(p.pieces[i], &f, args->x, dy, dx);
    }
}
