/*
 * Matrix products by cuBLAS, which is opened with the first compute: libtutti_cuda.so does not depend on it.
 *
 * cuBLAS is column-major; a row-major matrix is its own transpose there, so the code computes c' = op(b)' op(a)'.
 * cuBLAS gets its workspace once, so that it allocates nothing and its products can be recorded. Long sums over small
 * results are computed in parts, which are then added up.
 */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/blas_library.h"
#include "kernels/cuda/compute.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* NVIDIA's recommendation for Hopper */

/* Parts of products; see parts_of. */
#define TILE         64  /* rows and columns of a result that one multiprocessor computes, roughly */
#define WANTED_TILES 264 /* two per multiprocessor of a large GPU */
#define LEAST_TERMS  256 /* per part */
#define LEAST_PARTS  4   /* fewer are not worth adding up */

static tutti_status check(cublasStatus_t result, const char *what) {
    if (result == CUBLAS_STATUS_SUCCESS) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "cuBLAS: %s failed (status %d)", what, (int)result);
}

tutti_status tutti_blas_open(tutti_cuda_compute *compute) {
    const tutti_blas_library *blas;
    cublasHandle_t handle;
    TUTTI_TRY(tutti_blas_library_open(&blas));
    TUTTI_TRY(compute->device->alloc(WORKSPACE_BYTES, &compute->blas_workspace));
    TUTTI_TRY(check(blas->create(&handle), "creating a handle"));
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

/* Makes room for a rounded copy. It grows in the first steps only; a recorded step has been launched before. */
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

/* Returns the address where cuBLAS reads the factor. */
static tutti_status prepare_factor(tutti_cuda_compute *compute, const tutti_factor *factor, size_t count,
                                   tutti_compute_rounded *rounded, const void **data_out) {
    *data_out = factor->data;
    if (compute->precision != TUTTI_PRECISION_BF16 || factor->rounded) return TUTTI_OK;
    TUTTI_TRY(reserve(compute, rounded, count * sizeof(uint16_t)));
    tutti_gpu_round(&compute->base, count, factor->data, rounded->memory);
    *data_out = rounded->memory;
    return TUTTI_OK;
}

/* The number of parts into which a sum is cut. The gradient of a convolution's weight is small, and each element is a
 * sum of very many terms: as one product it keeps few of the GPU's multiprocessors busy. The number depends on the
 * shape only, so that results repeat. */
static int parts_of(const tutti_product *product) {
    const size_t count = (size_t)product->m * (size_t)product->n;
    const int tiles = ((product->m + TILE - 1) / TILE) * ((product->n + TILE - 1) / TILE);
    int parts = WANTED_TILES / tiles, most = product->k / LEAST_TERMS;
    if (parts > most) parts = most;
    if ((size_t)parts * count > TUTTI_COMPUTE_PARTIALS) parts = (int)(TUTTI_COMPUTE_PARTIALS / count);
    for (; parts >= LEAST_PARTS; parts--)
        if (product->k % parts == 0) return parts;
    return 1;
}

/* The arguments of a product; cuBLAS takes the factors in the opposite order. */
typedef struct call {
    cublasOperation_t op_a, op_b;
    const void *a, *b;
    int row_a, row_b;         /* elements from row to row */
    long long part_a, part_b; /* elements from part to part */
    cudaDataType_t type;
    cublasComputeType_t sums;
} call;

static void describe(const tutti_cuda_compute *compute, const tutti_product *product, int parts, call *c) {
    const bool flip_a = product->a.transposed, flip_b = product->b.transposed;
    const long long terms = product->k / parts;
    c->op_a = flip_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    c->op_b = flip_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    c->row_a = flip_a ? product->m : product->k;
    c->row_b = flip_b ? product->k : product->n;
    c->part_a = flip_a ? terms * product->m : terms;
    c->part_b = flip_b ? terms : terms * product->n;
    c->type = compute->precision == TUTTI_PRECISION_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    c->sums = compute->precision == TUTTI_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static tutti_status multiply(tutti_cuda_compute *compute, const tutti_product *product) {
    const tutti_blas_library *blas;
    const int m = product->m, n = product->n, k = product->k, parts = parts_of(product);
    const float one = 1, zero = 0;
    call c;
    TUTTI_TRY(tutti_blas_library_open(&blas));
    TUTTI_TRY(prepare_factor(compute, &product->a, (size_t)m * (size_t)k, &compute->rounded[0], &c.a));
    TUTTI_TRY(prepare_factor(compute, &product->b, (size_t)k * (size_t)n, &compute->rounded[1], &c.b));
    describe(compute, product, parts, &c);
    if (parts == 1)
        return check(blas->gemm(compute->blas, c.op_b, c.op_a, n, m, k, &one, c.b, c.type, c.row_b, c.a, c.type,
                                c.row_a, &zero, product->c, CUDA_R_32F, n, c.sums, CUBLAS_GEMM_DEFAULT),
                     "a matrix product");
    TUTTI_TRY(check(blas->gemm_batched(compute->blas, c.op_b, c.op_a, n, m, k / parts, &one, c.b, c.type, c.row_b,
                                       c.part_b, c.a, c.type, c.row_a, c.part_a, &zero, compute->partials, CUDA_R_32F,
                                       n, (long long)m * n, parts, c.sums, CUBLAS_GEMM_DEFAULT),
                    "the parts of a matrix product"));
    tutti_gpu_add_rows(&compute->base, (size_t)parts, m * n, compute->partials, product->c);
    return TUTTI_OK;
}

void tutti_blas_multiply(tutti_compute *compute, const tutti_product *product) {
    if (product->m == 0 || product->n == 0) return;
    tutti_compute_note(compute, multiply(tutti_cuda_compute_of(compute), product));
}
