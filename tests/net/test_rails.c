/*
 * Reductions between hosts: every algorithm against the reference, over links that buffer nothing. test_rails_move.c
 * has those that only move data.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "comm/base/slice.h"
#include "tests/support/links/rails.h"
#include "tests/support/links/strict_links.h"
#include "tests/support/reference.h"

#define PIECE_BYTES 256

static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 0};
static const int host_of[] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Buffers of a vector on one rank; a guard behind the result detects overruns. */
typedef struct vectors {
    void **inputs; /* the inputs of all ranks */
    void *expected, *result;
    size_t bytes;
    int n;
} vectors;

static tutti_status vectors_create(const rails_rank *rank, size_t bytes, vectors *made_out) {
    vectors made = {.bytes = bytes, .n = rank->rail.n};
    TUTTI_TRY(tutti_calloc((size_t)made.n, sizeof *made.inputs, &made.inputs));
    for (int i = 0; i < made.n; i++) TUTTI_TRY(tutti_calloc(bytes, 1, &made.inputs[i]));
    TUTTI_TRY(tutti_calloc(bytes, 1, &made.expected));
    TUTTI_TRY(tutti_calloc(bytes, 1, &made.result));
    *made_out = made;
    return TUTTI_OK;
}

static void vectors_destroy(vectors *made) {
    for (int i = 0; i < made->n; i++) free(made->inputs[i]);
    free(made->inputs);
    free(made->expected);
    free(made->result);
}

/* One call of a reduction. */
typedef struct trial {
    const char *algorithm; /* NULL: the table's choice */
    tutti_kind kind;
    tutti_type type;
    tutti_reduction reduction;
    size_t count, piece_bytes;
    int root;
    bool in_place;
    bool small_numbers; /* sums are exact, so their order has no effect */
} trial;

static void fill(const trial *t, void *dst, size_t count, int rank, int block) {
    reference_fill(dst, count, t->type, t->small_numbers ? TUTTI_SUM : t->reduction, t->count, rank, block);
    if (!t->small_numbers) return;
    for (size_t i = 0; i < count; i++) {
        unsigned value = (unsigned)(i * 7 + (size_t)rank * 3) % 4;
        if (t->type == TUTTI_FLOAT64) ((double *)dst)[i] = value;
        else ((float *)dst)[i] = (float)value;
    }
}

static tutti_status compare(const rails_rank *rank, const trial *t, const void *got, const void *expected,
                            size_t count) {
    char shown[64] = "", wanted[64] = "";
    size_t differs = reference_compare(got, expected, count, t->type);
    if (differs < count) {
        reference_show(got, differs, t->type, shown);
        reference_show(expected, differs, t->type, wanted);
    }
    RANKS_CHECK(differs == count, "%s by %s: %s of %s, count %zu, root %d%s: [%zu] is %s, not %s on rank %d",
                tutti_kind_name(t->kind), t->algorithm != NULL ? t->algorithm : "choice",
                tutti_reduction_name(t->reduction), tutti_type_name(t->type), t->count, t->root,
                t->in_place ? ", in place" : "", differs, shown, wanted, rank->rail.me);
    return TUTTI_OK;
}

/* all_reduce or reduce. */
static tutti_status try_vector(rails_rank *rank, const trial *t, vectors *v) {
    const tutti_rail *rail = &rank->rail;
    size_t bytes = t->count * tutti_type_bytes(t->type);
    rails_next(rank, t->algorithm, t->piece_bytes);
    TUTTI_TRY(rails_prepare(rank, t->kind, bytes));
    for (int i = 0; i < rail->n; i++) fill(t, v->inputs[i], t->count, i, 0);
    reference_reduce(v->expected, (const void *const *)v->inputs, rail->n, t->count, t->type, t->reduction);
    memset(v->result, 0x77, v->bytes);
    if (t->in_place) memcpy(v->result, v->inputs[rail->me], bytes);
    bool has_result = t->kind == TUTTI_KIND_ALL_REDUCE || rail->me == t->root;
    tutti_rail_vector vector = {.src = t->in_place ? v->result : v->inputs[rail->me],
                                .dst = has_result ? v->result : NULL,
                                .count = t->count,
                                .type = t->type,
                                .reduction = t->reduction,
                                .divisor = rail->n};
    TUTTI_TRY(t->kind == TUTTI_KIND_REDUCE ? tutti_rail_reduce(rail, &rank->setup, t->root, &vector)
                                           : tutti_rail_all_reduce(rail, &rank->setup, &vector));
    if (!t->in_place && bytes > 0) {
        fill(t, v->expected, 1, rail->me, 0);
        RANKS_CHECK(memcmp(v->inputs[rail->me], v->expected, tutti_type_bytes(t->type)) == 0, "the input was changed");
        reference_reduce(v->expected, (const void *const *)v->inputs, rail->n, t->count, t->type, t->reduction);
    }
    if (bytes < v->bytes) RANKS_CHECK(((char *)v->result)[bytes] == 0x77, "wrote behind the result");
    return has_result ? compare(rank, t, v->result, v->expected, t->count) : TUTTI_OK;
}

/* The number of elements that rank i gets from a reduce_scatter: some ranks none, all different. */
static size_t count_of(const trial *t, int rank) {
    return t->count * (size_t)(rank % 3) / 2 + (size_t)rank;
}

static tutti_status try_scatter(rails_rank *rank, const trial *t, vectors *v) {
    const tutti_rail *rail = &rank->rail;
    size_t item_bytes = tutti_type_bytes(t->type), counts[8], most = 0;
    void *segments[8];
    const void *inputs[8];
    for (int i = 0; i < rail->n; i++) {
        counts[i] = count_of(t, i);
        most = counts[i] > most ? counts[i] : most;
        TUTTI_TRY(tutti_calloc(counts[i] + 1, item_bytes, &segments[i]));
        fill(t, segments[i], counts[i], rail->me, i);
    }
    size_t own = counts[rail->me];
    for (int i = 0; i < rail->n; i++) fill(t, v->inputs[i], own, i, rail->me), inputs[i] = v->inputs[i];
    reference_reduce(v->expected, inputs, rail->n, own, t->type, t->reduction);
    rails_next(rank, t->algorithm, t->piece_bytes);
    TUTTI_TRY(rails_prepare(rank, t->kind, most * item_bytes));
    void *dst = t->in_place ? segments[rail->me] : v->result;
    tutti_rail_vector vector = {.dst = dst, .type = t->type, .reduction = t->reduction, .divisor = rail->n};
    tutti_status status = tutti_rail_reduce_scatter(rail, &rank->setup, (const void *const *)segments, counts, &vector);
    if (status == TUTTI_OK) status = compare(rank, t, dst, v->expected, own);
    for (int i = 0; i < rail->n; i++) free(segments[i]);
    return status;
}

static tutti_status attempt(rails_rank *rank, const trial *t, vectors *v) {
    return t->kind == TUTTI_KIND_REDUCE_SCATTER ? try_scatter(rank, t, v) : try_vector(rank, t, v);
}

/* ------------------------------------------------------------------------------------------------------ the order */

static const struct {
    const char *name;
    tutti_kind kind;
    bool rounds; /* small floats are rounded once more at each step */
} ordered[] = {{"direct", TUTTI_KIND_ALL_REDUCE, false},     {"direct_whole", TUTTI_KIND_ALL_REDUCE, false},
               {"doubling", TUTTI_KIND_ALL_REDUCE, true},    {"halving", TUTTI_KIND_ALL_REDUCE, true},
               {"direct", TUTTI_KIND_REDUCE, false},         {"direct_whole", TUTTI_KIND_REDUCE, false},
               {"direct", TUTTI_KIND_REDUCE_SCATTER, false}, {"tree", TUTTI_KIND_REDUCE, true},
               {NULL, TUTTI_KIND_ALL_REDUCE, false},         {NULL, TUTTI_KIND_REDUCE, false},
               {NULL, TUTTI_KIND_REDUCE_SCATTER, false}};

static const struct {
    const char *name;
    tutti_kind kind;
} reordering[] = {{"ring", TUTTI_KIND_ALL_REDUCE},
                  {"double_tree", TUTTI_KIND_ALL_REDUCE},
                  {"double_tree", TUTTI_KIND_REDUCE},
                  {"ring", TUTTI_KIND_REDUCE_SCATTER}};

/* 0, 1, around n, a prime, and one more than a piece of each rank. */
#define COUNTS     9
#define MOST_COUNT 1031
static size_t count_at(int n, int index, tutti_type type) {
    const size_t counts[COUNTS] = {
        0, 1, (size_t)n - 1, (size_t)n, (size_t)n + 1, 61, PIECE_BYTES / tutti_type_bytes(type) + 1, 331, MOST_COUNT};
    return counts[index];
}

static tutti_status try_counts(rails_rank *rank, trial t, vectors *v) {
    for (int i = 0; i < COUNTS; i++) {
        bool is_common = t.type == TUTTI_FLOAT32 || t.type == TUTTI_INT8 || t.type == TUTTI_BFLOAT16;
        if (!is_common && i != 1 && i != 6 && i != 7) continue;
        t.count = count_at(rank->rail.n, i, t.type);
        t.root = i % rank->rail.n;
        t.in_place = i % 2 == (int)t.type % 2 && (t.kind != TUTTI_KIND_REDUCE || rank->rail.me == t.root);
        TUTTI_TRY(attempt(rank, &t, v));
    }
    return TUTTI_OK;
}

static tutti_status order_body(rails_rank *rank) {
    vectors v;
    TUTTI_TRY(vectors_create(rank, 2 * MOST_COUNT * 8, &v));
    for (size_t i = 0; i < TUTTI_COUNT_OF(ordered); i++)
        for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++)
            for (tutti_reduction reduction = 0; reduction < TUTTI_PREMUL_SUM; reduction++) {
                if (!reference_supports(type, reduction)) continue;
                if (ordered[i].rounds && tutti_type_bytes(type) < 4 && reference_is_float(type)) continue;
                trial t = {.algorithm = ordered[i].name,
                           .kind = ordered[i].kind,
                           .type = type,
                           .reduction = reduction,
                           .piece_bytes = PIECE_BYTES};
                TUTTI_TRY(try_counts(rank, t, &v));
            }
    vectors_destroy(&v);
    return TUTTI_OK;
}

Test(rails, sums_that_may_be_chosen_use_rank_order) {
    reference_set_hosts(host_of);
    const char *failure = rails_run(sizes, order_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status any_order_body(rails_rank *rank) {
    vectors v;
    TUTTI_TRY(vectors_create(rank, 2 * MOST_COUNT * 8, &v));
    for (size_t i = 0; i < TUTTI_COUNT_OF(reordering); i++)
        for (tutti_type type = 0; type < TUTTI_TYPE_COUNT; type++)
            for (tutti_reduction reduction = 0; reduction < TUTTI_PREMUL_SUM; reduction++) {
                bool extremes = reduction == TUTTI_MIN || reduction == TUTTI_MAX;
                bool small_numbers = reference_is_float(type) && !extremes;
                if (!reference_supports(type, reduction)) continue;
                if (reduction != TUTTI_SUM && reduction != TUTTI_AVG && type % 3 != 2) continue;
                if (small_numbers && type != TUTTI_FLOAT32 && type != TUTTI_FLOAT64) continue;
                trial t = {.algorithm = reordering[i].name,
                           .kind = reordering[i].kind,
                           .type = type,
                           .reduction = reduction,
                           .piece_bytes = PIECE_BYTES,
                           .small_numbers = small_numbers};
                TUTTI_TRY(try_counts(rank, t, &v));
            }
    vectors_destroy(&v);
    return TUTTI_OK;
}

Test(rails, rings_and_trees_are_exact_where_the_order_has_no_effect) {
    const char *failure = rails_run(sizes, any_order_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

/* A sum in any order is the same on all ranks: checked by the minimum of its bits over the rail. */
static tutti_status same_bits_body(rails_rank *rank) {
    vectors v;
    TUTTI_TRY(vectors_create(rank, MOST_COUNT * 4, &v));
    for (size_t i = 0; i < TUTTI_COUNT_OF(reordering); i++) {
        if (reordering[i].kind != TUTTI_KIND_ALL_REDUCE) continue;
        rails_next(rank, reordering[i].name, PIECE_BYTES);
        TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_ALL_REDUCE, v.bytes));
        reference_fill(v.result, MOST_COUNT, TUTTI_FLOAT32, TUTTI_SUM, 5, rank->rail.me, 0);
        tutti_rail_vector sum = {
            .src = v.result, .dst = v.result, .count = MOST_COUNT, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM};
        TUTTI_TRY(tutti_rail_all_reduce(&rank->rail, &rank->setup, &sum));
        tutti_rail_vector least = {
            .src = v.result, .dst = v.expected, .count = MOST_COUNT, .type = TUTTI_UINT32, .reduction = TUTTI_MIN};
        rails_next(rank, NULL, 0);
        TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_ALL_REDUCE, v.bytes));
        TUTTI_TRY(tutti_rail_all_reduce(&rank->rail, &rank->setup, &least));
        RANKS_CHECK(memcmp(v.result, v.expected, v.bytes) == 0, "%s: ranks have different sums", reordering[i].name);
    }
    vectors_destroy(&v);
    return TUTTI_OK;
}

Test(rails, a_sum_in_another_order_is_still_the_same_on_all_ranks) {
    const char *failure = rails_run(sizes, same_bits_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status divisor_body(rails_rank *rank) {
    static const char *const names[] = {"direct", "direct_whole", "ring", "doubling", "halving", "double_tree"};
    int n = rank->rail.n;
    float data[300];
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++) {
        rails_next(rank, names[i], PIECE_BYTES);
        TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_ALL_REDUCE, sizeof data));
        for (int j = 0; j < 300; j++) data[j] = (float)(j + 24 * rank->rail.me);
        tutti_rail_vector mean = {
            .src = data, .dst = data, .count = 300, .type = TUTTI_FLOAT32, .reduction = TUTTI_AVG, .divisor = 4 * n};
        TUTTI_TRY(tutti_rail_all_reduce(&rank->rail, &rank->setup, &mean));
        for (int j = 0; j < 300; j++) {
            float expected = (float)(n * j + 12 * n * (n - 1)) / (float)(4 * n);
            RANKS_CHECK(data[j] == expected, "%s: [%d] is %g, not %g", names[i], j, data[j], expected);
        }
    }
    return TUTTI_OK;
}

Test(rails, a_mean_is_divided_once_by_the_callers_divisor) {
    const char *failure = rails_run(sizes, divisor_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}

/* --------------------------------------------------------------------------------------------------- bytes moved */

static tutti_status volume_body(rails_rank *rank) {
    static const char *const names[] = {"direct", "ring", "halving"};
    const size_t count = 64 << 10;
    size_t n = (size_t)rank->rail.n;
    float *data;
    TUTTI_TRY(tutti_calloc(count, sizeof *data, &data));
    for (size_t i = 0; i < TUTTI_COUNT_OF(names); i++) {
        if (i == 2 && (n & (n - 1)) != 0) continue; /* a rank that sits out the halving sends more */
        rails_next(rank, names[i], 0);
        TUTTI_TRY(rails_prepare(rank, TUTTI_KIND_ALL_REDUCE, count * sizeof *data));
        strict_links_sent(rank->rail.me);
        tutti_rail_vector sum = {
            .src = data, .dst = data, .count = count, .type = TUTTI_FLOAT32, .reduction = TUTTI_SUM};
        TUTTI_TRY(tutti_rail_all_reduce(&rank->rail, &rank->setup, &sum));
        double sent = (double)strict_links_sent(rank->rail.me);
        double bound = 2.0 * (double)(n - 1) / (double)n * (double)(count * sizeof *data);
        RANKS_CHECK(sent <= 1.05 * bound && sent >= 0.95 * bound, "%s: rank %d sends %g bytes, %g are needed", names[i],
                    rank->rail.me, sent, bound);
    }
    free(data);
    return TUTTI_OK;
}

Test(rails, long_sums_move_no_more_than_they_must) {
    const char *failure = rails_run(sizes, volume_body, NULL);
    cr_assert(failure == NULL, "%s", failure);
}
