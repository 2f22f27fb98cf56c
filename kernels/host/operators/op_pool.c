/*
 * Pooling by maximum and by average. Inner loops run over the channels of a pixel and have no branches. Max-pooling
 * backward searches for each window's maximum again: that costs a pass over x, but nothing has to be kept, and the
 * gradient does not depend on how x is cut.
 */
#include <math.h>
#include <string.h>

#include "kernels/host/operators/op_parts.h"
#include "kernels/host/windows.h"

#define CHANNELS_AT_ONCE 256

#define OP_TEMPLATE "kernels/host/operators/op_pool_real.h"
#include "kernels/host/operators/op_both_reals.h"

void tutti_kernel_max_pool_forward(tutti_type type, const tutti_kernel_window *window, const void *x, void *y) {
    if (type == TUTTI_FLOAT32) max_forward_f32(window, x, y);
    else max_forward_f64(window, x, y);
}

void tutti_kernel_max_pool_backward(tutti_type type, const tutti_kernel_window *window, const void *x, const void *dy,
                                    void *dx) {
    if (type == TUTTI_FLOAT32) max_backward_f32(window, x, dy, dx);
    else max_backward_f64(window, x, dy, dx);
}

void tutti_kernel_average_pool_forward(tutti_type type, const tutti_kernel_window *window, bool count_padding,
                                       const void *x, void *y) {
    if (type == TUTTI_FLOAT32) average_forward_f32(window, count_padding, x, y);
    else average_forward_f64(window, count_padding, x, y);
}

void tutti_kernel_average_pool_backward(tutti_type type, const tutti_kernel_window *window, bool count_padding,
                                        const void *dy, void *dx) {
    if (type == TUTTI_FLOAT32) average_backward_f32(window, count_padding, dy, dx);
    else average_backward_f64(window, count_padding, dy, dx);
}
