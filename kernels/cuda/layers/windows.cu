/*
 * Windows that slide over images: unfolding for convolutions, folding back, max-pooling; average-pooling uses the
 * operators' kernels.
 *
 *   columns[pixel of the output, ky, kx, channel] = x[the pixel under the window]     0 where it is padding
 *
 * A thread computes one element of the result, or four neighbouring channels if the number of channels is a multiple
 * of four. Unfolding writes four neighbouring elements even if they belong to several taps. A thread reads all terms
 * of its elements, so no sum is split among threads, and sums have the host's order. A row of blocks takes whole
 * images: indices within an image have 31 bits.
 */
#include "kernels/cuda/layers/bfloat16.h"
#include "kernels/cuda/layers/quad.h"
#include "kernels/cuda/operators/op_kernels.h"
#include "kernels/host/layers/rectangle.h"

#define MOST_ROWS     65535 /* rows of blocks in a grid */
#define ENOUGH_BLOCKS 4096  /* several waves on a large GPU */

/* A window, with the divisors of indices. */
struct placed {
    tutti_window window;
    int batch;
    divider by_groups, by_kernel, by_width, by_out_width, by_stride;
    uint32_t threads; /* threads with work per image */
};

template <int WIDTH> static __device__ inline void store_group(uint16_t *p, const group<WIDTH> &values) {
    group<WIDTH, uint16_t> rounded;
    for (int i = 0; i < WIDTH; i++) rounded.at[i] = bfloat16_of(values.at[i]);
    store_group<WIDTH, uint16_t>(p, rounded);
}

static inline int group_width(const tutti_window *window) {
    return window->channels % 4 == 0 ? 4 : 1;
}

static placed place(const tutti_window *window, int batch, size_t elements) {
    placed made = {};
    int width = group_width(window);
    made.window = *window;
    made.batch = batch;
    made.by_groups = divider_by(window->channels / width);
    made.by_kernel = divider_by(window->kernel);
    made.by_width = divider_by(window->in_width);
    made.by_out_width = divider_by(window->out_width);
    made.by_stride = divider_by(window->stride);
    made.threads = (uint32_t)(elements / (size_t)width);
    return made;
}

/* Where there are many blocks, a thread takes several images, and computes its place in them only once. */
static dim3 grid_for(const placed &place) {
    const unsigned blocks = blocks_for(place.threads);
    const size_t images_each = (size_t)blocks * place.batch / ENOUGH_BLOCKS;
    const size_t rows = images_each > 1 ? (place.batch + images_each - 1) / images_each : place.batch;
    return dim3(blocks, rows < MOST_ROWS ? (unsigned)rows : MOST_ROWS);
}

static size_t in_count(const tutti_window *window) {
    return (size_t)window->in_height * (size_t)window->in_width * (size_t)window->channels;
}

static size_t out_count(const tutti_window *window) {
    return (size_t)window->out_height * (size_t)window->out_width * (size_t)window->channels;
}

/* ----------------------------------------------------------------------------------------------- unfold */

/* A place in an image's columns; `channel` counts groups of channels. */
struct tap {
    uint32_t channel, kernel_column, kernel_row, out_column, out_row;
};

static __device__ inline tap find_tap(const placed &where, uint32_t number) {
    tap found;
    found.channel = number;
    found.kernel_column = split(&found.channel, where.by_groups);
    found.kernel_row = split(&found.kernel_column, where.by_kernel);
    found.out_column = split(&found.kernel_row, where.by_kernel);
    found.out_row = split(&found.out_column, where.by_out_width);
    return found;
}

static __device__ inline void advance(tap *at, const placed &where) {
    if (++at->channel < where.by_groups.divisor) return;
    at->channel = 0;
    if (++at->kernel_column < where.by_kernel.divisor) return;
    at->kernel_column = 0;
    if (++at->kernel_row < where.by_kernel.divisor) return;
    at->kernel_row = 0;
    if (++at->out_column < where.by_out_width.divisor) return;
    at->out_column = 0;
    at->out_row++;
}

/* The index in an image of x of the element at this place; negative where it is padding. */
template <int WIDTH> static __device__ inline int32_t source_of(const tap &at, const tutti_window &window) {
    const int row = (int)(at.out_row * window.stride + at.kernel_row) - window.pad_top;
    const int column = (int)(at.out_column * window.stride + at.kernel_column) - window.pad_left;
    const bool inside = row >= 0 && row < window.in_height && column >= 0 && column < window.in_width;
    return inside ? (row * window.in_width + column) * window.channels + (int)at.channel * WIDTH : -1;
}

/* A thread writes GROUPS groups of WIDTH channels at once: with one or three channels these span several taps and
 * pixels. */
template <int GROUPS, int WIDTH, typename Element>
static __global__ void unfold(placed where, const float *x, Element *columns) {
    const tutti_window &window = where.window;
    const uint32_t number = (uint32_t)thread_number();
    if (number >= where.threads) return;
    int32_t from[GROUPS];
    tap at = find_tap(where, number * GROUPS);
    for (int i = 0; i < GROUPS; i++) {
        from[i] = source_of<WIDTH>(at, window);
        if (i + 1 < GROUPS) advance(&at, where);
    }
    const size_t image_count = (size_t)window.in_height * window.in_width * window.channels;
    const size_t columns_count = (size_t)where.threads * (GROUPS * WIDTH);
    x += blockIdx.y * image_count;
    columns += blockIdx.y * columns_count + (size_t)number * (GROUPS * WIDTH);
    for (unsigned image = blockIdx.y; image < (unsigned)where.batch; image += gridDim.y) {
        group<GROUPS * WIDTH> values = {};
        for (int i = 0; i < GROUPS; i++) {
            if (from[i] < 0) continue;
            const group<WIDTH> part = load_group<WIDTH>(x + from[i]);
            for (int k = 0; k < WIDTH; k++) values.at[i * WIDTH + k] = part.at[k];
        }
        store_group<GROUPS * WIDTH>(columns, values);
        x += gridDim.y * image_count;
        columns += gridDim.y * columns_count;
    }
}

template <typename Element>
static void start_unfold(tutti_compute *compute, const tutti_window *window, int batch, const float *x,
                         Element *columns) {
    const size_t elements = out_count(window) * (size_t)window->kernel * (size_t)window->kernel;
    placed where = place(window, batch, elements);
    if (group_width(window) == 4) {
        launch(compute, unfold<1, 4, Element>, grid_for(where), THREADS, where, x, columns);
        return;
    }
    /* Then all images start at a multiple of four elements. */
    if (elements % 4 == 0 && (uintptr_t)columns % (4 * sizeof *columns) == 0) {
        where.threads /= 4;
        launch(compute, unfold<4, 1, Element>, grid_for(where), THREADS, where, x, columns);
        return;
    }
    launch(compute, unfold<1, 1, Element>, grid_for(where), THREADS, where, x, columns);
}

void tutti_gpu_unfold(tutti_compute *compute, const tutti_window *window, int batch, const float *x, void *columns,
                      bool rounded) {
    if (batch == 0) return;
    if (rounded) start_unfold(compute, window, batch, x, (uint16_t *)columns);
    else start_unfold(compute, window, batch, x, (float *)columns);
}

/* ----------------------------------------------------------------------- windows that cover a pixel, and folding */

/* Windows [first, last] that cover a row (or column), which lies `at` rows after the first padded one. */
struct seen_by {
    int first, last;
};

static __device__ inline seen_by windows_that_see(int at, const tutti_window &window, int windows, divider by_stride) {
    seen_by seen;
    seen.first = at < window.kernel ? 0 : (int)divide((uint32_t)(at - window.kernel), by_stride) + 1;
    seen.last = (int)divide((uint32_t)at, by_stride);
    if (seen.last >= windows) seen.last = windows - 1;
    return seen;
}

/* This thread's element of an image of x: its first channel, and the windows that cover it. */
struct spot {
    uint32_t channel;
    int row, column; /* counted from the first padded one */
    seen_by rows, columns;
};

static __device__ inline spot find_spot(const placed &where, uint32_t number, int width) {
    const tutti_window &window = where.window;
    spot found;
    uint32_t pixel = divide(number, where.by_groups);
    found.channel = (number - pixel * (window.channels / width)) * width;
    uint32_t row = divide(pixel, where.by_width);
    found.row = (int)row + window.pad_top;
    found.column = (int)(pixel - row * window.in_width) + window.pad_left;
    found.rows = windows_that_see(found.row, window, window.out_height, where.by_stride);
    found.columns = windows_that_see(found.column, window, window.out_width, where.by_stride);
    return found;
}

template <int WIDTH> static __global__ void fold(placed where, const float *columns, float *x) {
    const tutti_window &window = where.window;
    uint32_t number = (uint32_t)thread_number();
    if (number >= where.threads) return;
    spot here = find_spot(where, number, WIDTH);
    size_t taps = (size_t)window.kernel * window.kernel * window.channels;
    size_t columns_count = (size_t)window.out_height * window.out_width * taps;
    /* The next window covers the pixel one stride earlier; the step in the columns follows from that, and may be
     * negative (it wraps). */
    const size_t stride = (size_t)window.stride * window.channels;
    const size_t next_column = taps - stride, next_row = window.out_width * taps - window.kernel * stride;
    const int kernel_row = here.row - here.rows.first * window.stride;
    const int kernel_column = here.column - here.columns.first * window.stride;
    const size_t first_pixel = (size_t)here.rows.first * window.out_width + here.columns.first;
    const size_t first_tap = ((size_t)kernel_row * window.kernel + kernel_column) * window.channels + here.channel;
    for (unsigned image = blockIdx.y; image < (unsigned)where.batch; image += gridDim.y) {
        size_t of_row = image * columns_count + first_pixel * taps + first_tap;
        group<WIDTH> sum = {};
        for (int out_row = here.rows.first; out_row <= here.rows.last; out_row++, of_row += next_row) {
            size_t at = of_row;
            for (int out_column = here.columns.first; out_column <= here.columns.last;
                 out_column++, at += next_column) {
                group<WIDTH> part = load_group<WIDTH>(columns + at);
                for (int i = 0; i < WIDTH; i++) sum.at[i] += part.at[i];
            }
        }
        store_group<WIDTH>(x + ((size_t)image * where.threads + number) * WIDTH, sum);
    }
}

void tutti_gpu_fold(tutti_compute *compute, const tutti_window *window, int batch, const float *columns, float *x) {
    if (batch == 0) return;
    placed where = place(window, batch, in_count(window));
    dim3 grid = grid_for(where);
    if (group_width(window) == 4) launch(compute, fold<4>, grid, THREADS, where, columns, x);
    else launch(compute, fold<1>, grid, THREADS, where, columns, x);
}

/* ------------------------------------------------------------------------------------------ max-pooling */

/* The first of equals wins; a NaN always wins, and then stays. */
template <int WIDTH>
static __global__ void max_pool_forward(placed where, const float *x, float *y, int32_t *positions) {
    const tutti_window &window = where.window;
    uint32_t number = (uint32_t)thread_number();
    if (number >= where.threads) return;
    uint32_t pixel = divide(number, where.by_groups);
    uint32_t channel = (number - pixel * (window.channels / WIDTH)) * WIDTH;
    uint32_t out_row = divide(pixel, where.by_out_width), out_column = pixel - out_row * window.out_width;
    int top = (int)out_row * window.stride - window.pad_top, left = (int)out_column * window.stride - window.pad_left;
    int first_row = top < 0 ? 0 : top, end_row = min(top + window.kernel, window.in_height);
    int first_column = left < 0 ? 0 : left, end_column = min(left + window.kernel, window.in_width);
    size_t image_count = (size_t)window.in_height * window.in_width * window.channels;
    for (unsigned image = blockIdx.y; image < (unsigned)where.batch; image += gridDim.y) {
        const float *from = x + image * image_count + channel;
        group<WIDTH> best = {};
        group<WIDTH, int32_t> positions_of_best = {};
        bool started = false;
        for (int row = first_row; row < end_row; row++)
            for (int column = first_column; column < end_column; column++) {
                group<WIDTH> next =
                    load_group<WIDTH>(from + ((size_t)row * window.in_width + column) * window.channels);
                int32_t position = (row - top) * window.kernel + column - left;
                for (int i = 0; i < WIDTH; i++) {
                    float value = next.at[i];
                    if (started && !(value > best.at[i]) && value == value) continue;
                    best.at[i] = value;
                    positions_of_best.at[i] = position;
                }
                started = true;
            }
        size_t to = ((size_t)image * where.threads + number) * WIDTH;
        store_group<WIDTH>(y + to, best);
        store_group<WIDTH>(positions + to, positions_of_best);
    }
}

void tutti_gpu_max_pool_forward(tutti_compute *compute, const tutti_window *window, int batch, const float *x, float *y,
                                int32_t *where) {
    if (batch == 0) return;
    placed windows = place(window, batch, out_count(window));
    dim3 grid = grid_for(windows);
    if (group_width(window) == 4) launch(compute, max_pool_forward<4>, grid, THREADS, windows, x, y, where);
    else launch(compute, max_pool_forward<1>, grid, THREADS, windows, x, y, where);
}

template <int WIDTH>
static __global__ void max_pool_backward(placed where, const float *dy, const int32_t *positions, float *dx) {
    const tutti_window &window = where.window;
    uint32_t number = (uint32_t)thread_number();
    if (number >= where.threads) return;
    spot here = find_spot(where, number, WIDTH);
    size_t out = (size_t)window.out_height * window.out_width * window.channels;
    for (unsigned image = blockIdx.y; image < (unsigned)where.batch; image += gridDim.y) {
        group<WIDTH> sum = {};
        for (int out_row = here.rows.first; out_row <= here.rows.last; out_row++)
            for (int out_column = here.columns.first; out_column <= here.columns.last; out_column++) {
                int kernel_row = here.row - out_row * window.stride;
                int kernel_column = here.column - out_column * window.stride;
                int32_t position = kernel_row * window.kernel + kernel_column;
                size_t at =
                    image * out + ((size_t)out_row * window.out_width + out_column) * window.channels + here.channel;
                group<WIDTH> part = load_group<WIDTH>(dy + at);
                group<WIDTH, int32_t> winners = load_group<WIDTH>(positions + at);
                for (int i = 0; i < WIDTH; i++) sum.at[i] += winners.at[i] == position ? part.at[i] : 0;
            }
        store_group<WIDTH>(dx + ((size_t)image * where.threads + number) * WIDTH, sum);
    }
}

void tutti_gpu_max_pool_backward(tutti_compute *compute, const tutti_window *window, int batch, const float *dy,
                                 const int32_t *where, float *dx) {
    if (batch == 0) return;
    placed windows = place(window, batch, in_count(window));
    dim3 grid = grid_for(windows);
    if (group_width(window) == 4) launch(compute, max_pool_backward<4>, grid, THREADS, windows, dy, where, dx);
    else launch(compute, max_pool_backward<1>, grid, THREADS, windows, dy, where, dx);
}

void tutti_gpu_average_pool_forward(tutti_compute *compute, const tutti_window *window, int batch, const float *x,
                                    float *y) {
    const tutti_kernel_window rectangle = rectangle_of(window, batch);
    tutti_compute_note(compute, tutti_gpu_op_average_pool_forward(tutti_cuda_compute_of(compute)->stream, TUTTI_FLOAT32,
                                                                  &rectangle, false, x, y));
}

void tutti_gpu_average_pool_backward(tutti_compute *compute, const tutti_window *window, int batch, const float *dy,
                                     float *dx) {
    const tutti_kernel_window rectangle = rectangle_of(window, batch);
    tutti_compute_note(compute, tutti_gpu_op_average_pool_backward(tutti_cuda_compute_of(compute)->stream,
                                                                   TUTTI_FLOAT32, &rectangle, false, dy, dx));
}
