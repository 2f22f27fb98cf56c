/*
 * Matrix product by CBLAS (OpenBLAS and the like).
 */
#include "kernels/gemm.h"

#include <cblas.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/host/gemm_rows.h"

/* Only OpenBLAS has this function; with another CBLAS its address is NULL. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

#ifdef TUTTI_KERNELS_DOUBLE
#define CBLAS_GEMM cblas_dgemm
#else
#define CBLAS_GEMM cblas_sgemm
#endif

void tutti_gemm(bool transpose_a, bool transpose_b, int m, int n, int k, tutti_real alpha, const tutti_real *a,
                const tutti_real *b, tutti_real beta, tutti_real *c) {
    int step = rows_at_once(transpose_b, m, n, k);
    for (int row = 0; row < m; row += step) {
        int rows = m - row < step ? m - row : step;
        CBLAS_GEMM(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                   rows, n, k, alpha, a + (ptrdiff_t)row * (transpose_a ? 1 : k), transpose_a ? m : k, b,
                   transpose_b ? k : n, beta, c + (ptrdiff_t)row * n, n);
    }
}

void tutti_gemm_use_one_thread(void) {
    if (getenv("OPENBLAS_NUM_THREADS") != NULL || getenv("OMP_NUM_THREADS") != NULL) return;
    if (openblas_set_num_threads != NULL) openblas_set_num_threads(1);
}
