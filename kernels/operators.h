/*
 * The operators of global tensors on local arrays: the computation of one rank on its part.
 *
 * Arrays are dense and row-major unless strides are given; strides are in elements, 0 where a dimension is broadcast.
 * Any extent may be 0; an array without elements may be NULL. The caller has checked the arguments: nothing here
 * fails, and nothing allocates; where scratch is needed the caller provides it. Results are written, never added to.
 * Unless a comment permits it, results must not overlap operands.
 *
 * Types: "reals" are float32 and float64; "floats" are these, float16, bfloat16 and float8, which are computed in
 * float32 and rounded to nearest even once per result; "numbers" are floats and integers. Integers wrap. Comments
 * name bool where it is allowed. Nothing uses FMA: with one C library, every x86 processor gives the same bits,
 * except in matrix products (CBLAS).
 *
 * The functions are the host's. The table at the end (tutti_operators) has the same operators for GPUs, with the
 * same types and the same rules for NaN, ties, wrapping and rounding. GPUs give the host's bits, in float32 and
 * shorter floats also for exp, log, gelu and random numbers. Only these may be rounded differently: matrix products
 * and convolutions (cuBLAS); float64 exp, log, erfc, sin and cos (CUDA's); and sums that are added in another order,
 * which depends on the shape only: over dimensions, of batch normalisation and of softmax, kept in float64 as on the
 * host.
 */
#ifndef TUTTI_KERNELS_OPERATORS_H
#define TUTTI_KERNELS_OPERATORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#include "kernels/box.h"

#define TUTTI_KERNEL_MOST_DIMS 8

/* ------------------------------------------------------------------------------------------ elementwise */

typedef enum tutti_kernel_binary_kind {
    TUTTI_KERNEL_ADD,     /* bool: or */
    TUTTI_KERNEL_SUB,     /* not bool */
    TUTTI_KERNEL_MUL,     /* bool: and */
    TUTTI_KERNEL_DIV,     /* not bool; integers truncate towards zero, x / 0 is 0, the smallest / -1 is the smallest */
    TUTTI_KERNEL_MAXIMUM, /* NaN wins, -0 < +0; bool: or */
    TUTTI_KERNEL_MINIMUM, /* NaN wins; bool: and */
    TUTTI_KERNEL_EQUAL,   /* 1 where a == b, else 0; bool is allowed */
    TUTTI_KERNEL_RELU_BACKWARD,     /* a: relu's result or argument, b: dy; 0 where a <= 0, else b; not bool */
    TUTTI_KERNEL_GELU_BACKWARD,     /* a: x, b: dy; floats */
    TUTTI_KERNEL_GELU_TANH_BACKWARD /* the same for the approximation */
} tutti_kernel_binary_kind;

/* y[i, j, ...] = a[i, j, ...] kind b[i, j, ...]; y is dense and may be one of the operands if that is dense, too. */
typedef struct tutti_kernel_binary_args {
    tutti_type type; /* of a, b and y: numbers, bool as above */
    int ndims;       /* 0, which is one element, to TUTTI_KERNEL_MOST_DIMS */
    const int64_t *shape;
    const void *a;
    const int64_t *a_strides;
    const void *b;
    const int64_t *b_strides;
    void *y;
} tutti_kernel_binary_args;
void tutti_kernel_binary(tutti_kernel_binary_kind kind, const tutti_kernel_binary_args *args);

typedef enum tutti_kernel_unary_kind {
    TUTTI_KERNEL_RELU,      /* numbers: 0 where x < 0, else x (NaN too) */
    TUTTI_KERNEL_GELU,      /* floats: x * Phi(x), by erf */
    TUTTI_KERNEL_GELU_TANH, /* floats: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    TUTTI_KERNEL_EXP,       /* floats */
    TUTTI_KERNEL_LOG        /* floats */
} tutti_kernel_unary_kind;

/* y may be x. */
void tutti_kernel_unary(tutti_kernel_unary_kind kind, tutti_type type, size_t count, const void *x, void *y);

/* y[i] = number * x[i], y[i] = x[i] + number; numbers, y may be x. Floats: the number is rounded to the type of the
 * computation (float32, float64). Integers: with a whole number the result wraps; otherwise it is computed in
 * float64 and rounded to nearest even, and a value out of range becomes the nearest end of the type (NaN: 0). */
void tutti_kernel_scale(tutti_type type, double number, size_t count, const void *x, void *y);
void tutti_kernel_add_number(tutti_type type, double number, size_t count, const void *x, void *y);

/* y[i] = x[i] as another type, of all types. To floats: nearest even, once; overflow as in kernels/reduce.h
 * (infinity; e4m3: its largest number). Floats to integers: truncated towards zero; a value out of range becomes
 * the nearest end of the type, NaN becomes 0. Integers to integers: modulo 2^bits. To bool: 1 where x is not 0
 * (NaN: 1); from bool: 0 or 1. y may be x where elements have the same size. */
void tutti_kernel_cast(tutti_type x_type, tutti_type y_type, size_t count, const void *x, void *y);

/* ------------------------------------------------------------------------------------------- reductions */

/* y = x reduced over the dimensions whose bits are set in `dims` (bit d: dimension d); y has the other dimensions,
 * in their order. TUTTI_SUM, TUTTI_MIN or TUTTI_MAX; numbers, and bool (sum, max: or; min: and). The result over
 * nothing: 0; min: the largest number (floats: +infinity, e4m3: 448); max: the smallest. Sums of floats are
 * accumulated in float64. NaN wins; -0 < +0. For example, the largest of each row of a softmax whose classes are
 * split over ranks is TUTTI_MAX over dimension 1. */
typedef struct tutti_kernel_reduce_args {
    tutti_type type;
    int ndims; /* 0 to TUTTI_KERNEL_MOST_DIMS */
    const int64_t *shape;
    unsigned dims;
    const void *x;
    void *y;
} tutti_kernel_reduce_args;
void tutti_kernel_reduce(tutti_reduction reduction, const tutti_kernel_reduce_args *args);

/* ---------------------------------------------------------------------------------------------- products */

/* y[x..., m, n] = op(a) op(b) + bias, in reals, for each index of the batch dimensions x...: op(a) is a[m, k], or
 * a[k, m] transposed; op(b) is b[k, n], or b[n, k] transposed; each of these matrices is dense. y is dense in all
 * dimensions. m, n and k must be below 2^31. k == 0: zeros (plus bias). */
typedef struct tutti_kernel_matmul_args {
    tutti_type type;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    int batch_ndims;                      /* 0: one product */
    const int64_t *batch_shape;           /* x... */
    const int64_t *a_strides, *b_strides; /* of the batch dimensions */
    const void *a, *b;
    const void *bias; /* [n]; NULL: no bias */
    void *y;
} tutti_kernel_matmul_args;
void tutti_kernel_matmul(const tutti_kernel_matmul_args *args);

/* ------------------------------------------------------------------------------------------------- windows */

/* A window that slides over images [batch, in_height, in_width, channels]. Window (0, 0) begins pad_top rows
 * above and pad_left columns left of the image (negative: inside it); out_height and out_width give the number
 * of windows, from which the padding below and on the right follows. Extents are below 2^31, strides are at
 * least 1. */
typedef struct tutti_kernel_window {
    int64_t batch, in_height, in_width, channels;
    int64_t kernel_height, kernel_width;
    int64_t stride_height, stride_width;
    int64_t pad_top, pad_left;
    int64_t out_height, out_width;
} tutti_kernel_window;

/* Bytes of scratch that a convolution needs, forward or backward; it may be 0. */
size_t tutti_kernel_conv_scratch_bytes(tutti_type type, const tutti_kernel_window *window);

/* Reals: y[batch, out_height, out_width, filters] of x and weight[kernel_height, kernel_width, channels, filters].
 * Padding is 0. */
void tutti_kernel_conv_forward(tutti_type type, const tutti_kernel_window *window, int64_t filters, const void *x,
                               const void *weight, const void *bias /* [filters]; NULL: none */, void *scratch,
                               void *y);

typedef struct tutti_kernel_conv_backward_args {
    tutti_type type;
    int64_t filters;
    const void *x;      /* for dweight only */
    const void *weight; /* for dx only */
    const void *dy;
    void *scratch;
    void *dx, *dweight, *dbias; /* NULL: not wanted */
} tutti_kernel_conv_backward_args;
void tutti_kernel_conv_backward(const tutti_kernel_window *window, const tutti_kernel_conv_backward_args *args);

/* Reals: y[batch, out_height, out_width, channels]. Padding is never the maximum, NaN always is; a window without
 * any pixel gives -infinity. */
void tutti_kernel_max_pool_forward(tutti_type type, const tutti_kernel_window *window, const void *x, void *y);
/* dy goes to the place of each window's maximum in x, the first of equal maxima, row by row (of NaNs the last). */
void tutti_kernel_max_pool_backward(tutti_type type, const tutti_kernel_window *window, const void *x, const void *dy,
                                    void *dx);

/* Reals: the sum of each window divided by its number of pixels, or, with count_padding, by kernel_height *
 * kernel_width. A window without any pixel gives 0. */
void tutti_kernel_average_pool_forward(tutti_type type, const tutti_kernel_window *window, bool count_padding,
                                       const void *x, void *y);
void tutti_kernel_average_pool_backward(tutti_type type, const tutti_kernel_window *window, bool count_padding,
                                        const void *dy, void *dx);

/* --------------------------------------------------------------------------------------- batch normalisation
 * Reals, x[rows, channels]; xhat = (x - mean) * inverse_deviation. Moments are float64 with any type.
 *
 *   statistics (each rank)  ->  sums added over the ranks  ->  moments  ->  normalise
 *   backward_sums (each rank)  ->  sums added over the ranks  ->  backward
 */

/* sums[0][c] = sum of x[:, c], sums[1][c] = sum of its squares. */
void tutti_kernel_batch_norm_statistics(tutti_type type, size_t rows, size_t channels, const void *x, double *sums);

/* mean = sums[0] / count, variance = sums[1] / count - mean^2 (biased; not below 0; NULL: not wanted),
 * inverse_deviation = 1 / sqrt(variance + epsilon). count: rows of all ranks together; 0 gives NaN. */
void tutti_kernel_batch_norm_moments(size_t channels, double count, double epsilon, const double *sums, double *mean,
                                     double *variance, double *inverse_deviation);

typedef struct tutti_kernel_batch_norm_args {
    tutti_type type;
    size_t rows, channels;
    const void *x;
    const double *mean, *inverse_deviation; /* [channels] */
    const void *gamma, *beta;               /* [channels]; NULL: 1, 0 */
    /* Fused: negative y become 0, and dy counts only where y is above 0 (or NaN) */
    bool relu;
} tutti_kernel_batch_norm_args;

/* y = gamma * xhat + beta; y may be x. */
void tutti_kernel_batch_norm_normalise(const tutti_kernel_batch_norm_args *args, void *y);

/* sums[0][c] = sum of dy[:, c], which is dbeta; sums[1][c] = sum of dy * xhat, which is dgamma. */
void tutti_kernel_batch_norm_backward_sums(const tutti_kernel_batch_norm_args *args, const void *dy, double *sums);

/* dx = gamma * inverse_deviation * (dy - sums[0] / count - xhat * sums[1] / count), with the sums and the number of
 * rows of all ranks; sums NULL: mean and deviation were constants. dx may be dy. */
void tutti_kernel_batch_norm_backward(const tutti_kernel_batch_norm_args *args, const void *dy, const double *sums,
                                      double count, void *dx);

/* ------------------------------------------------------------------------------------------ softmax and loss
 * Reals, x[rows, classes]. Softmax cross-entropy whose classes are split over ranks, in parts:
 *
 *   row max (tutti_kernel_reduce)  ->  max over the ranks  ->  exp_sums, label_logits  ->  sums over the ranks
 *                                  ->  losses, backward
 */

/* y may be x. */
void tutti_kernel_softmax(tutti_type type, size_t rows, size_t classes, const void *x, void *y);
/* dx = y * (dy - sum over the classes of y * dy); dx may be dy. */
void tutti_kernel_softmax_backward(tutti_type type, size_t rows, size_t classes, const void *y, const void *dy,
                                   void *dx);

/* The class of each row, counted over all ranks. A label outside [0, classes) makes the row's loss and gradient
 * NaN. */
typedef struct tutti_kernel_labels {
    tutti_type type; /* int32 or int64 */
    const void *values;
    int64_t classes; /* of all ranks together */
    int64_t first;   /* class of this rank's column 0 */
} tutti_kernel_labels;

/* sums[row] = sum over this rank's classes of exp(x - max[row]). No x is above its row's max; terms below 2^-126
 * count as 0. */
void tutti_kernel_exp_sums(tutti_type type, size_t rows, size_t classes, const void *x, const void *max, void *sums);
/* logits[row] = x at the label's column if this rank has it, else 0. */
void tutti_kernel_label_logits(tutti_type type, size_t rows, size_t classes, const void *x,
                               const tutti_kernel_labels *labels, void *logits);
/* losses[row] = log(sums) + max - logits, from the reduced parts of all ranks. */
void tutti_kernel_cross_entropy_losses(tutti_type type, size_t rows, const void *max, const void *sums,
                                       const void *logits, const tutti_kernel_labels *labels, void *losses);
/* All of these at once, where a rank has all classes (labels->first 0, labels->classes == classes). max and sums
 * are kept for backward. */
void tutti_kernel_cross_entropy(tutti_type type, size_t rows, size_t classes, const void *x,
                                const tutti_kernel_labels *labels, void *max, void *sums, void *losses);
/* dx = (exp(x - max) / sums - one hot) * dlosses[row], for this rank's classes. dx may be x. */
void tutti_kernel_cross_entropy_backward(tutti_type type, size_t rows, size_t classes, const void *x,
                                         const tutti_kernel_labels *labels, const void *max, const void *sums,
                                         const void *dlosses, void *dx);

/* ------------------------------------------------------------------------------------------------ embedding */

/* This rank has the rows [first, first + rows) of a table [..., width]. */
typedef struct tutti_kernel_embedding_args {
    tutti_type type;       /* of the table */
    tutti_type index_type; /* int32 or int64 */
    size_t count;          /* number of indices */
    size_t width;
    int64_t first, rows;
    const void *indices;
} tutti_kernel_embedding_args;

/* y[i, :] = table[indices[i] - first, :], zeros where this rank does not have that row. All types. */
void tutti_kernel_embedding(const tutti_kernel_embedding_args *args, const void *table, void *y);
/* dtable[r, :] = sum of dy[i, :] over all i with indices[i] - first == r, in the order of i. Reals. */
void tutti_kernel_embedding_backward(const tutti_kernel_embedding_args *args, const void *dy, void *dtable);

/* -------------------------------------------------------------------------------- by the index in a global array
 * Element [i, j, ...] of the local array is element [first[0] + i, first[1] + j, ...] of a global array; its index
 * is its position there in row-major order. The value of an element depends only on its index, not on the number of
 * ranks or on how the global array is cut. */

typedef struct tutti_kernel_shard {
    int ndims; /* 0 to TUTTI_KERNEL_MOST_DIMS */
    const int64_t *global_shape, *first, *shape;
} tutti_kernel_shard;

/* Parameters of the counter-based random numbers (kernels/random.h). */
typedef struct tutti_kernel_random {
    uint64_t seed, stream;
} tutti_kernel_random;

/* Floats: y = x / (1 - rate), or 0 with the probability `rate` in [0, 1]; the same elements as in
 * tutti_dropout_apply are dropped. The same call is used for dy in backward. y may be x. */
void tutti_kernel_dropout(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                          double rate, const void *x, void *y);

/* Floats: uniform in [low, high), in steps of (high - low) * 2^-24 (float64: 2^-53), rounded to the type, but never
 * to high if the type has a number between low and high. */
void tutti_kernel_random_uniform(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                                 double low, double high, void *y);
/* Floats: normal deviates (Box-Muller; within 6.6 standard deviations, float64: 8.6). */
void tutti_kernel_random_normal(tutti_type type, const tutti_kernel_shard *shard, const tutti_kernel_random *random,
                                double mean, double stddev, void *y);

/* y = start + step * index, for numbers, computed in float64 and cast as in tutti_kernel_cast; for integers with
 * whole start and step, computed in 64 bits that wrap. */
void tutti_kernel_arange(tutti_type type, const tutti_kernel_shard *shard, double start, double step, void *y);

/* y[i] = value, cast as in tutti_kernel_cast. All types. */
void tutti_kernel_fill(tutti_type type, double value, size_t count, void *y);

/* --------------------------------------------------------------------------------------------------- the table
 * The operators for the memory of a device: kernels/host fills it for the processor, libtutti_cuda.so for a GPU.
 * Host: a call is done when it returns, and the stream is not used. GPU: a call is enqueued in the stream, a
 * cudaStream_t of the thread's current GPU, to which all memory belongs. Structs and what they point to, except
 * arrays of elements, are in host memory and may be changed once the call has returned. Scratch may be NULL where it
 * needs 0 bytes. */

typedef struct tutti_operators {
    const char *name; /* "host", "cuda" */

    tutti_status (*copy)(void *stream, void *dst, const void *src, size_t bytes);
    tutti_status (*zero)(void *stream, void *dst, size_t bytes);
    tutti_status (*copy_box)(void *stream, const tutti_box_copy *copy, void *dst, const void *src);

    tutti_status (*binary)(void *stream, tutti_kernel_binary_kind kind, const tutti_kernel_binary_args *args);
    tutti_status (*unary)(void *stream, tutti_kernel_unary_kind kind, tutti_type type, size_t count, const void *x,
                          void *y);
    tutti_status (*scale)(void *stream, tutti_type type, double number, size_t count, const void *x, void *y);
    tutti_status (*add_number)(void *stream, tutti_type type, double number, size_t count, const void *x, void *y);
    tutti_status (*cast)(void *stream, tutti_type x_type, tutti_type y_type, size_t count, const void *x, void *y);
    tutti_status (*fill)(void *stream, tutti_type type, double value, size_t count, void *y);

    size_t (*reduce_scratch_bytes)(const tutti_kernel_reduce_args *args);
    tutti_status (*reduce)(void *stream, tutti_reduction reduction, const tutti_kernel_reduce_args *args,
                           void *scratch);

    size_t (*matmul_scratch_bytes)(const tutti_kernel_matmul_args *args);
    tutti_status (*matmul)(void *stream, const tutti_kernel_matmul_args *args, void *scratch);

    size_t (*conv_scratch_bytes)(tutti_type type, const tutti_kernel_window *window, int64_t filters);
    tutti_status (*conv_forward)(void *stream, tutti_type type, const tutti_kernel_window *window, int64_t filters,
                                 const void *x, const void *weight, const void *bias, void *scratch, void *y);
    tutti_status (*conv_backward)(void *stream, const tutti_kernel_window *window,
                                  const tutti_kernel_conv_backward_args *args);
    tutti_status (*max_pool_forward)(void *stream, tutti_type type, const tutti_kernel_window *window, const void *x,
                                     void *y);
    tutti_status (*max_pool_backward)(void *stream, tutti_type type, const tutti_kernel_window *window, const void *x,
                                      const void *dy, void *dx);
    tutti_status (*average_pool_forward)(void *stream, tutti_type type, const tutti_kernel_window *window,
                                         bool count_padding, const void *x, void *y);
    tutti_status (*average_pool_backward)(void *stream, tutti_type type, const tutti_kernel_window *window,
                                          bool count_padding, const void *dy, void *dx);

    size_t (*batch_norm_scratch_bytes)(size_t rows, size_t channels); /* for statistics and backward_sums */
    tutti_status (*batch_norm_statistics)(void *stream, tutti_type type, size_t rows, size_t channels, const void *x,
                                          void *scratch, double *sums);
    tutti_status (*batch_norm_moments)(void *stream, size_t channels, double count, double epsilon, const double *sums,
                                       double *mean, double *variance, double *inverse_deviation);
    tutti_status (*batch_norm_normalise)(void *stream, const tutti_kernel_batch_norm_args *args, void *y);
    tutti_status (*batch_norm_backward_sums)(void *stream, const tutti_kernel_batch_norm_args *args, const void *dy,
                                             void *scratch, double *sums);
    tutti_status (*batch_norm_backward)(void *stream, const tutti_kernel_batch_norm_args *args, const void *dy,
                                        const double *sums, double count, void *dx);

    tutti_status (*softmax)(void *stream, tutti_type type, size_t rows, size_t classes, const void *x, void *y);
    tutti_status (*softmax_backward)(void *stream, tutti_type type, size_t rows, size_t classes, const void *y,
                                     const void *dy, void *dx);
    tutti_status (*exp_sums)(void *stream, tutti_type type, size_t rows, size_t classes, const void *x, const void *max,
                             void *sums);
    tutti_status (*label_logits)(void *stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                 const tutti_kernel_labels *labels, void *logits);
    tutti_status (*cross_entropy_losses)(void *stream, tutti_type type, size_t rows, const void *max, const void *sums,
                                         const void *logits, const tutti_kernel_labels *labels, void *losses);
    tutti_status (*cross_entropy)(void *stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                  const tutti_kernel_labels *labels, void *max, void *sums, void *losses);
    tutti_status (*cross_entropy_backward)(void *stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                           const tutti_kernel_labels *labels, const void *max, const void *sums,
                                           const void *dlosses, void *dx);

    tutti_status (*embedding)(void *stream, const tutti_kernel_embedding_args *args, const void *table, void *y);
    tutti_status (*embedding_backward)(void *stream, const tutti_kernel_embedding_args *args, const void *dy,
                                       void *dtable);

    tutti_status (*dropout)(void *stream, tutti_type type, const tutti_kernel_shard *shard,
                            const tutti_kernel_random *random, double rate, const void *x, void *y);
    tutti_status (*random_uniform)(void *stream, tutti_type type, const tutti_kernel_shard *shard,
                                   const tutti_kernel_random *random, double low, double high, void *y);
    tutti_status (*random_normal)(void *stream, tutti_type type, const tutti_kernel_shard *shard,
                                  const tutti_kernel_random *random, double mean, double stddev, void *y);
    tutti_status (*arange)(void *stream, tutti_type type, const tutti_kernel_shard *shard, double start, double step,
                           void *y);
} tutti_operators;

extern const tutti_operators tutti_operators_host;

#endif
