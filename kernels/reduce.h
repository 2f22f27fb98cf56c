/*
 * Element-wise reduction of several buffers into one: the arithmetic of every collective that reduces.
 *
 * The order is fixed: ((src[0] op src[1]) op src[2]) ..., so a result depends neither on chunking nor on the
 * instruction set. float16, bfloat16 and float8 accumulate in float32 and round once, at the end. No FMA. avg sums,
 * then divides once. min and max propagate NaN, -0 < +0. float8 rounds and overflows as in PyTorch's casts: e5m2 to
 * infinity, e4m3fn to its largest number. The pre-multiplied sum multiplies each input by its factor first (float16
 * and smaller: in float32). Integers wrap on overflow, also in the sum inside avg. Bool: sum, max, bor are or; prod,
 * min, band are and; bxor is xor; inputs other than 0 count as true, results are 0 or 1. A computed NaN is the
 * positive quiet NaN without payload; a plain copy of one source keeps its bits.
 */
#ifndef TUTTI_KERNELS_REDUCE_H
#define TUTTI_KERNELS_REDUCE_H

#include <stdbool.h>
#include <stddef.h>

#include <tutti/tutti.h>

typedef struct tutti_reduce_args {
    void *dst;               /* may be one of the sources; no other overlap */
    const void *const *srcs; /* nsrcs >= 1 buffers of count elements; any alignment that fits the type */
    const double *factors;   /* PREMUL_SUM: one per source (integers: a whole number, cast to the type); else NULL */
    int nsrcs;
    size_t count;
    tutti_type type;
    tutti_reduction reduction;
    int divisor; /* AVG: the divisor of the sum, applied once; >= 1 */
} tutti_reduce_args;

/* Reduces in host memory. A single source is copied (avg still divides, premul multiplies, bool normalises). */
void tutti_reduce_host(const tutti_reduce_args *args);

/* As tutti_reduce_host, but writes the result to each of `ndsts` buffers instead of args->dst, with non-temporal
 * stores and a fence at the end (copy.h). The buffers may be sources, too, but that gains nothing. */
void tutti_reduce_host_stream(const tutti_reduce_args *args, void *const *dsts, int ndsts);

/* True when the reduction exists for the type. (bool has no avg and no premul_sum; floats have no bitwise
 * operations.) */
bool tutti_reduce_supports(tutti_type type, tutti_reduction reduction);

/* Name of the instruction set in use: "plain", "neon", "avx2" or "avx512"; all give the same bits. */
const char *tutti_reduce_variant_name(void);

/* For tests and benches: uses the named variant from now on, or with NULL the best one again. Returns false and
 * changes nothing if this build or machine does not have the variant. */
bool tutti_reduce_use_variant(const char *name);

#endif
