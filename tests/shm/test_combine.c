/*
 * Ranks that share cores: results of short reductions, which the ranks compute together (comm/shm/coll/combine.c), and
 * what the others see when a rank comes too late or dies.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

static const char *const crowded[] = {"TUTTI_CPUS=2", NULL};
static const char *const small_chunks[] = {"TUTTI_CPUS=2", "TUTTI_CHUNK_BYTES=8192", NULL};

/* Around the limits: of a post (4160 bytes), a small chunk (8 KiB), a piece (128 KiB of all inputs), slices that their
 * ranks reduce (8 KiB, of 5 and 9 ranks), and the row. */
static const size_t sizes[] = {0,     4,     36,    44,    1024,  4156,  4160,  4164,  8192,   8196,
                               16384, 25600, 25664, 40940, 40960, 43692, 73692, 73728, 131072, 131076};

enum { LONG_BYTES = 20000 };  /* from here on only the first two cases, since the reference is slow */
enum { LONG_COUNT = 180000 }; /* more than a ring holds */

typedef struct kind_case {
    call_kind kind;
    tutti_type type;
    tutti_reduction reduction;
} kind_case;

static const kind_case cases[] = {
    {CALL_ALL_REDUCE, TUTTI_FLOAT32, TUTTI_SUM},        {CALL_REDUCE_SCATTER, TUTTI_FLOAT32, TUTTI_SUM},
    {CALL_ALL_REDUCE, TUTTI_BFLOAT16, TUTTI_AVG},       {CALL_REDUCE_SCATTER, TUTTI_INT8, TUTTI_MAX},
    {CALL_ALL_REDUCE, TUTTI_FLOAT64, TUTTI_PREMUL_SUM}, {CALL_REDUCE_SCATTER, TUTTI_FLOAT16, TUTTI_PREMUL_SUM},
};

/* Other kinds in between, with a root that need not wait: they use the same posts and slots. */
static tutti_status run_between(ranks_context *context, int turn) {
    int root = turn % context->nranks;
    call c = {.kind = turn % 3 == 0   ? CALL_BROADCAST
                      : turn % 3 == 1 ? CALL_GATHER
                                      : CALL_ALL_GATHER,
              .type = TUTTI_INT32,
              .count = (size_t)(turn * 37 % 3000),
              .root = root,
              .seed = (uint64_t)turn};
    if (turn % 37 == 36) c.count = LONG_COUNT;
    TUTTI_TRY(call_run(&c, context->comm));
    return turn % 5 == 0 ? tutti_barrier(context->comm, NULL) : TUTTI_OK;
}

static tutti_status compute(ranks_context *context) {
    int turn = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t k = 0; k < (sizes[s] < LONG_BYTES ? sizeof cases / sizeof *cases : 2); k++) {
            call c = {.kind = cases[k].kind, .type = cases[k].type, .reduction = cases[k].reduction, .seed = s + 1};
            c.count = sizes[s] / tutti_type_bytes(c.type);
            if (c.kind == CALL_REDUCE_SCATTER) c.count /= (size_t)context->nranks;
            c.in_place = (call_mode)((s + k) % CALL_MODES);
            c.shared = (call_mode)((s + k) / CALL_MODES % CALL_MODES);
            TUTTI_TRY(call_run(&c, context->comm));
            TUTTI_TRY(run_between(context, turn++));
        }
    return TUTTI_OK;
}

static void run(const char *const *environment, ranks_body body) {
    const char *failure = ranks_run_worlds((const int[]){5, 9, 0}, &(ranks_options){.environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

Test(combine, results_are_those_of_the_reference_at_every_limit) {
    ranks_adopt(crowded);
    run(crowded, compute);
}

Test(combine, vectors_longer_than_a_chunk_take_another_way) {
    ranks_adopt(small_chunks);
    run(small_chunks, compute);
}

/* Every pair of calls is as close as possible: a rank's next input must not reach a slow rank's last result. */
static tutti_status hurry(ranks_context *context) {
    enum { CALLS = 700, MOST = 9000 };
    static _Thread_local int32_t values[MOST];
    int n = context->nranks;
    for (int i = 0; i < CALLS; i++) {
        size_t count = (size_t)(i * 37 % MOST) + 1;
        for (size_t k = 0; k < count; k++) values[k] = context->rank + i;
        TUTTI_TRY(tutti_all_reduce(context->comm, values, values, count, TUTTI_INT32, TUTTI_SUM, NULL));
        int32_t expected = n * i + n * (n - 1) / 2;
        for (size_t k = 0; k < count; k++)
            RANKS_CHECK(values[k] == expected, "call %d, element %zu: %d, not %d", i, k, values[k], expected);
        if (i % 97 == context->rank) usleep(300); /* sometimes one is late */
    }
    return TUTTI_OK;
}

Test(combine, calls_in_a_row_do_not_mix) {
    ranks_adopt(crowded);
    const char *failure = ranks_run_worlds((const int[]){5, 9, 40, 0}, &(ranks_options){.environment = crowded}, hurry);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------ failures */

enum { LATE = 3, WAIT_MS = 300 };

/* The others have posted and given up when the late rank comes. It finds all inputs, and must fail all the same. */
static tutti_status come_late(ranks_context *context) {
    static _Thread_local float values[512];
    char done;
    size_t bytes;
    const tutti_store *store = context->store;
    bool is_late = context->rank == LATE;
    for (int r = 0; is_late && r < context->nranks; r++) {
        char key[16];
        snprintf(key, sizeof key, "gone %d", r);
        if (r != LATE) TUTTI_TRY(store->get(store->context, key, &done, 1, &bytes, 20000));
    }
    tutti_status status = tutti_all_reduce(context->comm, values, values, 512, TUTTI_FLOAT32, TUTTI_SUM,
                                           &TUTTI_OPTIONS(.timeout_ms = is_late ? 10000 : WAIT_MS));
    char text[1200], key[16];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    if (!is_late) {
        RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status), text);
        RANKS_CHECK(strstr(text, "rank 3") != NULL, "the late rank is not named: %s", text);
        snprintf(key, sizeof key, "gone %d", context->rank);
        return store->set(store->context, key, "", 0);
    }
    RANKS_CHECK(status != TUTTI_OK, "the late rank took a call for good that the others had given up");
    return TUTTI_OK;
}

Test(combine, a_rank_that_comes_after_the_others_have_given_up_fails_too) {
    ranks_adopt(crowded);
    const char *failure = ranks_run_worlds((const int[]){6, 0}, &(ranks_options){.environment = crowded}, come_late);
    cr_assert(failure == NULL, "%s", failure);
}

/* Rank 2 is killed at a random time between or inside calls; the others get an error, and no wrong result. */
static tutti_status lose_one(ranks_context *context) {
    enum { COUNT = 12000 };
    static int32_t values[COUNT];
    unsigned seed = (unsigned)getpid();
    int calls = context->rank == 2 ? 20 + rand_r(&seed) % 200 : 1000000;
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < calls && status == TUTTI_OK; i++) {
        for (size_t k = 0; k < COUNT; k++) values[k] = 1;
        status = tutti_all_reduce(context->comm, values, values, COUNT, TUTTI_INT32, TUTTI_SUM, NULL);
        if (status != TUTTI_OK) break;
        for (size_t k = 0; k < COUNT; k++) RANKS_CHECK(values[k] == context->nranks, "element %zu is %d", k, values[k]);
    }
    if (context->rank == 2) ranks_strike(context, SIGKILL);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED || status == TUTTI_ERR_BROKEN, "'%s'", tutti_status_name(status));
    RANKS_CHECK(strstr(tutti_last_error(), "rank 2") != NULL, "not named: %s", tutti_last_error());
    return TUTTI_OK;
}

Test(combine, survivors_of_a_death_get_an_error) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    for (int i = 0; i < 5; i++) {
        const char *failure =
            ranks_run(&(ranks_options){.nranks = 6, .timeout_s = 30, .environment = crowded}, lose_one);
        cr_assert(failure == NULL, "%s", failure);
    }
}
