/*
 * Convolution as a matrix product of unfolded windows (columns.h), some rows of the output at a time: as many as fit
 * into the second-level cache, but enough that the time of the product is not dominated by what CBLAS does with the
 * weights in each call. Where the columns are the image itself (windows of one pixel), nothing is unfolded.
 */
#include <string.h>

#include "kernels/host/operators/op_parts.h"
#include "kernels/host/windows.h"

#define SCRATCH_BYTES (128 << 10)
#define LEAST_PIXELS  256

static bool is_unfolded(const tutti_kernel_window *window) {
    return window->kernel_height == 1 && window->kernel_width == 1 && window->stride_height == 1 &&
           window->stride_width == 1 && window->pad_top == 0 && window->pad_left == 0 &&
           window->out_height == window->in_height && window->out_width == window->in_width;
}

/* Returns the rows of the output to compute at a time; the rows of all images are one sequence. */
static int64_t rows_at_a_time(const tutti_kernel_window *window, size_t element_bytes) {
    const size_t row_pixels = (size_t)window->out_width, taps = window_count(window);
    const size_t all = (size_t)window->batch * (size_t)window->out_height;
    if (row_pixels == 0 || taps == 0 || all == 0) return 1;
    size_t pixels = SCRATCH_BYTES / (taps * element_bytes);
    if (pixels < LEAST_PIXELS) pixels = LEAST_PIXELS;
    const size_t rows = (pixels + row_pixels - 1) / row_pixels;
    return (int64_t)op_least(rows, all);
}

#define OP_TEMPLATE "kernels/host/operators/op_conv_real.h"
#include "kernels/host/operators/op_both_reals.h"

size_t tutti_kernel_conv_scratch_bytes(tutti_type type, const tutti_kernel_window *window) {
    if (is_unfolded(window)) return 0;
    const size_t bytes = op_bytes(type);
    return (size_t)rows_at_a_time(window, bytes) * (size_t)window->out_width * window_count(window) * bytes;
}

void tutti_kernel_conv_forward(tutti_type type, const tutti_kernel_window *window, int64_t filters, const void *x,
                               const void *weight, const void *bias, void *scratch, void *y) {
    if (window->out_width == 0 || filters == 0) return;
    if (type == TUTTI_FLOAT32) conv_forward_f32(window, filters, x, weight, bias, scratch, y);
    else conv_forward_f64(window, filters, x, weight, bias, scratch, y);
}

static void backward_bias(const tutti_kernel_window *window, const tutti_kernel_conv_backward_args *args) {
    const int64_t shape[] = {window->batch * (int64_t)pixel_count(window), args->filters};
    const tutti_kernel_reduce_args sum = {
        .type = args->type, .ndims = 2, .shape = shape, .dims = 1, .x = args->dy, .y = args->dbias};
    tutti_kernel_reduce(TUTTI_SUM, &sum);
}

void tutti_kernel_conv_backward(const tutti_kernel_window *window, const tutti_kernel_conv_backward_args *args) {
    const bool is_float = args->type == TUTTI_FLOAT32;
    if (args->dbias != NULL) backward_bias(window, args);
    if (args->dweight != NULL) {
        if (is_float) conv_backward_weight_f32(window, args->filters, args->x, args->dy, args->scratch, args->dweight);
        else conv_backward_weight_f64(window, args->filters, args->x, args->dy, args->scratch, args->dweight);
    }
    if (args->dx == NULL) return;
    if (is_float) conv_backward_x_f32(window, args->filters, args->weight, args->dy, args->scratch, args->dx);
    else conv_backward_x_f64(window, args->filters, args->weight, args->dy, args->scratch, args->dx);
}
