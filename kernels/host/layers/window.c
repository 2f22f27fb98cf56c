/*
 * Places a sliding window: output size and padding, as TensorFlow defines SAME and VALID.
 */
#include "kernels/layers.h"

/* One dimension. Output extent 0: the window does not fit. */
static void place(int in, int kernel, int stride, tutti_padding padding, int *out, int *pad) {
    if (padding == TUTTI_PADDING_VALID) {
        *out = in < kernel ? 0 : (in - kernel) / stride + 1;
        *pad = 0;
        return;
    }
    *out = (in + stride - 1) / stride;
    int total = (*out - 1) * stride + kernel - in;
    *pad = total > 0 ? total / 2 : 0;
}

bool tutti_window_place(tutti_window *window, tutti_padding padding) {
    place(window->in_height, window->kernel, window->stride, padding, &window->out_height, &window->pad_top);
    place(window->in_width, window->kernel, window->stride, padding, &window->out_width, &window->pad_left);
    return window->out_height > 0 && window->out_width > 0;
}
