/*
 * Reduction loops compiled for AVX-512 (F, BW, DQ, VL); entered only where the processor has all of them.
 */
#define REDUCE_VARIANT      tutti_reduce_avx512
#define REDUCE_VARIANT_NAME "avx512"
#include "kernels/host/reduce/reduce_loops.h"
