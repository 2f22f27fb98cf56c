/*
 * The host's functions of the operators, as a table (kernels/operators.h). They are done when they return, and never
 * fail.
 */
#include <string.h>

#include "kernels/operators.h"

static tutti_status copy(void *stream, void *dst, const void *src, size_t bytes) {
    (void)stream;
    if (bytes > 0) memcpy(dst, src, bytes);
    return TUTTI_OK;
}

static tutti_status zero(void *stream, void *dst, size_t bytes) {
    (void)stream;
    if (bytes > 0) memset(dst, 0, bytes);
    return TUTTI_OK;
}

static tutti_status copy_box(void *stream, const tutti_box_copy *copy, void *dst, const void *src) {
    (void)stream;
    tutti_box_run(copy, dst, src);
    return TUTTI_OK;
}

static size_t reduce_scratch_bytes(const tutti_kernel_reduce_args *args) {
    (void)args;
    return 0;
}

static size_t matmul_scratch_bytes(const tutti_kernel_matmul_args *args) {
    (void)args;
    return 0;
}

static size_t conv_scratch_bytes(tutti_type type, const tutti_kernel_window *window, int64_t filters) {
    (void)filters;
    return tutti_kernel_conv_scratch_bytes(type, window);
}

static size_t batch_norm_scratch_bytes(size_t rows, size_t channels) {
    (void)rows, (void)channels;
    return 0;
}

static tutti_status binary(void *stream, tutti_kernel_binary_kind kind, const tutti_kernel_binary_args *args) {
    (void)stream;
    tutti_kernel_binary(kind, args);
    return TUTTI_OK;
}

static tutti_status unary(void *stream, tutti_kernel_unary_kind kind, tutti_type type, size_t count, const void *x,
                          void *y) {
    (void)stream;
    tutti_kernel_unary(kind, type, count, x, y);
    return TUTTI_OK;
}

static tutti_status scale(void *stream, tutti_type type, double number, size_t count, const void *x, void *y) {
    (void)stream;
    tutti_kernel_scale(type, number, count, x, y);
    return TUTTI_OK;
}

static tutti_status add_number(void *stream, tutti_type type, double number, size_t count, const void *x, void *y) {
    (void)stream;
    tutti_kernel_add_number(type, number, count, x, y);
    return TUTTI_OK;
}

static tutti_status cast(void *stream, tutti_type x_type, tutti_type y_type, size_t count, const void *x, void *y) {
    (void)stream;
    tutti_kernel_cast(x_type, y_type, count, x, y);
    return TUTTI_OK;
}

static tutti_status fill(void *stream, tutti_type type, double value, size_t count, void *y) {
    (void)stream;
    tutti_kernel_fill(type, value, count, y);
    return TUTTI_OK;
}

static tutti_status reduce(void *stream, tutti_reduction reduction, const tutti_kernel_reduce_args *args,
                           void *scratch) {
    (void)stream, (void)scratch;
    tutti_kernel_reduce(reduction, args);
    return TUTTI_OK;
}

static tutti_status matmul(void *stream, const tutti_kernel_matmul_args *args, void *scratch) {
    (void)stream, (void)scratch;
    tutti_kernel_matmul(args);
    return TUTTI_OK;
}

static tutti_status conv_forward(void *stream, tutti_type type, const tutti_kernel_window *window, int64_t filters,
                                 const void *x, const void *weight, const void *bias, void *scratch, void *y) {
    (void)stream;
    tutti_kernel_conv_forward(type, window, filters, x, weight, bias, scratch, y);
    return TUTTI_OK;
}

static tutti_status conv_backward(void *stream, const tutti_kernel_window *window,
                                  const tutti_kernel_conv_backward_args *args) {
    (void)stream;
    tutti_kernel_conv_backward(window, args);
    return TUTTI_OK;
}

static tutti_status max_pool_forward(void *stream, tutti_type type, const tutti_kernel_window *window, const void *x,
                                     void *y) {
    (void)stream;
    tutti_kernel_max_pool_forward(type, window, x, y);
    return TUTTI_OK;
}

static tutti_status max_pool_backward(void *stream, tutti_type type, const tutti_kernel_window *window, const void *x,
                                      const void *dy, void *dx) {
    (void)stream;
    tutti_kernel_max_pool_backward(type, window, x, dy, dx);
    return TUTTI_OK;
}

static tutti_status average_pool_forward(void *stream, tutti_type type, const tutti_kernel_window *window,
                                         bool count_padding, const void *x, void *y) {
    (void)stream;
    tutti_kernel_average_pool_forward(type, window, count_padding, x, y);
    return TUTTI_OK;
}

static tutti_status average_pool_backward(void *stream, tutti_type type, const tutti_kernel_window *window,
                                          bool count_padding, const void *dy, void *dx) {
    (void)stream;
    tutti_kernel_average_pool_backward(type, window, count_padding, dy, dx);
    return TUTTI_OK;
}

static tutti_status batch_norm_statistics(void *stream, tutti_type type, size_t rows, size_t channels, const void *x,
                                          void *scratch, double *sums) {
    (void)stream, (void)scratch;
    tutti_kernel_batch_norm_statistics(type, rows, channels, x, sums);
    return TUTTI_OK;
}

static tutti_status batch_norm_moments(void *stream, size_t channels, double count, double epsilon, const double *sums,
                                       double *mean, double *variance, double *inverse_deviation) {
    (void)stream;
    tutti_kernel_batch_norm_moments(channels, count, epsilon, sums, mean, variance, inverse_deviation);
    return TUTTI_OK;
}

static tutti_status batch_norm_normalise(void *stream, const tutti_kernel_batch_norm_args *args, void *y) {
    (void)stream;
    tutti_kernel_batch_norm_normalise(args, y);
    return TUTTI_OK;
}

static tutti_status batch_norm_backward_sums(void *stream, const tutti_kernel_batch_norm_args *args, const void *dy,
                                             void *scratch, double *sums) {
    (void)stream, (void)scratch;
    tutti_kernel_batch_norm_backward_sums(args, dy, sums);
    return TUTTI_OK;
}

static tutti_status batch_norm_backward(void *stream, const tutti_kernel_batch_norm_args *args, const void *dy,
                                        const double *sums, double count, void *dx) {
    (void)stream;
    tutti_kernel_batch_norm_backward(args, dy, sums, count, dx);
    return TUTTI_OK;
}

static tutti_status softmax(void *stream, tutti_type type, size_t rows, size_t classes, const void *x, void *y) {
    (void)stream;
    tutti_kernel_softmax(type, rows, classes, x, y);
    return TUTTI_OK;
}

static tutti_status softmax_backward(void *stream, tutti_type type, size_t rows, size_t classes, const void *y,
                                     const void *dy, void *dx) {
    (void)stream;
    tutti_kernel_softmax_backward(type, rows, classes, y, dy, dx);
    return TUTTI_OK;
}

static tutti_status exp_sums(void *stream, tutti_type type, size_t rows, size_t classes, const void *x, const void *max,
                             void *sums) {
    (void)stream;
    tutti_kernel_exp_sums(type, rows, classes, x, max, sums);
    return TUTTI_OK;
}

static tutti_status label_logits(void *stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                 const tutti_kernel_labels *labels, void *logits) {
    (void)stream;
    tutti_kernel_label_logits(type, rows, classes, x, labels, logits);
    return TUTTI_OK;
}

static tutti_status cross_entropy_losses(void *stream, tutti_type type, size_t rows, const void *max, const void *sums,
                                         const void *logits, const tutti_kernel_labels *labels, void *losses) {
    (void)stream;
    tutti_kernel_cross_entropy_losses(type, rows, max, sums, logits, labels, losses);
    return TUTTI_OK;
}

static tutti_status cross_entropy(void *stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                  const tutti_kernel_labels *labels, void *max, void *sums, void *losses) {
    (void)stream;
    tutti_kernel_cross_entropy(type, rows, classes, x, labels, max, sums, losses);
    return TUTTI_OK;
}

static tutti_status cross_entropy_backward(void *stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                           const tutti_kernel_labels *labels, const void *max, const void *sums,
                                           const void *dlosses, void *dx) {
    (void)stream;
    tutti_kernel_cross_entropy_backward(type, rows, classes, x, labels, max, sums, dlosses, dx);
    return TUTTI_OK;
}

static tutti_status embedding(void *stream, const tutti_kernel_embedding_args *args, const void *table, void *y) {
    (void)stream;
    tutti_kernel_embedding(args, table, y);
    return TUTTI_OK;
}

static tutti_status embedding_backward(void *stream, const tutti_kernel_embedding_args *args, const void *dy,
                                       void *dtable) {
    (void)stream;
    tutti_kernel_embedding_backward(args, dy, dtable);
    return TUTTI_OK;
}

static tutti_status dropout(void *stream, tutti_type type, const tutti_kernel_shard *shard,
                            const tutti_kernel_random *random, double rate, const void *x, void *y) {
    (void)stream;
    tutti_kernel_dropout(type, shard, random, rate, x, y);
    return TUTTI_OK;
}

static tutti_status random_uniform(void *stream, tutti_type type, const tutti_kernel_shard *shard,
                                   const tutti_kernel_random *random, double low, double high, void *y) {
    (void)stream;
    tutti_kernel_random_uniform(type, shard, random, low, high, y);
    return TUTTI_OK;
}

static tutti_status random_normal(void *stream, tutti_type type, const tutti_kernel_shard *shard,
                                  const tutti_kernel_random *random, double mean, double stddev, void *y) {
    (void)stream;
    tutti_kernel_random_normal(type, shard, random, mean, stddev, y);
    return TUTTI_OK;
}

static tutti_status arange(void *stream, tutti_type type, const tutti_kernel_shard *shard, double start, double step,
                           void *y) {
    (void)stream;
    tutti_kernel_arange(type, shard, start, step, y);
    return TUTTI_OK;
}

const tutti_operators tutti_operators_host = {
    .name = "host",
    .copy = copy,
    .zero = zero,
    .copy_box = copy_box,
    .binary = binary,
    .unary = unary,
    .scale = scale,
    .add_number = add_number,
    .cast = cast,
    .fill = fill,
    .reduce_scratch_bytes = reduce_scratch_bytes,
    .reduce = reduce,
    .matmul_scratch_bytes = matmul_scratch_bytes,
    .matmul = matmul,
    .conv_scratch_bytes = conv_scratch_bytes,
    .conv_forward = conv_forward,
    .conv_backward = conv_backward,
    .max_pool_forward = max_pool_forward,
    .max_pool_backward = max_pool_backward,
    .average_pool_forward = average_pool_forward,
    .average_pool_backward = average_pool_backward,
    .batch_norm_scratch_bytes = batch_norm_scratch_bytes,
    .batch_norm_statistics = batch_norm_statistics,
    .batch_norm_moments = batch_norm_moments,
    .batch_norm_normalise = batch_norm_normalise,
    .batch_norm_backward_sums = batch_norm_backward_sums,
    .batch_norm_backward = batch_norm_backward,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .exp_sums = exp_sums,
    .label_logits = label_logits,
    .cross_entropy_losses = cross_entropy_losses,
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .dropout = dropout,
    .random_uniform = random_uniform,
    .random_normal = random_normal,
    .arange = arange,
};
