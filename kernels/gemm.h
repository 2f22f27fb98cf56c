/*
 * Matrix product for the trainer's layers.
 */
#ifndef TUTTI_KERNELS_GEMM_H
#define TUTTI_KERNELS_GEMM_H

#include <stdbool.h>

#include "kernels/real.h"

/* c[m,n] = alpha * op(a)[m,k] op(b)[k,n] + beta * c, row-major, dense: op(a) is a[m,k], or a[k,m] transposed;
 * op(b) is b[k,n], or b[n,k] transposed. beta 0: c is only written. Runs on the calling thread. */
void tutti_gemm(bool transpose_a, bool transpose_b, int m, int n, int k, tutti_real alpha, const tutti_real *a,
                const tutti_real *b, tutti_real beta, tutti_real *c);

/* Makes CBLAS use one thread per rank from now on, because ranks share the cores. Does nothing if the user has set
 * OPENBLAS_NUM_THREADS or OMP_NUM_THREADS. */
void tutti_gemm_use_one_thread(void);

#endif
