/* Softmax and its loss for one real type; a template (op_both_reals.h). */

/* The largest; NaN wins; -infinity of nothing. */
TUTTI_VECTOR_CLONES
static REAL OF(largest)(size_t count, const REAL *x) {
    REAL lanes[LANES], best = -(REAL)INFINITY;
    size_t i = 0;
    if (count >= LANES) {
        for (size_t l = 0; l < LANES; l++) lanes[l] = best;
        for (; i + LANES <= count; i += LANES)
            for (size_t l = 0; l < LANES; l++) {
                const REAL value = x[i + l], old = lanes[l];
                lanes[l] = (value > old) | (value != value) ? value : old;
            }
        for (size_t l = 0; l < LANES; l++) best = lanes[l] > best || lanes[l] != lanes[l] ? lanes[l] : best;
    }
    for (; i < count; i++) best = x[i] > best || x[i] != x[i] ? x[i] : best;
    return best;
}

/* The sum of a[i], or of a[i] * b[i]. */
TUTTI_VECTOR_CLONES
static double OF(total)(size_t count, const REAL *a, const REAL *b) {
    double lanes[LANES], sum = 0;
    size_t i = 0;
    if (count >= LANES) {
        memset(lanes, 0, sizeof lanes);
        if (b == NULL)
            for (; i + LANES <= count; i += LANES)
                for (size_t l = 0; l < LANES; l++) lanes[l] += (double)a[i + l];
        else
            for (; i + LANES <= count; i += LANES)
                for (size_t l = 0; l < LANES; l++) lanes[l] += (double)a[i + l] * (double)b[i + l];
        for (size_t width = LANES / 2; width > 0; width /= 2)
            for (size_t l = 0; l < width; l++) lanes[l] += lanes[l + width];
        sum = lanes[0];
    }
    for (; i < count; i++) sum += (double)a[i] * (b != NULL ? (double)b[i] : 1);
    return sum;
}

/* y = exp(x), x and y may be the same. */
TUTTI_VECTOR_CLONES
static void OF(exponentials)(size_t count, const REAL *x, REAL *y) {
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) y[i] = OF(exp)(x[i]);
}

/* The same of x - shift. */
TUTTI_VECTOR_CLONES
static void OF(shifted_exponentials)(size_t count, REAL shift, const REAL *x, REAL *y) {
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) y[i] = OF(exp)(x[i] - shift);
}

/* y[row, :] = exp(x[row, :] - max[row]). Short rows are exponentiated together. */
static void OF(exponentiate_rows)(size_t rows, size_t classes, const REAL *x, const REAL *max, REAL *y) {
    if (classes >= LANES) {
        for (size_t row = 0; row < rows; row++, x += classes, y += classes)
            OF(shifted_exponentials)(classes, max[row], x, y);
        return;
    }
    REAL *differences = y;
    for (size_t row = 0; row < rows; row++, x += classes, differences += classes)
        for (size_t c = 0; c < classes; c++) differences[c] = x[c] - max[row];
    OF(exponentials)(rows * classes, y, y);
}

TUTTI_VECTOR_CLONES
static void OF(scale_row)(size_t count, REAL factor, REAL *y) {
    for (size_t i = 0; i < count; i++) y[i] *= factor;
}

static void OF(softmax)(size_t rows, size_t classes, const REAL *x, REAL *y) {
    const size_t step = rows_at_once(classes);
    for (size_t first = 0; first < rows; first += step, x += step * classes, y += step * classes) {
        const size_t now = op_least(step, rows - first);
        REAL max[OP_BLOCK];
        for (size_t row = 0; row < now; row++) max[row] = OF(largest)(classes, x + row * classes);
        OF(exponentiate_rows)(now, classes, x, max, y);
        for (size_t row = 0; row < now; row++)
            OF(scale_row)(classes, (REAL)(1 / OF(total)(classes, y + row * classes, NULL)), y + row * classes);
    }
}

TUTTI_VECTOR_CLONES
static void OF(softmax_backward_row)(size_t count, REAL along, const REAL *y, const REAL *dy, REAL *dx) {
    REDUCE_SAME_INDEX_ONLY
    for (size_t i = 0; i < count; i++) dx[i] = y[i] * (dy[i] - along);
}

static void OF(softmax_backward)(size_t rows, size_t classes, const REAL *y, const REAL *dy, REAL *dx) {
    for (size_t row = 0; row < rows; row++, y += classes, dy += classes, dx += classes)
        OF(softmax_backward_row)(classes, (REAL)OF(total)(classes, y, dy), y, dy, dx);
}

/* Without a place for all exponentials: by blocks. */
static void OF(exp_sums)(size_t rows, size_t classes, const REAL *x, const REAL *max, REAL *sums) {
    const size_t step = rows_at_once(classes);
    REAL block[OP_BLOCK];
    for (size_t first = 0; first < rows; first += step, x += step * classes) {
        const size_t now = op_least(step, rows - first);
        if (classes <= OP_BLOCK) {
            OF(exponentiate_rows)(now, classes, x, max + first, block);
            for (size_t row = 0; row < now; row++)
                sums[first + row] = (REAL)OF(total)(classes, block + row * classes, NULL);
            continue;
        }
        double sum = 0;
        for (size_t c = 0; c < classes; c += OP_BLOCK) {
            const size_t columns = op_least(OP_BLOCK, classes - c);
            OF(shifted_exponentials)(columns, max[first], x + c, block);
            sum += OF(total)(columns, block, NULL);
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

TUTTI_VECTOR_CLONES
static void OF(loss_gradient_rows)(size_t rows, size_t classes, const REAL *x, const REAL *restrict max,
                                   const REAL *restrict factors, REAL *dx) {
    for (size_t row = 0; row < rows; row++, x += classes, dx += classes) {
        const REAL shift = max[row], factor = factors[row];
        REDUCE_SAME_INDEX_ONLY
        for (size_t c = 0; c < classes; c++) dx[c] = OF(exp)(x[c] - shift) * factor;
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
        if (classes >= LANES) {
            OF(loss_gradient_rows)(now, classes, x, max + first, factors, dx);
        } else {
            OF(exponentiate_rows)(now, classes, x, max + first, dx);
            for (size_t row = 0; row < now; row++) OF(scale_row)(classes, factors[row], dx + row * classes);
        }
        for (size_t row = 0; row < now; row++, dx += classes) {
            const size_t column = column_of(labels, first + row, classes);
            if (column < classes) dx[column] -= dlosses[first + row];
        }
    }
}
