/*
 * Prints which kernels the trainer's CBLAS uses ("Haswell"), and in a second line how it was built. Prints nothing if
 * the CBLAS is not OpenBLAS. See with_blas.
 */
#include <cblas.h>
#include <stdio.h>

extern char *openblas_get_corename(void) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));

int main(void) {
    float one = 1, product = 0;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &one, 1, &one, 1, 0, &product, 1);
    if (openblas_get_corename != NULL && openblas_get_config != NULL)
        printf("%s\n%s\n", openblas_get_corename(), openblas_get_config());
    return product == 1 ? 0 : 1;
}
