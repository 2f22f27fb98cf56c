/*
 * A rank's process ends: each rank that still needs it gets "peer died", with rank and pid, within two seconds.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

enum { VICTIM = 1 };

typedef struct scene {
    call call;
    bool inside; /* the victim dies within the call, otherwise before it */
    atomic_llong died_ns;
} scene;

static scene *stage; /* shared memory */

static void set_stage(void) {
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(stage, MAP_FAILED);
}

static void *die_soon(void *context) {
    usleep(30000);
    atomic_store(&stage->died_ns, tutti_now_ns());
    ranks_strike(context, SIGKILL);
    return NULL;
}

/* Checks the error of a survivor; `status` is the result of its first failing call. */
static tutti_status check_error(const ranks_context *context, tutti_status status) {
    char name[32], pid[32], text[1024];
    double after_s = (double)(tutti_now_ns() - atomic_load(&stage->died_ns)) / 1e9;
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    snprintf(name, sizeof name, "rank %d", VICTIM);
    snprintf(pid, sizeof pid, "%d", ranks_pid(context, VICTIM));
    const char *call_text = call_name(stage->call.kind);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "%s: '%s' (%s)", call_text, tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, name) != NULL && strstr(text, pid) != NULL, "%s: not named with pid %s: %s", call_text,
                pid, text);
    RANKS_CHECK(after_s < 2.0, "%s: the error came %.2f s after the death", call_text, after_s);
    return TUTTI_OK;
}

/* Checks that calls on a broken communicator fail at once. */
static tutti_status check_broken(tutti_comm *comm) {
    int64_t start_ns = tutti_now_ns();
    int value = 0;
    for (int i = 0; i < 10; i++) {
        tutti_status status = tutti_all_reduce(comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL);
        RANKS_CHECK(status == TUTTI_ERR_BROKEN || status == TUTTI_ERR_PEER_DIED, "a later call: %s",
                    tutti_status_name(status));
    }
    RANKS_CHECK(tutti_comm_error(comm) != TUTTI_OK, "the communicator says that it is whole");
    RANKS_CHECK(tutti_now_ns() - start_ns < 500 * 1000000LL, "later calls do not answer at once");
    return TUTTI_OK;
}

static tutti_status survive(ranks_context *context) {
    call_state state;
    if (context->rank == VICTIM && stage->inside) {
        pthread_t killer;
        pthread_create(&killer, NULL, die_soon, context);
    } else if (context->rank == VICTIM) {
        die_soon(context);
    } else if (stage->inside) {
        usleep(100000); /* the victim must find the call incomplete */
    }
    TUTTI_TRY(call_prepare(&stage->call, context->rank, context->nranks, &state));
    tutti_status status = call_start(&state, context->comm, NULL);
    while (context->rank == VICTIM) pause(); /* reached if its part needed no other rank */
    while (status == TUTTI_OK && atomic_load(&stage->died_ns) == 0) usleep(1000);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL); /* the call needed nothing from the victim */
    status = check_error(context, status);
    call_release(&state);
    return status == TUTTI_OK ? check_broken(context->comm) : status;
}

static void run_deaths(bool inside, size_t count) {
    set_stage();
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        *stage = (scene){.call = {.kind = (call_kind)kind, .type = TUTTI_FLOAT32, .count = count, .root = 2, .seed = 3},
                         .inside = inside};
        const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 20}, survive);
        cr_assert(failure == NULL, "%s", failure);
    }
}

Test(failure_death, survivors_inside_a_small_collective_get_an_error) {
    run_deaths(false, 10);
}

Test(failure_death, survivors_inside_a_large_collective_get_an_error) {
    run_deaths(false, 300000);
}

Test(failure_death, a_death_inside_a_collective_is_an_error_on_ranks_that_call_later) {
    run_deaths(true, 300000);
}

/* The root of a long scatter dies between two pieces that it stages, while the other ranks fetch pieces out of its
 * memory. It has counted a piece as staged that never comes. If it is slow, the others have fetched all before. */
static tutti_status lose_scatterer(ranks_context *context) {
    enum { COUNT = 1 << 20 };
    int rank = context->rank;
    float *all = NULL, *part = malloc(COUNT * sizeof *part);
    size_t total = (size_t)COUNT * (size_t)context->nranks;
    if (rank == VICTIM) all = malloc(total * sizeof *all);
    RANKS_CHECK(part != NULL && (rank != VICTIM || all != NULL), "no memory");
    for (size_t i = 0; all != NULL && i < total; i++) all[i] = 1;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    ranks_forgive(context, VICTIM);
    if (rank == VICTIM) atomic_store(&stage->died_ns, tutti_now_ns());
    tutti_status status = tutti_scatter(context->comm, all, part, COUNT, TUTTI_FLOAT32, VICTIM, NULL);
    RANKS_CHECK(rank != VICTIM, "the root has not died");
    for (int i = 0; status == TUTTI_OK && i < COUNT; i++) RANKS_CHECK(part[i] == 1, "element %d is %g", i, part[i]);
    if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
    status = check_error(context, status);
    free(part);
    return status == TUTTI_OK ? check_broken(context->comm) : status;
}

Test(failure_death, readers_of_a_long_scatter_get_an_error) {
    static const char *const dying_root[] = {"TUTTI_CPUS=4", "TUTTI_FAULT=offer_death:1", NULL};
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    set_stage();
    stage->call.kind = CALL_SCATTER;
    for (int nranks = 2; nranks <= 4; nranks++) {
        ranks_options options = {.nranks = nranks, .timeout_s = 20, .environment = dying_root};
        const char *failure = ranks_run(&options, lose_scatterer);
        cr_assert(failure == NULL, "%d ranks: %s", nranks, failure);
    }
}

/* ------------------------------------------------------------------------------------- point to point */

static tutti_status lose_sender(ranks_context *context) {
    static int buffer[100000];
    if (context->rank == VICTIM) die_soon(context);
    tutti_status status = context->rank == 0 ? tutti_recv(context->comm, buffer, 10, TUTTI_INT32, VICTIM, 0, NULL)
                                             : tutti_send(context->comm, buffer, 100000, TUTTI_INT32, VICTIM, 0, NULL);
    TUTTI_TRY(check_error(context, status));
    return check_broken(context->comm);
}

Test(failure_death, a_message_from_or_to_a_dead_rank_fails) {
    set_stage();
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 20}, lose_sender);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status fail_pending_work(ranks_context *context) {
    int value = 0, unused;
    tutti_work *works[2];
    if (context->rank == VICTIM) die_soon(context);
    TUTTI_TRY(
        tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &works[0])));
    TUTTI_TRY(tutti_recv(context->comm, &unused, 1, TUTTI_INT32, VICTIM, 0, &TUTTI_OPTIONS(.work = &works[1])));
    tutti_status second = tutti_work_wait(works[1], 10000), first = tutti_work_wait(works[0], 10000);
    tutti_status status = check_error(context, first);
    const char *text = tutti_work_error(works[0]);
    if (status == TUTTI_OK && strstr(text, "rank 1") == NULL) status = tutti_fail(TUTTI_ERR_DATA, "text: '%s'", text);
    for (int i = 0; i < 2; i++) tutti_work_free(works[i]);
    RANKS_CHECK(second == TUTTI_ERR_PEER_DIED || second == TUTTI_ERR_BROKEN, "the receive: %s",
                tutti_status_name(second));
    return status;
}

Test(failure_death, works_under_way_end_with_the_error) {
    set_stage();
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 20}, fail_pending_work);
    cr_assert(failure == NULL, "%s", failure);
}

/* ---------------------------------------------------------------------------------- what still works */

static tutti_status go_on_without(ranks_context *context) {
    tutti_comm *rest;
    TUTTI_TRY(tutti_comm_split(context->comm, context->rank == VICTIM, 0, NULL, &rest));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) ranks_strike(context, SIGKILL);
    for (int i = 0; i < 300; i++) {
        int value = 1;
        if (i % 50 == 0) usleep(10000);
        TUTTI_TRY(tutti_all_reduce(rest, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL));
        RANKS_CHECK(value == context->nranks - 1, "the sum is %d", value);
    }
    RANKS_CHECK(tutti_barrier(context->comm, NULL) == TUTTI_ERR_PEER_DIED, "the old communicator still works");
    TUTTI_TRY(tutti_barrier(rest, NULL));
    return tutti_comm_destroy(rest);
}

Test(failure_death, communicators_without_the_dead_rank_go_on) {
    const char *failure = ranks_run(&(ranks_options){.nranks = 4, .timeout_s = 20}, go_on_without);
    cr_assert(failure == NULL, "%s", failure);
}

/* The dead rank is rank 0 of a split of a split: the error has that number, and the job's. */
static tutti_status die_in_split(ranks_context *context) {
    tutti_comm *most, *rest;
    char named[80], text[1024];
    TUTTI_TRY(tutti_comm_split(context->comm, context->rank > 0, 0, NULL, &most));
    if (context->rank == 0) return tutti_comm_destroy(most);
    TUTTI_TRY(tutti_comm_split(most, 0, 0, NULL, &rest));
    snprintf(named, sizeof named, ", pid %d, rank 1 of the job) died; barrier ", ranks_pid(context, VICTIM));
    if (context->rank == VICTIM) ranks_strike(context, SIGKILL);
    RANKS_CHECK(tutti_barrier(rest, NULL) == TUTTI_ERR_PEER_DIED, "%s", tutti_last_error());
    snprintf(text, sizeof text, "%s", tutti_last_error());
    RANKS_CHECK(strncmp(text, "rank 0 (host ", 13) == 0 && strstr(text, named) != NULL, "\"%s\" lacks \"%s\"", text,
                named);
    tutti_comm_destroy(rest);
    return tutti_comm_destroy(most);
}

Test(failure_death, the_dead_rank_of_a_split_is_named_by_its_number_in_the_job) {
    const char *failure = ranks_run(&(ranks_options){.nranks = 4, .timeout_s = 20}, die_in_split);
    cr_assert(failure == NULL, "%s", failure);
}

/* Ends without destroying the communicator, as a program that simply exits. */
static tutti_status leave_after_barrier(ranks_context *context) {
    if (context->rank == 2) usleep(2000);
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        ranks_forgive(context, VICTIM);
        _exit(0);
    }
    return TUTTI_OK;
}

Test(failure_death, a_rank_that_left_the_last_barrier_and_exited_is_no_error) {
    for (int i = 0; i < 20; i++) {
        const char *failure = ranks_run(&(ranks_options){.nranks = 4, .timeout_s = 20}, leave_after_barrier);
        cr_assert(failure == NULL, "round %d: %s", i, failure);
    }
}

/* What a rank sent before it ended can still be received. */
static tutti_status send_and_leave(ranks_context *context) {
    int value = 41;
    if (context->rank == VICTIM) {
        value++;
        return tutti_send(context->comm, &value, 1, TUTTI_INT32, 0, 0, NULL);
    }
    usleep(50000);
    if (context->rank > 1) return TUTTI_OK;
    TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, VICTIM, 0, NULL));
    RANKS_CHECK(value == 42, "got %d", value);
    return TUTTI_OK;
}

Test(failure_death, a_small_message_outlives_its_sender) {
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 20}, send_and_leave);
    cr_assert(failure == NULL, "%s", failure);
}
