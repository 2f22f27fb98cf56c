/*
 * Loops of the operators compiled for AVX-512 with 512-bit registers; entered only where the processor has F, BW, DQ
 * and VL.
 */
#define OP_VECTOR tutti_vector_avx512
#include "kernels/host/vector/op_vector_loops.h"
