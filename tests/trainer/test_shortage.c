/*
 * Memory that one rank alone lacks while all ranks make something together: whichever allocation fails, all ranks get
 * an error at once, the communicator is whole, and the next try succeeds.
 *
 * This program has a calloc of its own, which fails once when it is armed: first on the first call, then on the second,
 * until none is left.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/ddp.h>

#include "tests/support/modes.h"
#include "tests/support/ranks.h"
#include "tests/trainer/train_library.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#error "the sanitizers have a calloc of their own"
#endif

/* Calls that succeed until one fails, from 1; 0: all succeed. Each rank's own, also where ranks are threads. */
static _Thread_local __attribute__((tls_model("initial-exec"))) int calls_left;

void *__libc_calloc(size_t count, size_t bytes);
void *calloc(size_t count, size_t bytes);

void *calloc(size_t count, size_t bytes) {
    if (calls_left > 0 && --calls_left == 0) return NULL;
    return __libc_calloc(count, bytes);
}

typedef tutti_status (*making)(ranks_context *context);

enum { SHORT = 1, MOST_TRIES = 1000 };

/* `text`: of this rank's error. */
static tutti_status check_failure(const ranks_context *context, int try, tutti_status status, const char *text) {
    const bool is_short = context->rank == SHORT;
    RANKS_CHECK(status != TUTTI_OK, "try %d: rank %d had no memory, and rank %d got no error", try, SHORT,
                context->rank);
    RANKS_CHECK(is_short ? status == TUTTI_ERR_MEMORY : status != TUTTI_ERR_TIMEOUT && strstr(text, "rank 1") != NULL,
                "try %d: '%s' (%s)", try, tutti_status_name(status), text);
    return TUTTI_OK;
}

/* The first allocation comes before the exchange. The rank that lacks it has not begun, as in any collective. */
static tutti_status split(ranks_context *context) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, 0, NULL, &comm));
    tutti_status status = tutti_barrier(comm, NULL);
    tutti_comm_destroy(comm);
    return status;
}

static tutti_status run_short(ranks_context *context) {
    making make = *(making *)context->argument;
    for (int try = make == split ? 2 : 1; try < MOST_TRIES; try++) {
        if (context->rank == SHORT) calls_left = try;
        tutti_status status = make(context);
        int of_short[] = {status, calls_left > 0 /* no allocation is left to fail */};
        calls_left = 0;
        char text[1024];
        snprintf(text, sizeof text, "%s", tutti_last_error());
        TUTTI_TRY(tutti_broadcast(context->comm, of_short, 2, TUTTI_INT32, SHORT, NULL));
        if (of_short[0] != TUTTI_OK) TUTTI_TRY(check_failure(context, try, status, text));
        else if (status != TUTTI_OK || of_short[1]) return status;
    }
    return tutti_fail(TUTTI_ERR_DATA, "after %d tries there is still an allocation that fails", MOST_TRIES);
}

static void run(making make) {
    run_modes((const int[]){2, 3, 0}, RANKS_THREADS, run_short, &make);
}

static tutti_status split_again(ranks_context *context) {
    tutti_comm *comm;
    if (context->rank == SHORT) {
        calls_left = 1;
        RANKS_EXPECT(TUTTI_ERR_MEMORY, tutti_comm_split(context->comm, 0, 0, NULL, &comm));
    }
    return split(context);
}

Test(shortage, a_rank_that_could_not_begin_a_split_may_try_again) {
    run_modes((const int[]){2, 3, 0}, RANKS_THREADS, split_again, NULL);
}

Test(shortage, a_split_fails_on_all_ranks_and_the_next_one_succeeds, .timeout = 120) {
    run(split);
}

static _Thread_local float values[100];

static tutti_status step(tutti_ddp *ddp) {
    for (size_t i = 0; i < 2; i++) {
        tutti_status status = tutti_ddp_ready(ddp, i);
        if (status != TUTTI_ERR_MEMORY) TUTTI_TRY(status); /* else finish tries again */
    }
    return tutti_ddp_finish(ddp);
}

/* The buckets are laid out anew after the first step: a rank that fails there leaves them as they are on all ranks. */
static tutti_status make_ddp(ranks_context *context) {
    const tutti_ddp_parameter model[] = {{"a", values, 10, TUTTI_FLOAT32}, {"b", values + 50, 20, TUTTI_FLOAT32}};
    tutti_ddp *ddp;
    TUTTI_TRY(tutti_ddp_create(context->comm, model, 2, NULL, &ddp));
    tutti_status first = step(ddp), second = step(ddp);
    tutti_ddp_destroy(ddp);
    return second != TUTTI_OK ? tutti_fail(TUTTI_ERR_DATA, "the second step: %s", tutti_last_error()) : first;
}

Test(shortage, an_engine_of_ddp_is_made_and_laid_out_on_all_ranks_or_none, .timeout = 120) {
    run(make_ddp);
}

/* On a communicator of its own, which breaks where the rank fails late. It is destroyed when all ranks have returned,
 * so that none of them learns of the failure by that. */
static tutti_status open_trainer(ranks_context *context) {
    int calls = calls_left;
    tutti_comm *comm;
    tutti_trainer *trainer = NULL;
    calls_left = 0;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, 0, NULL, &comm));
    calls_left = calls;
    tutti_status status = tutti_train_open(comm, &TUTTI_TRAIN_MODEL(.layers = layers, .nlayers = 2),
                                           &TUTTI_TRAIN_DATA(.folder = folder), &plain, &trainer);
    calls = calls_left;
    calls_left = 0;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    calls_left = calls;
    tutti_train_close(trainer);
    tutti_comm_destroy(comm);
    return status;
}

Test(shortage, a_trainer_is_opened_on_all_ranks_or_none, .init = make_folder, .fini = remove_folder, .timeout = 120) {
    making make = open_trainer;
    expect_ranks(2, run_short, &make);
}
