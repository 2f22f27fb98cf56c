/*
 * Windows that slide over images, for the operators: unfolding for convolutions, folding back, and pooling, in
 * float32 and float64.
 *
 * A thread computes an element of the result and reads all its terms in the host's order: no sum is split among
 * threads. Extents are below 2^31, counts of elements need not be.
 */
#include "kernels/cuda/operators/op_element.h"
#include "kernels/cuda/operators/op_kernels.h"

/* Kernel rows (or columns) [begin, end) of a window that lie on the image; origin: its first row, maybe in the
 * padding. */
struct cut {
    int64_t begin, end, origin;
};

static __device__ inline cut cut_line(int64_t window, int64_t stride, int64_t pad, int64_t kernel, int64_t extent) {
    cut c;
    c.origin = window * stride - pad;
    c.begin = c.origin < 0 ? -c.origin : 0;
    c.end = extent - c.origin < kernel ? extent - c.origin : kernel;
    if (c.end < c.begin) c.end = c.begin;
    return c;
}

static __device__ inline cut cut_rows(const tutti_kernel_window &w, int64_t out_row) {
    return cut_line(out_row, w.stride_height, w.pad_top, w.kernel_height, w.in_height);
}

static __device__ inline cut cut_columns(const tutti_kernel_window &w, int64_t out_column) {
    return cut_line(out_column, w.stride_width, w.pad_left, w.kernel_width, w.in_width);
}

/* Windows [begin, end) along a line that cover `place`. */
static __device__ inline cut seen_by(int64_t place, int64_t stride, int64_t pad, int64_t kernel, int64_t windows) {
    const int64_t at = place + pad; /* counted from the first padded one */
    cut c;
    c.origin = at;
    c.begin = at < kernel ? 0 : (at - kernel) / stride + 1;
    c.end = at < 0 ? 0 : at / stride + 1;
    if (c.end > windows) c.end = windows;
    return c;
}

/* Element i of an array [.., rows, columns, channels]. */
struct spot {
    int64_t image, row, column, channel;
};

static __device__ inline spot find_spot(size_t i, int64_t rows, int64_t columns, int64_t channels) {
    spot s;
    size_t rest = i / (size_t)channels;
    s.channel = (int64_t)(i - rest * (size_t)channels);
    size_t next = rest / (size_t)columns;
    s.column = (int64_t)(rest - next * (size_t)columns);
    s.image = (int64_t)(next / (size_t)rows);
    s.row = (int64_t)(next - (size_t)s.image * (size_t)rows);
    return s;
}

static __device__ inline size_t pixel_of_x(const tutti_kernel_window &w, int64_t image, int64_t row, int64_t column) {
    return (size_t)(((image * w.in_height) + row) * w.in_width + column) * (size_t)w.channels;
}

static __device__ inline size_t pixel_of_y(const tutti_kernel_window &w, int64_t image, int64_t row, int64_t column) {
    return (size_t)(((image * w.out_height) + row) * w.out_width + column) * (size_t)w.channels;
}

/* ------------------------------------------------------------------------------------------------ columns */

/* x and columns begin at the first image. */
template <typename Real>
static __global__ void unfold(tutti_kernel_window w, size_t count, const Real *x, Real *columns) {
    const int64_t row_count = w.kernel_width * w.channels, taps = w.kernel_height * row_count;
    FOR_EACH(i, count) {
        const size_t pixel = i / (size_t)taps;
        const int64_t tap = (int64_t)(i - pixel * (size_t)taps);
        const int64_t kernel_row = tap / row_count, in_row = tap - kernel_row * row_count;
        const int64_t kernel_column = in_row / w.channels, channel = in_row - kernel_column * w.channels;
        const spot out = find_spot(pixel, w.out_height, w.out_width, 1);
        const int64_t row = out.row * w.stride_height - w.pad_top + kernel_row;
        const int64_t column = out.column * w.stride_width - w.pad_left + kernel_column;
        const bool inside = row >= 0 && row < w.in_height && column >= 0 && column < w.in_width;
        columns[i] = inside ? x[pixel_of_x(w, out.image, row, column) + (size_t)channel] : 0;
    }
}

template <typename Real>
static __global__ void fold(tutti_kernel_window w, size_t count, const Real *columns, Real *x) {
    const size_t row_count = (size_t)(w.kernel_width * w.channels), taps = (size_t)w.kernel_height * row_count;
    FOR_EACH(i, count) {
        const spot at = find_spot(i, w.in_height, w.in_width, w.channels);
        const cut rows = seen_by(at.row, w.stride_height, w.pad_top, w.kernel_height, w.out_height);
        const cut across = seen_by(at.column, w.stride_width, w.pad_left, w.kernel_width, w.out_width);
        Real sum = 0;
        for (int64_t row = rows.begin; row < rows.end; row++)
            for (int64_t column = across.begin; column < across.end; column++) {
                const size_t pixel = (size_t)((at.image * w.out_height + row) * w.out_width + column);
                const size_t kernel_row = (size_t)(rows.origin - row * w.stride_height);
                const size_t kernel_column = (size_t)(across.origin - column * w.stride_width);
                sum += columns[pixel * taps + kernel_row * row_count + kernel_column * (size_t)w.channels +
                               (size_t)at.channel];
            }
        x[i] = sum;
    }
}

static size_t image_count(const tutti_kernel_window *w) {
    return (size_t)w->in_height * (size_t)w->in_width * (size_t)w->channels;
}

static size_t pixel_count(const tutti_kernel_window *w) {
    return (size_t)w->out_height * (size_t)w->out_width;
}

static size_t tap_count(const tutti_kernel_window *w) {
    return (size_t)w->kernel_height * (size_t)w->kernel_width * (size_t)w->channels;
}

tutti_status tutti_gpu_op_unfold(tutti_stream stream, tutti_type type, const tutti_kernel_window *w, int64_t first,
                                 int64_t count, const void *x, void *columns) {
    const size_t elements = (size_t)count * pixel_count(w) * tap_count(w), before = (size_t)first * image_count(w);
    if (elements == 0) return TUTTI_OK;
    if (type == TUTTI_FLOAT32)
        return enqueue(stream, unfold<float>, op_blocks(elements), OP_THREADS, *w, elements, (const float *)x + before,
                       (float *)columns);
    return enqueue(stream, unfold<double>, op_blocks(elements), OP_THREADS, *w, elements, (const double *)x + before,
                   (double *)columns);
}

tutti_status tutti_gpu_op_fold(tutti_stream stream, tutti_type type, const tutti_kernel_window *w, int64_t first,
                               int64_t count, const void *columns, void *x) {
    const size_t elements = (size_t)count * image_count(w), before = (size_t)first * image_count(w);
    if (elements == 0) return TUTTI_OK;
    if (type == TUTTI_FLOAT32)
        return enqueue(stream, fold<float>, op_blocks(elements), OP_THREADS, *w, elements, (const float *)columns,
                       (float *)x + before);
    return enqueue(stream, fold<double>, op_blocks(elements), OP_THREADS, *w, elements, (const double *)columns,
                   (double *)x + before);
}

template <typename Real> static __global__ void repeat(size_t count, size_t columns, const Real *values, Real *y) {
    FOR_EACH(i, count) y[i] = values[i % columns];
}

tutti_status tutti_gpu_op_repeat(tutti_stream stream, tutti_type type, size_t rows, size_t columns, const void *values,
                                 void *y) {
    const size_t count = rows * columns;
    if (count == 0) return TUTTI_OK;
    if (type == TUTTI_FLOAT32)
        return enqueue(stream, repeat<float>, op_blocks(count), OP_THREADS, count, columns, (const float *)values,
                       (float *)y);
    return enqueue(stream, repeat<double>, op_blocks(count), OP_THREADS, count, columns, (const double *)values,
                   (double *)y);
}

/* ---------------------------------------------------------------------------------------- pooling by maximum */

template <typename Real>
static __global__ void max_forward(tutti_kernel_window w, size_t count, const Real *x, Real *y) {
    FOR_EACH(i, count) {
        const spot at = find_spot(i, w.out_height, w.out_width, w.channels);
        const cut rows = cut_rows(w, at.row), across = cut_columns(w, at.column);
        Real best = -(Real)INFINITY;
        for (int64_t row = rows.begin; row < rows.end; row++)
            for (int64_t column = across.begin; column < across.end; column++) {
                const Real value =
                    x[pixel_of_x(w, at.image, rows.origin + row, across.origin + column) + (size_t)at.channel];
                best = (value > best) | (value != value) ? value : best; /* NaN wins, and then stays */
            }
        y[i] = best;
    }
}

/* Returns whether this pixel is the window's maximum: the first of equals, the last NaN. */
template <typename Real>
static __device__ inline bool is_largest(const tutti_kernel_window &w, const Real *image, cut rows, cut across,
                                         int64_t at_row, int64_t at_column) {
    Real best = 0;
    bool found = false, here = false;
    for (int64_t row = rows.origin + rows.begin; row < rows.origin + rows.end; row++)
        for (int64_t column = across.origin + across.begin; column < across.origin + across.end; column++) {
            const Real value = image[(size_t)(row * w.in_width + column) * (size_t)w.channels];
            if (found && !(value > best) && value == value) continue;
            best = value;
            found = true;
            here = row == at_row && column == at_column;
        }
    return here;
}

template <typename Real>
static __global__ void max_backward(tutti_kernel_window w, size_t count, const Real *x, const Real *dy, Real *dx) {
    FOR_EACH(i, count) {
        const spot at = find_spot(i, w.in_height, w.in_width, w.channels);
        const cut rows = seen_by(at.row, w.stride_height, w.pad_top, w.kernel_height, w.out_height);
        const cut across = seen_by(at.column, w.stride_width, w.pad_left, w.kernel_width, w.out_width);
        const Real *image = x + pixel_of_x(w, at.image, 0, 0) + (size_t)at.channel;
        Real sum = 0;
        for (int64_t row = rows.begin; row < rows.end; row++)
            for (int64_t column = across.begin; column < across.end; column++) {
                const Real share = dy[pixel_of_y(w, at.image, row, column) + (size_t)at.channel];
                const bool wins = is_largest(w, image, cut_rows(w, row), cut_columns(w, column), at.row, at.column);
                sum += wins ? share : 0;
            }
        dx[i] = sum;
    }
}

/* ---------------------------------------------------------------------------------------- pooling by average */

/* 1 / the number of pixels that count; 0 if there are none. */
template <typename Real>
static __device__ inline Real share_of(const tutti_kernel_window &w, cut rows, cut across, bool count_padding) {
    const int64_t inside = (rows.end - rows.begin) * (across.end - across.begin);
    const int64_t pixels = count_padding ? w.kernel_height * w.kernel_width : inside;
    return pixels == 0 ? 0 : (Real)(1.0 / (double)pixels);
}

template <typename Real>
static __global__ void average_forward(tutti_kernel_window w, bool count_padding, size_t count, const Real *x,
                                       Real *y) {
    FOR_EACH(i, count) {
        const spot at = find_spot(i, w.out_height, w.out_width, w.channels);
        const cut rows = cut_rows(w, at.row), across = cut_columns(w, at.column);
        Real sum = 0;
        for (int64_t row = rows.begin; row < rows.end; row++)
            for (int64_t column = across.begin; column < across.end; column++)
                sum += x[pixel_of_x(w, at.image, rows.origin + row, across.origin + column) + (size_t)at.channel];
        y[i] = sum * share_of<Real>(w, rows, across, count_padding);
    }
}

template <typename Real>
static __global__ void average_backward(tutti_kernel_window w, bool count_padding, size_t count, const Real *dy,
                                        Real *dx) {
    FOR_EACH(i, count) {
        const spot at = find_spot(i, w.in_height, w.in_width, w.channels);
        const cut rows = seen_by(at.row, w.stride_height, w.pad_top, w.kernel_height, w.out_height);
        const cut across = seen_by(at.column, w.stride_width, w.pad_left, w.kernel_width, w.out_width);
        Real sum = 0;
        for (int64_t row = rows.begin; row < rows.end; row++)
            for (int64_t column = across.begin; column < across.end; column++) {
                const Real share = share_of<Real>(w, cut_rows(w, row), cut_columns(w, column), count_padding);
                sum += dy[pixel_of_y(w, at.image, row, column) + (size_t)at.channel] * share;
            }
        dx[i] = sum;
    }
}

/* ------------------------------------------------------------------------------------------------ calls */

#define R(address)  ((const Real *)(address))
#define RW(address) ((Real *)(address))
#define FOR_REALS(statement)                                                                                           \
    if (count == 0) return TUTTI_OK;                                                                                   \
    if (type == TUTTI_FLOAT32) {                                                                                       \
        typedef float Real;                                                                                            \
        return statement;                                                                                              \
    }                                                                                                                  \
    typedef double Real;                                                                                               \
    return statement

static size_t in_count(const tutti_kernel_window *w) {
    return (size_t)w->batch * image_count(w);
}

static size_t out_count(const tutti_kernel_window *w) {
    return (size_t)w->batch * pixel_count(w) * (size_t)w->channels;
}

tutti_status tutti_gpu_op_max_pool_forward(tutti_stream stream, tutti_type type, const tutti_kernel_window *w,
                                           const void *x, void *y) {
    const size_t count = out_count(w);
    FOR_REALS(enqueue(stream, max_forward<Real>, op_blocks(count), OP_THREADS, *w, count, R(x), RW(y)));
}

tutti_status tutti_gpu_op_max_pool_backward(tutti_stream stream, tutti_type type, const tutti_kernel_window *w,
                                            const void *x, const void *dy, void *dx) {
    const size_t count = in_count(w);
    FOR_REALS(enqueue(stream, max_backward<Real>, op_blocks(count), OP_THREADS, *w, count, R(x), R(dy), RW(dx)));
}

tutti_status tutti_gpu_op_average_pool_forward(tutti_stream stream, tutti_type type, const tutti_kernel_window *w,
                                               bool count_padding, const void *x, void *y) {
    const size_t count = out_count(w);
    FOR_REALS(
        enqueue(stream, average_forward<Real>, op_blocks(count), OP_THREADS, *w, count_padding, count, R(x), RW(y)));
}

tutti_status tutti_gpu_op_average_pool_backward(tutti_stream stream, tutti_type type, const tutti_kernel_window *w,
                                                bool count_padding, const void *dy, void *dx) {
    const size_t count = in_count(w);
    FOR_REALS(
        enqueue(stream, average_backward<Real>, op_blocks(count), OP_THREADS, *w, count_padding, count, R(dy), RW(dx)));
}
