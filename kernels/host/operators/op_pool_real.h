/* Pooling of one real type; a template (op_both_reals.h). */

/* best = max(best, x). value != value holds for NaN, which wins and then stays. */
static inline void OF(take_larger)(size_t channels, const REAL *restrict x, REAL *restrict best) {
    for (size_t c = 0; c < channels; c++) {
        const REAL value = x[c], old = best[c];
        best[c] = (value > old) | (value != value) ? value : old;
    }
}

TUTTI_VECTOR_CLONES
static void OF(max_forward)(const tutti_kernel_window *window, const REAL *x, REAL *y) {
    const size_t channels = (size_t)window->channels;
    for (int64_t image = 0; image < window->batch; image++, x += image_count(window))
        for (int64_t out_row = 0; out_row < window->out_height; out_row++)
            for (int64_t out_column = 0; out_column < window->out_width; out_column++, y += channels) {
                const window_cut cut = cut_window(window, out_row, out_column);
                for (size_t c = 0; c < channels; c++) y[c] = -(REAL)INFINITY;
                for (int64_t row = cut.top; row < cut.bottom; row++)
                    for (int64_t column = cut.left; column < cut.right; column++)
                        OF(take_larger)(channels, x + cut_pixel(window, &cut, row, column), y);
            }
}

static inline void OF(find_larger)(size_t channels, int32_t position, const REAL *restrict x, REAL *restrict best,
                                   int32_t *restrict where) {
    for (size_t c = 0; c < channels; c++) {
        const REAL value = x[c], old = best[c];
        const int32_t old_where = where[c];
        /* The first element is taken even if it is -infinity. */
        const int larger = (value > old) | (value != value) | (old_where < 0);
        best[c] = larger ? value : old;
        where[c] = larger ? position : old_where;
    }
}

static inline void OF(give_back)(size_t channels, int32_t position, const REAL *restrict dy,
                                 const int32_t *restrict where, REAL *restrict dx) {
    for (size_t c = 0; c < channels; c++) {
        const REAL value = dy[c], share = where[c] == position ? value : 0;
        dx[c] += share;
    }
}

TUTTI_VECTOR_CLONES
static void OF(max_backward_window)(const tutti_kernel_window *window, const window_cut *cut, size_t first,
                                    size_t channels, const REAL *x, const REAL *dy, REAL *dx) {
    REAL best[CHANNELS_AT_ONCE];
    int32_t where[CHANNELS_AT_ONCE];
    for (size_t c = 0; c < channels; c++) best[c] = 0;
    for (size_t c = 0; c < channels; c++) where[c] = -1;
    int32_t position = 0;
    for (int64_t row = cut->top; row < cut->bottom; row++)
        for (int64_t column = cut->left; column < cut->right; column++)
            OF(find_larger)(channels, position++, x + cut_pixel(window, cut, row, column) + first, best, where);
    position = 0;
    for (int64_t row = cut->top; row < cut->bottom; row++)
        for (int64_t column = cut->left; column < cut->right; column++)
            OF(give_back)(channels, position++, dy + first, where, dx + cut_pixel(window, cut, row, column) + first);
}

static void OF(max_backward)(const tutti_kernel_window *window, const REAL *x, const REAL *dy, REAL *dx) {
    const size_t channels = (size_t)window->channels, image = image_count(window);
    op_zero(dx, (size_t)window->batch * image * sizeof *dx);
    for (int64_t b = 0; b < window->batch; b++, x += image, dx += image)
        for (int64_t out_row = 0; out_row < window->out_height; out_row++)
            for (int64_t out_column = 0; out_column < window->out_width; out_column++, dy += channels) {
                const window_cut cut = cut_window(window, out_row, out_column);
                for (size_t first = 0; first < channels; first += CHANNELS_AT_ONCE) OF(max_backward_window)
                (window, &cut, first, op_least(CHANNELS_AT_ONCE, channels - first), x, dy, dx);
            }
}

/* 1 / the number of pixels that count; 0 if there is none. */
static inline REAL OF(share)(const tutti_kernel_window *window, const window_cut *cut, bool count_padding) {
    const int64_t inside = (cut->bottom - cut->top) * (cut->right - cut->left);
    const int64_t pixels = count_padding ? window->kernel_height * window->kernel_width : inside;
    return pixels == 0 ? 0 : (REAL)(1.0 / (double)pixels);
}

TUTTI_VECTOR_CLONES
static void OF(average_forward)(const tutti_kernel_window *window, bool count_padding, const REAL *x,
                                REAL *restrict y) {
    const size_t channels = (size_t)window->channels;
    for (int64_t image = 0; image < window->batch; image++, x += image_count(window))
        for (int64_t out_row = 0; out_row < window->out_height; out_row++)
            for (int64_t out_column = 0; out_column < window->out_width; out_column++, y += channels) {
                const window_cut cut = cut_window(window, out_row, out_column);
                for (size_t c = 0; c < channels; c++) y[c] = 0;
                for (int64_t row = cut.top; row < cut.bottom; row++)
                    for (int64_t column = cut.left; column < cut.right; column++) {
                        const REAL *restrict pixel = x + cut_pixel(window, &cut, row, column);
                        for (size_t c = 0; c < channels; c++) y[c] += pixel[c];
                    }
                const REAL share = OF(share)(window, &cut, count_padding);
                for (size_t c = 0; c < channels; c++) y[c] *= share;
            }
}

TUTTI_VECTOR_CLONES
static void OF(average_backward)(const tutti_kernel_window *window, bool count_padding, const REAL *restrict dy,
                                 REAL *dx) {
    const size_t channels = (size_t)window->channels, image = image_count(window);
    op_zero(dx, (size_t)window->batch * image * sizeof *dx);
    for (int64_t b = 0; b < window->batch; b++, dx += image)
        for (int64_t out_row = 0; out_row < window->out_height; out_row++)
            for (int64_t out_column = 0; out_column < window->out_width; out_column++, dy += channels) {
                const window_cut cut = cut_window(window, out_row, out_column);
                const REAL share = OF(share)(window, &cut, count_padding);
                for (int64_t row = cut.top; row < cut.bottom; row++)
                    for (int64_t column = cut.left; column < cut.right; column++) {
                        REAL *restrict pixel = dx + cut_pixel(window, &cut, row, column);
                        for (size_t c = 0; c < channels; c++) pixel[c] += dy[c] * share;
                    }
            }
}
