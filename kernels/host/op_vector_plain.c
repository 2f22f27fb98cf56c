/*
 * Loops of the operators compiled for the baseline.
 */
#define OP_VECTOR tutti_kernel_vector_plain
#include "kernels/host/op_vector_loops.h"
