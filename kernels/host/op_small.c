/*
 * Conversions of float16, bfloat16 and float8 for the operators: those of the reductions (reduce_small.h), compiled for the
 * baseline and for AVX2.
 */
#include "kernels/host/op_parts.h"
#include "kernels/host/reduce_small.h"
#include "kernels/real.h"

#define CONVERSIONS(name)                                                                                              \
    TUTTI_VECTOR_CLONES __attribute__((flatten)) static void widen_all_##name(size_t count, const void *x, float *y) { \
        widen_##name(y, x, count);                                                                                     \
    }                                                                                                                  \
    TUTTI_VECTOR_CLONES                                                                                                \
        __attribute__((flatten)) static void narrow_all_##name(size_t count, const float *x, void *y) {                \
        narrow_##name(y, x, count);                                                                                    \
    }
CONVERSIONS(float16)
CONVERSIONS(bfloat16)
CONVERSIONS(float8_e4m3)
CONVERSIONS(float8_e5m2)

void tutti_op_widen(tutti_type type, size_t count, const void *x, float *y) {
    switch (type) {
    case TUTTI_FLOAT16: widen_all_float16(count, x, y); break;
    case TUTTI_BFLOAT16: widen_all_bfloat16(count, x, y); break;
    case TUTTI_FLOAT8_E4M3: widen_all_float8_e4m3(count, x, y); break;
    default: widen_all_float8_e5m2(count, x, y); break;
    }
}

void tutti_op_narrow(tutti_type type, size_t count, const float *x, void *y) {
    switch (type) {
    case TUTTI_FLOAT16: narrow_all_float16(count, x, y); break;
    case TUTTI_BFLOAT16: narrow_all_bfloat16(count, x, y); break;
    case TUTTI_FLOAT8_E4M3: narrow_all_float8_e4m3(count, x, y); break;
    default: narrow_all_float8_e5m2(count, x, y); break;
    }
}
