/*
 * Loops of the operators that compute more than they read: exponentials and functions of them, conversions of small
 * floats, random words. They are compiled for each instruction set (op_vector_plain.c, op_vector_avx2.c,
 * op_vector_avx512.c) and give the same bits with each. Loops bound by memory bandwidth are compiled with
 * TUTTI_VECTOR_CLONES instead.
 */
#ifndef TUTTI_KERNELS_HOST_OP_VECTOR_H
#define TUTTI_KERNELS_HOST_OP_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

/* Loops for one real type. y may be x, a or b. */
typedef struct tutti_kernel_loops {
    void (*exp)(size_t count, const void *x, void *y);
    void (*log)(size_t count, const void *x, void *y);
    void (*gelu)(size_t count, const void *x, void *y);
    void (*gelu_tanh)(size_t count, const void *x, void *y);
    void (*gelu_backward)(size_t count, const void *a, const void *b, void *y);
    void (*gelu_tanh_backward)(size_t count, const void *a, const void *b, void *y);
    /* y = exp(x - shift), or that times a factor. No x is above shift; results below the smallest normal number are
     * 0. */
    void (*exp_below)(size_t count, double shift, const void *x, void *y);
    void (*exp_below_times)(size_t count, double shift, double factor, const void *x, void *y);
    double (*largest)(size_t count, const void *x); /* NaN may be ignored; -infinity if count is 0 */
    double (*total)(size_t count, const void *x);
    double (*products)(size_t count, const void *a, const void *b); /* the sum of the products */
} tutti_kernel_loops;

typedef struct tutti_vector {
    tutti_kernel_loops f32, f64;
    /* Small floats only. */
    void (*widen[TUTTI_TYPE_COUNT])(float *y, const void *x, size_t count);
    void (*narrow[TUTTI_TYPE_COUNT])(void *y, const float *x, size_t count);
    /* words[4 * i ... 4 * i + 3] = Philox's block first + i. Writes OP_DRAW_BLOCKS blocks at a time, so words needs
     * room for that many more. */
    void (*draw)(uint64_t seed, uint64_t stream, uint64_t first, size_t blocks, uint32_t *words);
    /* float32 from words: y = low + [0, 1) * span, but at most last. */
    void (*uniform)(size_t count, const uint32_t *words, float low, float span, float last, float *y);
    /* Elements 2i and 2i + 1 from words 2i and 2i + 1 (Box and Muller, 1958). */
    void (*normal)(size_t pairs, const uint32_t *words, float mean, float deviation, float *y);
} tutti_vector;

#define OP_DRAW_BLOCKS 8

extern const tutti_vector tutti_vector_plain;
#ifdef TUTTI_REDUCE_X86
extern const tutti_vector tutti_vector_avx2, tutti_vector_avx512;
#endif

/* Returns the variant in use: at first the best one that this processor can run. */
const tutti_vector *tutti_vector_in_use(void);

/* For tests and benches: uses "plain", "avx2" or "avx512" from now on, or with NULL the best one again. Returns
 * false and changes nothing if there is none of that name. */
bool tutti_vector_use(const char *name);

#endif
