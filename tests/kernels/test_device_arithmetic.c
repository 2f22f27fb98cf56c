/*
 * The kernels for reductions and copies on GPUs, compiled for the host (support/reduce_threads.cc), against the
 * host's own loops. All types and reductions, on random bits, on special values, at all alignments, bit for bit.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/reduce/reduce.h"
#include "kernels/reduce.h"
#include "tests/support/emulated/reduce_threads.h"
#include "tests/support/reference.h"

TestSuite(device_arithmetic, .timeout = 120);

enum { MOST_SOURCES = 9, COUNT = 4133, ROW = (COUNT * 8 / 16 + 2) * 16, BLOCKS = 2 };

#define FOR_EACH_CASE                                                                                                  \
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++)                                                         \
        for (tutti_reduction reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++)                            \
            if (tutti_reduce_supports(type, reduction))

typedef struct buffers {
    _Alignas(16) char srcs[MOST_SOURCES][ROW], got[ROW], expected[ROW]; /* all multiples of 16: vectors are used */
} buffers;

static buffers *buffers_create(void) {
    buffers *b = aligned_alloc(16, sizeof *b);
    cr_assert_not_null(b);
    return b;
}

typedef struct reduce_case {
    tutti_type type;
    tutti_reduction reduction;
    int nsrcs, divisor;
    size_t count;
    const double *factors;
} reduce_case;

static void check(buffers *b, const reduce_case *c, const char *what) {
    const void *srcs[MOST_SOURCES];
    void *dst = b->got;
    tutti_cuda_reduce_plan plan;
    char got[64], expected[64];
    for (int k = 0; k < c->nsrcs; k++) srcs[k] = b->srcs[k];
    tutti_reduce_args args = {.dst = b->expected,
                              .srcs = srcs,
                              .factors = c->reduction == TUTTI_PREMUL_SUM ? c->factors : NULL,
                              .nsrcs = c->nsrcs,
                              .count = c->count,
                              .type = c->type,
                              .reduction = c->reduction,
                              .divisor = c->divisor};
    tutti_reduce_host(&args);
    tutti_cuda_reduce_make_plan(&args, &dst, 1, &plan);
    size_t bytes = tutti_type_bytes(c->type);
    cr_assert_eq(plan.vectors, c->count * bytes / 16);
    reduce_by_threads(&plan, BLOCKS);
    for (size_t i = 0; i < c->count; i++)
        cr_assert_eq(memcmp(b->got + i * bytes, b->expected + i * bytes, bytes), 0,
                     "%s of %s (%s), %d sources, divisor %d: [%zu] is %s, not %s", tutti_reduction_name(c->reduction),
                     tutti_type_name(c->type), what, c->nsrcs, c->divisor, i, reference_show(b->got, i, c->type, got),
                     reference_show(b->expected, i, c->type, expected));
}

static void fill_with_bits(buffers *b, uint64_t seed) {
    for (int k = 0; k < MOST_SOURCES; k++) {
        for (size_t i = 0; i < COUNT; i++) {
            uint64_t bits = reference_hash(seed, (uint64_t)k, i);
            memcpy(b->srcs[k] + i * 8, &bits, sizeof bits);
        }
    }
}

Test(device_arithmetic, the_same_reductions_exist_as_on_the_host) {
    for (tutti_type type = 0; type <= TUTTI_TYPE_COUNT; type++) {
        for (tutti_reduction reduction = 0; reduction <= TUTTI_REDUCTION_COUNT; reduction++)
            cr_assert_eq(tutti_cuda_reduce_supports(type, reduction), tutti_reduce_supports(type, reduction));
        if (type < TUTTI_TYPE_COUNT) cr_assert_eq(tutti_cuda_type_bytes(type), tutti_type_bytes(type));
    }
}

Test(device_arithmetic, random_bits_give_the_hosts_bits) {
    static const double factors[MOST_SOURCES] = {1.5, -3, 0.1, 7, -0.0, 1e30, 255, -1, 2};
    static const double whole[MOST_SOURCES] = {3, -3, 1e30, 7, 0, -1e30, 255, -1, 2};
    buffers *b = buffers_create();
    FOR_EACH_CASE {
        for (int nsrcs = 1; nsrcs <= MOST_SOURCES; nsrcs++) {
            bool is_float = reference_is_float(type);
            fill_with_bits(b, (uint64_t)nsrcs * 1000 + (uint64_t)type * 10 + (uint64_t)reduction);
            reduce_case c = {type, reduction, nsrcs, nsrcs, COUNT, is_float ? factors : whole};
            check(b, &c, "random bits");
        }
    }
    free(b);
}

Test(device_arithmetic, ordinary_and_special_values_give_the_hosts_bits) {
    buffers *b = buffers_create();
    FOR_EACH_CASE {
        for (int nsrcs = 1; nsrcs <= MOST_SOURCES; nsrcs += 2) {
            double factors[MOST_SOURCES];
            for (int k = 0; k < nsrcs; k++) {
                reference_fill(b->srcs[k], COUNT, type, reduction, 5, k, nsrcs);
                factors[k] = reference_factor(type, k);
            }
            check(b, &(reduce_case){type, reduction, nsrcs, nsrcs, COUNT, factors}, "values");
        }
    }
    free(b);
}

/* Every pair of codes of the small types; for the 16-bit floats every code, against a few others. */
Test(device_arithmetic, every_code_of_a_small_type_gives_the_hosts_bits) {
    static const uint16_t others[] = {0,      0x8000, 1,      0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff,
                                      0x7c00, 0xfc00, 0x7c01, 0x7e00, 0x7f7f, 0x7f80, 0xff80, 0x7f81, 0x7fff, 0x3555};
    buffers *b = buffers_create();
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++) {
        size_t bytes = tutti_type_bytes(type);
        if (bytes > 2) continue;
        size_t codes = bytes == 1 ? 256 : 65536, partners = bytes == 1 ? 256 : sizeof others / sizeof *others;
        for (size_t start = 0; start < codes * partners; start += COUNT) {
            size_t count = codes * partners - start < COUNT ? codes * partners - start : COUNT;
            for (size_t i = 0; i < count; i++) {
                uint16_t code = (uint16_t)((start + i) / partners), other = (uint16_t)((start + i) % partners);
                if (bytes == 2) other = others[other];
                memcpy(b->srcs[0] + i * bytes, &code, bytes);
                memcpy(b->srcs[1] + i * bytes, &other, bytes);
            }
            static const double factors[] = {0.7, -1.3}, whole[] = {7, -13};
            for (tutti_reduction reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++)
                if (tutti_reduce_supports(type, reduction))
                    check(b, &(reduce_case){type, reduction, 2, 3, count, reference_is_float(type) ? factors : whole},
                          "every code");
        }
    }
    free(b);
}

Test(device_arithmetic, averages_divide_by_any_number_of_ranks) {
    static const int divisors[] = {1, 2, 3, 7, 8, 100, 1 << 20, 1000003, 1 << 30, INT32_MAX};
    buffers *b = buffers_create();
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++) {
        if (!tutti_reduce_supports(type, TUTTI_AVG)) continue;
        for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
            fill_with_bits(b, (uint64_t)type * 100 + i);
            for (int nsrcs = 1; nsrcs <= 3; nsrcs++)
                check(b, &(reduce_case){type, TUTTI_AVG, nsrcs, divisors[i], COUNT, NULL}, "averages");
        }
    }
    free(b);
}

/* Vectors of 16 bytes are used only if all buffers allow it, and head, vectors and tail cover everything. */
Test(device_arithmetic, vectors_lie_at_multiples_of_16_in_every_buffer) {
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++) {
        size_t bytes = tutti_type_bytes(type);
        for (size_t off = 0; off < 32; off += bytes) {
            for (size_t other = 0; other < 32; other += bytes) {
                for (size_t count = 0; count < 70; count++) {
                    const void *srcs[] = {(void *)(4096 + off), (void *)(8192 + off)};
                    void *dsts[] = {(void *)(16384 + off), (void *)(32768 + other)};
                    tutti_reduce_args args = {
                        .srcs = srcs, .nsrcs = 2, .count = count, .type = type, .reduction = TUTTI_MAX};
                    tutti_cuda_reduce_plan plan;
                    tutti_cuda_reduce_make_plan(&args, dsts, 2, &plan);
                    cr_assert_leq(plan.head * bytes + plan.vectors * 16, count * bytes);
                    if (off % 16 != other % 16) {
                        cr_assert(plan.vectors == 0 && plan.head == count);
                        continue;
                    }
                    cr_assert_lt(count * bytes - plan.head * bytes - plan.vectors * 16, 16);
                    if (plan.vectors == 0) continue;
                    cr_assert_eq((off + plan.head * bytes) % 16, 0);
                    cr_assert_lt(plan.head * bytes, 16);
                }
            }
        }
    }
}

/* All buffers begin `shift` elements after a multiple of 16 bytes, except one result: `odd_one` elements after it. */
static void check_shifted(buffers *b, tutti_type type, int nsrcs, size_t count, size_t shift, size_t odd_one) {
    enum { BEHIND = 16 };
    static _Alignas(16) char results[3][ROW + 64], expected[ROW];
    const void *srcs[MOST_SOURCES];
    void *dsts[3];
    tutti_cuda_reduce_plan plan;
    size_t bytes = tutti_type_bytes(type);
    for (int k = 0; k < nsrcs; k++) srcs[k] = b->srcs[k] + shift * bytes;
    for (int k = 0; k < 3; k++) dsts[k] = results[k] + (k == 2 ? odd_one : shift) * bytes;
    tutti_reduce_args args = {
        .dst = expected, .srcs = srcs, .nsrcs = nsrcs, .count = count, .type = type, .reduction = TUTTI_MAX};
    tutti_reduce_host(&args);
    memset(results, 0x5a, sizeof results);
    tutti_cuda_reduce_make_plan(&args, dsts, 3, &plan);
    reduce_by_threads(&plan, BLOCKS);
    for (int k = 0; k < 3; k++) {
        char *end = (char *)dsts[k] + count * bytes;
        cr_assert_eq(memcmp(dsts[k], expected, count * bytes), 0, "%s, %d sources, %zu elements, shift %zu, result %d",
                     tutti_type_name(type), nsrcs, count, shift, k);
        for (char *c = end; c < end + BEHIND; c++) cr_assert_eq(*c, 0x5a, "wrote behind the end");
        for (char *c = results[k]; c < (char *)dsts[k]; c++) cr_assert_eq(*c, 0x5a, "wrote before the beginning");
    }
}

Test(device_arithmetic, every_alignment_and_length_gives_the_hosts_bits) {
    buffers *b = buffers_create();
    fill_with_bits(b, 4);
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++) {
        size_t lanes = 16 / tutti_type_bytes(type);
        for (size_t shift = 0; shift < lanes; shift++)
            for (size_t count = 0; count < 4 * lanes; count++)
                check_shifted(b, type, 1 + (int)(count % 5), count, shift,
                              count % 3 == 0 ? (shift + 1) % lanes : shift);
        check_shifted(b, type, 4, COUNT - lanes, 1 % lanes, 1 % lanes); /* several rounds of the grid */
    }
    free(b);
}

Test(device_arithmetic, a_result_may_be_a_source) {
    buffers *b = buffers_create();
    const void *srcs[] = {b->srcs[0], b->srcs[1], b->srcs[2]};
    void *dsts[] = {b->got, b->srcs[1], b->srcs[2]};
    tutti_cuda_reduce_plan plan;
    fill_with_bits(b, 9);
    tutti_reduce_args args = {
        .dst = b->expected, .srcs = srcs, .nsrcs = 3, .count = COUNT, .type = TUTTI_INT32, .reduction = TUTTI_SUM};
    tutti_reduce_host(&args);
    tutti_cuda_reduce_make_plan(&args, dsts, 3, &plan);
    reduce_by_threads(&plan, BLOCKS);
    for (int k = 0; k < 3; k++) cr_assert_eq(memcmp(dsts[k], b->expected, COUNT * 4), 0, "result %d", k);
    free(b);
}

Test(device_arithmetic, many_copies_are_all_made_and_nothing_else) {
    enum { BYTES = 9000 };
    static _Alignas(16) char from[BYTES], to[BYTES], expected[BYTES];
    tutti_cuda_copies copies = {0};
    for (int i = 0; i < BYTES; i++) from[i] = (char)(i * 7 + i / 256);
    for (int i = 0; i < TUTTI_CUDA_MOST_COPIES; i++) {
        size_t bytes = (size_t)(i * 11 % 113), at = (size_t)(i * 128 + i % 16), source = (size_t)(i * 128 + i / 4 % 16);
        copies.list[copies.count++] = (tutti_cuda_move){to + at, from + source, bytes};
        memcpy(expected + at, from + source, bytes);
    }
    copy_by_threads(&copies, 1);
    cr_assert_eq(memcmp(to, expected, BYTES), 0);
    uint64_t value = 1;
    store_by_thread(&value, 4711);
    cr_assert_eq(value, 4711);
}

Test(device_arithmetic, a_counted_copy_reads_its_length_when_it_runs_up_to_the_maximum) {
    enum { MOST = 1000 };
    static const uint64_t counts[] = {0, 1, 15, 16, 17, MOST - 1, MOST, MOST + 1, UINT64_MAX};
    static _Alignas(16) char from[MOST + 32], to[MOST + 32], expected[MOST + 32];
    for (int i = 0; i < MOST + 32; i++) from[i] = (char)(i * 7 + i / 256);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t at = 0; at < 17; at += 3) { /* of all alignments */
            size_t bytes = counts[i] < MOST ? (size_t)counts[i] : MOST;
            memset(to, 0x55, sizeof to);
            memset(expected, 0x55, sizeof expected);
            memcpy(expected + at, from + i, bytes);
            copy_counted_by_threads((tutti_cuda_move){to + at, from + i, MOST}, &counts[i], 1 + (unsigned)i % 2);
            cr_assert_eq(memcmp(to, expected, sizeof to), 0, "%zu bytes to %zu", bytes, at);
        }
}
