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

/* The factors that are the same for all rows. */
typedef struct OF(factors) {
    REAL mean[PART], scale[PART], beta[PART];
    REAL shift[PART], slope[PART]; /* backward */
} OF(factors);

/* dy, or 0 where ReLU gave 0. That is computed by the same arithmetic as in forward, so y need not be read. A NaN
 * is kept. */
static inline REAL OF(masked)(const OF(factors) * f, size_t c, REAL x, REAL dy) {
    return (x - f->mean[c]) * f->scale[c] + f->beta[c] <= 0 ? 0 : dy;
}

TUTTI_VECTOR_CLONES
static void OF(add_products)(piece rows, const OF(factors) * f, bool relu, const REAL *restrict x,
                             const REAL *restrict dy, const double *restrict mean, double *restrict sums,
                             double *restrict products) {
    x += rows.at;
    dy += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride, dy += rows.stride) {
        if (relu)
            for (size_t c = 0; c < rows.columns; c++) {
                const double value = (double)OF(masked)(f, c, x[c], dy[c]);
                sums[c] += value;
                products[c] += value * ((double)x[c] - mean[c]);
            }
        else
            for (size_t c = 0; c < rows.columns; c++) {
                const double value = (double)dy[c];
                sums[c] += value;
                products[c] += value * ((double)x[c] - mean[c]);
            }
    }
}

TUTTI_VECTOR_CLONES
static void OF(normalise)(piece rows, const OF(factors) * f, bool relu, const REAL *x, REAL *y) {
    x += rows.at;
    y += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride, y += rows.stride) {
        if (relu) {
            REDUCE_SAME_INDEX_ONLY
            for (size_t c = 0; c < rows.columns; c++) {
                const REAL value = (x[c] - f->mean[c]) * f->scale[c] + f->beta[c];
                y[c] = value < 0 ? 0 : value;
            }
        } else {
            REDUCE_SAME_INDEX_ONLY
            for (size_t c = 0; c < rows.columns; c++) y[c] = (x[c] - f->mean[c]) * f->scale[c] + f->beta[c];
        }
    }
}

TUTTI_VECTOR_CLONES
static void OF(differentiate)(piece rows, const OF(factors) * f, bool relu, const REAL *x, const REAL *dy, REAL *dx) {
    x += rows.at;
    dy += rows.at;
    dx += rows.at;
    for (size_t row = 0; row < rows.count; row++, x += rows.stride, dy += rows.stride, dx += rows.stride) {
        if (relu) {
            REDUCE_SAME_INDEX_ONLY
            for (size_t c = 0; c < rows.columns; c++)
                dx[c] = (OF(masked)(f, c, x[c], dy[c]) - f->shift[c] - (x[c] - f->mean[c]) * f->slope[c]) * f->scale[c];
        } else {
            REDUCE_SAME_INDEX_ONLY
            for (size_t c = 0; c < rows.columns; c++)
                dx[c] = (dy[c] - f->shift[c] - (x[c] - f->mean[c]) * f->slope[c]) * f->scale[c];
        }
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

static inline double OF(gamma)(const tutti_kernel_batch_norm_args *args, size_t channel) {
    return args->gamma != NULL ? (double)((const REAL *)args->gamma)[channel] : 1;
}

/* Fills in the factors of forward for the channels of a part. */
static void OF(fill_factors)(const tutti_kernel_batch_norm_args *args, part p, OF(factors) * f) {
    const REAL *beta = args->beta;
    for (size_t i = 0; i < p.groups * p.channels; i++) {
        const size_t c = p.first + i % p.channels;
        f->mean[i] = (REAL)args->mean[c];
        f->scale[i] = (REAL)(args->inverse_deviation[c] * OF(gamma)(args, c));
        f->beta[i] = beta != NULL ? beta[c] : 0;
    }
}

static void OF(backward_sums)(const tutti_kernel_batch_norm_args *args, const REAL *dy, double *sums) {
    const size_t channels = args->channels;
    for (part p = first_part(args->rows, channels); p.channels > 0; p = next_part(p, channels)) {
        double totals[2][PART] = {{0}}, mean[PART];
        OF(factors) f;
        OF(fill_factors)(args, p, &f);
        for (size_t i = 0; i < p.groups * p.channels; i++) mean[i] = args->mean[p.first + i % p.channels];
        for (int i = 0; i < 2; i++)
            OF(add_products)(p.pieces[i], &f, args->relu, args->x, dy, mean, totals[0], totals[1]);
        join_groups(p, totals[0], sums + p.first);
        join_groups(p, totals[1], sums + channels + p.first);
        for (size_t c = p.first; c < p.first + p.channels; c++) sums[channels + c] *= args->inverse_deviation[c];
    }
}

static void OF(normalise_all)(const tutti_kernel_batch_norm_args *args, REAL *y) {
    for (part p = first_part(args->rows, args->channels); p.channels > 0; p = next_part(p, args->channels)) {
        OF(factors) f;
        OF(fill_factors)(args, p, &f);
        for (int i = 0; i < 2; i++) OF(normalise)(p.pieces[i], &f, args->relu, args->x, y);
    }
}

static void OF(differentiate_all)(const tutti_kernel_batch_norm_args *args, const REAL *dy, const double *sums,
                                  double count, REAL *dx) {
    const size_t channels = args->channels;
    for (part p = first_part(args->rows, channels); p.channels > 0; p = next_part(p, channels)) {
        OF(factors) f;
        OF(fill_factors)(args, p, &f);
        for (size_t i = 0; i < p.groups * p.channels; i++) {
            const size_t c = p.first + i % p.channels;
            f.shift[i] = sums != NULL ? (REAL)(sums[c] / count) : 0;
            f.slope[i] = sums != NULL ? (REAL)(args->inverse_deviation[c] * sums[channels + c] / count) : 0;
        }
        for (int i = 0; i < 2; i++) OF(differentiate)(p.pieces[i], &f, args->relu, args->x, dy, dx);
    }
}
