/*
 * The table of the operators on a GPU, which libtutti_ops uses for tensors in CUDA memory.
 */
#include "kernels/cuda/compute.h"
#include "kernels/cuda/operators/op_kernels.h"

static tutti_status copy(void *stream, void *dst, const void *src, size_t bytes) {
    return tutti_cuda_device->copy(dst, src, bytes, stream);
}

static tutti_status zero(void *stream, void *dst, size_t bytes) {
    return tutti_cuda_device->fill(dst, 0, bytes, stream);
}

static tutti_status copy_box(void *stream, const tutti_box_copy *copy, void *dst, const void *src) {
    return tutti_cuda_device->copy_box(copy, dst, src, stream);
}

const tutti_operators tutti_cuda_operators = {
    .name = "cuda",
    .copy = copy,
    .zero = zero,
    .copy_box = copy_box,
    .binary = tutti_gpu_op_binary,
    .unary = tutti_gpu_op_unary,
    .scale = tutti_gpu_op_scale,
    .add_number = tutti_gpu_op_add_number,
    .cast = tutti_gpu_op_cast,
    .fill = tutti_gpu_op_fill,
    .reduce_scratch_bytes = tutti_gpu_op_reduce_scratch,
    .reduce = tutti_gpu_op_reduce,
    .matmul_scratch_bytes = tutti_gpu_op_matmul_scratch,
    .matmul = tutti_gpu_op_matmul,
    .conv_scratch_bytes = tutti_gpu_op_conv_scratch,
    .conv_forward = tutti_gpu_op_conv_forward,
    .conv_backward = tutti_gpu_op_conv_backward,
    .max_pool_forward = tutti_gpu_op_max_pool_forward,
    .max_pool_backward = tutti_gpu_op_max_pool_backward,
    .average_pool_forward = tutti_gpu_op_average_pool_forward,
    .average_pool_backward = tutti_gpu_op_average_pool_backward,
    .batch_norm_scratch_bytes = tutti_gpu_op_batch_norm_scratch,
    .batch_norm_statistics = tutti_gpu_op_batch_norm_statistics,
    .batch_norm_moments = tutti_gpu_op_batch_norm_moments,
    .batch_norm_normalise = tutti_gpu_op_batch_norm_normalise,
    .batch_norm_backward_sums = tutti_gpu_op_batch_norm_backward_sums,
    .batch_norm_backward = tutti_gpu_op_batch_norm_backward,
    .softmax = tutti_gpu_op_softmax,
    .softmax_backward = tutti_gpu_op_softmax_backward,
    .exp_sums = tutti_gpu_op_exp_sums,
    .label_logits = tutti_gpu_op_label_logits,
    .cross_entropy_losses = tutti_gpu_op_cross_entropy_losses,
    .cross_entropy = tutti_gpu_op_cross_entropy,
    .cross_entropy_backward = tutti_gpu_op_cross_entropy_backward,
    .embedding = tutti_gpu_op_embedding,
    .embedding_backward = tutti_gpu_op_embedding_backward,
    .dropout = tutti_gpu_op_dropout,
    .random_uniform = tutti_gpu_op_random_uniform,
    .random_normal = tutti_gpu_op_random_normal,
    .arange = tutti_gpu_op_arange,
};
