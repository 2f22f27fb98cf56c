/*
 * A GPU's compute (kernels/kernels.h): its stream, its failures, and what its kernels share.
 *
 * compute.c opens and closes computes, holds their memory and the table; recording.c records steps; gemm.c multiplies
 * matrices with cuBLAS; the folders below hold kernels, which use C++ only as far as launching them needs it. All work
 * enqueued here goes into one stream, in the order of the calls.
 */
#ifndef TUTTI_KERNELS_CUDA_COMPUTE_H
#define TUTTI_KERNELS_CUDA_COMPUTE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "bootstrap/machine/module.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

/* The functions that the host provides, and the module's own table; set when the module is started. */
extern const tutti_module_host *tutti_cuda_host;
extern const tutti_device *tutti_cuda_device;

#define TUTTI_COMPUTE_SLOTS      8 /* pieces of uploads that may be under way: those of some steps */
#define TUTTI_COMPUTE_SLOT_BYTES ((size_t)512 << 10)
/* Floats: the partial sums of bias_backward's blocks, parts of products (gemm.c), sums of batch norm's groups of
 * rows. */
#define TUTTI_COMPUTE_PARTIALS (1 << 21)

/* Pinned memory that is being copied to the GPU. */
typedef struct tutti_compute_slot {
    void *memory;
    tutti_event_handle sent; /* recorded after its copy */
    bool used;
} tutti_compute_slot;

/* A copy of a matrix, rounded to bfloat16. It grows in the first steps only. */
typedef struct tutti_compute_rounded {
    void *memory;
    size_t bytes;
} tutti_compute_rounded;

typedef struct tutti_cuda_compute {
    tutti_compute base; /* must be first */
    const tutti_device *device;
    tutti_stream stream;
    tutti_precision precision;
    tutti_status failed; /* the first failure; its text is in `words` */
    char words[512];
    tutti_compute_slot slots[TUTTI_COMPUTE_SLOTS];
    int next_slot;
    float *partials;
    void *blas, *blas_workspace;      /* gemm.c */
    tutti_compute_rounded rounded[2]; /* copies of a product's factors */
    bool recording;
} tutti_cuda_compute;

extern const tutti_kernels tutti_cuda_kernels;

static inline tutti_cuda_compute *tutti_cuda_compute_of(tutti_compute *compute) {
    return (tutti_cuda_compute *)(void *)compute;
}

/* Stores the status and this thread's error text if it is the first failure (compute_failure.c). */
void tutti_compute_note(tutti_compute *compute, tutti_status status);

/* -------------------------------------------------------------------------------------------- recording.c */

tutti_status tutti_recording_begin(tutti_compute *compute);
tutti_status tutti_recording_end(tutti_compute *compute, tutti_recording **recording_out);
tutti_status tutti_recording_replay(tutti_compute *compute, tutti_recording *recording);
void tutti_recording_forget(tutti_compute *compute, tutti_recording *recording);

/* ------------------------------------------------------------------------------------------------- gemm.c */

/* Finds and starts cuBLAS. */
tutti_status tutti_blas_open(tutti_cuda_compute *compute);
void tutti_blas_close(tutti_cuda_compute *compute);

/* A factor of a product: float32, or bfloat16 already if the compute has that precision. */
typedef struct tutti_factor {
    const void *data;
    bool transposed, rounded;
} tutti_factor;

/* Row-major: c[m,n] = op(a)[m,k] op(b)[k,n], as tutti_gemm with alpha 1 and beta 0. */
typedef struct tutti_product {
    int m, n, k;
    tutti_factor a, b;
    float *c;
} tutti_product;
void tutti_blas_multiply(tutti_compute *compute, const tutti_product *product);

/* ------------------------------------------------------------------------------------------------ kernels */

/* dst = src, rounded to bfloat16, ties to even; NaN stays NaN. */
void tutti_gpu_round(tutti_compute *compute, size_t count, const float *src, uint16_t *dst);

void tutti_gpu_bias_forward(tutti_compute *compute, size_t rows, int channels, bool relu, const float *bias, float *y);
void tutti_gpu_bias_backward(tutti_compute *compute, const tutti_bias_backward_args *args);
/* dst[column] = the sum over rows of src[row, column], in an order that depends on the shape only. */
void tutti_gpu_add_rows(tutti_compute *compute, size_t rows, int columns, float *src, float *dst);

/* columns[image, pixel of the output, ky, kx, channel]; rounded: bfloat16. */
void tutti_gpu_unfold(tutti_compute *compute, const tutti_window *window, int batch, const float *x, void *columns,
                      bool rounded);
/* Each element of x becomes the sum over the columns that it came from, in the order of the windows. */
void tutti_gpu_fold(tutti_compute *compute, const tutti_window *window, int batch, const float *columns, float *x);

void tutti_gpu_max_pool_forward(tutti_compute *compute, const tutti_window *window, int batch, const float *x, float *y,
                                int32_t *where);
void tutti_gpu_max_pool_backward(tutti_compute *compute, const tutti_window *window, int batch, const float *dy,
                                 const int32_t *where, float *dx);
/* Uses the operators' kernels, as batch norm does (norm.cu). */
void tutti_gpu_average_pool_forward(tutti_compute *compute, const tutti_window *window, int batch, const float *x,
                                    float *y);
void tutti_gpu_average_pool_backward(tutti_compute *compute, const tutti_window *window, int batch, const float *dy,
                                     float *dx);
void tutti_gpu_batch_norm_forward(tutti_compute *compute, const tutti_batch_norm *norm,
                                  const tutti_batch_norm_forward_args *args);
void tutti_gpu_batch_norm_backward(tutti_compute *compute, const tutti_batch_norm *norm,
                                   const tutti_batch_norm_backward_args *args);
void tutti_gpu_relu_forward(tutti_compute *compute, size_t count, const float *x, float *y);
void tutti_gpu_relu_backward(tutti_compute *compute, size_t count, const float *y, const float *dy, float *dx);
void tutti_gpu_add(tutti_compute *compute, size_t count, const float *a, const float *b, float *y);
void tutti_gpu_add_relu(tutti_compute *compute, size_t count, const float *a, const float *b, float *y);
void tutti_gpu_fill(tutti_compute *compute, size_t count, float value, float *data);
void tutti_gpu_dropout(tutti_compute *compute, const tutti_dropout *dropout, const tutti_step_values *values,
                       size_t count, const float *src, float *dst);
void tutti_gpu_softmax_loss(tutti_compute *compute, const tutti_softmax_loss_args *args, bool adds, double *sums);
void tutti_gpu_softmax_largest(tutti_compute *compute, const tutti_softmax_parts *parts);
void tutti_gpu_softmax_sums(tutti_compute *compute, const tutti_softmax_parts *parts);
void tutti_gpu_softmax_losses(tutti_compute *compute, const tutti_softmax_parts *parts, float scale, float *dlogits,
                              bool adds, double *sums);
void tutti_gpu_truncated_normal(tutti_compute *compute, const tutti_normal *normal, size_t count, float *data);
void tutti_gpu_sgd(tutti_compute *compute, const tutti_sgd *rule, const tutti_step_values *values,
                   const tutti_optimizer_piece *pieces, int npieces);
void tutti_gpu_adam(tutti_compute *compute, const tutti_adam *rule, const tutti_step_values *values,
                    const tutti_optimizer_piece *pieces, int npieces);

/* ------------------------------------------------------------------------------------------------- conv.c */

size_t tutti_gpu_conv_scratch_count(const tutti_conv *conv, int batch);
size_t tutti_gpu_conv_kept_count(const tutti_conv *conv, int batch);
void tutti_gpu_conv_forward(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_forward_args *args);
void tutti_gpu_conv_backward(tutti_compute *compute, const tutti_conv *conv, const tutti_conv_backward_args *args);
void tutti_gpu_dense_forward(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_forward_args *args);
void tutti_gpu_dense_backward(tutti_compute *compute, const tutti_dense *dense, const tutti_dense_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif
