/*
 * Redistribution by reading: ranks of a host copy directly from each other's shards. Tests when that is chosen, that
 * unreadable shards are sent by messages, that no rank reads or writes too early, and that a rank which is lost
 * during the call is named.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tutti/tensor.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

TestSuite(tensor_reads, .timeout = 120);

enum { MOST = 4, ROUNDS = 20 };

static const int worlds[] = {2, 3, 4, 0};

/* The tensors of a plan: S0 to S1. */
typedef struct kit {
    int count;
    tutti_placement *all;
    tutti_tensor *srcs[MOST], *dsts[MOST];
    tutti_plan *plan;
    int64_t shapes[MOST][2];
    void *private[2 * MOST];
} kit;

static tutti_layout layout_of(kit *k, int i, const tutti_sbp *sbp) {
    return TUTTI_LAYOUT(.placement = k->all, .sbp = sbp, .type = TUTTI_INT32, .ndims = 2, .shape = k->shapes[i],
                        .name = "weight");
}

static tutti_status make_kit(const ranks_context *context, int count, int64_t rows, int64_t columns, kit *k) {
    static const tutti_sbp cut[] = {TUTTI_SPLIT(0), TUTTI_SPLIT(1)};
    tutti_layout layouts[2 * MOST];
    *k = (kit){.count = count};
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &context->nranks, 1, &k->all));
    for (int i = 0; i < count; i++) {
        k->shapes[i][0] = rows + i;
        k->shapes[i][1] = columns + 3 * i;
        layouts[i] = layout_of(k, i, &cut[0]);
        layouts[count + i] = layout_of(k, i, &cut[1]);
        TUTTI_TRY(tutti_tensor_create(&layouts[i], &k->srcs[i]));
        TUTTI_TRY(tutti_tensor_create(&layouts[count + i], &k->dsts[i]));
    }
    return tutti_plan_create(layouts, layouts + count, (size_t)count, &k->plan);
}

static void destroy_kit(kit *k) {
    tutti_plan_destroy(k->plan);
    for (int i = 0; i < k->count; i++) {
        tutti_tensor_destroy(k->srcs[i]);
        tutti_tensor_destroy(k->dsts[i]);
    }
    for (int i = 0; i < 2 * MOST; i++) free(k->private[i]);
    tutti_placement_destroy(k->all);
}

static tutti_status run_plan(kit *k, int64_t timeout_ms) {
    return tutti_plan_run(k->plan, (const tutti_tensor *const *)k->srcs, k->dsts,
                          &TUTTI_OPTIONS(.timeout_ms = timeout_ms));
}

static int32_t value_of(int tensor, int round, int64_t row, int64_t column) {
    return (int32_t)(tensor * 7919 + round * 104729 + row * 2003 + column);
}

static tutti_status write_sources(kit *k, int round) {
    tutti_local local;
    for (int i = 0; i < k->count; i++) {
        TUTTI_TRY(tutti_tensor_local(k->srcs[i], &local));
        for (size_t e = 0; e < local.count; e++)
            ((int32_t *)local.data)[e] = value_of(i, round, local.first[0] + (int64_t)e / local.shape[1],
                                                  local.first[1] + (int64_t)e % local.shape[1]);
    }
    return TUTTI_OK;
}

static tutti_status check_targets(kit *k, int round) {
    tutti_local local;
    for (int i = 0; i < k->count; i++) {
        TUTTI_TRY(tutti_tensor_local(k->dsts[i], &local));
        for (size_t e = 0; e < local.count; e++) {
            int64_t row = local.first[0] + (int64_t)e / local.shape[1],
                    column = local.first[1] + (int64_t)e % local.shape[1];
            int32_t got = ((const int32_t *)local.data)[e], value = value_of(i, round, row, column);
            RANKS_CHECK(got == value, "round %d, tensor %d: [%lld,%lld] is %d, not %d", round, i, (long long)row,
                        (long long)column, got, value);
        }
    }
    return TUTTI_OK;
}

static tutti_status describe(const kit *k, bool *reads_out) {
    char text[200];
    TUTTI_TRY(tutti_plan_describe(k->plan, text, sizeof text));
    *reads_out = strstr(text, " by reading: ") != NULL;
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------------- without a fault */

/* Each rank overwrites its shards as soon as a call has returned. Small sizes, and sizes that exceed the caches. */
static tutti_status rewrite_at_once(ranks_context *context) {
    static const int64_t sides[] = {101, 1800};
    for (int s = 0; s < 2; s++) {
        kit k;
        bool reads;
        TUTTI_TRY(make_kit(context, s == 0 ? 3 : 1, sides[s], sides[s] + 30, &k));
        TUTTI_TRY(describe(&k, &reads));
        RANKS_CHECK(reads, "tensors of %lld rows do not go by reading", (long long)sides[s]);
        for (int round = 0; round < (s == 0 ? ROUNDS : 3); round++) {
            TUTTI_TRY(write_sources(&k, round));
            TUTTI_TRY(run_plan(&k, 0));
            TUTTI_TRY(check_targets(&k, round));
        }
        destroy_kit(&k);
    }
    return TUTTI_OK;
}

Test(tensor_reads, shards_may_be_overwritten_once_the_call_has_returned) {
    const char *failure = ranks_run_worlds(worlds, NULL, rewrite_at_once);
    cr_assert(failure == NULL, "%s", failure);
}

/* In each round other ranks have shards in malloc'd memory. */
static tutti_status mix_memory(ranks_context *context) {
    static const tutti_sbp cut[] = {TUTTI_SPLIT(0), TUTTI_SPLIT(1)};
    kit k;
    bool reads;
    TUTTI_TRY(make_kit(context, 3, 130, 170, &k));
    TUTTI_TRY(describe(&k, &reads));
    RANKS_CHECK(reads, "the plan does not read");
    for (int round = 0; round < ROUNDS; round++) {
        int i = round % 3,
            side = round / 3 % 2; /* this rank's if it is its turn; in every fourth round it is no rank's */
        if (round % 4 != 3 && round % context->nranks == context->rank && k.private[side * MOST + i] == NULL) {
            tutti_tensor **tensor = side == 0 ? &k.srcs[i] : &k.dsts[i];
            tutti_layout layout = layout_of(&k, i, &cut[side]);
            tutti_local local;
            TUTTI_TRY(tutti_tensor_local(*tensor, &local));
            void *memory = malloc(local.count * sizeof(int32_t));
            RANKS_CHECK(memory != NULL, "no memory");
            tutti_tensor_destroy(*tensor);
            TUTTI_TRY(tutti_tensor_wrap(&layout, memory, tensor));
            k.private[side * MOST + i] = memory;
        } else if (round % 4 == 3 && k.private[i] != NULL) { /* and back */
            tutti_layout layout = layout_of(&k, i, &cut[0]);
            tutti_tensor_destroy(k.srcs[i]);
            free(k.private[i]);
            k.private[i] = NULL;
            TUTTI_TRY(tutti_tensor_create(&layout, &k.srcs[i]));
        }
        TUTTI_TRY(write_sources(&k, round));
        TUTTI_TRY(run_plan(&k, 0));
        TUTTI_TRY(check_targets(&k, round));
    }
    destroy_kit(&k);
    return TUTTI_OK;
}

Test(tensor_reads, unreadable_shards_are_sent_by_messages) {
    const char *failure = ranks_run_worlds(worlds, NULL, mix_memory);
    cr_assert(failure == NULL, "%s", failure);
}

/* Much of it is packed for the others to read; with TUTTI_PLAN=reads all of it. */
Test(tensor_reads, shards_that_cannot_be_read_are_packed_to_be_read) {
    static const char *const reads[] = {"TUTTI_PLAN=reads", NULL};
    for (int i = 0; worlds[i] != 0 && ranks_have_processes(); i++) {
        const char *failure = ranks_run(&(ranks_options){.nranks = worlds[i], .environment = reads}, mix_memory);
        cr_assert(failure == NULL, "%d ranks: %s", worlds[i], failure);
    }
}

/* With default settings: 9 MiB on 3 ranks; rank 1's shard cannot be read. */
static tutti_status pack_much(ranks_context *context) {
    static const tutti_sbp rows = TUTTI_SPLIT(0);
    kit k;
    TUTTI_TRY(make_kit(context, 1, 1500, 1600, &k));
    if (context->rank == 1) {
        tutti_layout layout = layout_of(&k, 0, &rows);
        tutti_local local;
        TUTTI_TRY(tutti_tensor_local(k.srcs[0], &local));
        tutti_tensor_destroy(k.srcs[0]);
        k.private[0] = malloc(local.count * sizeof(int32_t));
        RANKS_CHECK(k.private[0] != NULL, "no memory");
        TUTTI_TRY(tutti_tensor_wrap(&layout, k.private[0], &k.srcs[0]));
    }
    for (int round = 0; round < 4; round++) {
        TUTTI_TRY(write_sources(&k, round));
        TUTTI_TRY(run_plan(&k, 0));
        TUTTI_TRY(check_targets(&k, round));
    }
    destroy_kit(&k);
    return TUTTI_OK;
}

Test(tensor_reads, one_rank_packs_while_others_are_read_in_place) {
    static const int three[] = {3, 0};
    const char *failure = ranks_run_worlds(three, NULL, pack_much);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status read_tiny_ones(ranks_context *context) {
    kit k;
    bool reads;
    TUTTI_TRY(make_kit(context, 1, 5, 7, &k));
    TUTTI_TRY(describe(&k, &reads));
    destroy_kit(&k);
    RANKS_CHECK(!reads, "two more meetings for 140 bytes");
    return TUTTI_OK;
}

Test(tensor_reads, tiny_tensors_are_sent_by_messages) {
    const char *failure = ranks_run_worlds(worlds, NULL, read_tiny_ones);
    cr_assert(failure == NULL, "%s", failure);
}

/* Rows that move unchanged from rank to rank need no packing, so no synchronisation. */
static tutti_status move_rows(ranks_context *context) {
    static const tutti_sbp rows = TUTTI_SPLIT(0);
    int64_t shape[] = {400, 300}, cuts[] = {0, 30, 400, 400, 400};
    const int64_t *const other[] = {cuts, NULL};
    int n = context->nranks;
    char text[200];
    tutti_placement *all;
    tutti_plan *plan;
    cuts[n] = 400;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &all));
    tutti_layout src = TUTTI_LAYOUT(.placement = all, .sbp = &rows, .type = TUTTI_INT32, .ndims = 2, .shape = shape),
                 dst = src;
    dst.cuts = other;
    TUTTI_TRY(tutti_plan_create(&src, &dst, 1, &plan));
    TUTTI_TRY(tutti_plan_describe(plan, text, sizeof text));
    tutti_plan_destroy(plan);
    tutti_placement_destroy(all);
    RANKS_CHECK(strstr(text, "reading") == NULL, "'%s'", text);
    return TUTTI_OK;
}

Test(tensor_reads, contiguous_tensors_are_sent_by_messages) {
    const char *failure = ranks_run_worlds(worlds, NULL, move_rows);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------- a rank is lost during
 * the call */

enum { VICTIM = 1, RANKS = 3, TIMEOUT_MS = 600, LARGE = 1500 };

static struct scene {
    int signal_number, delay_us;
    atomic_llong since_ns;
    atomic_int given_up;
} * scene; /* shared memory */

static void *strike_later(void *argument) {
    const ranks_context *context = argument;
    usleep((useconds_t)scene->delay_us);
    atomic_store(&scene->since_ns, tutti_now_ns());
    ranks_strike(context, scene->signal_number);
    return NULL;
}

static tutti_status be_lost(ranks_context *context, kit *k) {
    pthread_t striker;
    tutti_status status = TUTTI_OK;
    RANKS_CHECK(pthread_create(&striker, NULL, strike_later, context) == 0, "no thread");
    int64_t end_ns = tutti_now_ns() + 15 * INT64_C(1000000000);
    while (status == TUTTI_OK && tutti_now_ns() < end_ns) status = run_plan(k, TIMEOUT_MS);
    pthread_join(striker, NULL);
    RANKS_CHECK(status != TUTTI_OK, "the victim's calls went well although the others had given up");
    return TUTTI_OK;
}

static tutti_status lose_one(ranks_context *context) {
    kit k;
    TUTTI_TRY(make_kit(context, 1, LARGE, LARGE + 100, &k));
    TUTTI_TRY(write_sources(&k, 0));
    TUTTI_TRY(run_plan(&k, 0));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        TUTTI_TRY(be_lost(context, &k));
        destroy_kit(&k);
        return TUTTI_OK;
    }
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK) status = run_plan(&k, TIMEOUT_MS);
    double after_s = (double)(tutti_now_ns() - atomic_load(&scene->since_ns)) / 1e9;
    bool dies = scene->signal_number == SIGKILL;
    RANKS_CHECK(status == (dies ? TUTTI_ERR_PEER_DIED : TUTTI_ERR_TIMEOUT), "rank %d got '%s' (%s)", context->rank,
                tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "rank 1") != NULL && strstr(tutti_last_error(), "'weight'") != NULL,
                "rank or tensor are not named: %s", tutti_last_error());
    RANKS_CHECK(after_s < (dies ? 2.5 : 5.0), "an error after %.2f s", after_s);
    RANKS_CHECK(run_plan(&k, TIMEOUT_MS) != TUTTI_OK, "a later call went well");
    destroy_kit(&k); /* frees what the victim may still read */
    atomic_fetch_add(&scene->given_up, 1);
    while (atomic_load(&scene->given_up) < RANKS - 1) usleep(1000);
    if (context->rank == 0 && !dies) kill(ranks_pid(context, VICTIM), SIGCONT);
    return TUTTI_OK;
}

static void lose_at_any_moment(int signal_number, int runs) {
    static const char *const impatient[] = {"TUTTI_STALL_MS=60000", "TUTTI_TIMEOUT_MS=10000", NULL};
    if (!ranks_have_processes()) return;
    scene = mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(scene, MAP_FAILED);
    for (int i = 0; i < runs; i++) {
        *scene = (struct scene){.signal_number = signal_number, .delay_us = 5000 + 1370 * i};
        const char *failure =
            ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 30, .environment = impatient}, lose_one);
        cr_assert(failure == NULL, "after %d us: %s", scene->delay_us, failure);
    }
}

Test(tensor_reads, a_rank_that_dies_during_the_call_is_named) {
    lose_at_any_moment(SIGKILL, 8);
}

Test(tensor_reads, a_rank_that_stops_during_the_call_is_named) {
    lose_at_any_moment(SIGSTOP, 4);
}
