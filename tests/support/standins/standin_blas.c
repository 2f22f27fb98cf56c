/*
 * A library that is found in the same way as cuBLAS, and does nothing: its names are those of
 * support/emulated/cublas_v2.h. With -DLACKS_GEMM it lacks the matrix product.
 */
#define CALL(name)                                                                                                     \
    __attribute__((visibility("default"))) int name(void);                                                             \
    int name(void) {                                                                                                   \
        return 1;                                                                                                      \
    }

CALL(cublasCreate)
CALL(cublasDestroy)
CALL(cublasSetStream)
CALL(cublasSetWorkspace)
CALL(cublasSetMathMode)
#ifndef LACKS_GEMM
CALL(cublasGemmEx)
CALL(cublasGemmStridedBatchedEx)
#endif
