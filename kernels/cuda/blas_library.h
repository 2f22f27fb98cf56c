/*
 * cuBLAS, opened at run time.
 */
#ifndef TUTTI_KERNELS_CUDA_BLAS_LIBRARY_H
#define TUTTI_KERNELS_CUDA_BLAS_LIBRARY_H

#include <cublas_v2.h>

#include <tutti/tutti.h>

typedef struct tutti_blas_library {
    __typeof__(&cublasCreate) create;
    __typeof__(&cublasDestroy) destroy;
    __typeof__(&cublasSetStream) set_stream;
    __typeof__(&cublasSetWorkspace) set_workspace;
    __typeof__(&cublasSetMathMode) set_math_mode;
    __typeof__(&cublasGemmEx) gemm;
    __typeof__(&cublasGemmStridedBatchedEx) gemm_batched;
} tutti_blas_library;

/* Opens cuBLAS at the first call; it stays open. The search covers only the file that TUTTI_CUBLAS_LIBRARY names if
 * it is set; otherwise the library that this process has loaded, then the system's search path, CUDA's folder, and
 * the packages of Python's environments. Fails with TUTTI_ERR_UNSUPPORTED and the reason. Any thread may call it. */
tutti_status tutti_blas_library_open(const tutti_blas_library **library_out);

#endif
