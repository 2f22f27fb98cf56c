/*
 * Reduction loops compiled for AVX2 and F16C; entered only where the processor has both.
 */
#define REDUCE_VARIANT      tutti_reduce_avx2
#define REDUCE_VARIANT_NAME "avx2"
#include "kernels/host/reduce/reduce_loops.h"
