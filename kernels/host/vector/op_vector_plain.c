/*
 * Loops of the operators compiled for the compiler's default instruction set.
 */
#define OP_VECTOR tutti_vector_plain
#include "kernels/host/vector/op_vector_loops.h"
