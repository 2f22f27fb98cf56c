/*
 * Host reductions: every instruction set of this machine against the reference, for all types, reductions, lengths,
 * numbers of sources and places, and bit for bit against each other on arbitrary bits.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/reduce.h"
#include "tests/support/reference.h"

#define MAX_SOURCES 9
#define MAX_COUNT   4133 /* a prime, slightly more than one int8 block */
#define ROOM        (MAX_COUNT + 3)

static const char *const all_variants[] = {"plain", "neon", "avx2", "avx512"};
#define VARIANTS (sizeof all_variants / sizeof *all_variants)

/* Sources and results, each in an allocation of its own, so that the address sanitizer detects accesses beyond the
 * end. */
typedef struct buffers {
    void *sources[MAX_SOURCES];
    void *result, *expected, *streamed[2];
} buffers;

static buffers buffers_create(void) {
    buffers made;
    for (int k = 0; k < MAX_SOURCES; k++) made.sources[k] = calloc(ROOM, 8);
    made.result = calloc(ROOM, 8);
    made.expected = calloc(ROOM, 8);
    for (int k = 0; k < 2; k++) made.streamed[k] = calloc(ROOM, 8);
    return made;
}

static void buffers_destroy(buffers *made) {
    for (int k = 0; k < MAX_SOURCES; k++) free(made->sources[k]);
    free(made->result);
    free(made->expected);
    for (int k = 0; k < 2; k++) free(made->streamed[k]);
}

static void *at(void *buffer, size_t index, tutti_type type) {
    return (char *)buffer + index * tutti_type_bytes(type);
}

/* Reduces to dst or, if dst is NULL, with streaming stores to both of `streamed`. */
static void reduce_to(void *dst, void *const *streamed, const void *const *srcs, int nsrcs, size_t count,
                      tutti_type type, tutti_reduction reduction) {
    double factors[MAX_SOURCES];
    for (int k = 0; k < nsrcs; k++) factors[k] = reference_factor(type, k);
    const tutti_reduce_args args = {.dst = dst,
                                    .srcs = srcs,
                                    .factors = reduction == TUTTI_PREMUL_SUM ? factors : NULL,
                                    .nsrcs = nsrcs,
                                    .count = count,
                                    .type = type,
                                    .reduction = reduction,
                                    .divisor = nsrcs};
    if (dst != NULL) tutti_reduce_host(&args);
    else tutti_reduce_host_stream(&args, streamed, 2);
}

static void reduce(void *dst, const void *const *srcs, int nsrcs, size_t count, tutti_type type,
                   tutti_reduction reduction) {
    reduce_to(dst, NULL, srcs, nsrcs, count, type, reduction);
}

/* The same with streaming stores: to the places of dst in two buffers, one of them shifted by an element. */
static void check_streamed(const buffers *b, const void *dst, const void *const *srcs, int nsrcs, size_t count,
                           size_t shift, tutti_type type, tutti_reduction reduction) {
    size_t bytes = count * tutti_type_bytes(type);
    void *places[2] = {at(b->streamed[0], shift, type), at(b->streamed[1], shift + 1, type)};
    static const unsigned char untouched[8] = {0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5};
    for (int k = 0; k < 2; k++) memset(b->streamed[k], 0xa5, ROOM * 8);
    reduce_to(NULL, places, srcs, nsrcs, count, type, reduction);
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(memcmp(places[k], dst, bytes), 0,
                     "%s: %s of %s, %d sources, count %zu, shift %zu: streamed differs", tutti_reduce_variant_name(),
                     tutti_reduction_name(reduction), tutti_type_name(type), nsrcs, count, shift);
        size_t before = (size_t)((char *)places[k] - (char *)b->streamed[k]), one = tutti_type_bytes(type);
        bool kept = memcmp((char *)places[k] + bytes, untouched, one) == 0 &&
                    (before == 0 || memcmp((char *)places[k] - one, untouched, one) == 0);
        cr_assert(kept, "%s wrote beside a streamed result", tutti_reduce_variant_name());
    }
}

/* One call of `count` elements that start `shift` elements into their buffers; in_place >= 0: dst is that source. */
static void check_call(buffers *b, int nsrcs, size_t count, size_t shift, int in_place, tutti_type type,
                       tutti_reduction reduction) {
    const void *srcs[MAX_SOURCES];
    for (int k = 0; k < nsrcs; k++) {
        reference_fill(b->sources[k], count + shift + 1, type, reduction, count, k, nsrcs);
        srcs[k] = at(b->sources[k], shift, type);
    }
    reference_reduce(b->expected, srcs, nsrcs, count, type, reduction);
    void *whole = in_place >= 0 ? b->sources[in_place] : b->result, *dst = at(whole, shift, type);
    char before[8], after[8];
    memset(b->result, 0x5a, ROOM * 8);
    memcpy(before, at(dst, count, type), tutti_type_bytes(type));
    reduce(dst, srcs, nsrcs, count, type, reduction);
    memcpy(after, at(dst, count, type), tutti_type_bytes(type));
    size_t differs = reference_compare(dst, b->expected, count, type);
    char got[64] = "", wanted[64] = "";
    if (differs < count) reference_show(dst, differs, type, got), reference_show(b->expected, differs, type, wanted);
    cr_assert_eq(differs, count, "%s: %s of %s, %d sources, count %zu, shift %zu, in place %d: [%zu] is %s, not %s",
                 tutti_reduce_variant_name(), tutti_reduction_name(reduction), tutti_type_name(type), nsrcs, count,
                 shift, in_place, differs, got, wanted);
    cr_assert_eq(memcmp(before, after, tutti_type_bytes(type)), 0, "%s wrote behind the end",
                 tutti_reduce_variant_name());
    if (in_place < 0) check_streamed(b, dst, srcs, nsrcs, count, shift, type, reduction);
}

/* Runs the body for every variant of this machine, type and reduction. */
#define FOR_EACH_VARIANT                                                                                               \
    for (size_t variant = 0; variant < VARIANTS; variant++)                                                            \
        if (tutti_reduce_use_variant(all_variants[variant]))
#define FOR_EACH_CASE                                                                                                  \
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++)                                                         \
        for (tutti_reduction reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++)                            \
            if (tutti_reduce_supports(type, reduction))

Test(reduce, the_same_pairs_of_type_and_reduction_exist_as_in_the_reference) {
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (tutti_reduction reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++)
            cr_assert_eq(tutti_reduce_supports(type, reduction), reference_supports(type, reduction), "%s of %s",
                         tutti_reduction_name(reduction), tutti_type_name(type));
    cr_assert_not(tutti_reduce_supports(TUTTI_TYPE_COUNT, TUTTI_SUM));
    cr_assert_not(tutti_reduce_supports(TUTTI_INT8, TUTTI_REDUCTION_COUNT));
}

Test(reduce, an_unknown_variant_changes_nothing_and_null_selects_the_best) {
    const char *best = tutti_reduce_variant_name();
    cr_assert_not(tutti_reduce_use_variant("abacus"));
    cr_assert_str_eq(tutti_reduce_variant_name(), best);
    int found = 0;
    FOR_EACH_VARIANT {
        cr_assert_str_eq(tutti_reduce_variant_name(), all_variants[variant]);
        found++;
    }
    cr_assert_geq(found, 1);
    cr_assert(tutti_reduce_use_variant(NULL));
    cr_assert_str_eq(tutti_reduce_variant_name(), best);
}

Test(reduce, every_length_and_number_of_sources_gives_the_reference) {
    static const size_t counts[] = {0, 1, 2, 7, 15, 16, 17, 63, 64, 65, 127, 509, 1031};
    buffers b = buffers_create();
    FOR_EACH_VARIANT FOR_EACH_CASE {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            int nsrcs = 1 + (int)(i + (size_t)reduction) % MAX_SOURCES;
            check_call(&b, nsrcs, counts[i], i % 2, -1, type, reduction);
        }
        for (int nsrcs = 1; nsrcs <= MAX_SOURCES; nsrcs++) check_call(&b, nsrcs, 131, 1, -1, type, reduction);
    }
    buffers_destroy(&b);
}

Test(reduce, the_edges_of_blocks_lose_and_repeat_nothing) {
    buffers b = buffers_create();
    FOR_EACH_VARIANT FOR_EACH_CASE {
        size_t block = 4096 / (tutti_type_bytes(type) < 4 && reference_is_float(type) ? 4 : tutti_type_bytes(type));
        for (size_t count = block - 1; count <= block + 1; count++) check_call(&b, 6, count, 0, -1, type, reduction);
        check_call(&b, 5, MAX_COUNT, 1, -1, type, reduction);
        check_call(&b, 2, MAX_COUNT, 1, -1, type, reduction);
    }
    buffers_destroy(&b);
}

Test(reduce, the_result_may_replace_any_of_the_sources) {
    buffers b = buffers_create();
    FOR_EACH_VARIANT FOR_EACH_CASE {
        for (int nsrcs = 1; nsrcs <= 6; nsrcs++)
            for (int in_place = 0; in_place < nsrcs; in_place++)
                check_call(&b, nsrcs, 67, 1, in_place, type, reduction);
        check_call(&b, 9, 2053, 0, 8, type, reduction); /* several blocks, and the last source is overwritten */
    }
    buffers_destroy(&b);
}

/* Arbitrary bits; every other element is a special value: zeros, infinities, NaNs, denormals, extremes. */
static void fill_bits(void *buffer, size_t bytes, tutti_type type, uint64_t seed) {
    static const uint32_t rare[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,
                                    0x7f812345, 0x00000001, 0x807fffff, 0x7f7fffff, 0xff7fffff, 0x00800000};
    uint64_t *words = buffer;
    for (size_t i = 0; i < bytes / 8; i++) words[i] = reference_hash(seed, i, 1);
    if (type != TUTTI_FLOAT32 && type != TUTTI_FLOAT64) return;
    for (size_t i = 0; i < bytes / 8; i += 2) {
        uint64_t pick = reference_hash(seed, i, 2);
        if (type == TUTTI_FLOAT32) memcpy(&words[i], &rare[pick % 12], 4);
        else words[i] = (uint64_t)rare[pick % 12] << 32 | (pick >> 60 == 0); /* equal in the upper half */
    }
}

Test(reduce, all_variants_give_the_same_bits_for_any_input) {
    buffers b = buffers_create();
    for (int k = 0; k < 7; k++) fill_bits(b.sources[k], ROOM * 8, TUTTI_INT8, (uint64_t)k);
    FOR_EACH_CASE {
        size_t count = MAX_COUNT - 1, bytes = count * tutti_type_bytes(type);
        for (int k = 0; k < 7; k++) fill_bits(b.sources[k], ROOM * 8, type, (uint64_t)k);
        for (int nsrcs = 1; nsrcs <= 7; nsrcs++) {
            if (!tutti_reduce_use_variant("plain")) tutti_reduce_use_variant("neon");
            reduce(b.expected, (const void *const *)b.sources, nsrcs, count, type, reduction);
            FOR_EACH_VARIANT {
                reduce(b.result, (const void *const *)b.sources, nsrcs, count, type, reduction);
                cr_assert_eq(memcmp(b.result, b.expected, bytes), 0, "%s: %s of %s with %d sources",
                             all_variants[variant], tutti_reduction_name(reduction), tutti_type_name(type), nsrcs);
            }
        }
    }
    buffers_destroy(&b);
}

/* Sources of 65536 elements that hold every code of a 16-bit type, or every pair of codes of an 8-bit one. */
static void fill_codes(void *a, void *b, tutti_type type, unsigned stride) {
    for (unsigned i = 0; i < 65536; i++) {
        if (tutti_type_bytes(type) == 1) {
            ((uint8_t *)a)[i] = (uint8_t)i;
            ((uint8_t *)b)[i] = (uint8_t)(i >> 8);
        } else {
            ((uint16_t *)a)[i] = (uint16_t)i;
            ((uint16_t *)b)[i] = (uint16_t)(i * stride + (stride >> 3));
        }
    }
}

Test(reduce, every_code_of_the_small_floats_is_read_and_rounded_as_by_the_reference) {
    static const tutti_type types[] = {TUTTI_FLOAT16, TUTTI_BFLOAT16, TUTTI_FLOAT8_E4M3, TUTTI_FLOAT8_E5M2};
    static const unsigned strides[] = {1, 40503, 27, 32769, 1025};
    static const tutti_reduction reductions[] = {TUTTI_SUM, TUTTI_PROD, TUTTI_MIN,
                                                 TUTTI_MAX, TUTTI_AVG,  TUTTI_PREMUL_SUM};
    uint16_t *a = malloc(131072), *b = malloc(131072), *result = malloc(131072), *expected = malloc(131072);
    const void *srcs[] = {a, b};
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < (tutti_type_bytes(types[t]) == 1 ? 1 : 5); s++)
            for (size_t r = 0; r < 6; r++) {
                fill_codes(a, b, types[t], strides[s]);
                reference_reduce(expected, srcs, 2, 65536, types[t], reductions[r]);
                FOR_EACH_VARIANT {
                    reduce(result, srcs, 2, 65536, types[t], reductions[r]);
                    size_t differs = reference_compare(result, expected, 65536, types[t]);
                    cr_assert_eq(differs, 65536, "%s: %s of %s differs at %zu", all_variants[variant],
                                 tutti_reduction_name(reductions[r]), tutti_type_name(types[t]), differs);
                }
            }
    free(a), free(b), free(result), free(expected);
}

Test(reduce, float8_overflows_as_pytorch_casts_do) {
    /* e4m3fn has no infinity: sums beyond 448 saturate. e5m2: 57344 + 4096 is the tie with the next number, 65536. */
    const uint8_t e4m3[][3] = {{0x7e, 0x58, 0x7e}, {0x7e, 0x59, 0x7e}, {0xfe, 0xfe, 0xfe}, {0x7f, 0x38, 0x7f}};
    const uint8_t e5m2[][3] = {{0x7b, 0x6b, 0x7b}, {0x7b, 0x6c, 0x7c}, {0xfb, 0xfb, 0xfc}, {0x7c, 0xfc, 0x7f}};
    FOR_EACH_VARIANT {
        for (int i = 0; i < 4; i++) {
            uint8_t result;
            reduce(&result, (const void *[]){&e4m3[i][0], &e4m3[i][1]}, 2, 1, TUTTI_FLOAT8_E4M3, TUTTI_SUM);
            cr_assert_eq(result, e4m3[i][2], "e4m3 case %d: %02x", i, result);
            reduce(&result, (const void *[]){&e5m2[i][0], &e5m2[i][1]}, 2, 1, TUTTI_FLOAT8_E5M2, TUTTI_SUM);
            cr_assert_eq(result, e5m2[i][2], "e5m2 case %d: %02x", i, result);
        }
    }
}

Test(reduce, a_computed_nan_has_one_pattern_and_a_copy_keeps_its_bits) {
    const uint32_t negative_nan = 0xffc12345, one = 0x3f800000;
    const uint64_t double_nan = UINT64_C(0xfff8000012345678);
    uint32_t result;
    uint64_t wide;
    FOR_EACH_VARIANT {
        for (tutti_reduction reduction = TUTTI_SUM; reduction <= TUTTI_AVG; reduction++) {
            reduce(&result, (const void *[]){&one, &negative_nan}, 2, 1, TUTTI_FLOAT32, reduction);
            cr_assert_eq(result, 0x7fc00000, "%08x", result);
            reduce(&result, (const void *[]){&negative_nan, &one}, 2, 1, TUTTI_FLOAT32, reduction);
            cr_assert_eq(result, 0x7fc00000, "%08x", result);
            reduce(&wide, (const void *[]){&double_nan, &double_nan}, 2, 1, TUTTI_FLOAT64, reduction);
            cr_assert_eq(wide, UINT64_C(0x7ff8000000000000));
        }
        reduce(&result, (const void *[]){&negative_nan}, 1, 1, TUTTI_FLOAT32, TUTTI_SUM);
        cr_assert_eq(result, negative_nan);
    }
}

Test(reduce, the_average_of_integers_wraps_in_its_sum_and_truncates_towards_zero) {
    const int8_t hundred = 100, minus_seven = -7, zero = 0;
    const uint8_t most = 255;
    FOR_EACH_VARIANT {
        int8_t result;
        uint8_t unsigned_result;
        reduce(&result, (const void *[]){&hundred, &hundred}, 2, 1, TUTTI_INT8, TUTTI_AVG);
        cr_assert_eq(result, -28); /* 200 wraps to -56 */
        reduce(&result, (const void *[]){&minus_seven, &zero}, 2, 1, TUTTI_INT8, TUTTI_AVG);
        cr_assert_eq(result, -3);
        reduce(&unsigned_result, (const void *[]){&most, &most}, 2, 1, TUTTI_UINT8, TUTTI_AVG);
        cr_assert_eq(unsigned_result, 127);
        tutti_reduce_host(&(tutti_reduce_args){.dst = &result,
                                               .srcs = (const void *[]){&hundred},
                                               .nsrcs = 1,
                                               .count = 1,
                                               .type = TUTTI_INT8,
                                               .reduction = TUTTI_AVG,
                                               .divisor = 300});
        cr_assert_eq(result, 0, "a divisor beyond the type's range is not cut to it");
    }
}

Test(reduce, integer_factors_are_cast_to_the_type) {
    const uint16_t value = 5;
    const uint64_t wide = 3;
    FOR_EACH_VARIANT {
        uint16_t result;
        uint64_t wide_result;
        tutti_reduce_args args = {.dst = &result,
                                  .srcs = (const void *[]){&value, &value},
                                  .nsrcs = 2,
                                  .count = 1,
                                  .factors = (const double[]){-1, 3},
                                  .type = TUTTI_UINT16,
                                  .reduction = TUTTI_PREMUL_SUM};
        tutti_reduce_host(&args);
        cr_assert_eq(result, 10, "%u", result);
        args = (tutti_reduce_args){.dst = &wide_result,
                                   .srcs = (const void *[]){&wide},
                                   .nsrcs = 1,
                                   .count = 1,
                                   .factors = (const double[]){0x1p62},
                                   .type = TUTTI_UINT64,
                                   .reduction = TUTTI_PREMUL_SUM};
        tutti_reduce_host(&args);
        cr_assert_eq(wide_result, UINT64_C(3) << 62);
    }
}
