/*
 * Loops of the operators compiled for AVX2 and F16C; entered only where the processor has both.
 */
#define OP_VECTOR tutti_vector_avx2
#include "kernels/host/vector/op_vector_loops.h"
