/*
 * Ranks that make different calls: an error on all ranks that shows both calls.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

enum { MOST = 1024, MOST_RANKS = 6 };

typedef struct one_call {
    enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, BARRIER, GATHER } kind;
    size_t count;
    tutti_type type;
    tutti_reduction reduction;
    int root;
} one_call;

typedef struct mismatch {
    one_call most, odd;         /* rank 1 makes the odd call */
    const char *shown, *shown2; /* what the error must contain */
} mismatch;

static const mismatch cases[] = {
    {{ALL_REDUCE, 100, TUTTI_FLOAT32, TUTTI_SUM, 0},
     {ALL_GATHER, 100, TUTTI_FLOAT32, TUTTI_SUM, 0},
     "all_reduce",
     "all_gather"},
    {{BARRIER, 0, TUTTI_FLOAT32, TUTTI_SUM, 0}, {BROADCAST, 10, TUTTI_FLOAT32, TUTTI_SUM, 0}, "barrier", "broadcast"},
    {{ALL_REDUCE, 100, TUTTI_FLOAT32, TUTTI_SUM, 0}, {ALL_REDUCE, 101, TUTTI_FLOAT32, TUTTI_SUM, 0}, "100", "101"},
    {{ALL_REDUCE, 0, TUTTI_FLOAT32, TUTTI_SUM, 0}, {ALL_REDUCE, 7, TUTTI_FLOAT32, TUTTI_SUM, 0}, "0", "7"},
    {{ALL_REDUCE, 900, TUTTI_FLOAT32, TUTTI_SUM, 0}, {ALL_REDUCE, 3, TUTTI_FLOAT32, TUTTI_SUM, 0}, "900", "3"},
    {{ALL_REDUCE, 64, TUTTI_FLOAT32, TUTTI_SUM, 0}, {ALL_REDUCE, 64, TUTTI_INT32, TUTTI_SUM, 0}, "float32", "int32"},
    {{ALL_REDUCE, 64, TUTTI_INT32, TUTTI_SUM, 0}, {ALL_REDUCE, 64, TUTTI_INT32, TUTTI_MAX, 0}, "sum", "max"},
    {{REDUCE, 64, TUTTI_INT32, TUTTI_SUM, 0}, {REDUCE, 64, TUTTI_INT32, TUTTI_SUM, 1}, "root 0", "root 1"},
    {{BROADCAST, 64, TUTTI_INT32, TUTTI_SUM, 2}, {BROADCAST, 64, TUTTI_INT32, TUTTI_SUM, 1}, "root 2", "root 1"},
    {{GATHER, 64, TUTTI_INT32, TUTTI_SUM, 2}, {GATHER, 65, TUTTI_INT32, TUTTI_SUM, 2}, "64", "65"},
};

static tutti_status make(const one_call *c, tutti_comm *comm) {
    static _Thread_local int64_t src[MOST], dst[MOST_RANKS * MOST];
    switch (c->kind) {
    case ALL_REDUCE: return tutti_all_reduce(comm, src, dst, c->count, c->type, c->reduction, NULL);
    case REDUCE: return tutti_reduce(comm, src, dst, c->count, c->type, c->reduction, c->root, NULL);
    case BROADCAST: return tutti_broadcast(comm, src, c->count, c->type, c->root, NULL);
    case ALL_GATHER: return tutti_all_gather(comm, src, dst, c->count, c->type, NULL);
    case GATHER: return tutti_gather(comm, src, dst, c->count, c->type, c->root, NULL);
    default: return tutti_barrier(comm, NULL);
    }
}

/* The call itself may succeed on a rank that needs nothing from the odd rank: then the next call fails. */
static tutti_status expect_mismatch(const mismatch *m, int index, tutti_comm *comm, int rank) {
    tutti_status status = make(rank == 1 ? &m->odd : &m->most, comm);
    if (status == TUTTI_OK) status = tutti_barrier(comm, NULL);
    char text[1024];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "case %d: '%s' (%s)", index, tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, m->shown) != NULL && strstr(text, m->shown2) != NULL, "case %d: '%s' and '%s' not in: %s",
                index, m->shown, m->shown2, text);
    status = tutti_barrier(comm, NULL);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_BROKEN, "case %d, later: '%s'", index,
                tutti_status_name(status));
    return TUTTI_OK;
}

static tutti_status mismatches(ranks_context *context) {
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        tutti_comm *comm;
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
        tutti_status status = expect_mismatch(&cases[i], i, comm, context->rank);
        char text[1024];
        snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
        tutti_comm_destroy(comm);
        if (status != TUTTI_OK) return tutti_fail(status, "%s", text);
    }
    return tutti_barrier(context->comm, NULL);
}

static void run(ranks_body body) {
    setenv("TUTTI_CHUNK_BYTES", "512", 1);
    setenv("TUTTI_TIMEOUT_MS", "10000", 1);
    setenv("TUTTI_CPUS", "2", 1); /* the largest world counts arrivals */
    tutti_settings_reload();
    const char *failure = ranks_run_worlds((const int[]){3, 4, 6, 0}, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

Test(failure_mismatch, kind_count_type_reduction_and_root_are_compared) {
    run(mismatches);
}

/* Rank 1 expects one element more from rank 0 than rank 0 sends. */
static tutti_status wrong_v_count(ranks_context *context) {
    static _Thread_local int out[MOST_RANKS][8], in[MOST_RANKS][8];
    int n = context->nranks;
    const void *srcs[MOST_RANKS];
    void *dsts[MOST_RANKS];
    size_t src_counts[MOST_RANKS], dst_counts[MOST_RANKS];
    for (int i = 0; i < n; i++) {
        srcs[i] = out[i];
        dsts[i] = in[i];
        src_counts[i] = dst_counts[i] = 5;
    }
    if (context->rank == 1) dst_counts[0] = 6;
    tutti_status status = tutti_all_to_all_v(context->comm, srcs, src_counts, dsts, dst_counts, TUTTI_INT32, NULL);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "'%s' (%s)", tutti_status_name(status),
                status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(strchr(tutti_last_error(), '5') != NULL && strchr(tutti_last_error(), '6') != NULL,
                "5 and 6 are not shown: %s", tutti_last_error());
    return TUTTI_OK;
}

Test(failure_mismatch, counts_of_v_variants_are_compared_pairwise) {
    run(wrong_v_count);
}

/* One rank makes one call more than the other ranks, which go on to another kind of call. */
static tutti_status one_call_too_many(ranks_context *context) {
    int value = 0;
    if (context->rank == 2) value++;
    tutti_status status = tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL);
    if (context->rank == 2 && status == TUTTI_OK)
        status = tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_BROKEN, "'%s'", tutti_status_name(status));
    return TUTTI_OK;
}

Test(failure_mismatch, a_surplus_call_is_found_at_the_next_one) {
    run(one_call_too_many);
}
