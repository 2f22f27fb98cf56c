/*
 * Matrix product for the trainer's layers.
 */
#ifndef TUTTI_KERNELS_GEMM_H
#define TUTTI_KERNELS_GEMM_H

#include <stdbool.h>

/* c[m,n] = alpha * op(a)[m,k] op(b)[k,n] + beta * c, float32, row-major, dense: op(a) is a[m,k], or a[k,m]
 * transposed; op(b) is b[k,n], or b[n,k] transposed. Runs on the calling thread. */
void tutti_gemm(bool transpose_a, bool transpose_b, int m, int n, int k, float alpha, const float *a, const float *b,
                float beta, float *c);

#endif
