/*
 * Matrix products, row by row: the innermost loop runs along rows of c, so that a compiler can widen it. See cblas.h.
 */
#include "cblas.h"

#include <stddef.h>

/* Column-major c = a b is row-major c' = b' a'. */
#define PRODUCT(name, real)                                                                                            \
    static void rows_##name(int flip_a, int flip_b, int m, int n, int k, real alpha, const real *a, int lda,           \
                            const real *b, int ldb, real beta, real *c, int ldc) {                                     \
        for (int i = 0; i < m; i++) {                                                                                  \
            real *row = c + (ptrdiff_t)i * ldc;                                                                        \
            for (int j = 0; j < n; j++) row[j] = beta == 0 ? 0 : beta * row[j];                                        \
            for (int p = 0; p < k; p++) {                                                                              \
                real factor = alpha * (flip_a ? a[(ptrdiff_t)p * lda + i] : a[(ptrdiff_t)i * lda + p]);                \
                if (flip_b)                                                                                            \
                    for (int j = 0; j < n; j++) row[j] += factor * b[(ptrdiff_t)j * ldb + p];                          \
                else                                                                                                   \
                    for (int j = 0; j < n; j++) row[j] += factor * b[(ptrdiff_t)p * ldb + j];                          \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    void name(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose_a, enum CBLAS_TRANSPOSE transpose_b, int m,       \
              int n, int k, real alpha, const real *a, int lda, const real *b, int ldb, real beta, real *c, int ldc) { \
        int flip_a = transpose_a == CblasTrans, flip_b = transpose_b == CblasTrans;                                    \
        if (order == CblasRowMajor) rows_##name(flip_a, flip_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);         \
        else rows_##name(flip_b, flip_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);                                \
    }

PRODUCT(cblas_sgemm, float)
PRODUCT(cblas_dgemm, double)
