/*
 * Matrix product by CBLAS (OpenBLAS and the like).
 */
#include "kernels/gemm.h"

#include <cblas.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Only OpenBLAS has them; with another CBLAS their addresses are NULL. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));

#ifdef TUTTI_KERNELS_DOUBLE
#define CBLAS_GEMM cblas_dgemm
#else
#define CBLAS_GEMM cblas_sgemm
#endif

/* On AVX-512 OpenBLAS multiplies up to this many pairs of elements straight from memory, without packing. */
#define SMALL_PRODUCT 1000000
#define SMALL_ROWS    6 /* in multiples of its inner block */

static bool has_small_products(void) {
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *core = openblas_get_corename != NULL ? openblas_get_corename() : "";
    for (size_t i = 0; i < sizeof cores / sizeof cores[0]; i++)
        if (strcmp(core, cores[i]) == 0) return true;
    return false;
}

/* Rows of c to compute at a time. A tall product of a small b (a convolution's forward, and its weights' gradient) is a
 * sixth faster in pieces that need no packing. */
static int rows_at_once(int m, int n, int k) {
    int64_t rows = SMALL_PRODUCT / ((int64_t)n * k);
    rows -= rows % SMALL_ROWS;
    if (rows >= m || rows < 2 * SMALL_ROWS || !has_small_products()) return m; /* fewer no longer pay */
    return (int)rows;
}

void tutti_gemm(bool transpose_a, bool transpose_b, int m, int n, int k, tutti_real alpha, const tutti_real *a,
                const tutti_real *b, tutti_real beta, tutti_real *c) {
    int step = transpose_b || n == 0 || k == 0 ? m : rows_at_once(m, n, k);
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
