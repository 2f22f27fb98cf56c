/* Convolutions of one real type; a template (op_both_reals.h). */
#include "kernels/host/columns.h"

/* Unfolds the columns of the output's rows [first, first + rows), counted over all images. */
static void OF(unfold_rows)(const tutti_kernel_window *window, int64_t first, int64_t rows, const REAL *x,
                            REAL *columns) {
    for (int64_t row = first; row < first + rows;) {
        const int64_t image = row / window->out_height, begin = row - image * window->out_height;
        const int64_t left = first + rows - row, whole = window->out_height - begin;
        const int64_t now = left < whole ? left : whole;
        OF(unfold)(window, begin, begin + now, x + (size_t)image * image_count(window), columns);
        columns += (size_t)now * (size_t)window->out_width * window_count(window);
        row += now;
    }
}

static void OF(fold_rows)(const tutti_kernel_window *window, int64_t first, int64_t rows, const REAL *columns,
                          REAL *dx) {
    for (int64_t row = first; row < first + rows;) {
        const int64_t image = row / window->out_height, begin = row - image * window->out_height;
        const int64_t left = first + rows - row, whole = window->out_height - begin;
        const int64_t now = left < whole ? left : whole;
        OF(fold)(window, begin, begin + now, columns, dx + (size_t)image * image_count(window));
        columns += (size_t)now * (size_t)window->out_width * window_count(window);
        row += now;
    }
}

static void OF(conv_forward)(const tutti_kernel_window *window, int64_t filters, const REAL *x, const REAL *weight,
                             const REAL *bias, REAL *scratch, REAL *y) {
    const int64_t rows = window->batch * window->out_height, step = rows_at_a_time(window, sizeof(REAL));
    const size_t taps = window_count(window);
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t now = rows - first < step ? rows - first : step;
        const size_t before = (size_t)first * (size_t)window->out_width,
                     pixels = (size_t)now * (size_t)window->out_width;
        const REAL *columns = x + before * taps;
        if (!is_unfolded(window)) {
            OF(unfold_rows)(window, first, now, x, scratch);
            columns = scratch;
        }
        REAL *part = y + before * (size_t)filters;
        for (size_t i = 0; bias != NULL && i < pixels; i++)
            memcpy(part + i * (size_t)filters, bias, (size_t)filters * sizeof *part);
        OF(tutti_kernel_product)
        (false, false, (int)pixels, (int)filters, (int)taps, columns, weight, bias != NULL, part);
    }
}

static void OF(conv_backward_weight)(const tutti_kernel_window *window, int64_t filters, const REAL *x, const REAL *dy,
                                     REAL *scratch, REAL *dweight) {
    const int64_t rows = window->batch * window->out_height, step = rows_at_a_time(window, sizeof(REAL));
    const size_t taps = window_count(window);
    op_zero(dweight, taps * (size_t)filters * sizeof *dweight);
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t now = rows - first < step ? rows - first : step;
        const size_t before = (size_t)first * (size_t)window->out_width,
                     pixels = (size_t)now * (size_t)window->out_width;
        const REAL *columns = x + before * taps;
        if (!is_unfolded(window)) {
            OF(unfold_rows)(window, first, now, x, scratch);
            columns = scratch;
        }
        OF(tutti_kernel_product)
        (true, false, (int)taps, (int)filters, (int)pixels, columns, dy + before * (size_t)filters, true, dweight);
    }
}

static void OF(conv_backward_x)(const tutti_kernel_window *window, int64_t filters, const REAL *weight, const REAL *dy,
                                REAL *scratch, REAL *dx) {
    const int64_t rows = window->batch * window->out_height, step = rows_at_a_time(window, sizeof(REAL));
    const size_t taps = window_count(window);
    if (!is_unfolded(window)) op_zero(dx, (size_t)window->batch * image_count(window) * sizeof *dx);
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t now = rows - first < step ? rows - first : step;
        const size_t before = (size_t)first * (size_t)window->out_width,
                     pixels = (size_t)now * (size_t)window->out_width;
        REAL *columns = is_unfolded(window) ? dx + before * taps : scratch;
        OF(tutti_kernel_product)
        (false, true, (int)pixels, (int)taps, (int)filters, dy + before * (size_t)filters, weight, false, columns);
        if (!is_unfolded(window)) OF(fold_rows)(window, first, now, scratch, dx);
    }
}
