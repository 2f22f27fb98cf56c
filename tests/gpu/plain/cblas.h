/*
 * A matrix product under CBLAS's name, for machines without a CBLAS: correct, and slow. tests/gpu/check builds the
 * trainer with it if there is no CBLAS, so that the host's losses can be compared with a GPU's.
 */
#ifndef TUTTI_PLAIN_CBLAS_H
#define TUTTI_PLAIN_CBLAS_H

enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose_a, enum CBLAS_TRANSPOSE transpose_b, int m,
                 int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
                 int ldc);
void cblas_dgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose_a, enum CBLAS_TRANSPOSE transpose_b, int m,
                 int n, int k, double alpha, const double *a, int lda, const double *b, int ldb, double beta, double *c,
                 int ldc);

#endif
