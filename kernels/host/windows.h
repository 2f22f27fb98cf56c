/*
 * The place of a window on its image.
 */
#ifndef TUTTI_KERNELS_HOST_WINDOWS_H
#define TUTTI_KERNELS_HOST_WINDOWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/operators.h"
#include "kernels/real.h"

/* A window cut to the image: kernel rows [top, bottom), columns [left, right), none if the window lies outside the
 * image; and the image's pixel under kernel position (0, 0), which may lie in the padding. */
typedef struct window_cut {
    int64_t top, bottom, left, right;
    int64_t origin;
} window_cut;

static inline window_cut cut_window(const tutti_kernel_window *window, int64_t out_row, int64_t out_column) {
    const int64_t row = out_row * window->stride_height - window->pad_top;
    const int64_t column = out_column * window->stride_width - window->pad_left;
    const int64_t rows_left = window->in_height - row, columns_left = window->in_width - column;
    window_cut cut = {
        .top = row < 0 ? -row : 0,
        .bottom = rows_left < window->kernel_height ? rows_left : window->kernel_height,
        .left = column < 0 ? -column : 0,
        .right = columns_left < window->kernel_width ? columns_left : window->kernel_width,
        .origin = row * window->in_width + column,
    };
    if (cut.bottom <= cut.top || cut.right <= cut.left) cut = (window_cut){0, 0, 0, 0, 0};
    return cut;
}

/* Elements from the image's start to the pixel under a position of the kernel. */
static inline size_t cut_pixel(const tutti_kernel_window *window, const window_cut *cut, int64_t row, int64_t column) {
    return (size_t)(cut->origin + row * window->in_width + column) * (size_t)window->channels;
}

static inline size_t image_count(const tutti_kernel_window *window) {
    return (size_t)window->in_height * (size_t)window->in_width * (size_t)window->channels;
}

static inline size_t pixel_count(const tutti_kernel_window *window) {
    return (size_t)window->out_height * (size_t)window->out_width;
}

/* Elements under one window. */
static inline size_t window_count(const tutti_kernel_window *window) {
    return (size_t)window->kernel_height * (size_t)window->kernel_width * (size_t)window->channels;
}

#endif
