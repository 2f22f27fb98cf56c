/*
 * Reduction loops for the compiler's default instruction set: SSE2 on x86-64, NEON on 64-bit ARM. In every build.
 */
#define REDUCE_VARIANT tutti_reduce_plain
#if defined(__ARM_NEON)
#define REDUCE_VARIANT_NAME "neon"
#else
#define REDUCE_VARIANT_NAME "plain"
#endif
#include "kernels/host/reduce/reduce_loops.h"
