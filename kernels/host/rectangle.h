/*
 * A layer's square window as the operators' rectangular one.
 */
#ifndef TUTTI_KERNELS_HOST_RECTANGLE_H
#define TUTTI_KERNELS_HOST_RECTANGLE_H

#include "kernels/layers.h"
#include "kernels/operators.h"

static inline tutti_kernel_window rectangle_of(const tutti_window *window, int batch) {
    return (tutti_kernel_window){.batch = batch,
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

#endif
