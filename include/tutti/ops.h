/*
 * Operators on global tensors (tutti/tensor.h), with the results of one device: the result is that of the whole
 * tensors, wherever their parts lie. Library: libtutti_ops (pkg-config tutti_ops), with libtutti and a CBLAS.
 *
 * Each operator has a rule in einsum letters, such as "xmk,xkn->xmn" of the batched matrix product. A letter may be
 * split: inputs and outputs that have the letter are then split there, the others are broadcast; where the result is
 * a sum over the letter (k), it is partial(sum). Axes of a placement combine freely. From the layouts of its inputs
 * an operator finds the ways in which it can be computed on each axis, prices the conversions that each way needs,
 * and takes the cheapest: z = x + y with x split(0) and y split(1) therefore redistributes one of the two by itself.
 * Along an axis on which all inputs are broadcast the result is broadcast.
 *
 * All calls are collective over the placement of their inputs, which must all be on one placement; use
 * tutti_tensor_to_global for inputs that are not. Ranks outside of the placement may call and get a tensor without a
 * shard. Inputs are not changed. Results are owned by the caller, to be destroyed with tutti_tensor_destroy; on an
 * error none is created.
 *
 * Errors of all operators are those of tutti/tensor.h. TUTTI_ERR_ARGUMENT: wrong arguments, shapes, types, layouts or
 * placements; the same text on all ranks, before anything is sent, and all communicators stay whole. Two of them are
 * found only after messages: a wrong sbp in the options of batch_norm, or of softmax_cross_entropy with split
 * classes, and an input without an adjoint layout in gradients that reduce.
 * TUTTI_ERR_UNSUPPORTED: CUDA memory, and this build or machine has no operators for it. TUTTI_ERR_MEMORY,
 * TUTTI_ERR_SYSTEM: on this rank; the others wait for it. Errors of the conversions, which are redistributions, break
 * the tensors' communicator. In CUDA memory they may come after the call: the next call reports them.
 *
 * Types: float32 and float64 for all operators; transpose, reshape, slice, concat, fill and cast for all types; add,
 * sub, mul, scale, add_number, relu, arange and reduce (except the mean) also for integers and shorter floats; gelu,
 * exp, dropout and random also for shorter floats. Inputs of one operator have one type, except indices and labels.
 *
 * Memory: that of the placement. In CUDA memory (tutti/device.h) a call enqueues all of its work in
 * options.options->stream, or in the stream of tutti_op_use_stream, and returns; all that follows in that stream sees
 * the result. Results and the scratch of a call are memory that tutti_tensor_destroy_in_stream has left in the
 * stream, or new memory: in a loop, destroy results by that call, and nothing waits. Results are equal to those in
 * host memory except for roundings of products, of some functions and of sums: see docs/operators.md. The layouts
 * that are the cheapest may differ, because links of GPUs are not measured.
 *
 * Gradients: <operator>_backward takes the inputs and the gradient of the result, and gives those gradients of the
 * inputs that are asked for (NULL: not wanted) in the adjoint layouts: where an input is split, its gradient is split
 * in the same cuts; where the input is broadcast, the gradient is partial(sum); where it is partial(sum), broadcast.
 * The layout of the gradient therefore shows what data parallelism has to reduce: tutti_tensor_to_global reduces it.
 */
#ifndef TUTTI_OPS_H
#define TUTTI_OPS_H

#include <stdbool.h>

#include <tutti/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_op_options {
    size_t struct_bytes TUTTI_SIZE_OF(tutti_op_options); /* of this struct */
    const tutti_sbp *sbp
        TUTTI_ZERO;              /* of the result, one for each axis of the placement; NULL: the cheapest to compute */
    const char *name TUTTI_ZERO; /* of the result, shown in errors; NULL: the name of the operator */
    const tutti_options *options
        TUTTI_ZERO; /* of the collectives inside; NULL: the defaults. options->work must be NULL */
} tutti_op_options;

#define TUTTI_OP_OPTIONS(...) TUTTI_INITIALIZED(tutti_op_options, __VA_ARGS__)

/* Sets the stream (cudaStream_t, NULL: the legacy default stream) for the calling thread's operators on CUDA memory
 * that are called without options.options: gradients, fill, arange and random among them. NULL at first. The stream
 * stays the caller's. */
TUTTI_API void tutti_op_use_stream(void *stream);

/* Describes how the calling thread's last operator was computed: "matmul mk,kn->mn: axis 0 splits m, axis 1 sums
 * over k; 'b' S0,B -> B,S0". Valid until the thread's next call of this function. */
TUTTI_API const char *tutti_op_explain(void);

/* ------------------------------------------------------------------------------------------ elementwise
 * Shapes broadcast as in numpy: they are aligned at the last dimension, and an extent of 1 is repeated. */

/* y = a + b, y = a - b and y = a * b; backward gives the gradients of a and b. */
TUTTI_API tutti_status tutti_op_add(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                                    tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_sub(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                                    tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_mul(const tutti_tensor *a, const tutti_tensor *b, const tutti_op_options *options,
                                    tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_add_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_tensor *dy,
                                             tutti_tensor **da_out, tutti_tensor **db_out);
TUTTI_API tutti_status tutti_op_sub_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_tensor *dy,
                                             tutti_tensor **da_out, tutti_tensor **db_out);
TUTTI_API tutti_status tutti_op_mul_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_tensor *dy,
                                             tutti_tensor **da_out, tutti_tensor **db_out);

/* y = factor * x. Integers: with a whole factor modulo 2^bits; else computed in float64 and rounded to the nearest,
 * ties to even; a value out of range becomes the nearest end of the type. */
TUTTI_API tutti_status tutti_op_scale(const tutti_tensor *x, double factor, const tutti_op_options *options,
                                      tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_scale_backward(const tutti_tensor *x, double factor, const tutti_tensor *dy,
                                               tutti_tensor **dx_out);
/* y = x + number. Not linear: a partial x is reduced first. Its gradient is dy. */
TUTTI_API tutti_status tutti_op_add_number(const tutti_tensor *x, double number, const tutti_op_options *options,
                                           tutti_tensor **y_out);

typedef enum tutti_gelu { TUTTI_GELU_ERF = 0, TUTTI_GELU_TANH } tutti_gelu; /* exact, and its approximation by tanh */

/* y = relu(x), gelu(x) and exp(x), element by element. */
TUTTI_API tutti_status tutti_op_relu(const tutti_tensor *x, const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_gelu(const tutti_tensor *x, tutti_gelu kind, const tutti_op_options *options,
                                     tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_exp(const tutti_tensor *x, const tutti_op_options *options, tutti_tensor **y_out);
/* x is the input of the forward call, y its result. */
TUTTI_API tutti_status tutti_op_relu_backward(const tutti_tensor *x, const tutti_tensor *y, const tutti_tensor *dy,
                                              tutti_tensor **dx_out);
TUTTI_API tutti_status tutti_op_gelu_backward(const tutti_tensor *x, tutti_gelu kind, const tutti_tensor *dy,
                                              tutti_tensor **dx_out);
TUTTI_API tutti_status tutti_op_exp_backward(const tutti_tensor *x, const tutti_tensor *y, const tutti_tensor *dy,
                                             tutti_tensor **dx_out);

/* Converts to `type`. Floats to integers: towards zero; a value out of range becomes the nearest end; NaN becomes
 * 0. Integers to integers: modulo 2^bits. To bool: 1 where x is not 0. To shorter floats: to the nearest, ties to
 * even. */
TUTTI_API tutti_status tutti_op_cast(const tutti_tensor *x, tutti_type type, const tutti_op_options *options,
                                     tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_cast_backward(const tutti_tensor *x, const tutti_tensor *dy, tutti_tensor **dx_out);

/* ------------------------------------------------------------------------------------------ moving data */

/* Dimension i of y is dimension order[i] of x; order holds each of 0 to ndims - 1 once. */
TUTTI_API tutti_status tutti_op_transpose(const tutti_tensor *x, const int *order, const tutti_op_options *options,
                                          tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_transpose_backward(const tutti_tensor *x, const int *order, const tutti_tensor *dy,
                                                   tutti_tensor **dx_out);

/* y has the elements of x in row-major order; one extent may be -1: it follows from the others. Where x is split on
 * a dimension that is kept, or on the outermost of those that are joined or divided, at cuts that y has too,
 * nothing moves between ranks and y is split there, at explicit cuts. Else y is split at balanced cuts of the
 * outermost dimension, and elements move. */
TUTTI_API tutti_status tutti_op_reshape(const tutti_tensor *x, int ndims, const int64_t *shape,
                                        const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_reshape_backward(const tutti_tensor *x, const tutti_tensor *dy, tutti_tensor **dx_out);

/* y = x[first[0]:end[0], first[1]:end[1], ...], 0 <= first <= end <= extent. Each rank keeps its part of the slice,
 * at explicit cuts. */
TUTTI_API tutti_status tutti_op_slice(const tutti_tensor *x, const int64_t *first, const int64_t *end,
                                      const tutti_op_options *options, tutti_tensor **y_out);
/* dx is dy at the place of the slice and 0 elsewhere. */
TUTTI_API tutti_status tutti_op_slice_backward(const tutti_tensor *x, const int64_t *first, const int64_t *end,
                                               const tutti_tensor *dy, tutti_tensor **dx_out);

/* Concatenates 1 to TUTTI_OP_MOST_CONCAT tensors along dimension `dim`; their other dimensions must be equal. */
#define TUTTI_OP_MOST_CONCAT 16
TUTTI_API tutti_status tutti_op_concat(const tutti_tensor *const *xs, int count, int dim,
                                       const tutti_op_options *options, tutti_tensor **y_out);
/* dxs_out: the caller's array, for `count` gradients. */
TUTTI_API tutti_status tutti_op_concat_backward(const tutti_tensor *const *xs, int count, int dim,
                                                const tutti_tensor *dy, tutti_tensor **dxs_out);

/* ------------------------------------------------------------------------------------------ matrix products */

/* y[..., m, n] = sum over k of a[..., m, k] b[..., k, n]; leading dimensions broadcast as in elementwise operators. A
 * transposed a is given as [..., k, m], a transposed b as [..., n, k]. */
typedef struct tutti_matmul {
    bool transpose_a, transpose_b;
} tutti_matmul;
/* how NULL: neither input is transposed. */
TUTTI_API tutti_status tutti_op_matmul(const tutti_tensor *a, const tutti_tensor *b, const tutti_matmul *how,
                                       const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_matmul_backward(const tutti_tensor *a, const tutti_tensor *b, const tutti_matmul *how,
                                                const tutti_tensor *dy, tutti_tensor **da_out, tutti_tensor **db_out);

/* y[batch, outputs] = x[batch, inputs] weight[inputs, outputs] + bias[outputs]; bias NULL: no bias. */
TUTTI_API tutti_status tutti_op_dense(const tutti_tensor *x, const tutti_tensor *weight, const tutti_tensor *bias,
                                      const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_dense_backward(const tutti_tensor *x, const tutti_tensor *weight,
                                               const tutti_tensor *bias, const tutti_tensor *dy, tutti_tensor **dx_out,
                                               tutti_tensor **dweight_out, tutti_tensor **dbias_out);

/* ------------------------------------------------------------------------------------------ images
 * [batch, height, width, channels]. Each rank has the whole height and width; batch and channels may be split. */

typedef struct tutti_windows {
    int kernel[2], stride[2];                     /* height, width; a stride of 0 means 1 */
    int pad_top, pad_bottom, pad_left, pad_right; /* rows and columns of zeros (ignored by max pooling) */
    bool count_padding;                           /* average pooling: divide by the whole kernel at borders, too */
} tutti_windows;

/* y[b, i, j, f] = bias[f] + sum over kernel and channels of x * weight[kernel_height, kernel_width, channels,
 * filters]; `windows`.kernel is not read. bias NULL: no bias. */
TUTTI_API tutti_status tutti_op_conv2d(const tutti_tensor *x, const tutti_tensor *weight, const tutti_tensor *bias,
                                       const tutti_windows *windows, const tutti_op_options *options,
                                       tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_conv2d_backward(const tutti_tensor *x, const tutti_tensor *weight,
                                                const tutti_tensor *bias, const tutti_windows *windows,
                                                const tutti_tensor *dy, tutti_tensor **dx_out,
                                                tutti_tensor **dweight_out, tutti_tensor **dbias_out);

/* y[b, i, j, c] = the maximum of x over the window; padding is never the maximum. */
TUTTI_API tutti_status tutti_op_max_pool2d(const tutti_tensor *x, const tutti_windows *windows,
                                           const tutti_op_options *options, tutti_tensor **y_out);
/* The first of equal maxima gets the gradient. */
TUTTI_API tutti_status tutti_op_max_pool2d_backward(const tutti_tensor *x, const tutti_windows *windows,
                                                    const tutti_tensor *dy, tutti_tensor **dx_out);
/* y[b, i, j, c] = the mean of x over the window; see count_padding. */
TUTTI_API tutti_status tutti_op_avg_pool2d(const tutti_tensor *x, const tutti_windows *windows,
                                           const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_avg_pool2d_backward(const tutti_tensor *x, const tutti_windows *windows,
                                                    const tutti_tensor *dy, tutti_tensor **dx_out);

/* Training: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and biased variance of each channel
 * (the last dimension) over the whole global batch and image, however these are split: PyTorch's SyncBatchNorm.
 * statistics: float64 [2, channels], the sum and the sum of squares, broadcast, or split with the channels;
 * backward needs them. */
TUTTI_API tutti_status tutti_op_batch_norm(const tutti_tensor *x, const tutti_tensor *gamma, const tutti_tensor *beta,
                                           double epsilon, const tutti_op_options *options, tutti_tensor **y_out,
                                           tutti_tensor **statistics_out);
TUTTI_API tutti_status tutti_op_batch_norm_backward(const tutti_tensor *x, const tutti_tensor *gamma,
                                                    const tutti_tensor *beta, const tutti_tensor *statistics,
                                                    double epsilon, const tutti_tensor *dy, tutti_tensor **dx_out,
                                                    tutti_tensor **dgamma_out, tutti_tensor **dbeta_out);

/* ------------------------------------------------------------------------------------------ reductions and losses */

/* Reduces over the dimensions of the mask (bit d: dimension d). y does not have these dimensions, or, with keep,
 * has them with extent 1. TUTTI_SUM, TUTTI_AVG (the mean: the sum over all divided by the global number, correct
 * for uneven shards, too; floats only), TUTTI_MIN, TUTTI_MAX. */
TUTTI_API tutti_status tutti_op_reduce(const tutti_tensor *x, tutti_reduction reduction, unsigned dims, bool keep,
                                       const tutti_op_options *options, tutti_tensor **y_out);
/* y is the result of the forward call (needed for min and max; else it may be NULL). Equal extremes share the
 * gradient evenly. */
TUTTI_API tutti_status tutti_op_reduce_backward(const tutti_tensor *x, const tutti_tensor *y, tutti_reduction reduction,
                                                unsigned dims, bool keep, const tutti_tensor *dy,
                                                tutti_tensor **dx_out);

/* Softmax over the last dimension. */
TUTTI_API tutti_status tutti_op_softmax(const tutti_tensor *x, const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_softmax_backward(const tutti_tensor *x, const tutti_tensor *y, const tutti_tensor *dy,
                                                 tutti_tensor **dx_out);

/* losses[b] = log(sum over c of exp(logits[b, c])) - logits[b, labels[b]]; labels: int32 or int64 [batch]. A label
 * out of range gives NaN. Classes may be split: then maxima and sums are reduced, and logits do not move. */
TUTTI_API tutti_status tutti_op_softmax_cross_entropy(const tutti_tensor *logits, const tutti_tensor *labels,
                                                      const tutti_op_options *options, tutti_tensor **losses_out);
TUTTI_API tutti_status tutti_op_softmax_cross_entropy_backward(const tutti_tensor *logits, const tutti_tensor *labels,
                                                               const tutti_tensor *dlosses, tutti_tensor **dlogits_out);

/* ------------------------------------------------------------------------------------------ tables */

/* y[t..., d] = table[indices[t...], d]; indices: int32 or int64. An index out of range gives zeros. */
TUTTI_API tutti_status tutti_op_embedding(const tutti_tensor *indices, const tutti_tensor *table,
                                          const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_embedding_backward(const tutti_tensor *indices, const tutti_tensor *table,
                                                   const tutti_tensor *dy, tutti_tensor **dtable_out);

/* ------------------------------------------------------------------------------------------ made by global index
 * An element depends only on its place in the whole tensor, not on the layout. Random numbers: Philox4x32-10 by
 * counter. */

/* An element of y is 0 with probability rate, 0 <= rate < 1, else x / (1 - rate). Another stream gives another
 * choice. The gradient is tutti_op_dropout of dy with the same seed and stream. */
typedef struct tutti_dropout_options {
    double rate;
    uint64_t seed, stream;
} tutti_dropout_options;
TUTTI_API tutti_status tutti_op_dropout(const tutti_tensor *x, const tutti_dropout_options *dropout,
                                        const tutti_op_options *options, tutti_tensor **y_out);
TUTTI_API tutti_status tutti_op_dropout_backward(const tutti_tensor *x, const tutti_dropout_options *dropout,
                                                 const tutti_tensor *dy, tutti_tensor **dx_out);

typedef enum tutti_distribution { TUTTI_UNIFORM = 0, TUTTI_NORMAL } tutti_distribution;
typedef struct tutti_random_options {
    tutti_distribution distribution;
    double a, b; /* uniform in [a, b); normal with mean a and standard deviation b */
    uint64_t seed, stream;
} tutti_random_options;
/* Creates a tensor of the layout and fills it with random numbers. */
TUTTI_API tutti_status tutti_op_random(const tutti_layout *layout, const tutti_random_options *random,
                                       tutti_tensor **y_out);
/* Creates a tensor of the layout and fills it with `value`. */
TUTTI_API tutti_status tutti_op_fill(const tutti_layout *layout, double value, tutti_tensor **y_out);
/* Fills a new tensor with first + step * the element's number in row-major order. */
TUTTI_API tutti_status tutti_op_arange(const tutti_layout *layout, double first, double step, tutti_tensor **y_out);

#ifdef __cplusplus
}
#endif

#endif
