/*
 * Convolution and dense layers: matrix products and the work around them.
 *
 * A batch is unfolded as a whole, so that each product is one large one; forward keeps the columns for backward. With
 * bfloat16 the columns are unfolded to bfloat16.
 */
#include "kernels/cuda/compute.h"

static size_t pixel_count(const tutti_window *window) {
    return (size_t)window->out_height * (size_t)window->out_width;
}

static size_t window_count(const tutti_window *window) {
    return (size_t)window->kernel * (size_t)window->kernel * (size_t)window->channels;
}

static size_t columns_count(const tutti_conv *conv, int batch) {
    return (size_t)batch * pixel_count(&conv->window) * window_count(&conv->window);
}

size_t tutti_gpu_conv_scratch_count(const tutti_conv *conv, int batch) {
    return columns_count(conv, batch); /* for the gradient of the columns */
}

size_t tutti_gpu_conv_kept_count(const tutti_conv *conv, int batch) {
    return columns_count(conv, batch);
}

static bool rounds(tutti_compute *compute) {
    return tutti_cuda_compute_of(compute)->precision == TUTTI_PRECISION_BF16;
}

void tutti_gpu_conv_forward(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_forward_args *args) {
    const size_t rows = (size_t)args->batch * pixel_count(&conv->window);
    tutti_gpu_unfold(compute, &conv->window, args->batch, args->x, args->kept, rounds(compute));
    tutti_product product = {
        .m = (int)rows,
        .n = conv->filters,
        .k = (int)window_count(&conv->window),
        .a = {.data = args->kept, .rounded = rounds(compute)},
        .b = {.data = args->weight},
        .c = args->y,
    };
    tutti_blas_multiply(compute, &product);
    if (!conv->no_bias) tutti_gpu_bias_forward(compute, rows, conv->filters, conv->relu, args->bias, args->y);
    else if (conv->relu) tutti_gpu_relu_forward(compute, rows * (size_t)conv->filters, args->y, args->y);
}

void tutti_gpu_conv_backward(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_backward_args *args) {
    const size_t rows = (size_t)args->batch * pixel_count(&conv->window);
    const int taps = (int)window_count(&conv->window);
    tutti_bias_backward_args bias = {
        .rows = rows,
        .channels = conv->filters,
        .relu = conv->relu,
        .y = args->y,
        .dy = args->dy,
        .dbias = args->dbias,
    };
    if (!conv->no_bias) tutti_gpu_bias_backward(compute, &bias);
    else if (conv->relu) tutti_gpu_relu_backward(compute, rows * (size_t)conv->filters, args->y, args->dy, args->dy);
    tutti_product of_weight = {
        .m = taps,
        .n = conv->filters,
        .k = (int)rows,
        .a = {.data = args->kept, .transposed = true, .rounded = rounds(compute)},
        .b = {.data = args->dy},
        .c = args->dweight,
    };
    tutti_blas_multiply(compute, &of_weight);
    if (args->dx == NULL) return;
    tutti_product of_columns = {
        .m = (int)rows,
        .n = taps,
        .k = conv->filters,
        .a = {.data = args->dy},
        .b = {.data = args->weight, .transposed = true},
        .c = args->scratch,
    };
    tutti_blas_multiply(compute, &of_columns);
    tutti_gpu_fold(compute, &conv->window, args->batch, args->scratch, args->dx);
}

void tutti_gpu_dense_forward(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_forward_args *args) {
    tutti_product product = {
        .m = args->batch,
        .n = dense->outputs,
        .k = dense->inputs,
        .a = {.data = args->x},
        .b = {.data = args->weight},
        .c = args->y,
    };
    tutti_blas_multiply(compute, &product);
    const size_t rows = (size_t)args->batch;
    if (args->bias != NULL) tutti_gpu_bias_forward(compute, rows, dense->outputs, dense->relu, args->bias, args->y);
    else if (dense->relu) tutti_gpu_relu_forward(compute, rows * (size_t)dense->outputs, args->y, args->y);
}

void tutti_gpu_dense_backward(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_backward_args *args) {
    tutti_bias_backward_args bias = {
        .rows = (size_t)args->batch,
        .channels = dense->outputs,
        .relu = dense->relu,
        .y = args->y,
        .dy = args->dy,
        .dbias = args->dbias,
    };
    if (args->dbias != NULL) tutti_gpu_bias_backward(compute, &bias);
    else if (dense->relu)
        tutti_gpu_relu_backward(compute, bias.rows * (size_t)dense->outputs, args->y, args->dy, args->dy);
    tutti_product of_weight = {
        .m = dense->inputs,
        .n = dense->outputs,
        .k = args->batch,
        .a = {.data = args->x, .transposed = true},
        .b = {.data = args->dy},
        .c = args->dweight,
    };
    tutti_blas_multiply(compute, &of_weight);
    if (args->dx == NULL) return;
    tutti_product of_x = {
        .m = args->batch,
        .n = dense->inputs,
        .k = dense->outputs,
        .a = {.data = args->dy},
        .b = {.data = args->weight, .transposed = true},
        .c = args->dx,
    };
    tutti_blas_multiply(compute, &of_x);
}
