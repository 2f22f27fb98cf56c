/*
 * Forward and backward of the trainer's layers, on dense row-major arrays.
 *
 * Images are [batch, height, width, channels]: the channels of a pixel are contiguous, so that inner loops run over
 * channels and a row of a convolution's window is one copy. Backward writes gradients and does not add to them (so
 * nothing has to be zeroed), except where a comment says so. The caller passes NULL for a gradient that it does not
 * want, and provides scratch: nothing here allocates. kernels/host is the reference for other devices.
 */
#ifndef TUTTI_KERNELS_LAYERS_H
#define TUTTI_KERNELS_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/train.h>

#include "kernels/real.h"

/* ------------------------------------------------------------------------------------------- windows */

/* A square window that slides over an image, in a convolution or a pooling layer. */
typedef struct tutti_window {
    int in_height, in_width, channels;
    int kernel, stride;
    int pad_top, pad_left; /* padding before the image, in rows and columns; that after it follows */
    int out_height, out_width;
} tutti_window;

/* The caller sets in_height, in_width, channels, kernel and stride; the call fills in the rest. Returns false if
 * the padding is VALID and the window is larger than the image. */
bool tutti_window_place(tutti_window *window, tutti_padding padding);

/* ------------------------------------------------------------------------------------- bias and ReLU */

/* y[row, c] += bias[c]; relu: negative values become 0. */
void tutti_bias_forward(size_t rows, size_t channels, bool relu, const tutti_real *bias, tutti_real *y);

/* relu: dy becomes 0 where y is 0. Then dbias[c] += sum over rows of dy[row, c]: it adds. */
void tutti_bias_backward(size_t rows, size_t channels, bool relu, const tutti_real *y, tutti_real *dy,
                         tutti_real *dbias);

/* The arguments of the same call in the table of kernels (kernels.h), where dbias is written, not added to. */
typedef struct tutti_bias_backward_args {
    size_t rows;
    int channels;
    bool relu;
    const tutti_real *y;
    tutti_real *dy, *dbias;
} tutti_bias_backward_args;

/* y[i] = max(x[i], 0); NaN stays NaN. y may be x, and dx may be dy. */
void tutti_relu_forward(size_t count, const tutti_real *x, tutti_real *y);
void tutti_relu_backward(size_t count, const tutti_real *y, const tutti_real *dy, tutti_real *dx);

/* y[i] = a[i] + b[i]; relu: negative sums become 0. y may be a or b. */
void tutti_add_forward(size_t count, bool relu, const tutti_real *a, const tutti_real *b, tutti_real *y);

/* ---------------------------------------------------------------------------------------- convolution */

typedef struct tutti_conv {
    tutti_window window;
    int filters;
    bool relu;    /* fused: applied while an image's output is still in cache */
    bool no_bias; /* bias and dbias are NULL */
} tutti_conv;

/* Elements of scratch that forward and backward need. */
size_t tutti_conv_scratch_count(const tutti_conv *conv);

/* y[batch, out_height, out_width, filters] from x and weight[kernel, kernel, channels, filters], bias[filters]. */
typedef struct tutti_conv_forward_args {
    int batch;
    const tutti_real *x, *weight, *bias;
    tutti_real *scratch, *y;
    tutti_real *kept;     /* for backward (kernels.h, conv_kept_count); not used on the host */
    size_t scratch_count; /* elements of scratch; with fewer than a batch needs, oneDNN is not used (conv_library.h) */
} tutti_conv_forward_args;
void tutti_conv_forward(const tutti_conv *conv, const tutti_conv_forward_args *args);

typedef struct tutti_conv_backward_args {
    int batch;
    const tutti_real *x, *weight, *y;
    tutti_real *dy; /* with relu: masked in place */
    tutti_real *scratch;
    const tutti_real *kept;
    tutti_real *dweight, *dbias, *dx; /* dx may be NULL */
    /* elements of scratch, as in tutti_conv_forward_args */
    size_t scratch_count;
} tutti_conv_backward_args;
void tutti_conv_backward(const tutti_conv *conv, const tutti_conv_backward_args *args);
/* The part of backward for bias and ReLU: masks dy of `rows` pixels, and adds to dbias. */
void tutti_conv_bias_backward(const tutti_conv *conv, size_t rows, const tutti_real *y, tutti_real *dy,
                              tutti_real *dbias);

/* --------------------------------------------------------------------------------------------- pooling */

/* y = maximum of each window; padding is never the maximum, NaN always is. where: the position of each maximum
 * within its window, row by row; the first of equal maxima. */
void tutti_max_pool_forward(const tutti_window *window, int batch, const tutti_real *x, tutti_real *y, int32_t *where);
void tutti_max_pool_backward(const tutti_window *window, int batch, const tutti_real *dy, const int32_t *where,
                             tutti_real *dx);

/* y = mean of the pixels of each window that lie in the image. */
void tutti_average_pool_forward(const tutti_window *window, int batch, const tutti_real *x, tutti_real *y);
void tutti_average_pool_backward(const tutti_window *window, int batch, const tutti_real *dy, tutti_real *dx);

/* ------------------------------------------------------------------------------------------ batch norm
 * y = gamma * (x - mean) / sqrt(variance + epsilon) + beta for x[rows, channels]. Training uses the mean and the
 * (biased) variance of these rows, summed in float64, and sets moving = (1 - momentum) * moving + momentum * value of
 * the rows, with the unbiased variance (as in PyTorch). Otherwise the moving mean and variance are used. */

typedef struct tutti_batch_norm {
    int channels;
    double epsilon, momentum;
    bool relu; /* fused */
} tutti_batch_norm;

/* Elements of scratch, and of the memory that forward keeps for backward. Each holds two arrays of float64, aligned
 * to 8 bytes. */
static inline size_t tutti_batch_norm_scratch_count(const tutti_batch_norm *norm) {
    return 2 * (size_t)norm->channels * (sizeof(double) / sizeof(tutti_real));
}

typedef struct tutti_batch_norm_forward_args {
    size_t rows;
    bool training;
    const tutti_real *x, *gamma, *beta;
    tutti_real *moving_mean, *moving_variance;
    tutti_real *scratch, *kept;
    tutti_real *y;
} tutti_batch_norm_forward_args;
void tutti_batch_norm_forward(const tutti_batch_norm *norm, const tutti_batch_norm_forward_args *args);

/* Backward may be called only after a forward with training. */
typedef struct tutti_batch_norm_backward_args {
    size_t rows;
    const tutti_real *x, *gamma, *beta;
    const tutti_real *dy;
    const tutti_real *kept;
    tutti_real *scratch;
    tutti_real *dgamma, *dbeta, *dx; /* dx may be NULL, or dy */
} tutti_batch_norm_backward_args;
void tutti_batch_norm_backward(const tutti_batch_norm *norm, const tutti_batch_norm_backward_args *args);

/* ----------------------------------------------------------------------------------------------- dense */

typedef struct tutti_dense {
    int inputs, outputs;
    bool relu; /* fused */
} tutti_dense;

/* y[batch, outputs] = x[batch, inputs] weight[inputs, outputs] + bias[outputs]. */
typedef struct tutti_dense_forward_args {
    int batch;
    const tutti_real *x, *weight, *bias; /* bias may be NULL: no bias */
    tutti_real *y;
} tutti_dense_forward_args;
void tutti_dense_forward(const tutti_dense *dense, const tutti_dense_forward_args *args);

typedef struct tutti_dense_backward_args {
    int batch;
    const tutti_real *x, *weight, *y;
    tutti_real *dy;                   /* with relu: masked in place */
    tutti_real *dweight, *dbias, *dx; /* dbias is NULL without a bias; dx may be NULL */
} tutti_dense_backward_args;
void tutti_dense_backward(const tutti_dense *dense, const tutti_dense_backward_args *args);

/* --------------------------------------------------------------------------------------------- dropout */

/* Which elements are dropped depends only on (seed, stream, first_element + i), not on the number of ranks or on
 * how a batch is cut. first_element: index of x[0] in the global batch. */
typedef struct tutti_dropout {
    double rate; /* in [0, 1): probability that an element becomes 0; the others are divided by 1 - rate */
    uint64_t seed, stream, first_element;
} tutti_dropout;

/* dst[i] = src[i] / (1 - rate), or 0. The same call is used for x in forward and dy in backward. src may be dst. */
void tutti_dropout_apply(const tutti_dropout *dropout, size_t count, const tutti_real *src, tutti_real *dst);

/* ------------------------------------------------------------------------------------------------ loss */

/* Softmax cross-entropy of logits[batch, classes] against labels. Returns the sum of the losses over the batch.
 * dlogits (may be NULL, may be logits) becomes scale * (softmax - one hot). correct_out, unless NULL: the number of
 * samples whose largest logit (the first of equal ones) is that of the label. Labels must be below classes. */
typedef struct tutti_softmax_loss_args {
    int batch, classes;
    const tutti_real *logits;
    const int32_t *labels;
    tutti_real scale;
    tutti_real *dlogits;
    int64_t *correct_out;
} tutti_softmax_loss_args;
double tutti_softmax_loss(const tutti_softmax_loss_args *args);

/* The same in parts, for ranks that each have some of the classes. Between the parts the ranks reduce the results:
 * largest (its maximum), then sums (their sum). labels are class numbers over all ranks; this rank has the classes
 * from first_class on. No log(0) is taken: losses of finite logits are finite. */
typedef struct tutti_softmax_parts {
    int batch, classes, first_class;
    const tutti_real *logits;
    const int32_t *labels;
    const tutti_real *distributions; /* NULL: one hot; else [batch, all_classes], and labels are not read */
    int all_classes;
    double *largest, *sums; /* [batch]: the largest logit; the sum of exp(logit - largest) */
    int32_t *best;          /* [batch]: the class of the largest logit, the first of equal ones; NULL: not wanted */
} tutti_softmax_parts;

/* Computes largest and best over this rank's classes. */
void tutti_softmax_largest(const tutti_softmax_parts *parts);
/* Computes sums. best becomes INT32_MAX if the largest logit of all ranks is not on this rank, so that the minimum
 * over all ranks is the result. */
void tutti_softmax_sums(const tutti_softmax_parts *parts);
/* Returns this rank's part of the sum of the losses; dlogits (may be NULL, may be logits) as in tutti_softmax_loss.
 * right_out, unless NULL: the number of samples whose best is the label's class (with a distribution: the first of
 * its largest classes); 0 without best. */
double tutti_softmax_losses(const tutti_softmax_parts *parts, tutti_real scale, tutti_real *dlogits,
                            int64_t *right_out);

#endif
