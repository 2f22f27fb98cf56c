/*
 * The part of CUDA's header that kernels/cuda/gemm.c needs, for builds without CUDA.
 */
#ifndef TUTTI_TESTS_EMULATED_CUDA_RUNTIME_API_H
#define TUTTI_TESTS_EMULATED_CUDA_RUNTIME_API_H

typedef struct emulated_stream *cudaStream_t;
typedef enum cudaDataType { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16BF = 14 } cudaDataType_t;

#endif
