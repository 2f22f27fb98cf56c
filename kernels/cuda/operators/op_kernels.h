/*
 * The operators' kernels (kernels/operators.h) on a GPU: the functions of the table in op_table.c. All calls only
 * enqueue.
 */
#ifndef TUTTI_KERNELS_CUDA_OP_KERNELS_H
#define TUTTI_KERNELS_CUDA_OP_KERNELS_H

#include "kernels/device.h"
#include "kernels/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const tutti_operators tutti_cuda_operators;

/* ------------------------------------------------------------------------------------------- op_elements.cu */

tutti_status tutti_gpu_op_binary(tutti_stream stream, tutti_kernel_binary_kind kind,
                                 const tutti_kernel_binary_args *args);
tutti_status tutti_gpu_op_unary(tutti_stream stream, tutti_kernel_unary_kind kind, tutti_type type, size_t count,
                                const void *x, void *y);
tutti_status tutti_gpu_op_scale(tutti_stream stream, tutti_type type, double number, size_t count, const void *x,
                                void *y);
tutti_status tutti_gpu_op_add_number(tutti_stream stream, tutti_type type, double number, size_t count, const void *x,
                                     void *y);
tutti_status tutti_gpu_op_cast(tutti_stream stream, tutti_type x_type, tutti_type y_type, size_t count, const void *x,
                               void *y);
tutti_status tutti_gpu_op_fill(tutti_stream stream, tutti_type type, double value, size_t count, void *y);
tutti_status tutti_gpu_op_dropout(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard,
                                  const tutti_kernel_random *random, double rate, const void *x, void *y);
tutti_status tutti_gpu_op_random_uniform(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard,
                                         const tutti_kernel_random *random, double low, double high, void *y);
tutti_status tutti_gpu_op_random_normal(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard,
                                        const tutti_kernel_random *random, double mean, double stddev, void *y);
tutti_status tutti_gpu_op_arange(tutti_stream stream, tutti_type type, const tutti_kernel_shard *shard, double start,
                                 double step, void *y);

/* --------------------------------------------------------------------------------------------- op_reduce.cu */

size_t tutti_gpu_op_reduce_scratch(const tutti_kernel_reduce_args *args);
tutti_status tutti_gpu_op_reduce(tutti_stream stream, tutti_reduction reduction, const tutti_kernel_reduce_args *args,
                                 void *scratch);

/* ----------------------------------------------------------------------------------------------- op_norm.cu */

size_t tutti_gpu_op_batch_norm_scratch(size_t rows, size_t channels);
tutti_status tutti_gpu_op_batch_norm_statistics(tutti_stream stream, tutti_type type, size_t rows, size_t channels,
                                                const void *x, void *scratch, double *sums);
tutti_status tutti_gpu_op_batch_norm_moments(tutti_stream stream, size_t channels, double count, double epsilon,
                                             const double *sums, double *mean, double *variance,
                                             double *inverse_deviation);
tutti_status tutti_gpu_op_batch_norm_normalise(tutti_stream stream, const tutti_kernel_batch_norm_args *args, void *y);
tutti_status tutti_gpu_op_batch_norm_backward_sums(tutti_stream stream, const tutti_kernel_batch_norm_args *args,
                                                   const void *dy, void *scratch, double *sums);
tutti_status tutti_gpu_op_batch_norm_backward(tutti_stream stream, const tutti_kernel_batch_norm_args *args,
                                              const void *dy, const double *sums, double count, void *dx);

/* ----------------------------------------------------------------------------------------------- op_rows.cu */

tutti_status tutti_gpu_op_softmax(tutti_stream stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                  void *y);
tutti_status tutti_gpu_op_softmax_backward(tutti_stream stream, tutti_type type, size_t rows, size_t classes,
                                           const void *y, const void *dy, void *dx);
tutti_status tutti_gpu_op_exp_sums(tutti_stream stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                   const void *max, void *sums);
tutti_status tutti_gpu_op_label_logits(tutti_stream stream, tutti_type type, size_t rows, size_t classes, const void *x,
                                       const tutti_kernel_labels *labels, void *logits);
tutti_status tutti_gpu_op_cross_entropy_losses(tutti_stream stream, tutti_type type, size_t rows, const void *max,
                                               const void *sums, const void *logits, const tutti_kernel_labels *labels,
                                               void *losses);
tutti_status tutti_gpu_op_cross_entropy(tutti_stream stream, tutti_type type, size_t rows, size_t classes,
                                        const void *x, const tutti_kernel_labels *labels, void *max, void *sums,
                                        void *losses);
tutti_status tutti_gpu_op_cross_entropy_backward(tutti_stream stream, tutti_type type, size_t rows, size_t classes,
                                                 const void *x, const tutti_kernel_labels *labels, const void *max,
                                                 const void *sums, const void *dlosses, void *dx);
tutti_status tutti_gpu_op_embedding(tutti_stream stream, const tutti_kernel_embedding_args *args, const void *table,
                                    void *y);
tutti_status tutti_gpu_op_embedding_backward(tutti_stream stream, const tutti_kernel_embedding_args *args,
                                             const void *dy, void *dtable);

/* -------------------------------------------------------------------------------------------- op_windows.cu */

/* columns[pixel, ky, kx, channel] of images [first, first + count); and back: each element of x is the sum of its
 * columns. */
tutti_status tutti_gpu_op_unfold(tutti_stream stream, tutti_type type, const tutti_kernel_window *window, int64_t first,
                                 int64_t count, const void *x, void *columns);
tutti_status tutti_gpu_op_fold(tutti_stream stream, tutti_type type, const tutti_kernel_window *window, int64_t first,
                               int64_t count, const void *columns, void *x);
tutti_status tutti_gpu_op_max_pool_forward(tutti_stream stream, tutti_type type, const tutti_kernel_window *window,
                                           const void *x, void *y);
tutti_status tutti_gpu_op_max_pool_backward(tutti_stream stream, tutti_type type, const tutti_kernel_window *window,
                                            const void *x, const void *dy, void *dx);
tutti_status tutti_gpu_op_average_pool_forward(tutti_stream stream, tutti_type type, const tutti_kernel_window *window,
                                               bool count_padding, const void *x, void *y);
tutti_status tutti_gpu_op_average_pool_backward(tutti_stream stream, tutti_type type, const tutti_kernel_window *window,
                                                bool count_padding, const void *dy, void *dx);
/* y[row, :] = values, for all rows. */
tutti_status tutti_gpu_op_repeat(tutti_stream stream, tutti_type type, size_t rows, size_t columns, const void *values,
                                 void *y);

/* -------------------------------------------------------------------------------------------- op_products.c */

size_t tutti_gpu_op_matmul_scratch(const tutti_kernel_matmul_args *args);
tutti_status tutti_gpu_op_matmul(tutti_stream stream, const tutti_kernel_matmul_args *args, void *scratch);
size_t tutti_gpu_op_conv_scratch(tutti_type type, const tutti_kernel_window *window, int64_t filters);
tutti_status tutti_gpu_op_conv_forward(tutti_stream stream, tutti_type type, const tutti_kernel_window *window,
                                       int64_t filters, const void *x, const void *weight, const void *bias,
                                       void *scratch, void *y);
tutti_status tutti_gpu_op_conv_backward(tutti_stream stream, const tutti_kernel_window *window,
                                        const tutti_kernel_conv_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif
