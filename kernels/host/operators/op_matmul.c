/*
 * Matrix products by CBLAS (OpenBLAS and the like), one call for each index of the batch dimensions. If all matrices
 * of a batch are multiplied by the same b, their rows become the rows of one product.
 */
#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "kernels/host/gemm_rows.h"
#include "kernels/host/operators/op_parts.h"

#define gemm_f32 cblas_sgemm
#define gemm_f64 cblas_dgemm

/* The batch dimensions that remain after merging, and the rows of each product. */
typedef struct batches {
    int ndims;
    int64_t m;
} batches;

#define OP_TEMPLATE "kernels/host/operators/op_matmul_real.h"
#include "kernels/host/operators/op_both_reals.h"

void tutti_kernel_matmul(const tutti_kernel_matmul_args *args) {
    batches batch = {.ndims = args->batch_ndims, .m = args->m};
    if (args->m == 0 || args->n == 0) return;
    for (int d = 0; d < batch.ndims; d++)
        if (args->batch_shape[d] == 0) return;
    while (batch.ndims > 0 && !args->transpose_a) {
        const int last = batch.ndims - 1;
        const int64_t count = args->batch_shape[last];
        const bool joins = count == 1 || (args->b_strides[last] == 0 && args->a_strides[last] == batch.m * args->k);
        if (!joins || batch.m > INT_MAX / count) break;
        batch.m *= count;
        batch.ndims--;
    }
    if (args->type == TUTTI_FLOAT32) matmul_f32(args, &batch, args->a, args->b, args->y);
    else matmul_f64(args, &batch, args->a, args->b, args->y);
}
