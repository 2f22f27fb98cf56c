/*
 * Convolution as a matrix product ("im2col": Chellapilla, Puri, Simard, 2006).
 *
 *   columns[pixel of the output, ky, kx, channel] = x[the pixel under the window]     0 where it is padding
 *   y[pixel, filter] = columns[pixel, :] weight[:, filter]
 *
 * A few images are unfolded at a time, so that their columns are still in the second-level cache when the product
 * reads them. Backward unfolds again (cheaper than keeping the columns), then reuses the same scratch for the
 * columns' gradient, which is folded back onto the image. With a window of one pixel and stride 1 the image is its
 * own columns.
 */
#include "kernels/layers.h"

#include <string.h>

#include "kernels/gemm.h"

#define REAL     tutti_real
#define OF(word) word
#include "kernels/host/columns.h"
#include "kernels/host/layers/rectangle.h"

/* Images whose columns fit into this many bytes are unfolded together; at least one image. */
#define SCRATCH_BYTES (128 << 10)

static int images_at_once(const tutti_kernel_window *window) {
    size_t fit = SCRATCH_BYTES / (pixel_count(window) * window_count(window) * sizeof(tutti_real));
    return fit > 0 ? (int)fit : 1;
}

/* Returns whether the columns are the image itself. */
static bool is_plain(const tutti_window *window) {
    return window->kernel == 1 && window->stride == 1;
}

size_t tutti_conv_scratch_count(const tutti_conv *conv) {
    const tutti_kernel_window window = rectangle_of(&conv->window, 1);
    return (size_t)images_at_once(&window) * pixel_count(&window) * window_count(&window);
}

/* Returns the columns of these images: in the scratch, or the images themselves. */
static const tutti_real *unfold_images(const tutti_conv *conv, const tutti_real *x, int images, tutti_real *scratch) {
    if (is_plain(&conv->window)) return x;
    const tutti_kernel_window window = rectangle_of(&conv->window, 1);
    size_t in = image_count(&window), columns = pixel_count(&window) * window_count(&window);
    for (int i = 0; i < images; i++)
        unfold(&window, 0, window.out_height, x + (size_t)i * in, scratch + (size_t)i * columns);
    return scratch;
}

void tutti_conv_forward(const tutti_conv *conv, const tutti_conv_forward_args *args) {
    const tutti_kernel_window rectangle = rectangle_of(&conv->window, 1), *window = &rectangle;
    size_t in = image_count(window), pixels = pixel_count(window), taps = window_count(window);
    size_t filters = (size_t)conv->filters;
    int step = images_at_once(window);
    for (int first = 0; first < args->batch; first += step) {
        int images = args->batch - first < step ? args->batch - first : step;
        const tutti_real *columns = unfold_images(conv, args->x + (size_t)first * in, images, args->scratch);
        tutti_real *y = args->y + (size_t)first * pixels * filters;
        size_t rows = (size_t)images * pixels;
        tutti_gemm(false, false, (int)rows, conv->filters, (int)taps, 1, columns, args->weight, 0, y);
        if (!conv->no_bias) tutti_bias_forward(rows, filters, conv->relu, args->bias, y);
        else if (conv->relu) tutti_relu_forward(rows * filters, y, y);
    }
}

void tutti_conv_bias_backward(const tutti_conv *conv, size_t rows, const tutti_real *y, tutti_real *dy,
                              tutti_real *dbias) {
    const size_t filters = (size_t)conv->filters;
    if (!conv->no_bias) tutti_bias_backward(rows, filters, conv->relu, y, dy, dbias);
    else if (conv->relu) tutti_relu_backward(rows * filters, y, dy, dy);
}

void tutti_conv_backward(const tutti_conv *conv, const tutti_conv_backward_args *args) {
    const tutti_kernel_window rectangle = rectangle_of(&conv->window, 1), *window = &rectangle;
    size_t in = image_count(window), pixels = pixel_count(window), taps = window_count(window);
    size_t filters = (size_t)conv->filters;
    int step = images_at_once(window);
    if (!conv->no_bias) memset(args->dbias, 0, filters * sizeof *args->dbias);
    if (args->batch == 0) memset(args->dweight, 0, taps * filters * sizeof *args->dweight);
    for (int first = 0; first < args->batch; first += step) {
        int images = args->batch - first < step ? args->batch - first : step;
        size_t rows = (size_t)images * pixels, offset = (size_t)first * pixels * filters;
        tutti_real *dy = args->dy + offset;
        tutti_conv_bias_backward(conv, rows, args->y + offset, dy, args->dbias);

        const tutti_real *columns = unfold_images(conv, args->x + (size_t)first * in, images, args->scratch);
        tutti_gemm(true, false, (int)taps, conv->filters, (int)rows, 1, columns, dy, first > 0 ? 1 : 0, args->dweight);
        if (args->dx == NULL) continue;

        tutti_real *dx = args->dx + (size_t)first * in, *dcolumns = is_plain(&conv->window) ? dx : args->scratch;
        tutti_gemm(false, true, (int)rows, (int)taps, conv->filters, 1, dy, args->weight, 0, dcolumns);
        if (dcolumns == dx) continue;
        memset(dx, 0, (size_t)images * in * sizeof *dx);
        for (int i = 0; i < images; i++)
            fold(window, 0, window->out_height, args->scratch + (size_t)i * pixels * taps, dx + (size_t)i * in);
    }
}
