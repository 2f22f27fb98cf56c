/*
 * cuBLAS for the stand-in: products in stream order, by the host's CBLAS, with cuBLAS's own arguments (column-major).
 */
#include <cblas.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/blas_library.h"
#include "tests/support/emulated/enqueue.h"

struct emulated_blas {
    cudaStream_t stream;
};

typedef struct product {
    bool flip_a, flip_b;
    int m, n, k, lda, ldb, ldc;
    const void *a, *b;
    cudaDataType_t type_a, type_b;
    float alpha, beta;
    float *c;
} product;

cublasStatus_t cublasCreate(cublasHandle_t *handle_out) {
    *handle_out = calloc(1, sizeof **handle_out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes) {
    return handle != NULL && workspace != NULL && bytes > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    (void)mode; /* tf32 is computed as fp32 */
    return handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* The matrix as floats; *copy_out is to be freed. */
static const float *floats_of(const void *matrix, cudaDataType_t type, size_t count, float **copy_out) {
    *copy_out = NULL;
    const void *there = emulated_reach(matrix);
    if (type == CUDA_R_32F) return there;
    *copy_out = malloc(count * sizeof **copy_out);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)there)[i] << 16;
        memcpy(&(*copy_out)[i], &bits, sizeof bits);
    }
    return *copy_out;
}

static void run_product(void *context) {
    const product *p = context;
    float *copy_a, *copy_b;
    const float *a = floats_of(p->a, p->type_a, (size_t)p->m * (size_t)p->k, &copy_a);
    const float *b = floats_of(p->b, p->type_b, (size_t)p->k * (size_t)p->n, &copy_b);
    cblas_sgemm(CblasColMajor, p->flip_a ? CblasTrans : CblasNoTrans, p->flip_b ? CblasTrans : CblasNoTrans, p->m, p->n,
                p->k, p->alpha, a, p->lda, b, p->ldb, p->beta, emulated_reach(p->c), p->ldc);
    free(copy_a), free(copy_b);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t type_a, int lda, const void *b,
                            cudaDataType_t type_b, int ldb, const void *beta, void *c, cudaDataType_t type_c, int ldc,
                            cublasComputeType_t sums, cublasGemmAlgo_t algorithm) {
    (void)sums, (void)algorithm;
    if (m <= 0 || n <= 0 || k <= 0 || type_c != CUDA_R_32F || type_a != type_b || ldc < m ||
        lda < (op_a == CUBLAS_OP_N ? m : k) || ldb < (op_b == CUBLAS_OP_N ? k : n))
        return CUBLAS_STATUS_INVALID_VALUE;
    product *made = malloc(sizeof *made);
    *made = (product){.flip_a = op_a == CUBLAS_OP_T,
                      .flip_b = op_b == CUBLAS_OP_T,
                      .m = m,
                      .n = n,
                      .k = k,
                      .lda = lda,
                      .ldb = ldb,
                      .ldc = ldc,
                      .a = a,
                      .b = b,
                      .type_a = type_a,
                      .type_b = type_b,
                      .alpha = *(const float *)alpha,
                      .beta = *(const float *)beta,
                      .c = c};
    emulated_enqueue(handle->stream, run_product, free, made);
    return CUBLAS_STATUS_SUCCESS;
}

tutti_status tutti_blas_library_open(const tutti_blas_library **library_out) {
    static const tutti_blas_library library = {.create = cublasCreate,
                                               .destroy = cublasDestroy,
                                               .set_stream = cublasSetStream,
                                               .set_workspace = cublasSetWorkspace,
                                               .set_math_mode = cublasSetMathMode,
                                               .gemm = cublasGemmEx};
    *library_out = &library;
    return TUTTI_OK;
}
