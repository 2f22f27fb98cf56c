/*
 * Convolution as a matrix product ("im2col": Chellapilla, Puri, Simard, 2006).
 *
 *   columns[pixel of the output, ky, kx, channel] = x[the pixel under the window]     0 where it is padding
 *   y[pixel, filter] = columns[pixel, :] weight[:, filter]
 *
 * A few images are unfolded at a time, so that their columns are still in the second-level cache when the product
 * reads them. Backward unfolds again (cheaper than keeping), then reuses the same scratch for the columns' gradient,
 * which is folded back onto the image.
 */
#include "kernels/layers.h"

#include <string.h>

#include "kernels/gemm.h"

/* Columns of as many images as fit here are unfolded together; at least one. */
#define SCRATCH_BYTES (128 << 10)

static size_t image_count(const tutti_window *window) {
    return (size_t)window->in_height * (size_t)window->in_width * (size_t)window->channels;
}

static size_t pixel_count(const tutti_window *window) {
    return (size_t)window->out_height * (size_t)window->out_width;
}

/* Elements under one window. */
static size_t window_count(const tutti_window *window) {
    return (size_t)window->kernel * (size_t)window->kernel * (size_t)window->channels;
}

static int images_at_once(const tutti_window *window) {
    size_t fit = SCRATCH_BYTES / (pixel_count(window) * window_count(window) * sizeof(tutti_real));
    return fit > 0 ? (int)fit : 1;
}

size_t tutti_conv_scratch_count(const tutti_conv *conv) {
    return (size_t)images_at_once(&conv->window) * pixel_count(&conv->window) * window_count(&conv->window);
}

/* One row of one window: columns [first, last) of its kernel lie on the image, at `offset` elements from the image's
 * start; first == last: all padding. */
typedef struct window_row {
    int first, last;
    size_t offset;
} window_row;

static inline window_row place_row(const tutti_window *window, int out_row, int out_column, int kernel_row) {
    int row = out_row * window->stride - window->pad_top + kernel_row;
    int left = out_column * window->stride - window->pad_left;
    if (row < 0 || row >= window->in_height) return (window_row){0, 0, 0};
    int first = left < 0 ? -left : 0;
    int last = window->in_width - left < window->kernel ? window->in_width - left : window->kernel;
    if (first >= last) return (window_row){0, 0, 0};
    size_t pixel = (size_t)row * (size_t)window->in_width + (size_t)(left + first);
    return (window_row){first, last, pixel * (size_t)window->channels};
}

/* A call of memcpy costs more than the short rows of an image with few channels. */
static inline void copy_row(size_t count, const tutti_real *src, tutti_real *dst) {
    if (count > 32) {
        memcpy(dst, src, count * sizeof *dst);
        return;
    }
    for (; count >= 4; count -= 4, src += 4, dst += 4) memcpy(dst, src, 4 * sizeof *dst);
    for (; count > 0; count--) *dst++ = *src++;
}

/* Does no part of the window lie in the padding? */
static inline bool is_inside(const tutti_window *window, int out_row, int out_column) {
    int top = out_row * window->stride - window->pad_top, left = out_column * window->stride - window->pad_left;
    return top >= 0 && left >= 0 && top + window->kernel <= window->in_height &&
           left + window->kernel <= window->in_width;
}

/* The columns of one output pixel whose window is cut by the image's edge. */
static void unfold_at_edge(const tutti_window *window, int out_row, int out_column, const tutti_real *image,
                           tutti_real *columns) {
    size_t channels = (size_t)window->channels, row_count = (size_t)window->kernel * channels;
    memset(columns, 0, window_count(window) * sizeof *columns);
    for (int kernel_row = 0; kernel_row < window->kernel; kernel_row++, columns += row_count) {
        window_row row = place_row(window, out_row, out_column, kernel_row);
        copy_row((size_t)(row.last - row.first) * channels, image + row.offset, columns + (size_t)row.first * channels);
    }
}

static void unfold(const tutti_window *window, const tutti_real *image, tutti_real *columns) {
    size_t row_count = (size_t)window->kernel * (size_t)window->channels;
    size_t image_row_count = (size_t)window->in_width * (size_t)window->channels, taps = window_count(window);
    for (int out_row = 0; out_row < window->out_height; out_row++)
        for (int out_column = 0; out_column < window->out_width; out_column++, columns += taps) {
            if (!is_inside(window, out_row, out_column)) {
                unfold_at_edge(window, out_row, out_column, image, columns);
                continue;
            }
            const tutti_real *src = image + place_row(window, out_row, out_column, 0).offset;
            for (int kernel_row = 0; kernel_row < window->kernel; kernel_row++, src += image_row_count)
                copy_row(row_count, src, columns + (size_t)kernel_row * row_count);
        }
}

/* image += columns, each element to the pixel that it came from. */
TUTTI_VECTOR_CLONES
static void fold(const tutti_window *window, const tutti_real *restrict columns, tutti_real *restrict image) {
    size_t channels = (size_t)window->channels, row_count = (size_t)window->kernel * channels;
    for (int out_row = 0; out_row < window->out_height; out_row++)
        for (int out_column = 0; out_column < window->out_width; out_column++)
            for (int kernel_row = 0; kernel_row < window->kernel; kernel_row++, columns += row_count) {
                window_row row = place_row(window, out_row, out_column, kernel_row);
                const tutti_real *src = columns + (size_t)row.first * channels;
                tutti_real *dst = image + row.offset;
                size_t inside = (size_t)(row.last - row.first) * channels;
                for (size_t i = 0; i < inside; i++) dst[i] += src[i];
            }
}

void tutti_conv_forward(const tutti_conv *conv, const tutti_conv_forward_args *args) {
    const tutti_window *window = &conv->window;
    size_t in = image_count(window), pixels = pixel_count(window), taps = window_count(window);
    size_t filters = (size_t)conv->filters;
    int step = images_at_once(window);
    for (int first = 0; first < args->batch; first += step) {
        int images = args->batch - first < step ? args->batch - first : step;
        for (int i = 0; i < images; i++)
            unfold(window, args->x + (size_t)(first + i) * in, args->scratch + (size_t)i * pixels * taps);
        tutti_real *y = args->y + (size_t)first * pixels * filters;
        size_t rows = (size_t)images * pixels;
        tutti_gemm(false, false, (int)rows, conv->filters, (int)taps, 1, args->scratch, args->weight, 0, y);
        tutti_bias_forward(rows, filters, conv->relu, args->bias, y);
    }
}

void tutti_conv_backward(const tutti_conv *conv, const tutti_conv_backward_args *args) {
    const tutti_window *window = &conv->window;
    size_t in = image_count(window), pixels = pixel_count(window), taps = window_count(window);
    size_t filters = (size_t)conv->filters;
    int step = images_at_once(window);
    memset(args->dbias, 0, filters * sizeof *args->dbias);
    if (args->batch == 0) memset(args->dweight, 0, taps * filters * sizeof *args->dweight);
    for (int first = 0; first < args->batch; first += step) {
        int images = args->batch - first < step ? args->batch - first : step;
        size_t rows = (size_t)images * pixels, offset = (size_t)first * pixels * filters;
        tutti_real *dy = args->dy + offset;
        tutti_bias_backward(rows, filters, conv->relu, args->y + offset, dy, args->dbias);

        for (int i = 0; i < images; i++)
            unfold(window, args->x + (size_t)(first + i) * in, args->scratch + (size_t)i * pixels * taps);
        tutti_gemm(true, false, (int)taps, conv->filters, (int)rows, 1, args->scratch, dy, first > 0 ? 1 : 0,
                   args->dweight);
        if (args->dx == NULL) continue;

        tutti_gemm(false, true, (int)rows, (int)taps, conv->filters, 1, dy, args->weight, 0, args->scratch);
        tutti_real *dx = args->dx + (size_t)first * in;
        memset(dx, 0, (size_t)images * in * sizeof *dx);
        for (int i = 0; i < images; i++) fold(window, args->scratch + (size_t)i * pixels * taps, dx + (size_t)i * in);
    }
}
