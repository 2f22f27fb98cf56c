/*
 * Matrix products by cuBLAS, which is opened when the first compute is: libtutti_cuda.so does not depend on it.
 *
 * cuBLAS is column-major; a row-major matrix is its own transpose there, so c' = op(b)' op(a)' is asked for. Its workspace
 * is given once, so that it allocates nothing, and its products can be recorded.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/compute.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA advises for Hopper */

static tutti_status check(cublasStatus_t result, const char *what) {
    if (result == CUBLAS_STATUS_SUCCESS) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "cuBLAS: %s failed (status %d)", what, (int)result);
}

tutti_status tutti_blas_open(tutti_cuda_compute *compute) {
    const tutti_blas_library *blas;
    cublasHandle_t handle;
    TUTTI_TRY(tutti_blas_library_open(&blas));
    TUTTI_TRY(compute->device->alloc(WORKSPACE_BYTES, &compute->blas_workspace));
    TUTTI_TRY(check(blas->create(&handle), "its start"));
    compute->blas = handle;
    TUTTI_TRY(check(blas->set_stream(handle, (cudaStream_t)compute->stream), "setting the stream"));
    TUTTI_TRY(check(blas->set_workspace(handle, compute->blas_workspace, WORKSPACE_BYTES), "setting the workspace"));
    cublasMath_t math = compute->precision == TUTTI_PRECISION_TF32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH;
    return check(blas->set_math_mode(handle, math), "setting the precision");
}

void tutti_blas_close(tutti_cuda_compute *compute) {
    const tutti_blas_library *blas;
    if (compute->blas != NULL && tutti_blas_library_open(&blas) == TUTTI_OK) blas->destroy(compute->blas);
    if (compute->blas_workspace != NULL) (void)compute->device->free(compute->blas_workspace);
    compute->blas = compute->blas_workspace = NULL;
}

/* Room for a rounded copy. It grows in the first steps only; what is recorded has been launched before. */
static tutti_status reserve(tutti_cuda_compute *compute, tutti_compute_rounded *rounded, size_t bytes) {
    if (bytes <= rounded->bytes) return TUTTI_OK;
    if (compute->recording)
        return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "a product that was not launched before cannot be recorded");
    TUTTI_TRY(compute->device->stream_sync(compute->stream));
    if (rounded->memory != NULL) TUTTI_TRY(compute->device->free(rounded->memory));
    *rounded = (tutti_compute_rounded){.memory = NULL};
    TUTTI_TRY(compute->device->alloc(bytes, &rounded->memory));
    rounded->bytes = bytes;
    return TUTTI_OK;
}

/* Where cuBLAS reads the factor. */
static tutti_status prepare_factor(tutti_cuda_compute *compute, const tutti_factor *factor, size_t count,
                                   tutti_compute_rounded *rounded, const void **data_out) {
    *data_out = factor->data;
    if (compute->precision != TUTTI_PRECISION_BF16 || factor->rounded) return TUTTI_OK;
    TUTTI_TRY(reserve(compute, rounded, count * sizeof(uint16_t)));
    tutti_gpu_round(&compute->base, count, factor->data, rounded->memory);
    *data_out = rounded->memory;
    return TUTTI_OK;
}

static tutti_status multiply(tutti_cuda_compute *compute, const tutti_product *product) {
    const tutti_blas_library *blas;
    const void *a, *b;
    size_t m = (size_t)product->m, n = (size_t)product->n, k = (size_t)product->k;
    TUTTI_TRY(tutti_blas_library_open(&blas));
    TUTTI_TRY(prepare_factor(compute, &product->a, m * k, &compute->rounded[0], &a));
    TUTTI_TRY(prepare_factor(compute, &product->b, k * n, &compute->rounded[1], &b));
    const float one = 1, zero = 0;
    cudaDataType_t type = compute->precision == TUTTI_PRECISION_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasComputeType_t sums =
        compute->precision == TUTTI_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    bool flip_a = product->a.transposed, flip_b = product->b.transposed;
    return check(blas->gemm(compute->blas, flip_b ? CUBLAS_OP_T : CUBLAS_OP_N, flip_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                            product->n, product->m, product->k, &one, b, type, flip_b ? product->k : product->n, a,
                            type, flip_a ? product->m : product->k, &zero, product->c, CUDA_R_32F, product->n, sums,
                            CUBLAS_GEMM_DEFAULT),
                 "a matrix product");
}

void tutti_blas_multiply(tutti_compute *compute, const tutti_product *product) {
    if (product->m == 0 || product->n == 0) return;
    tutti_compute_note(compute, multiply(tutti_cuda_compute_of(compute), product));
}
