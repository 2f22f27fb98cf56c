/* Softmax and its loss for one real type; a template (op_both_reals.h). */

TUTTI_VECTOR_CLONES
static void OF(subtract_rows)(size_t rows, size_t classes, const REAL *restrict max, const REAL *x, REAL *y) {
    for (size_t row = 0; row < rows; row++, x += classes, y += classes) {
        REDUCE_SAME_INDEX_ONLY
        for (size_t c = 0; c < classes; c++) y[c] = x[c] - max[row];
    }
}

TUTTI_VECTOR_CLONES
static void OF(scale_rows)(size_t rows, size_t classes, const REAL *restrict factors, REAL *restrict y) {
    for (size_t row = 0; row < rows; row++, y += classes)
        for (size_t c = 0; c < classes; c++) y[c] *= factors[row];
}

/* y[row, :] = exp(x[row, :] - max[row]). Short rows are exponentiated together. */
static void OF(exponentiate_rows)(size_t rows, size_t classes, const REAL *x, const REAL *max, REAL *y) {
    const tutti_kernel_loops *loops = OF(loops)();
    if (classes >= SHORT) {
        for (size_t row = 0; row < rows; row++, x += classes, y += classes)
            loops->exp_below(classes, (double)max[row], x, y);
        return;
    }
    OF(subtract_rows)(rows, classes, max, x, y);
    loops->exp_below(rows * classes, 0, y, y);
}

/* results[row] = the largest of x[row, :], or their sum; short rows are reduced together. */
static void OF(reduce_rows)(tutti_reduction reduction, size_t rows, size_t classes, const REAL *x, REAL *results) {
    const tutti_kernel_loops *loops = OF(loops)();
    if (classes < SHORT) {
        const int64_t shape[] = {(int64_t)rows, (int64_t)classes};
        tutti_kernel_reduce(reduction, &(tutti_kernel_reduce_args){REAL_TYPE, 2, shape, 2, x, results});
        return;
    }
    for (size_t row = 0; row < rows; row++, x += classes)
        results[row] = (REAL)(reduction == TUTTI_MAX ? loops->largest : loops->total)(classes, x);
}

static void OF(softmax)(size_t rows, size_t classes, const REAL *x, REAL *y) {
    const size_t step = rows_at_once(classes);
    for (size_t first = 0; first < rows; first += step, x += step * classes, y += step * classes) {
        const size_t now = op_least(step, rows - first);
        REAL results[OP_BLOCK];
        OF(reduce_rows)(TUTTI_MAX, now, classes, x, results);
        OF(exponentiate_rows)(now, classes, x, results, y);
        OF(reduce_rows)(TUTTI_SUM, now, classes, y, results);
        for (size_t row = 0; row < now; row++) results[row] = 1 / results[row];
        OF(scale_rows)(now, classes, results, y);
    }
}

TUTTI_VECTOR_CLONES
static void OF(softmax_backward_row)(size_t count, REAL along, const REAL *y, const REAL *dy, REAL *dx) {
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) dx[i] = y[i] * (dy[i] - along);
}

static void OF(softmax_backward)(size_t rows, size_t classes, const REAL *y, const REAL *dy, REAL *dx) {
    const tutti_kernel_loops *loops = OF(loops)();
    for (size_t row = 0; row < rows; row++, y += classes, dy += classes, dx += classes)
        OF(softmax_backward_row)(classes, (REAL)loops->products(classes, y, dy), y, dy, dx);
}

/* There is no memory for all exponentials, so they are computed in blocks. */
static void OF(exp_sums)(size_t rows, size_t classes, const REAL *x, const REAL *max, REAL *sums) {
    const tutti_kernel_loops *loops = OF(loops)();
    const size_t step = rows_at_once(classes);
    REAL block[OP_BLOCK];
    for (size_t first = 0; first < rows; first += step, x += step * classes) {
        const size_t now = op_least(step, rows - first);
        if (classes <= OP_BLOCK) {
            OF(exponentiate_rows)(now, classes, x, max + first, block);
            OF(reduce_rows)(TUTTI_SUM, now, classes, block, sums + first);
            continue;
        }
        double sum = 0;
        for (size_t c = 0; c < classes; c += OP_BLOCK) {
            const size_t columns = op_least(OP_BLOCK, classes - c);
            loops->exp_below(columns, (double)max[first], x + c, block);
            sum += loops->total(columns, block);
        }
        sums[first] = (REAL)sum;
    }
}

static void OF(label_logits)(size_t rows, size_t classes, const REAL *x, const tutti_kernel_labels *labels,
                             REAL *logits) {
    for (size_t row = 0; row < rows; row++, x += classes) {
        const size_t column = column_of(labels, row, classes);
        logits[row] = column < classes ? x[column] : 0;
    }
}

static void OF(losses)(size_t rows, const REAL *max, const REAL *sums, const REAL *logits,
                       const tutti_kernel_labels *labels, REAL *losses) {
    for (size_t row = 0; row < rows; row++) {
        const double loss = log((double)sums[row]) + ((double)max[row] - (double)logits[row]);
        losses[row] = is_label(labels, row) ? (REAL)loss : (REAL)NAN;
    }
}

static void OF(loss_backward)(size_t rows, size_t classes, const REAL *x, const tutti_kernel_labels *labels,
                              const REAL *max, const REAL *sums, const REAL *dlosses, REAL *dx) {
    const size_t step = rows_at_once(classes);
    for (size_t first = 0; first < rows; first += step, x += step * classes) {
        const size_t now = op_least(step, rows - first);
        REAL factors[OP_BLOCK];
        for (size_t row = 0; row < now; row++)
            factors[row] = is_label(labels, first + row) ? dlosses[first + row] / sums[first + row] : (REAL)NAN;
        if (classes >= SHORT) {
            for (size_t row = 0; row < now; row++) OF(loops)
            ()->exp_below_times(classes, (double)max[first + row], (double)factors[row], x + row * classes,
                                dx + row * classes);
        } else {
            OF(exponentiate_rows)(now, classes, x, max + first, dx);
            OF(scale_rows)(now, classes, factors, dx);
        }
        for (size_t row = 0; row < now; row++, dx += classes) {
            const size_t column = column_of(labels, first + row, classes);
            if (column < classes) dx[column] -= dlosses[first + row];
        }
    }
}
