/*
 * Turns a reduction as callers describe it (kernels/reduce.h) into arguments of the kernels. The rules are those of
 * kernels/host/reduce/reduce.c: a change to one of the two needs the same change to the other, which
 * tests/kernels/test_device_arithmetic.c checks.
 */
#include "kernels/cuda/reduce/reduce_plan.h"

#include <string.h>

#include "kernels/cuda/reduce/reduce.h"

typedef struct type_row {
    tutti_cuda_family family;
    uint8_t bytes;
    bool is_float, is_signed;
} type_row;

static const type_row types[TUTTI_TYPE_COUNT] = {
    [TUTTI_INT8] = {TUTTI_CUDA_U8, 1, false, true},         [TUTTI_UINT8] = {TUTTI_CUDA_U8, 1, false, false},
    [TUTTI_INT16] = {TUTTI_CUDA_U16, 2, false, true},       [TUTTI_UINT16] = {TUTTI_CUDA_U16, 2, false, false},
    [TUTTI_INT32] = {TUTTI_CUDA_U32, 4, false, true},       [TUTTI_UINT32] = {TUTTI_CUDA_U32, 4, false, false},
    [TUTTI_INT64] = {TUTTI_CUDA_U64, 8, false, true},       [TUTTI_UINT64] = {TUTTI_CUDA_U64, 8, false, false},
    [TUTTI_BOOL] = {TUTTI_CUDA_U8, 1, false, false},        [TUTTI_FLOAT16] = {TUTTI_CUDA_F16, 2, true, true},
    [TUTTI_BFLOAT16] = {TUTTI_CUDA_BF16, 2, true, true},    [TUTTI_FLOAT32] = {TUTTI_CUDA_F32, 4, true, true},
    [TUTTI_FLOAT64] = {TUTTI_CUDA_F64, 8, true, true},      [TUTTI_FLOAT8_E4M3] = {TUTTI_CUDA_E4M3, 1, true, true},
    [TUTTI_FLOAT8_E5M2] = {TUTTI_CUDA_E5M2, 1, true, true},
};

size_t tutti_cuda_type_bytes(tutti_type type) {
    return types[type].bytes;
}

bool tutti_cuda_reduce_supports(tutti_type type, tutti_reduction reduction) {
    if ((unsigned)type >= TUTTI_TYPE_COUNT || (unsigned)reduction >= TUTTI_REDUCTION_COUNT) return false;
    bool bitwise = reduction == TUTTI_BAND || reduction == TUTTI_BOR || reduction == TUTTI_BXOR;
    if (type == TUTTI_BOOL) return reduction != TUTTI_AVG && reduction != TUTTI_PREMUL_SUM;
    return !types[type].is_float || !bitwise;
}

static tutti_cuda_fold fold_of(tutti_type type, tutti_reduction reduction) {
    static const tutti_cuda_fold folds[TUTTI_REDUCTION_COUNT] = {
        [TUTTI_SUM] = TUTTI_CUDA_SUM, [TUTTI_PROD] = TUTTI_CUDA_PROD, [TUTTI_MIN] = TUTTI_CUDA_MIN,
        [TUTTI_MAX] = TUTTI_CUDA_MAX, [TUTTI_AVG] = TUTTI_CUDA_SUM,   [TUTTI_BAND] = TUTTI_CUDA_AND,
        [TUTTI_BOR] = TUTTI_CUDA_OR,  [TUTTI_BXOR] = TUTTI_CUDA_XOR,  [TUTTI_PREMUL_SUM] = TUTTI_CUDA_SUM,
    };
    static const tutti_cuda_fold of_bool[TUTTI_REDUCTION_COUNT] = {
        [TUTTI_SUM] = TUTTI_CUDA_OR, [TUTTI_PROD] = TUTTI_CUDA_AND, [TUTTI_MIN] = TUTTI_CUDA_AND,
        [TUTTI_MAX] = TUTTI_CUDA_OR, [TUTTI_AVG] = TUTTI_CUDA_OR,   [TUTTI_BAND] = TUTTI_CUDA_AND,
        [TUTTI_BOR] = TUTTI_CUDA_OR, [TUTTI_BXOR] = TUTTI_CUDA_XOR, [TUTTI_PREMUL_SUM] = TUTTI_CUDA_OR,
    };
    return (type == TUTTI_BOOL ? of_bool : folds)[reduction];
}

/* Multiplying by the reciprocal of a power of two gives the same bits as dividing, and is faster. */
static void set_divisor(tutti_cuda_rule *rule, const type_row *type, int divisor) {
    bool power_of_two = (divisor & (divisor - 1)) == 0;
    rule->divisor = divisor;
    rule->scale = power_of_two ? 1.0 / divisor : (double)divisor;
    rule->finish = !type->is_float ? (type->is_signed ? TUTTI_CUDA_OVER_SIGNED : TUTTI_CUDA_OVER_UNSIGNED)
                   : power_of_two  ? TUTTI_CUDA_TIMES
                                   : TUTTI_CUDA_OVER;
}

/* Factors out of the range of 64-bit integers become the nearest limit. */
static uint64_t whole_factor(double factor) {
    if (factor >= 0x1p64) return UINT64_MAX;
    if (factor >= 0) return (uint64_t)factor;
    return factor > -0x1p63 ? (uint64_t)(int64_t)factor : factor <= -0x1p63 ? (uint64_t)INT64_MIN : 0;
}

static uint64_t factor_bits(const type_row *type, double factor) {
    if (!type->is_float) return whole_factor(factor);
    return type->bytes == 8 ? f64_bits(factor) : f32_bits((float)factor);
}

/* One unchanged source: its bits are copied, whatever they mean. */
static bool is_copy(const tutti_reduce_args *args) {
    return args->nsrcs == 1 && args->type != TUTTI_BOOL && args->reduction != TUTTI_PREMUL_SUM &&
           (args->reduction != TUTTI_AVG || args->divisor == 1);
}

static tutti_cuda_family family_by_bytes(size_t bytes) {
    return bytes == 1 ? TUTTI_CUDA_U8 : bytes == 2 ? TUTTI_CUDA_U16 : bytes == 4 ? TUTTI_CUDA_U32 : TUTTI_CUDA_U64;
}

/* If all addresses have the same remainder modulo 16, vectors of 16 bytes are aligned in all buffers. */
static void set_vectors(tutti_cuda_reduce_plan *plan, size_t bytes) {
    uintptr_t off = (uintptr_t)plan->dsts[0] % 16;
    bool together = off % bytes == 0;
    for (int i = 0; i < plan->nsrcs; i++) together = together && (uintptr_t)plan->srcs[i] % 16 == off;
    for (int i = 0; i < plan->ndsts; i++) together = together && (uintptr_t)plan->dsts[i] % 16 == off;
    size_t head = together ? (16 - off) % 16 / bytes : plan->count;
    plan->head = head < plan->count ? head : plan->count;
    plan->vectors = (plan->count - plan->head) * bytes / 16;
}

void tutti_cuda_reduce_make_plan(const tutti_reduce_args *args, void *const *dsts, int ndsts,
                                 tutti_cuda_reduce_plan *plan_out) {
    const type_row *type = &types[args->type];
    tutti_cuda_rule *rule = &plan_out->rule;
    memset(plan_out, 0, sizeof *plan_out);
    plan_out->nsrcs = args->nsrcs;
    plan_out->ndsts = ndsts;
    plan_out->count = args->count;
    memcpy(plan_out->srcs, args->srcs, (size_t)args->nsrcs * sizeof *plan_out->srcs);
    memcpy(plan_out->dsts, dsts, (size_t)ndsts * sizeof *plan_out->dsts);
    set_vectors(plan_out, type->bytes);
    if (is_copy(args)) {
        plan_out->family = family_by_bytes(type->bytes);
        return; /* the rule stays zero: the sum of one integer */
    }
    plan_out->family = type->family;
    rule->fold = fold_of(args->type, args->reduction);
    rule->normalise = args->type == TUTTI_BOOL;
    rule->premul = args->reduction == TUTTI_PREMUL_SUM;
    if (!type->is_float && type->is_signed) rule->bias = UINT64_C(1) << (type->bytes * 8 - 1);
    if (args->reduction == TUTTI_AVG) set_divisor(rule, type, args->divisor);
    for (int i = 0; rule->premul && i < args->nsrcs; i++) plan_out->factors[i] = factor_bits(type, args->factors[i]);
}
