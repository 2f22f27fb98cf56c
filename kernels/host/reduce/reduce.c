/*
 * tutti_reduce_host: picks the best instruction set once and runs its loops.
 *
 * Up to four sources of a sum go through one loop directly into dst. More sources are folded block by block in an
 * accumulator that stays in the first-level cache, because dst may be one of the sources and must not be written
 * before all of them have been read. Small floats always take this path: each block is widened to float32, folded,
 * and narrowed once.
 */
#include "kernels/reduce.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "kernels/copy.h"
#include "kernels/host/reduce/reduce_variant.h"

#if defined(TUTTI_REDUCE_X86)
#include "kernels/host/processor.h"
#endif

/* Four blocks leave half of a first-level cache of 32 KiB to the sources. */
#define BLOCK_BYTES 4096
/* Block size for a result that is written past the caches: small enough that the processor reads the next inputs
 * while it still writes. With 4 KiB, reads and writes alternate. */
#define STREAM_BYTES 512
typedef union block {
    unsigned char bytes[BLOCK_BYTES]; /* elements of the type that is reduced */
    float floats[BLOCK_BYTES / sizeof(float)];
} block;

/* ---------------------------------------------------------------------------------- instruction sets */

static _Atomic(const tutti_reduce_variant *) variant_in_use;

/* The variants that this processor can run, best first, ended by NULL. */
static void list_variants(const tutti_reduce_variant *list_out[4]) {
    int count = 0;
#if defined(TUTTI_REDUCE_X86)
    if (processor_has_avx512()) list_out[count++] = &tutti_reduce_avx512;
    if (processor_has_avx2()) list_out[count++] = &tutti_reduce_avx2;
#endif
    list_out[count++] = &tutti_reduce_plain;
    list_out[count] = NULL;
}

bool tutti_reduce_use_variant(const char *name) {
    const tutti_reduce_variant *list[4];
    list_variants(list);
    for (int i = 0; list[i]; i++) {
        if (name && strcmp(name, list[i]->name) != 0) continue;
        atomic_store_explicit(&variant_in_use, list[i], memory_order_relaxed);
        return true;
    }
    return false;
}

/* Threads that get here first at the same time store the same pointer to constant data: no order is needed. */
static const tutti_reduce_variant *current_variant(void) {
    const tutti_reduce_variant *variant = atomic_load_explicit(&variant_in_use, memory_order_relaxed);
    if (TUTTI_LIKELY(variant)) return variant;
    tutti_reduce_use_variant(NULL);
    return atomic_load_explicit(&variant_in_use, memory_order_relaxed);
}

const char *tutti_reduce_variant_name(void) {
    return current_variant()->name;
}

/* ------------------------------------------------------------------------------------------- planning */

static bool is_integer(tutti_type type) {
    return type <= TUTTI_UINT64;
}

bool tutti_reduce_supports(tutti_type type, tutti_reduction reduction) {
    if ((unsigned)type >= TUTTI_TYPE_COUNT || (unsigned)reduction >= TUTTI_REDUCTION_COUNT) return false;
    const bool bitwise = reduction == TUTTI_BAND || reduction == TUTTI_BOR || reduction == TUTTI_BXOR;
    if (type == TUTTI_BOOL) return reduction != TUTTI_AVG && reduction != TUTTI_PREMUL_SUM;
    return is_integer(type) || !bitwise;
}

/* How one call is done. */
typedef struct plan {
    const tutti_reduce_args *args;
    const tutti_fold_step *steps;      /* steps of the fold, indexed by inputs - 1 */
    const tutti_fold_step *last_steps; /* steps of a block's last fold: avg scales there */
    void (*widen)(float *out, const void *in, size_t count);
    void (*narrow)(void *out, const float *in, size_t count);
    size_t element_bytes;
    size_t count; /* bytes for bitwise folds, else elements */
    double scale;
    int widest;        /* inputs that one step takes */
    bool divide_after; /* avg of integers */
} plan;

static tutti_reduce_fold bool_fold(tutti_reduction reduction) {
    switch (reduction) {
    case TUTTI_PROD:
    case TUTTI_MIN:
    case TUTTI_BAND: return TUTTI_FOLD_AND;
    case TUTTI_BXOR: return TUTTI_FOLD_XOR;
    default: return TUTTI_FOLD_OR;
    }
}

static tutti_reduce_fold fold_of(tutti_type type, tutti_reduction reduction) {
    static const tutti_reduce_fold folds[TUTTI_REDUCTION_COUNT] = {
        [TUTTI_SUM] = TUTTI_FOLD_SUM, [TUTTI_PROD] = TUTTI_FOLD_PROD, [TUTTI_MIN] = TUTTI_FOLD_MIN,
        [TUTTI_MAX] = TUTTI_FOLD_MAX, [TUTTI_AVG] = TUTTI_FOLD_SUM,   [TUTTI_BAND] = TUTTI_FOLD_AND,
        [TUTTI_BOR] = TUTTI_FOLD_OR,  [TUTTI_BXOR] = TUTTI_FOLD_XOR,  [TUTTI_PREMUL_SUM] = TUTTI_FOLD_PREMUL,
    };
    return type == TUTTI_BOOL ? bool_fold(reduction) : folds[reduction];
}

/* Multiplying by the reciprocal of a power of two gives the same bits as dividing, and is faster. */
static tutti_reduce_fold plan_scale(plan *p, int divisor) {
    const bool power_of_two = (divisor & (divisor - 1)) == 0;
    p->scale = power_of_two ? 1.0 / divisor : (double)divisor;
    return power_of_two ? TUTTI_FOLD_SUM_TIMES : TUTTI_FOLD_SUM_OVER;
}

static plan make_plan(const tutti_reduce_args *args) {
    const tutti_reduce_variant *variant = current_variant();
    const tutti_reduce_fold fold = fold_of(args->type, args->reduction);
    plan p = {.args = args, .widen = variant->widen[args->type], .narrow = variant->narrow[args->type]};
    p.element_bytes = tutti_type_bytes(args->type);
    p.count = args->count;
    tutti_type type = p.widen ? TUTTI_FLOAT32 : args->type;
    if (fold >= TUTTI_FOLD_AND && type != TUTTI_BOOL) { /* bitwise folds do not depend on the type */
        type = TUTTI_UINT8;
        p.count *= p.element_bytes;
        p.element_bytes = 1;
    }
    tutti_reduce_fold last_fold = fold;
    if (args->reduction == TUTTI_AVG) {
        p.divide_after = is_integer(args->type);
        if (!p.divide_after) last_fold = plan_scale(&p, args->divisor);
    }
    p.steps = variant->steps[type][fold];
    p.last_steps = variant->steps[type][last_fold];
    p.widest = p.steps[TUTTI_REDUCE_MAX_INPUTS - 1] ? TUTTI_REDUCE_MAX_INPUTS : 2;
    return p;
}

/* ----------------------------------------------------------------------------------------------- reducing */

#define DIVIDE(element, wide)                                                                                          \
    for (size_t i = 0; i < count; i++) ((element *)values)[i] = (element)(((element *)values)[i] / (wide)divisor)

/* Division in C truncates towards zero. The wide type holds every value of the element and the divisor. */
static void divide_integers(void *values, size_t count, tutti_type type, int divisor) {
    switch (type) {
    case TUTTI_INT8: DIVIDE(int8_t, int32_t); break;
    case TUTTI_UINT8: DIVIDE(uint8_t, int32_t); break;
    case TUTTI_INT16: DIVIDE(int16_t, int32_t); break;
    case TUTTI_UINT16: DIVIDE(uint16_t, int32_t); break;
    case TUTTI_INT32: DIVIDE(int32_t, int32_t); break;
    case TUTTI_UINT32: DIVIDE(uint32_t, uint32_t); break;
    case TUTTI_INT64: DIVIDE(int64_t, int64_t); break;
    default: DIVIDE(uint64_t, uint64_t); break;
    }
}

/* Returns the factor as an integer modulo 2^64; a factor beyond every integer type becomes the nearest limit. */
static uint64_t whole_factor(double factor) {
    if (factor >= 0x1p64) return UINT64_MAX;
    if (factor >= 0) return (uint64_t)factor;
    return factor > -0x1p63 ? (uint64_t)(int64_t)factor : factor <= -0x1p63 ? (uint64_t)INT64_MIN : 0;
}

static void set_factor(tutti_fold_scalars *scalars, int input, double factor) {
    scalars->factor[input] = factor;
    scalars->whole_factor[input] = whole_factor(factor);
}

/* dst = the result's elements [start, start + count). `blocks` are scratch; partial results are always in the first
 * one. */
static void reduce_block(const plan *p, size_t start, size_t count, void *dst, block *blocks) {
    const tutti_reduce_args *args = p->args;
    tutti_fold_scalars scalars = {.scale = p->scale};
    const void *ins[TUTTI_REDUCE_MAX_INPUTS];
    for (int done = 0; done < args->nsrcs;) {
        int inputs = 0;
        if (done > 0) {
            set_factor(&scalars, 0, 1);
            ins[inputs++] = blocks[0].bytes;
        }
        for (; inputs < p->widest && done < args->nsrcs; inputs++, done++) {
            const unsigned char *src = (const unsigned char *)args->srcs[done] + start * p->element_bytes;
            if (args->factors) set_factor(&scalars, inputs, args->factors[done]);
            if (p->widen) p->widen(blocks[inputs].floats, src, count);
            ins[inputs] = p->widen ? blocks[inputs].bytes : src;
        }
        const bool last = done == args->nsrcs;
        void *out = last && !p->widen ? dst : blocks[0].bytes;
        (last ? p->last_steps : p->steps)[inputs - 1](out, ins, &scalars, count);
    }
    if (p->narrow) p->narrow(dst, blocks[0].floats, count);
    if (p->divide_after) divide_integers(dst, count, args->type, args->divisor);
}

static bool is_one_pass(const plan *p) {
    return !p->widen && !p->divide_after && p->args->nsrcs <= p->widest;
}

/* As reduce_block, if one pass suffices and there are no factors: nothing has to be prepared. */
static void reduce_at_once(const plan *p, size_t start, size_t count, void *dst) {
    const tutti_fold_scalars scalars = {.scale = p->scale};
    const void *ins[TUTTI_REDUCE_MAX_INPUTS];
    for (int i = 0; i < p->args->nsrcs; i++)
        ins[i] = (const unsigned char *)p->args->srcs[i] + start * p->element_bytes;
    p->last_steps[p->args->nsrcs - 1](dst, ins, &scalars, count);
}

/* Returns whether the result is a plain copy of the only source. */
static bool is_copy(const tutti_reduce_args *args) {
    assert(args->nsrcs >= 1 && tutti_reduce_supports(args->type, args->reduction));
    assert(args->reduction != TUTTI_PREMUL_SUM || args->factors);
    assert(args->reduction != TUTTI_AVG || args->divisor >= 1);
    return args->nsrcs == 1 && args->type != TUTTI_BOOL && args->reduction != TUTTI_PREMUL_SUM &&
           (args->reduction != TUTTI_AVG || args->divisor == 1);
}

void tutti_reduce_host(const tutti_reduce_args *args) {
    if (args->count == 0) return;
    if (is_copy(args)) {
        if (args->dst != args->srcs[0]) memcpy(args->dst, args->srcs[0], args->count * tutti_type_bytes(args->type));
        return;
    }
    const plan p = make_plan(args);
    const bool one_pass = is_one_pass(&p);
    if (one_pass && !args->factors) { /* short vectors must not pay for anything else */
        reduce_at_once(&p, 0, p.count, args->dst);
        return;
    }
    _Alignas(TUTTI_CACHE_LINE) block blocks[TUTTI_REDUCE_MAX_INPUTS];
    const size_t block_count = one_pass ? p.count : BLOCK_BYTES / (p.widen ? sizeof(float) : p.element_bytes);
    for (size_t start = 0; start < p.count; start += block_count)
        reduce_block(&p, start, tutti_min_size(block_count, p.count - start),
                     (unsigned char *)args->dst + start * p.element_bytes, blocks);
}

/* Returns the number of elements before the first cache line that begins in dst. */
static size_t head_count(const plan *p, const void *dst) {
    return tutti_min_size(-(uintptr_t)dst % TUTTI_CACHE_LINE / p->element_bytes, p->count);
}

void tutti_reduce_host_stream(const tutti_reduce_args *args, void *const *dsts, int ndsts) {
    _Alignas(TUTTI_CACHE_LINE) block blocks[TUTTI_REDUCE_MAX_INPUTS], result;
    if (args->count == 0) return;
    if (is_copy(args)) {
        for (int i = 0; i < ndsts; i++)
            tutti_copy_stream(dsts[i], args->srcs[0], args->count * tutti_type_bytes(args->type));
        return;
    }
    const plan p = make_plan(args);
    const bool at_once = is_one_pass(&p) && !args->factors;
    const size_t block_count = p.widen ? BLOCK_BYTES / sizeof(float) : STREAM_BYTES / p.element_bytes;
    const size_t head = head_count(&p, dsts[0]);
    for (size_t start = 0, count; start < p.count; start += count) {
        count = start == 0 && head > 0 ? head : tutti_min_size(block_count, p.count - start);
        if (at_once) reduce_at_once(&p, start, count, result.bytes);
        else reduce_block(&p, start, count, result.bytes, blocks);
        for (int i = 0; i < ndsts; i++)
            tutti_copy_stream_part((unsigned char *)dsts[i] + start * p.element_bytes, result.bytes,
                                   count * p.element_bytes);
    }
    tutti_copy_stream_fence();
}
