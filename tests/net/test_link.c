/*
 * Links between ranks, the layer below the algorithms between hosts: over ready connections or made when first used.
 * How they fail and end is in test_link_failure.c.
 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "comm/net/link.h"
#include "tests/support/links/links.h"
#include "tests/support/reference.h"

static const size_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 131071, 131072, 131073, 3000001};

static tutti_status ring_exchange(ranks_context *context) {
    links_stage s;
    TUTTI_TRY(links_set_up(context, &s));
    int to = (context->rank + 1) % context->nranks, from = (context->rank + context->nranks - 1) % context->nranks;
    char *mine = malloc(sizes[TUTTI_COUNT_OF(sizes) - 1]), *theirs = malloc(sizes[TUTTI_COUNT_OF(sizes) - 1]);
    tutti_status status = TUTTI_OK;
    for (size_t first = 0; first < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; first++) {
        for (size_t i = 0; i < TUTTI_COUNT_OF(sizes) && status == TUTTI_OK; i++) {
            size_t bytes = sizes[(first + i) % TUTTI_COUNT_OF(sizes)];
            links_fill(mine, context->rank, bytes);
            status = tutti_link_exchange(&s.rail, to, mine, bytes, from, theirs, bytes);
            if (status == TUTTI_OK) status = links_compare(theirs, from, bytes);
        }
        links_next_op(&s);
    }
    free(mine);
    free(theirs);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, exchanges_every_size_first_in_an_operation_and_later) {
    const char *failure = links_run_worlds(&(links_setting){0}, ring_exchange);
    cr_assert_null(failure, "%s", failure);
}

/* Two ranks: both send their input and fold the other's into their own. */
static tutti_status fold_one(links_stage *s, tutti_fold fold, size_t count) {
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
    static const size_t counts[] = {0, 1, 512, 1025, 9000, 70001, 262144, 300002};
    links_stage s;
    TUTTI_TRY(links_set_up(context, &s));
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (int reduction = 0; reduction < TUTTI_REDUCTION_COUNT; reduction++) {
            if (reduction == TUTTI_AVG || reduction == TUTTI_PREMUL_SUM) continue;
            if (!reference_supports((tutti_type)type, (tutti_reduction)reduction)) continue;
            bool also_long = type == TUTTI_FLOAT32 || (type == TUTTI_BFLOAT16 && reduction == TUTTI_SUM);
            for (size_t i = 0; i < (also_long ? TUTTI_COUNT_OF(counts) : 5); i++) {
                if (i % 2 == 0) links_next_op(&s);
                TUTTI_TRY(fold_one(&s, (tutti_fold){(tutti_type)type, (tutti_reduction)reduction}, counts[i]));
            }
        }
    tutti_link_close_all(context->comm);
    return TUTTI_OK;
}

Test(link, folds_what_comes_for_all_types_and_reductions) {
    const char *failure = links_run(2, RANKS_THREADS, &(links_setting){0}, fold_all);
    cr_assert_null(failure, "%s", failure);
}

static tutti_status ring_by_doors(ranks_context *context) {
    links_doors d;
    links_stage s;
    char mine[5000], theirs[sizeof mine];
    TUTTI_TRY(links_open_doors(context, &d));
    TUTTI_TRY(links_set_up(context, &s));
    tutti_status status = TUTTI_OK;
    for (int step = 1; step < context->nranks && status == TUTTI_OK; step++) {
        int to = (context->rank + step) % context->nranks;
        int from = (context->rank + context->nranks - step) % context->nranks;
        status = links_exchange_by_doors(&s, &d, to, mine, from, theirs, sizeof mine);
    }
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, is_made_when_it_is_first_used) {
    const char *failure = links_run_worlds(&(links_setting){.by_doors = true}, ring_by_doors);
    cr_assert_null(failure, "%s", failure);
}

/* -------------------------------------------------------------------------------------------- many at once */

static tutti_status move_all(ranks_context *context) {
    enum { MOST = 70000 };
    links_stage s;
    tutti_link_part parts[2 * LINKS_MOST_RANKS];
    char *memory = malloc(2 * LINKS_MOST_RANKS * MOST);
    tutti_status status = links_set_up(context, &s);
    for (size_t bytes = 0; bytes <= MOST && status == TUTTI_OK; bytes = bytes * 17 + 3, links_next_op(&s)) {
        int nparts = 0;
        for (int rank = 0; rank < context->nranks; rank++) {
            char *in = memory + (size_t)rank * 2 * MOST, *out = in + MOST;
            if (rank == context->rank) continue;
            links_fill(out, context->rank, bytes);
            parts[nparts++] = (tutti_link_part){.rank = rank, .sends = true, .data = out, .bytes = bytes};
            parts[nparts++] = (tutti_link_part){.rank = rank, .sends = false, .data = in, .bytes = bytes};
        }
        status = tutti_link_move(&s.rail, parts, nparts);
        for (int rank = 0; rank < context->nranks && status == TUTTI_OK; rank++)
            if (rank != context->rank) status = links_compare(memory + (size_t)rank * 2 * MOST, rank, bytes);
    }
    free(memory);
    tutti_link_close_all(context->comm);
    return status;
}

Test(link, moves_many_parts_at_once) {
    const char *failure = links_run_worlds(&(links_setting){0}, move_all);
    cr_assert_null(failure, "%s", failure);
}
