/*
 * Columns of a convolution ("im2col"), and back: a template for one element type, REAL, whose functions are
 * OF(word). The trainer's convolution and the operators' use it.
 *
 *   columns[window, ky, kx, channel] = image[the pixel under the window]     0 where it is padding
 */
#include "kernels/host/windows.h"

/* For the short rows of an image with few channels: a call of memcpy costs more than the copy. */
static inline void OF(copy_row)(size_t count, const REAL *src, REAL *dst) {
    if (count > 32) {
        memcpy(dst, src, count * sizeof *dst);
        return;
    }
    for (; count >= 4; count -= 4, src += 4, dst += 4) memcpy(dst, src, 4 * sizeof *dst);
    for (; count > 0; count--) *dst++ = *src++;
}

/* Unfolds one window that is cut by the image's edge. */
static void OF(unfold_at_edge)(const tutti_kernel_window *window, int64_t out_row, int64_t out_column,
                               const REAL *image, REAL *columns) {
    const size_t channels = (size_t)window->channels, row_count = (size_t)window->kernel_width * channels;
    const window_cut cut = cut_window(window, out_row, out_column);
    memset(columns, 0, window_count(window) * sizeof *columns);
    for (int64_t row = cut.top; row < cut.bottom; row++) OF(copy_row)
    ((size_t)(cut.right - cut.left) * channels, image + cut_pixel(window, &cut, row, cut.left),
     columns + (size_t)row * row_count + (size_t)cut.left * channels);
}

/* Unfolds the windows in rows [first, end) of the output. */
static void OF(unfold)(const tutti_kernel_window *window, int64_t first, int64_t end, const REAL *image,
                       REAL *columns) {
    const size_t channels = (size_t)window->channels, row_count = (size_t)window->kernel_width * channels;
    const size_t image_row_count = (size_t)window->in_width * channels, taps = window_count(window);
    if (taps == 0) return;
    for (int64_t out_row = first; out_row < end; out_row++)
        for (int64_t out_column = 0; out_column < window->out_width; out_column++, columns += taps) {
            const int64_t top = out_row * window->stride_height - window->pad_top;
            const int64_t left = out_column * window->stride_width - window->pad_left;
            if (top < 0 || left < 0 || top + window->kernel_height > window->in_height ||
                left + window->kernel_width > window->in_width) {
                OF(unfold_at_edge)(window, out_row, out_column, image, columns);
                continue;
            }
            const REAL *src = image + (size_t)(top * window->in_width + left) * channels;
            for (int64_t row = 0; row < window->kernel_height; row++, src += image_row_count)
                OF(copy_row)(row_count, src, columns + (size_t)row * row_count);
        }
}

/* image += columns of these windows, each element to the pixel that it came from. */
TUTTI_VECTOR_CLONES
static void OF(fold)(const tutti_kernel_window *window, int64_t first, int64_t end, const REAL *restrict columns,
                     REAL *restrict image) {
    const size_t channels = (size_t)window->channels, row_count = (size_t)window->kernel_width * channels;
    const size_t taps = window_count(window);
    for (int64_t out_row = first; out_row < end; out_row++)
        for (int64_t out_column = 0; out_column < window->out_width; out_column++, columns += taps) {
            const window_cut cut = cut_window(window, out_row, out_column);
            const size_t inside = (size_t)(cut.right - cut.left) * channels;
            for (int64_t row = cut.top; row < cut.bottom; row++) {
                const REAL *src = columns + (size_t)row * row_count + (size_t)cut.left * channels;
                REAL *dst = image + cut_pixel(window, &cut, row, cut.left);
                for (size_t i = 0; i < inside; i++) dst[i] += src[i];
            }
        }
}
