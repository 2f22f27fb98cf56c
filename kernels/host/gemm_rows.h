/*
 * The number of rows of a matrix product to compute with one call of CBLAS.
 */
#ifndef TUTTI_KERNELS_HOST_GEMM_ROWS_H
#define TUTTI_KERNELS_HOST_GEMM_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Only OpenBLAS has this function; with another CBLAS its address is NULL. */
extern char *openblas_get_corename(void) __attribute__((weak));

/* On AVX-512 OpenBLAS multiplies up to this many pairs of elements directly from memory, without packing. */
#define SMALL_PRODUCT 1000000
#define SMALL_ROWS    6 /* in multiples of its inner block */

static inline bool has_small_products(void) {
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *core = openblas_get_corename != NULL ? openblas_get_corename() : "";
    for (size_t i = 0; i < sizeof cores / sizeof cores[0]; i++)
        if (strcmp(core, cores[i]) == 0) return true;
    return false;
}

/* Returns the rows of c to compute at a time. A tall product with a small b (a convolution's forward, and its
 * weights' gradient) is a sixth faster in pieces that need no packing. */
static inline int rows_at_once(bool transpose_b, int m, int n, int k) {
    if (transpose_b || n == 0 || k == 0) return m;
    int64_t rows = SMALL_PRODUCT / ((int64_t)n * k);
    rows -= rows % SMALL_ROWS;
    if (rows >= m || rows < 2 * SMALL_ROWS || !has_small_products()) return m; /* fewer rows gain nothing */
    return (int)rows;
}

#endif
