/*
 * A result's bits depend on the inputs and nothing else: not on the algorithm, the chunk size, the instruction set,
 * the kind of memory, the place of the result, which rank comes first, or whether ranks are threads or processes.
 *
 * The numbers are chosen so that a difference would show. In a third of the elements two ranks hold b and -b, and b
 * is so much larger than the others' numbers that these lose bits against it: each order of summation, and each place
 * where a result is rounded, gives different bits. The expected result is computed once, one element after the other
 * in rank order, before the ranks start.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/api/api.h"
#include "kernels/reduce.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LEAST_RANKS = 3, LAST_RANKS = 3, MOST_COUNT = 4099, REPETITIONS = 200 };
#else
enum { LEAST_RANKS = 2, LAST_RANKS = 4, MOST_COUNT = 20011, REPETITIONS = 1000 };
#endif

enum { MOST_RANKS = 4, MOST_SHIFT = 3, ROOM_BYTES = (MOST_COUNT + MOST_SHIFT) * 8, TILES = 60 };

/* A float's fields, and where this test's large and small exponents lie (the field's value). */
typedef struct shape {
    tutti_type type;
    int exponent_bits, mantissa_bits;
    int large, small, spread;
} shape;

/* float32 holds every sum of four e4m3 exactly, so there the order cannot show; one rounding too many does. */
static const shape shapes[] = {
    {TUTTI_FLOAT32, 8, 23, 157, 124, 8}, {TUTTI_FLOAT64, 11, 52, 1083, 1020, 8}, {TUTTI_FLOAT16, 5, 10, 27, 1, 7},
    {TUTTI_BFLOAT16, 8, 7, 150, 124, 8}, {TUTTI_FLOAT8_E4M3, 4, 3, 11, 1, 10},   {TUTTI_FLOAT8_E5M2, 5, 2, 27, 1, 7},
};
static const tutti_reduction reductions[] = {TUTTI_SUM, TUTTI_PREMUL_SUM};
static const call_kind kinds[] = {CALL_ALL_REDUCE, CALL_REDUCE, CALL_REDUCE_SCATTER};

#define COUNT_OF(array) (int)(sizeof(array) / sizeof *(array))
enum { SHAPES = 6, REDUCTIONS = 2, KINDS = 3 };

/* The test's process makes it once; ranks only read it. */
static char inputs[SHAPES][MOST_RANKS][ROOM_BYTES];
static char results[MOST_RANKS + 1][SHAPES][REDUCTIONS][ROOM_BYTES]; /* by number of ranks */

static void fill(void *dst, const shape *s, int rank) {
    size_t item = tutti_type_bytes(s->type);
    for (size_t i = 0; i < MOST_COUNT; i++) {
        uint64_t common = reference_hash(1, i, 0), own = reference_hash(2, i, (uint64_t)rank);
        int up = (int)(common % MOST_RANKS), down = (up + 1 + (int)(common / 8 % 3)) % MOST_RANKS;
        bool cancels = common / 64 % 3 == 0 && (rank == up || rank == down);
        uint64_t h = cancels ? common : own;
        bool large = cancels || h % 4 == 0;
        uint64_t exponent =
            (uint64_t)(large ? s->large + (int)(h / 256 % 3) : s->small + (int)(h / 256 % (uint64_t)s->spread));
        uint64_t mantissa = (h >> 12) & ((UINT64_C(1) << s->mantissa_bits) - 1);
        uint64_t sign = cancels ? rank == down : h >> 4 & 1;
        uint64_t bits = (sign << s->exponent_bits | exponent) << s->mantissa_bits | mantissa;
        memcpy((char *)dst + i * item, &bits, item); /* little endian */
    }
}

static void prepare(void) {
    for (int s = 0; s < SHAPES; s++) {
        const void *srcs[MOST_RANKS];
        for (int rank = 0; rank < MOST_RANKS; rank++) {
            fill(inputs[s][rank], &shapes[s], rank);
            srcs[rank] = inputs[s][rank];
        }
        for (int n = 2; n <= MOST_RANKS; n++)
            for (int r = 0; r < REDUCTIONS; r++)
                reference_reduce(results[n][s][r], srcs, n, MOST_COUNT, shapes[s].type, reductions[r]);
    }
}

/* -------------------------------------------------------------------------------------------------- calls */

/* One call of a rank; `turn` decides what each rank may decide for itself: memory, place, alignment. */
typedef struct one_call {
    call_kind kind;
    int shape, reduction;
    size_t count; /* of the whole vector */
    int root;
    unsigned turn;
} one_call;

/* A rank's buffers: private ones and blocks of tutti_mem_alloc. */
typedef struct buffers {
    char *srcs[2], *dsts[2];
} buffers;

static tutti_status buffers_create(buffers *b_out) {
    *b_out = (buffers){.srcs[0] = malloc(ROOM_BYTES), .dsts[0] = malloc(ROOM_BYTES)};
    RANKS_CHECK(b_out->srcs[0] != NULL && b_out->dsts[0] != NULL, "no memory for a test's buffer");
    TUTTI_TRY(tutti_mem_alloc(ROOM_BYTES, (void **)&b_out->srcs[1]));
    return tutti_mem_alloc(ROOM_BYTES, (void **)&b_out->dsts[1]);
}

static void buffers_destroy(buffers *b) {
    free(b->srcs[0]);
    free(b->dsts[0]);
    tutti_mem_free(b->srcs[1]);
    tutti_mem_free(b->dsts[1]);
}

/* Whether it applies to this rank: never, always, or on odd ranks, by a digit of the turn. */
static bool holds(unsigned digit, int rank) {
    return digit % 3 == CALL_ALWAYS || (digit % 3 == CALL_MIXED && rank % 2 == 1);
}

static tutti_status make_call(const ranks_context *context, const buffers *b, const one_call *c) {
    int rank = context->rank, n = context->nranks;
    tutti_type type = shapes[c->shape].type;
    tutti_reduction reduction = reductions[c->reduction];
    size_t item = tutti_type_bytes(type), shift = (c->turn + (unsigned)rank) % MOST_SHIFT * item;
    size_t segment = c->count / (size_t)n;
    bool split = c->kind == CALL_REDUCE_SCATTER;
    char *src = b->srcs[holds(c->turn, rank)] + shift;
    char *dst = b->dsts[holds(c->turn / 2, rank + 1)] + shift;
    if (holds(c->turn / 3, rank)) dst = split ? src + (size_t)rank * segment * item : src;
    memcpy(src, inputs[c->shape][rank], c->count * item);
    tutti_options options = TUTTI_OPTIONS(.factor = reference_factor(type, rank));
    switch (c->kind) {
    case CALL_ALL_REDUCE:
        TUTTI_TRY(tutti_all_reduce(context->comm, src, dst, c->count, type, reduction, &options));
        break;
    case CALL_REDUCE:
        TUTTI_TRY(tutti_reduce(context->comm, src, dst, c->count, type, reduction, c->root, &options));
        break;
    default: TUTTI_TRY(tutti_reduce_scatter(context->comm, src, dst, segment, type, reduction, &options));
    }
    if (c->kind == CALL_REDUCE && rank != c->root) return TUTTI_OK;
    const char *expected = results[n][c->shape][c->reduction] + (split ? (size_t)rank * segment * item : 0);
    size_t count = split ? segment : c->count;
    if (memcmp(dst, expected, count * item) == 0) return TUTTI_OK;
    char got_text[64], expected_text[64];
    size_t at = reference_compare(dst, expected, count, type);
    return tutti_fail(TUTTI_ERR_DATA, "%s of %zu %s, %s, turn %u, %s: element %zu is %s, not %s", call_name(c->kind),
                      c->count, tutti_type_name(type), tutti_reduction_name(reduction), c->turn,
                      tutti_reduce_variant_name(), at, reference_show(dst, at, type, got_text),
                      reference_show(expected, at, type, expected_text));
}

/* Every kind, type and reduction, with counts for each path through the library; memory and place take turns. */
static tutti_status sweep(ranks_context *context) {
    static const size_t counts[] = {1, 7, 131, 2053, MOST_COUNT};
    buffers b;
    tutti_status status = buffers_create(&b);
    one_call c = {.turn = 0};
    for (c.shape = 0; c.shape < SHAPES; c.shape++)
        for (c.reduction = 0; c.reduction < REDUCTIONS; c.reduction++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int i = 0; i < 3 * COUNT_OF(counts) && status == TUTTI_OK; i++) {
                    c.kind = kinds[kind];
                    c.count = counts[i / 3];
                    c.turn += 5; /* coprime with the 18 ways to make a call, so all occur */
                    c.root = (int)(c.turn % (unsigned)context->nranks);
                    status = make_call(context, &b, &c);
                }
    buffers_destroy(&b);
    return status;
}

static tutti_status repeat(ranks_context *context) {
    buffers b;
    tutti_status status = buffers_create(&b);
    for (unsigned round = 0; round < REPETITIONS && status == TUTTI_OK; round++) {
        if (reference_hash(round, (uint64_t)context->rank, 3) % 16 == 0) usleep(100); /* others come first */
        for (int i = 0; i < SHAPES * KINDS && status == TUTTI_OK; i++) {
            one_call c = {.kind = kinds[i % KINDS],
                          .shape = i / KINDS,
                          .reduction = (int)(round % REDUCTIONS),
                          .count = round % 4 < 2 ? 131 : 2053,
                          .root = (int)(round % (unsigned)context->nranks),
                          .turn = round + (unsigned)i};
            status = make_call(context, &b, &c);
        }
    }
    buffers_destroy(&b);
    return status;
}

/* Vectors of several MiB with the default settings: the inputs repeated, in memory of one kind on all ranks
 * (argument: buffers of tutti_mem_alloc or not, in place or not). */
typedef struct large_mode {
    bool shared, in_place;
} large_mode;

static tutti_status check_tiles(const char *dst, const char *expected, size_t bytes, const char *type) {
    for (int tile = 0; tile < TILES; tile++)
        RANKS_CHECK(memcmp(dst + (size_t)tile * bytes, expected, bytes) == 0, "%s: tile %d of %d differs", type, tile,
                    TILES);
    return TUTTI_OK;
}

static tutti_status reduce_tiles(const ranks_context *context, char *src, char *dst, int s) {
    tutti_type type = shapes[s].type;
    size_t bytes = MOST_COUNT * tutti_type_bytes(type);
    for (int tile = 0; tile < TILES; tile++) memcpy(src + (size_t)tile * bytes, inputs[s][context->rank], bytes);
    TUTTI_TRY(tutti_all_reduce(context->comm, src, dst, (size_t)TILES * MOST_COUNT, type, TUTTI_SUM, NULL));
    return check_tiles(dst, results[context->nranks][s][0], bytes, tutti_type_name(type));
}

/* Every rank's part consists of the same tiles. */
static tutti_status scatter_tiles(const ranks_context *context, char *src, char *dst, int s) {
    tutti_type type = shapes[s].type;
    size_t bytes = MOST_COUNT * tutti_type_bytes(type);
    for (int tile = 0; tile < context->nranks * TILES; tile++)
        memcpy(src + (size_t)tile * bytes, inputs[s][context->rank], bytes);
    TUTTI_TRY(tutti_reduce_scatter(context->comm, src, dst, (size_t)TILES * MOST_COUNT, type, TUTTI_SUM, NULL));
    return check_tiles(dst, results[context->nranks][s][0], bytes, tutti_type_name(type));
}

static tutti_status reduce_large(ranks_context *context) {
    const large_mode *mode = context->argument;
    size_t dst_bytes = (size_t)TILES * ROOM_BYTES, src_bytes = (size_t)context->nranks * dst_bytes;
    char *src = NULL, *dst = NULL;
    tutti_status status = TUTTI_OK;
    if (mode->shared) {
        status = tutti_mem_alloc(src_bytes, (void **)&src);
        if (status == TUTTI_OK) status = tutti_mem_alloc(dst_bytes, (void **)&dst);
    } else {
        src = malloc(src_bytes);
        dst = malloc(dst_bytes);
        if (src == NULL || dst == NULL) status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a test's buffer");
    }
    for (int s = 0; s < SHAPES && status == TUTTI_OK; s++)
        status = reduce_tiles(context, src, mode->in_place ? src : dst, s);
    for (int s = 0; s < SHAPES && status == TUTTI_OK && !mode->in_place; s++)
        status = scatter_tiles(context, src, dst, s);
    if (mode->shared) {
        tutti_mem_free(src);
        tutti_mem_free(dst);
    } else {
        free(src);
        free(dst);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------ worlds */

static void set(const char *variable, const char *value) {
    setenv(variable, value, 1);
    tutti_settings_reload();
}

static void run(ranks_kind kind, int nranks, ranks_body body, const char *what, const char *value) {
    const ranks_options options = {.kind = kind, .nranks = nranks, .timeout_s = 120};
    const char *failure = ranks_run(&options, body);
    cr_assert(failure == NULL, "%d %s, %s %s: %s", nranks, kind == RANKS_THREADS ? "threads" : "processes", what, value,
              failure);
}

/* Runs worlds of all sizes, of one kind of ranks. */
static void run_worlds(ranks_kind kind, ranks_body body, const char *what, const char *value) {
    for (int n = LEAST_RANKS; n <= LAST_RANKS; n++) run(kind, n, body, what, value);
}

/* Runs every value of a variable, with ranks as processes first, since ranks that were threads leave a process that
 * cannot be forked into ranks any more. */
static void run_values(const char *variable, const char *const *values, int nvalues) {
    for (int kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS; kind <= RANKS_THREADS; kind++)
        for (int i = 0; i < nvalues; i++) {
            set(variable, values[i]);
            run_worlds((ranks_kind)kind, sweep, variable, values[i]);
        }
}

static double differing(const void *a, const void *b, size_t count, size_t item) {
    size_t differ = 0;
    for (size_t i = 0; i < count; i++)
        differ += memcmp((const char *)a + i * item, (const char *)b + i * item, item) != 0;
    return (double)differ / (double)count;
}

/* Otherwise the tests below would show nothing. */
Test(bit_equal, the_numbers_distinguish_every_order_and_every_rounding, .timeout = 120) {
    static char other[ROOM_BYTES], partial[ROOM_BYTES];
    prepare();
    for (int s = 0; s < SHAPES; s++)
        for (int n = 3; n <= MOST_RANKS; n++) {
            tutti_type type = shapes[s].type;
            const void *backwards[MOST_RANKS];
            for (int i = 0; i < n; i++) backwards[i] = inputs[s][n - 1 - i];
            reference_reduce(other, backwards, n, MOST_COUNT, type, TUTTI_SUM);
            double by_order = differing(other, results[n][s][0], MOST_COUNT, tutti_type_bytes(type));
            reference_reduce(partial, (const void *[]){inputs[s][0], inputs[s][1]}, 2, MOST_COUNT, type, TUTTI_SUM);
            reference_reduce(other, (const void *[]){partial, inputs[s][2], inputs[s][3]}, n - 1, MOST_COUNT, type,
                             TUTTI_SUM);
            double by_rounding = differing(other, results[n][s][0], MOST_COUNT, tutti_type_bytes(type));
            bool small = tutti_type_bytes(type) < 4;
            if (type != TUTTI_FLOAT8_E4M3)
                cr_assert_gt(by_order, 0.03, "%s, %d ranks: %g differ", tutti_type_name(type), n, by_order);
            if (small) cr_assert_gt(by_rounding, 0.03, "%s, %d: %g differ", tutti_type_name(type), n, by_rounding);
        }
}

Test(bit_equal, every_algorithm_gives_the_same_bits, .timeout = 250) {
    enum { MOST_ROWS = 32 };
    static char names[MOST_ROWS][32];
    const char *values[MOST_ROWS];
    char text[512];
    int rows = 0;
    for (; rows < MOST_ROWS && tutti_select_row(rows, text, sizeof text) != NULL; rows++) {
        cr_assert_eq(sscanf(text, "%31s", names[rows]), 1);
        values[rows] = names[rows];
    }
    cr_assert_gt(rows, 1);
    prepare();
    set("TUTTI_CHUNK_BYTES", "4096");
    run_values("TUTTI_ALGORITHM", values, rows);
}

Test(bit_equal, every_chunk_size_gives_the_same_bits, .timeout = 250) {
    static const char *const chunks[] = {"256", "1000", "4096", "64K", "1M", "auto"};
    prepare();
    run_values("TUTTI_CHUNK_BYTES", chunks, COUNT_OF(chunks));
}

static const char *const variants[] = {"plain", "neon", "avx2", "avx512"};

/* The argument: index of a variant; -1: each rank takes a different one. */
static tutti_status sweep_with_variant(ranks_context *context) {
    int only = *(const int *)context->argument, found = 0;
    if (only >= 0) {
        tutti_reduce_use_variant(variants[only]);
        return sweep(context);
    }
    for (int i = 0; i < COUNT_OF(variants); i++)
        if (tutti_reduce_use_variant(variants[i]) && found++ == context->rank % 3) break;
    return sweep(context);
}

Test(bit_equal, every_instruction_set_gives_the_same_bits_and_ranks_may_differ_in_it, .timeout = 250) {
    ranks_kind kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS; /* threads share one instruction set */
    prepare();
    for (int variant = -1; variant < COUNT_OF(variants); variant++) {
        if (variant >= 0 && !tutti_reduce_use_variant(variants[variant])) continue;
        if (variant < 0 && kind == RANKS_THREADS) continue;
        for (int n = 2; n <= MOST_RANKS; n++) {
            const ranks_options options = {.kind = kind, .nranks = n, .argument = &variant};
            const char *failure = ranks_run(&options, sweep_with_variant);
            cr_assert(failure == NULL, "%d ranks, %s: %s", n, variant < 0 ? "mixed" : variants[variant], failure);
        }
    }
}

Test(bit_equal, a_thousand_repetitions_give_the_same_bits, .timeout = 250) {
    prepare();
    set("TUTTI_CHUNK_BYTES", "4096");
    if (ranks_have_processes()) run_worlds(RANKS_PROCESSES, repeat, "repeated", "");
    run_worlds(RANKS_THREADS, repeat, "repeated", "");
}

Test(bit_equal, large_vectors_have_the_same_bits_in_any_memory, .timeout = 250) {
    ranks_kind kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS;
    prepare();
    for (int n = 2; n <= MOST_RANKS; n += 2)
        for (int i = 0; i < 4; i++) {
            large_mode mode = {.shared = i / 2 == 1, .in_place = i % 2 == 1};
            const char *failure =
                ranks_run(&(ranks_options){.kind = kind, .nranks = n, .argument = &mode}, reduce_large);
            cr_assert(failure == NULL, "%d ranks, tutti_mem_alloc %d, in place %d: %s", n, mode.shared, mode.in_place,
                      failure);
        }
}
