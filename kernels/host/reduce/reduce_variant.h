/*
 * The contribution of one instruction set to tutti_reduce_host: a table of loops over contiguous elements.
 *
 * reduce.c picks a table once and runs it block by block; reduce_plain.c, reduce_avx2.c and reduce_avx512.c each
 * fill one table by compiling the same reduce_loops.h with different flags. A step folds 1 to 4 inputs, left to
 * right, into an output that may be one of the inputs. The small floats (16 and 8 bits) have no steps: they are
 * widened to float32, folded there, and narrowed once.
 */
#ifndef TUTTI_KERNELS_HOST_REDUCE_VARIANT_H
#define TUTTI_KERNELS_HOST_REDUCE_VARIANT_H

#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#define TUTTI_REDUCE_MAX_INPUTS 4

typedef enum tutti_reduce_fold {
    TUTTI_FOLD_SUM,
    TUTTI_FOLD_SUM_TIMES, /* (a + b + ...) * scale: avg where 1 / divisor is exact */
    TUTTI_FOLD_SUM_OVER,  /* (a + b + ...) / scale */
    TUTTI_FOLD_PROD,
    TUTTI_FOLD_MIN,
    TUTTI_FOLD_MAX,
    TUTTI_FOLD_PREMUL, /* a * factor[0] + b * factor[1] + ... */
    TUTTI_FOLD_AND,
    TUTTI_FOLD_OR,
    TUTTI_FOLD_XOR,
    TUTTI_FOLD_COUNT
} tutti_reduce_fold;

typedef struct tutti_fold_scalars {
    double factor[TUTTI_REDUCE_MAX_INPUTS];         /* for floats, one for each input */
    uint64_t whole_factor[TUTTI_REDUCE_MAX_INPUTS]; /* the same for integers, modulo 2^64 */
    double scale;
} tutti_fold_scalars;

typedef void (*tutti_fold_step)(void *out, const void *const *ins, const tutti_fold_scalars *scalars, size_t count);

typedef struct tutti_reduce_variant {
    const char *name;
    /* [type][fold][inputs - 1]. Sums exist for 1 to 4 inputs, all others for 1 and 2. Bitwise steps exist only for
     * uint8 (and bool): they work on bytes. */
    tutti_fold_step steps[TUTTI_TYPE_COUNT][TUTTI_FOLD_COUNT][TUTTI_REDUCE_MAX_INPUTS];
    /* Small floats only. */
    void (*widen[TUTTI_TYPE_COUNT])(float *out, const void *in, size_t count);
    void (*narrow[TUTTI_TYPE_COUNT])(void *out, const float *in, size_t count);
} tutti_reduce_variant;

extern const tutti_reduce_variant tutti_reduce_plain;
#ifdef TUTTI_REDUCE_X86
extern const tutti_reduce_variant tutti_reduce_avx2;
extern const tutti_reduce_variant tutti_reduce_avx512;
#endif

#endif
