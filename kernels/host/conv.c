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

#define REAL     tutti_real
#define OF(word) word
#include "kernels/host/columns.h"

/* Columns of as many images as fit here are unfolded together; at least one. */
#define SCRATCH_BYTES (128 << 10)

static tutti_kernel_window rectangle_of(const tutti_window *window) {
    return (tutti_kernel_window){.batch = 1,
                                 .in_height = window->in_height,
                                 .in_width = window->in_width,
                                 .channels = window->channels,
                                 .kernel_height = window->kernel,
                                 .kernel_width = window->kernel,
                                 .stride_height = window->stride,
                                 .stride_width = window->stride,
                                 .pad_top = window->pad_top,
                                 .pad_left = window->pad_left,
                                 .out_height = window->out_height,
                                 .out_width = window->out_width};
}

static int images_at_once(const tutti_kernel_window *window) {
    size_t fit = SCRATCH_BYTES / (pixel_count(window) * window_count(window) * sizeof(tutti_real));
    return fit > 0 ? (int)fit : 1;
}

size_t tutti_conv_scratch_count(const tutti_conv *conv) {
    const tutti_kernel_window window = rectangle_of(&conv->window);
    return (size_t)images_at_once(&window) * pixel_count(&window) * window_count(&window);
}

void tutti_conv_forward(const tutti_conv *conv, const tutti_conv_forward_args *args) {
    const tutti_kernel_window rectangle = rectangle_of(&conv->window), *window = &rectangle;
    size_t in = image_count(window), pixels = pixel_count(window), taps = window_count(window);
    size_t filters = (size_t)conv->filters;
    int step = images_at_once(window);
    for (int first = 0; first < args->batch; first += step) {
        int images = args->batch - first < step ? args->batch - first : step;
        for (int i = 0; i < images; i++)
            unfold(window, 0, window->out_height, args->x + (size_t)(first + i) * in,
                   args->scratch + (size_t)i * pixels * taps);
        tutti_real *y = args->y + (size_t)first * pixels * filters;
        size_t rows = (size_t)images * pixels;
        tutti_gemm(false, false, (int)rows, conv->filters, (int)taps, 1, args->scratch, args->weight, 0, y);
        tutti_bias_forward(rows, filters, conv->relu, args->bias, y);
    }
}

void tutti_conv_backward(const tutti_conv *conv, const tutti_conv_backward_args *args) {
    const tutti_kernel_window rectangle = rectangle_of(&conv->window), *window = &rectangle;
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
            unfold(window, 0, window->out_height, args->x + (size_t)(first + i) * in,
                   args->scratch + (size_t)i * pixels * taps);
        tutti_gemm(true, false, (int)taps, conv->filters, (int)rows, 1, args->scratch, dy, first > 0 ? 1 : 0,
                   args->dweight);
        if (args->dx == NULL) continue;

        tutti_gemm(false, true, (int)rows, (int)taps, conv->filters, 1, dy, args->weight, 0, args->scratch);
        tutti_real *dx = args->dx + (size_t)first * in;
        memset(dx, 0, (size_t)images * in * sizeof *dx);
        for (int i = 0; i < images; i++)
            fold(window, 0, window->out_height, args->scratch + (size_t)i * pixels * taps, dx + (size_t)i * in);
    }
}
