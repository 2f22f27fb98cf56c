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
    bool flip_a, flip_b, tf32;
    int m, n, k, lda, ldb, ldc;
    const char *a, *b;
    cudaDataType_t type; /* of the factors */
    double alpha, beta;
    char *c;
    int count; /* number of products, and the distance between two of them */
    long long stride_a, stride_b, stride_c;
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
    (void)mode; /* each product sets it, too */
    return handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static float value_of(const void *matrix, cudaDataType_t type, bool tf32, size_t at) {
    uint32_t bits;
    float value;
    if (type == CUDA_R_16BF) bits = (uint32_t)((const uint16_t *)matrix)[at] << 16;
    else memcpy(&bits, (const float *)matrix + at, sizeof bits);
    if (tf32) bits &= ~UINT32_C(0x1fff); /* ten bits behind the point are left */
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A factor of one of the products, stored in columns; the caller frees *copy_out. */
static const float *floats_of(const product *of, const char *matrix, int rows, int columns, int from_column,
                              float **copy_out) {
    *copy_out = NULL;
    const void *there = emulated_reach(matrix);
    if (of->type == CUDA_R_32F && !of->tf32) return there;
    const size_t count = (size_t)(columns - 1) * (size_t)from_column + (size_t)rows;
    *copy_out = malloc(count * sizeof **copy_out);
    for (size_t i = 0; i < count; i++) (*copy_out)[i] = value_of(there, of->type, of->tf32, i);
    return *copy_out;
}

static void run_doubles(const product *p) {
    for (int i = 0; i < p->count; i++) {
        const double *a = emulated_reach((const double *)(const void *)p->a + i * p->stride_a);
        const double *b = emulated_reach((const double *)(const void *)p->b + i * p->stride_b);
        double *c = emulated_reach((double *)(void *)p->c + i * p->stride_c);
        cblas_dgemm(CblasColMajor, p->flip_a ? CblasTrans : CblasNoTrans, p->flip_b ? CblasTrans : CblasNoTrans, p->m,
                    p->n, p->k, p->alpha, a, p->lda, b, p->ldb, p->beta, c, p->ldc);
    }
}

static void run_product(void *context) {
    const product *p = context;
    const int bytes = p->type == CUDA_R_32F ? sizeof(float) : sizeof(uint16_t);
    if (p->type == CUDA_R_64F) {
        run_doubles(p);
        return;
    }
    for (int i = 0; i < p->count; i++) {
        const char *of_a = p->a + i * p->stride_a * bytes, *of_b = p->b + i * p->stride_b * bytes;
        float *copy_a, *copy_b, *c = (float *)(void *)p->c + i * p->stride_c;
        const float *a = floats_of(p, of_a, p->flip_a ? p->k : p->m, p->flip_a ? p->m : p->k, p->lda, &copy_a);
        const float *b = floats_of(p, of_b, p->flip_b ? p->n : p->k, p->flip_b ? p->k : p->n, p->ldb, &copy_b);
        cblas_sgemm(CblasColMajor, p->flip_a ? CblasTrans : CblasNoTrans, p->flip_b ? CblasTrans : CblasNoTrans, p->m,
                    p->n, p->k, (float)p->alpha, a, p->lda, b, p->ldb, (float)p->beta, emulated_reach(c), p->ldc);
        free(copy_a), free(copy_b);
    }
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                                          int n, int k, const void *alpha, const void *a, cudaDataType_t type_a,
                                          int lda, long long stride_a, const void *b, cudaDataType_t type_b, int ldb,
                                          long long stride_b, const void *beta, void *c, cudaDataType_t type_c, int ldc,
                                          long long stride_c, int count, cublasComputeType_t sums,
                                          cublasGemmAlgo_t algorithm) {
    (void)algorithm;
    const bool wide = type_a == CUDA_R_64F;
    if (m <= 0 || n <= 0 || k <= 0 || count <= 0 || type_c != (wide ? CUDA_R_64F : CUDA_R_32F) || type_a != type_b ||
        ldc < m || lda < (op_a == CUBLAS_OP_N ? m : k) || ldb < (op_b == CUBLAS_OP_N ? k : n) ||
        wide != (sums == CUBLAS_COMPUTE_64F) || (type_a == CUDA_R_16BF && sums != CUBLAS_COMPUTE_32F))
        return CUBLAS_STATUS_INVALID_VALUE;
    product *made = malloc(sizeof *made);
    *made = (product){.flip_a = op_a == CUBLAS_OP_T,
                      .flip_b = op_b == CUBLAS_OP_T,
                      .tf32 = sums == CUBLAS_COMPUTE_32F_FAST_TF32,
                      .m = m,
                      .n = n,
                      .k = k,
                      .lda = lda,
                      .ldb = ldb,
                      .ldc = ldc,
                      .a = a,
                      .b = b,
                      .type = type_a,
                      .alpha = wide ? *(const double *)alpha : (double)*(const float *)alpha,
                      .beta = wide ? *(const double *)beta : (double)*(const float *)beta,
                      .c = c,
                      .count = count,
                      .stride_a = stride_a,
                      .stride_b = stride_b,
                      .stride_c = stride_c};
    emulated_enqueue(handle->stream, run_product, free, made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t type_a, int lda, const void *b,
                            cudaDataType_t type_b, int ldb, const void *beta, void *c, cudaDataType_t type_c, int ldc,
                            cublasComputeType_t sums, cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                      type_c, ldc, 0, 1, sums, algorithm);
}

tutti_status tutti_blas_library_open(const tutti_blas_library **library_out) {
    static const tutti_blas_library library = {.create = cublasCreate,
                                               .destroy = cublasDestroy,
                                               .set_stream = cublasSetStream,
                                               .set_workspace = cublasSetWorkspace,
                                               .set_math_mode = cublasSetMathMode,
                                               .gemm = cublasGemmEx,
                                               .gemm_batched = cublasGemmStridedBatchedEx};
    *library_out = &library;
    return TUTTI_OK;
}
