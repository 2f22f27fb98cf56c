/*
 * A layer's square window as the operators' rectangular one.
 */
#ifndef TUTTI_KERNELS_HOST_RECTANGLE_H
#define TUTTI_KERNELS_HOST_RECTANGLE_H

#include "kernels/layers.h"
#include "kernels/operators.h"

static inline tutti_kernel_window rectangle_of(const tutti_window *window, int batch) {
    tutti_kernel_window made; /* C++ code includes this file, too */
    made.batch = batch;
    made.in_height = window->in_height;
    made.in_width = window->in_width;
    made.channels = window->channels;
    made.kernel_height = made.kernel_width = window->kernel;
    made.stride_height = made.stride_width = window->stride;
    made.pad_top = window->pad_top;
    made.pad_left = window->pad_left;
    made.out_height = window->out_height;
    made.out_width = window->out_width;
    return made;
}

#endif
