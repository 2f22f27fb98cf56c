/*
 * Rows of operators on images.
 */
#ifndef TUTTI_OPS_IMAGES_H
#define TUTTI_OPS_IMAGES_H

#include "ops/call.h"

extern const tutti_ops_row tutti_ops_row_conv2d, tutti_ops_row_conv2d_dx, tutti_ops_row_conv2d_dweight,
    tutti_ops_row_max_pool2d, tutti_ops_row_max_pool2d_backward, tutti_ops_row_avg_pool2d,
    tutti_ops_row_avg_pool2d_backward;

/* Params of the rows. Convolutions take the kernel's extents from the weight. */
typedef struct tutti_ops_windows {
    tutti_windows user;
    const int64_t *x_shape; /* for gradients of x; NULL: the first input is x */
    int64_t kernel[2];      /* set for gradients of the weight; else filled in from it */
} tutti_ops_windows;

#endif
