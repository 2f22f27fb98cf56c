/*
 * Reductions on a GPU, stand-in or real, against the host's, bit for bit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gpu/on_gpu.h"
#include "tests/support/reference.h"

TestSuite(device_reduce, .timeout = 120);

/* Compares one call with the host's, bit for bit. Each buffer begins `shift` elements after an aligned address. */
typedef struct reduce_case {
    tutti_type type;
    tutti_reduction reduction;
    int nsrcs, ndsts;
    size_t count, shift;
    bool in_place;
} reduce_case;

enum {
    MOST_SOURCES = TUTTI_DEVICE_MOST_BUFFERS,
    MOST_RESULTS = 3,
    MOST_ELEMENTS = 10007,
    ROOM = (MOST_ELEMENTS + 64) * 8
};

typedef struct buffers {
    char *device[MOST_SOURCES + MOST_RESULTS], *host[MOST_SOURCES], *expected, *got;
} buffers;

static void buffers_create(buffers *b) {
    for (int i = 0; i < MOST_SOURCES + MOST_RESULTS; i++) b->device[i] = alloc(ROOM);
    for (int i = 0; i < MOST_SOURCES; i++) b->host[i] = malloc(ROOM);
    b->expected = malloc(ROOM), b->got = malloc(ROOM);
}

static void buffers_destroy(buffers *b) {
    for (int i = 0; i < MOST_SOURCES + MOST_RESULTS; i++) GOOD(gpu->free(b->device[i]));
    for (int i = 0; i < MOST_SOURCES; i++) free(b->host[i]);
    free(b->expected);
    free(b->got);
}

static void fill_sources(const buffers *b, const reduce_case *c) {
    size_t start = c->shift * tutti_type_bytes(c->type);
    for (int i = 0; i < c->nsrcs; i++) {
        reference_fill(b->host[i] + start, c->count, c->type, c->reduction, c->count + c->shift, i, c->nsrcs);
        GOOD(gpu->copy(b->device[i], b->host[i], start + c->count * tutti_type_bytes(c->type), stream));
    }
}

static void check_result(const buffers *b, const reduce_case *c, int result, const void *dst) {
    size_t bytes = c->count * tutti_type_bytes(c->type), start = c->shift * tutti_type_bytes(c->type);
    get(b->got, (const char *)dst - start, ROOM);
    cr_assert_eq(memcmp(b->got + start, b->expected, bytes), 0,
                 "%s of %s, %d sources, %zu elements, shift %zu, result %d of %d", tutti_reduction_name(c->reduction),
                 tutti_type_name(c->type), c->nsrcs, c->count, c->shift, result, c->ndsts);
    for (size_t i = start + bytes; i < start + bytes + 64 && !c->in_place; i++)
        cr_assert_eq(b->got[i], 0x5a, "wrote behind the end");
    for (size_t i = 0; i < start && !c->in_place; i++) cr_assert_eq(b->got[i], 0x5a, "wrote before the beginning");
}

static void check_reduce(const buffers *b, const reduce_case *c) {
    size_t start = c->shift * tutti_type_bytes(c->type);
    const void *srcs[MOST_SOURCES], *host_srcs[MOST_SOURCES];
    void *dsts[MOST_RESULTS];
    double factors[MOST_SOURCES];
    fill_sources(b, c);
    for (int i = 0; i < c->nsrcs; i++) {
        srcs[i] = b->device[i] + start;
        host_srcs[i] = b->host[i] + start;
        factors[i] = reference_factor(c->type, i % 8);
    }
    for (int i = 0; i < c->ndsts; i++) {
        bool own = c->in_place && i == c->ndsts - 1;
        dsts[i] = (own ? b->device[c->nsrcs - 1] : b->device[MOST_SOURCES + i]) + start;
        if (!own) GOOD(gpu->fill((char *)dsts[i] - start, 0x5a, ROOM, stream));
    }
    tutti_reduce_args args = {.dst = b->expected,
                              .srcs = host_srcs,
                              .factors = c->reduction == TUTTI_PREMUL_SUM ? factors : NULL,
                              .nsrcs = c->nsrcs,
                              .count = c->count,
                              .type = c->type,
                              .reduction = c->reduction,
                              .divisor = c->nsrcs};
    tutti_reduce_host(&args);
    args.srcs = srcs;
    GOOD(gpu->reduce(&args, dsts, c->ndsts, stream));
    memset(srcs, 0, sizeof srcs); /* the arrays were copied */
    GOOD(gpu->stream_sync(stream));
    for (int i = 0; i < c->ndsts; i++) check_result(b, c, i, dsts[i]);
}

Test(device_reduce, every_type_and_reduction_gives_the_hosts_bits, .timeout = 300) {
    static const size_t counts[] = {0, 1, 3, 16, 17, 1031, MOST_ELEMENTS};
    buffers b;
    open_device();
    buffers_create(&b);
    for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++) {
        for (tutti_reduction reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++) {
            if (!tutti_reduce_supports(type, reduction)) continue;
            for (size_t i = 0; i < (THREAD_SANITIZER ? 4 : sizeof counts / sizeof *counts); i++) {
                reduce_case c = {type,
                                 reduction,
                                 1 + (int)((i * 3 + (size_t)reduction) % 9),
                                 1 + (int)i % MOST_RESULTS,
                                 counts[i],
                                 i % 4 == 3 ? 1 : 0,
                                 i % 3 == 2};
                check_reduce(&b, &c);
            }
        }
    }
    buffers_destroy(&b);
}

Test(device_reduce, the_most_sources_allowed_are_folded_in_order) {
    static const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT64, TUTTI_INT8, TUTTI_BOOL};
    buffers b;
    open_device();
    buffers_create(&b);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int nsrcs = MOST_SOURCES - 1; nsrcs <= MOST_SOURCES; nsrcs++)
            check_reduce(&b, &(reduce_case){types[i], TUTTI_SUM, nsrcs, 2, 4133, 0, false});
    buffers_destroy(&b);
}

/* ------------------------------------------------------------------------------------- codes of small floats */

/* Codes of two sources: of 8 bits all pairs; of 16 bits each code paired, by `round`, with 0, 1, itself, or a random
 * one. */
enum { CODES = 65536, CODE_ROUNDS = 6, ROOM_FOR_CODES = CODES * 2 + 16 };

typedef struct code_buffers {
    char *device[3], *host[2], *expected, *got;
} code_buffers;

static void fill_codes(const code_buffers *b, tutti_type type, int round) {
    const size_t bytes = tutti_type_bytes(type);
    for (size_t i = 0; i < CODES; i++) {
        const uint16_t any = (uint16_t)(reference_hash(7, (uint64_t)round, i) >> 20);
        const uint16_t one = type == TUTTI_FLOAT16 ? 0x3c00 : 0x3f80, code = (uint16_t)i;
        uint16_t other = round == 0 ? 0 : round == 1 ? one : round == 2 ? code : any;
        if (bytes == 1) other = (uint16_t)(i / 256);
        memcpy(b->host[0] + i * bytes, &code, bytes); /* the low byte for 8-bit types */
        memcpy(b->host[1] + i * bytes, &other, bytes);
    }
    for (int i = 0; i < 2; i++) GOOD(gpu->copy(b->device[i], b->host[i], CODES * bytes, stream));
}

/* With `apart`, the result is aligned differently from the sources, so that elements are processed one by one;
 * otherwise 16 bytes at a time. */
static void check_codes(const code_buffers *b, const reduce_case *c, int divisor, bool apart) {
    static const double factors[] = {0.7, -1.3};
    const size_t bytes = tutti_type_bytes(c->type);
    const void *srcs[] = {b->device[0], b->device[1]}, *host_srcs[] = {b->host[0], b->host[1]};
    void *dst = b->device[2] + (apart ? bytes : 0);
    tutti_reduce_args args = {.dst = b->expected,
                              .srcs = host_srcs,
                              .factors = c->reduction == TUTTI_PREMUL_SUM ? factors : NULL,
                              .nsrcs = c->nsrcs,
                              .count = CODES,
                              .type = c->type,
                              .reduction = c->reduction,
                              .divisor = divisor};
    tutti_reduce_host(&args);
    args.srcs = srcs;
    GOOD(gpu->reduce(&args, &dst, 1, stream));
    get(b->got, dst, CODES * bytes);
    for (size_t i = 0; i < CODES * bytes; i += bytes) {
        uint16_t got = 0, expected = 0, codes[2] = {0};
        memcpy(&got, b->got + i, bytes);
        memcpy(&expected, b->expected + i, bytes);
        for (int k = 0; k < 2; k++) memcpy(&codes[k], b->host[k] + i, bytes);
        cr_assert_eq(got, expected, "%s of %s, %d sources, divisor %d, %s: of %04x and %04x it is %04x, not %04x",
                     tutti_reduction_name(c->reduction), tutti_type_name(c->type), c->nsrcs, divisor,
                     apart ? "one by one" : "16 bytes", codes[0], codes[1], got, expected);
    }
}

Test(device_reduce, every_code_of_a_small_float_gives_the_hosts_bits, .timeout = 300) {
    static const tutti_type types[] = {TUTTI_FLOAT16, TUTTI_BFLOAT16, TUTTI_FLOAT8_E4M3, TUTTI_FLOAT8_E5M2};
    code_buffers b;
    open_device();
    for (int i = 0; i < 3; i++) b.device[i] = alloc(ROOM_FOR_CODES);
    for (int i = 0; i < 2; i++) b.host[i] = malloc(ROOM_FOR_CODES);
    b.expected = malloc(ROOM_FOR_CODES), b.got = malloc(ROOM_FOR_CODES);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (int round = 0; round < (tutti_type_bytes(types[t]) == 1 || THREAD_SANITIZER ? 1 : CODE_ROUNDS); round++) {
            fill_codes(&b, types[t], round);
            for (tutti_reduction reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++) {
                if (!tutti_reduce_supports(types[t], reduction)) continue;
                for (int nsrcs = 1; nsrcs <= 2; nsrcs++)
                    for (int divisor = 2; divisor <= (reduction == TUTTI_AVG ? 3 : 2); divisor++)
                        for (int apart = 0; apart < 2; apart++)
                            check_codes(&b, &(reduce_case){.type = types[t], .reduction = reduction, .nsrcs = nsrcs},
                                        divisor, apart);
            }
        }
    }
    for (int i = 0; i < 3; i++) GOOD(gpu->free(b.device[i]));
    free(b.host[0]), free(b.host[1]), free(b.expected), free(b.got);
}

Test(device_reduce, an_invalid_reduction_is_refused) {
    open_device();
    void *memory = alloc(64);
    const void *srcs[] = {memory};
    tutti_reduce_args args = {.srcs = srcs, .nsrcs = 1, .count = 4, .type = TUTTI_FLOAT32, .reduction = TUTTI_BXOR};
    cr_assert_eq(gpu->reduce(&args, &memory, 1, stream), TUTTI_ERR_ARGUMENT);
    args.reduction = TUTTI_SUM;
    args.nsrcs = TUTTI_DEVICE_MOST_BUFFERS + 1;
    cr_assert_eq(gpu->reduce(&args, &memory, 1, stream), TUTTI_ERR_ARGUMENT);
    args.nsrcs = 1;
    cr_assert_eq(gpu->reduce(&args, &memory, 0, stream), TUTTI_ERR_ARGUMENT);
    GOOD(gpu->reduce(&args, &memory, 1, stream));
}
