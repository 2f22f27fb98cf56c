/*
 * Tests whether this x86 processor has the instruction sets for which loops are compiled.
 */
#ifndef TUTTI_KERNELS_HOST_PROCESSOR_H
#define TUTTI_KERNELS_HOST_PROCESSOR_H

#include <cpuid.h>
#include <stdbool.h>

/* Includes F16C, which nearly all processors with AVX2 have. */
static inline bool processor_has_avx2(void) {
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static inline bool processor_has_avx512(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#endif
