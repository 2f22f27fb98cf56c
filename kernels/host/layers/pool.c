/*
 * Max-pooling. Inner loops run over the channels of a pixel and have no branches.
 */
#include "kernels/layers.h"

#include <string.h>

/* A window cut to the image: kernel rows [top, bottom), columns [left, right), and the image's pixel under kernel
 * position (0, 0), which may lie in the padding. */
typedef struct clipped {
    int top, bottom, left, right;
    ptrdiff_t origin;
} clipped;

static inline clipped clip(const tutti_window *window, int out_row, int out_column) {
    int row = out_row * window->stride - window->pad_top, column = out_column * window->stride - window->pad_left;
    int rows_left = window->in_height - row, columns_left = window->in_width - column;
    return (clipped){
        .top = row < 0 ? -row : 0,
        .bottom = rows_left < window->kernel ? rows_left : window->kernel,
        .left = column < 0 ? -column : 0,
        .right = columns_left < window->kernel ? columns_left : window->kernel,
        .origin = (ptrdiff_t)row * window->in_width + column,
    };
}

/* best = max(best, x), and where = position of the maximum. value != value holds for NaN, which wins and then
 * stays. */
static inline void take_larger(size_t channels, int position, const tutti_real *restrict x, tutti_real *restrict best,
                               int32_t *restrict where) {
    for (size_t c = 0; c < channels; c++) {
        tutti_real value = x[c], old = best[c];
        int32_t old_where = where[c];
        int larger = (value > old) | (value != value);
        best[c] = larger ? value : old;
        where[c] = larger ? position : old_where;
    }
}

TUTTI_VECTOR_CLONES
void tutti_max_pool_forward(const tutti_window *window, int batch, const tutti_real *x, tutti_real *y, int32_t *where) {
    size_t channels = (size_t)window->channels;
    size_t image = (size_t)window->in_height * (size_t)window->in_width * channels;
    for (int b = 0; b < batch; b++, x += image)
        for (int out_row = 0; out_row < window->out_height; out_row++)
            for (int out_column = 0; out_column < window->out_width; out_column++, y += channels, where += channels) {
                clipped cut = clip(window, out_row, out_column);
                int start = cut.top * window->kernel + cut.left;
                const tutti_real *corner =
                    x + (cut.origin + cut.top * window->in_width + cut.left) * (ptrdiff_t)channels;
                memcpy(y, corner, channels * sizeof *y);
                for (size_t c = 0; c < channels; c++) where[c] = start;
                for (int row = cut.top; row < cut.bottom; row++)
                    for (int column = cut.left; column < cut.right; column++) {
                        int position = row * window->kernel + column;
                        if (position == start) continue;
                        ptrdiff_t pixel = cut.origin + (ptrdiff_t)row * window->in_width + column;
                        take_larger(channels, position, x + pixel * (ptrdiff_t)channels, y, where);
                    }
            }
}

/* Returns whether every pixel lies under exactly one window: then nothing has to be zeroed or added up. */
static bool is_tiling(const tutti_window *window) {
    return window->kernel == window->stride && window->in_height % window->kernel == 0 &&
           window->in_width % window->kernel == 0;
}

static inline void give_back(size_t channels, int position, bool add, const tutti_real *restrict dy,
                             const int32_t *restrict where, tutti_real *restrict dx) {
    for (size_t c = 0; c < channels; c++) {
        tutti_real value = dy[c];
        tutti_real share = where[c] == position ? value : 0;
        dx[c] = add ? dx[c] + share : share;
    }
}

TUTTI_VECTOR_CLONES
void tutti_max_pool_backward(const tutti_window *window, int batch, const tutti_real *dy, const int32_t *where,
                             tutti_real *dx) {
    size_t channels = (size_t)window->channels;
    size_t image = (size_t)window->in_height * (size_t)window->in_width * channels;
    bool add = !is_tiling(window);
    if (add) memset(dx, 0, (size_t)batch * image * sizeof *dx);
    for (int b = 0; b < batch; b++, dx += image)
        for (int out_row = 0; out_row < window->out_height; out_row++)
            for (int out_column = 0; out_column < window->out_width; out_column++, dy += channels, where += channels) {
                clipped cut = clip(window, out_row, out_column);
                for (int row = cut.top; row < cut.bottom; row++)
                    for (int column = cut.left; column < cut.right; column++) {
                        ptrdiff_t pixel = cut.origin + (ptrdiff_t)row * window->in_width + column;
                        give_back(channels, row * window->kernel + column, add, dy, where,
                                  dx + pixel * (ptrdiff_t)channels);
                    }
            }
}
