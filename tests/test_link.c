/*
 * Links between ranks: what the algorithms between hosts are written in, over ready connections.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/arena.h"
#include "comm/comm.h"
#include "comm/hosts.h"
#include "comm/link.h"
#include "tests/support/mesh.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

#define MOST_RANKS 4

/* What a body runs on: links to everyone, and a rail of all ranks. */
typedef struct setting {
    mesh *sockets;
    bool process, by_doors;
} setting;

typedef struct stage {
    tutti_op op;
    tutti_rail rail;
    int ranks[MOST_RANKS];
} stage;

static tutti_status set_up(ranks_context *context, stage *s) {
    setting *given = context->argument;
    memset(s, 0, sizeof *s);
    if (!given->by_doors) TUTTI_TRY(mesh_adopt(given->sockets, context->comm, given->process));
    for (int rank = 0; rank < context->nranks; rank++) s->ranks[rank] = rank;
    s->op = (tutti_op){.kind = TUTTI_KIND_ALL_REDUCE,
                       .type = TUTTI_FLOAT32,
                       .reduction = TUTTI_SUM,
                       .count = 1,
                       .signature = 77,
                       .sequence = 1};
    s->rail =
        (tutti_rail){.comm = context->comm, .op = &s->op, .n = context->nranks, .me = context->rank, .ranks = s->ranks};
    return TUTTI_OK;
}

static void next_op(stage *s) {
    s->op.sequence++;
    s->op.signature += 1000;
    tutti_patience_begin(s->rail.comm, &s->op);
}

static const char *run(int nranks, ranks_kind kind, setting *given, ranks_body body) {
    const char *failure = "no sockets";
    given->process = kind == RANKS_PROCESSES;
    given->sockets = mesh_create(nranks, MESH_TCP);
    if (given->sockets != NULL)
        failure = ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .argument = given}, body);
    mesh_destroy(given->sockets);
    return failure;
}

/* In worlds of 2 to MOST_RANKS, as processes and then as threads: who has used the library cannot fork ranks. */
static const char *run_worlds(setting *given, ranks_body body) {
    static char text[2300];
    for (ranks_kind kind = RANKS_PROCESSES; kind <= RANKS_THREADS; kind++)
        for (int nranks = 2; nranks <= MOST_RANKS && (kind == RANKS_THREADS || ranks_have_processes()); nranks++) {
            const char *failure = run(nranks, kind, given, body);
            if (failure == NULL) continue;
            snprintf(text, sizeof text, "%d %s: %s", nranks, kind == RANKS_THREADS ? "threads" : "processes", failure);
            return text;
        }
    return NULL;
}

static char pattern(int rank, size_t at) {
    return (char)((size_t)rank * 31 + at * 7 + at / 251);
}

static void fill(char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(rank, i);
}

static tutti_status compare(const char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        RANKS_CHECK(data[i] == pattern(rank, i), "byte %zu of %zu from rank %d is wrong", i, bytes, rank);
    return TUTTI_OK;
}

static const size_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 131071, 131072, 131073, 3000001};

static tutti_status ring_exchange(ranks_context *context) {
    stage s;
    TUTTI_TRY(set_up(context, &s));
    int to = (context->rank + 1) % context->nranks, from = (context->rank + context->nranks - 1) % context->nranks;
    char *mine = malloc(sizes[TUTTI_COUNT_OF(sizes) - 1]), *theirs = malloc(sizes[TUTTI_COUNT_OF(sizes) - 1]);
    tutti_status status = TUTTI_OK;
    for (size_t first = 0; first < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; first++) {
        for (size_t i = 0; i < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; i++) {
            size_t bytes = sizes[(first + i) % TUTTI_COUNT_OF(sizes)];
            fill(mine, context->rank, bytes);
            status = tutti_link_exchange(&s.rail, to, mine, bytes, from, theirs, bytes);
            if (status == TUTTI_OK) status = compare(theirs, from, bytes);
        }
        next_op(&s);
    }
    free(mine);
    free(theirs);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, exchanges_every_size_first_in_an_operation_and_later) {
    const char *failure = run_worlds(&(setting){0}, ring_exchange);
    cr_assert_null(failure, "%s", failure);
}

/* Two ranks: both send their input and fold the other's into their own. */
static tutti_status fold_one(stage *s, tutti_fold fold, size_t count) {
    size_t bytes = count * tutti_type_bytes(fold.type);
    int me = s->rail.me, peer = 1 - me;
    char *memory = malloc(4 * bytes + 4);
    char *src = memory, *acc = src + bytes, *theirs = acc + bytes, *expected = theirs + bytes;
    reference_fill(src, count, fold.type, fold.reduction, 5, me, 0);
    reference_fill(acc, count, fold.type, fold.reduction, 5, me, 1);
    reference_fill(theirs, count, fold.type, fold.reduction, 5, peer, 0);
    reference_reduce(expected, (const void *[]){acc, theirs}, 2, count, fold.type, fold.reduction);
    tutti_status status = count % 2 == 0 || me == 0
                              ? tutti_link_exchange_reduce(&s->rail, peer, src, bytes, peer, acc, count, fold)
                              : tutti_link_send(&s->rail, peer, src, bytes);
    if (status == TUTTI_OK && count % 2 != 0 && me == 1)
        status = tutti_link_recv_reduce(&s->rail, peer, acc, count, fold);
    size_t wrong = status == TUTTI_OK ? reference_compare(acc, expected, count, fold.type) : count;
    free(memory);
    RANKS_CHECK(wrong == count, "%s %s of %zu: element %zu is wrong", tutti_type_name(fold.type),
                tutti_reduction_name(fold.reduction), count, wrong);
    return status;
}

static tutti_status fold_all(ranks_context *context) {
    static const size_t counts[] = {0, 1, 512, 1025, 70001, 262144, 300002};
    stage s;
    TUTTI_TRY(set_up(context, &s));
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (int reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++) {
            if (reduction == TUTTI_AVG || reduction == TUTTI_PREMUL_SUM) continue;
            if (!reference_supports((tutti_type)type, (tutti_reduction)reduction)) continue;
            for (size_t i = 0; i < TUTTI_COUNT_OF(counts); i++) {
                if (i % 2 == 0) next_op(&s);
                TUTTI_TRY(fold_one(&s, (tutti_fold){(tutti_type)type, (tutti_reduction)reduction}, counts[i]));
            }
        }
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link, folds_what_comes_for_all_types_and_reductions) {
    const char *failure = run(2, RANKS_THREADS, &(setting){0}, fold_all);
    cr_assert_null(failure, "%s", failure);
}

/* ------------------------------------------------------------------------------------ made when first used */

/* As if every rank were a host of its own: all connect by their doors. */
static tutti_status ring_by_doors(ranks_context *context) {
    tutti_comm *comm = context->comm;
    tutti_door_card own, cards[MOST_RANKS];
    stage s;
    char mine[5000], theirs[sizeof mine];
    TUTTI_TRY(tutti_door_add_key("key", 3));
    TUTTI_TRY(tutti_door_open(&own));
    TUTTI_TRY(tutti_all_gather(comm, &own, cards, sizeof own, TUTTI_UINT8, NULL));
    tutti_hosts hosts = {.nhosts = context->nranks, .host = context->rank, .doors = cards};
    TUTTI_TRY(set_up(context, &s));
    tutti_status status = TUTTI_OK;
    for (int step = 1; step < context->nranks && status == TUTTI_OK; step++) {
        int to = (context->rank + step) % context->nranks;
        int from = (context->rank + context->nranks - step) % context->nranks;
        fill(mine, context->rank, sizeof mine);
        comm->hosts = &hosts;
        status = tutti_link_exchange(&s.rail, to, mine, sizeof mine, from, theirs, sizeof mine);
        comm->hosts = NULL;
        if (status == TUTTI_OK) status = compare(theirs, from, sizeof mine);
    }
    if (status == TUTTI_OK) status = tutti_barrier(comm, NULL);
    tutti_link_close_all(comm);
    return status;
}

Test(link, is_made_when_it_is_first_used) {
    const char *failure = run_worlds(&(setting){.by_doors = true}, ring_by_doors);
    cr_assert_null(failure, "%s", failure);
}
