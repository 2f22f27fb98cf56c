/*
 * The element type of layers and optimizers, and how their inner loops are compiled.
 *
 * The trainer's library computes in float. The same files compiled with TUTTI_KERNELS_DOUBLE compute in double, so
 * that the tests compare the code that trains with finite differences at a precision where rounding cannot hide a
 * wrong gradient.
 */
#ifndef TUTTI_KERNELS_REAL_H
#define TUTTI_KERNELS_REAL_H

#ifdef TUTTI_KERNELS_DOUBLE
typedef double tutti_real;
#else
typedef float tutti_real;
#endif

/* For loops that gain from registers wider than the baseline's: the loader picks the version for this processor.
 * Without FMA both give the same bits. Not used under sanitizers, whose runtime starts after that choice. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) &&                       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TUTTI_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define TUTTI_VECTOR_CLONES
#endif

#endif
