/*
 * Included first in the tests of the operators' kernels: they then test those of the table for GPUs, which on_cuda.c
 * calls with host memory, on the emulated grid.
 */
#ifndef TUTTI_TESTS_KERNELS_ON_CUDA_H
#define TUTTI_TESTS_KERNELS_ON_CUDA_H

#define tutti_kernel_binary                   on_cuda_binary
#define tutti_kernel_unary                    on_cuda_unary
#define tutti_kernel_scale                    on_cuda_scale
#define tutti_kernel_add_number               on_cuda_add_number
#define tutti_kernel_cast                     on_cuda_cast
#define tutti_kernel_reduce                   on_cuda_reduce
#define tutti_kernel_matmul                   on_cuda_matmul
#define tutti_kernel_conv_scratch_bytes       on_cuda_conv_scratch_bytes
#define tutti_kernel_conv_forward             on_cuda_conv_forward
#define tutti_kernel_conv_backward            on_cuda_conv_backward
#define tutti_kernel_max_pool_forward         on_cuda_max_pool_forward
#define tutti_kernel_max_pool_backward        on_cuda_max_pool_backward
#define tutti_kernel_average_pool_forward     on_cuda_average_pool_forward
#define tutti_kernel_average_pool_backward    on_cuda_average_pool_backward
#define tutti_kernel_batch_norm_statistics    on_cuda_batch_norm_statistics
#define tutti_kernel_batch_norm_moments       on_cuda_batch_norm_moments
#define tutti_kernel_batch_norm_normalise     on_cuda_batch_norm_normalise
#define tutti_kernel_batch_norm_backward_sums on_cuda_batch_norm_backward_sums
#define tutti_kernel_batch_norm_backward      on_cuda_batch_norm_backward
#define tutti_kernel_softmax                  on_cuda_softmax
#define tutti_kernel_softmax_backward         on_cuda_softmax_backward
#define tutti_kernel_exp_sums                 on_cuda_exp_sums
#define tutti_kernel_label_logits             on_cuda_label_logits
#define tutti_kernel_cross_entropy_losses     on_cuda_cross_entropy_losses
#define tutti_kernel_cross_entropy            on_cuda_cross_entropy
#define tutti_kernel_cross_entropy_backward   on_cuda_cross_entropy_backward
#define tutti_kernel_embedding                on_cuda_embedding
#define tutti_kernel_embedding_backward       on_cuda_embedding_backward
#define tutti_kernel_dropout                  on_cuda_dropout
#define tutti_kernel_random_uniform           on_cuda_random_uniform
#define tutti_kernel_random_normal            on_cuda_random_normal
#define tutti_kernel_arange                   on_cuda_arange
#define tutti_kernel_fill                     on_cuda_fill

#endif
