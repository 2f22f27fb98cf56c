/*
 * What goes wrong where several GPUs have several ranks each: a rank dies, comes late, calls something else, aborts, destroys.
 * What breaks one part of the communicator breaks all of it, on every rank, and every stream goes on. GPUs and NCCL are
 * stand-ins (support/standin_cuda.c, standin_nccl.c), which hang until they are released.
 */
#include <criterion/criterion.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/placement.h"

TestSuite(mixed_failure, .timeout = 120);

/* GPU a: ranks 0, 2, 3; GPU b: ranks 1, 4. */
#define GPUS "abaab"

/* Shared by the ranks of a run. */
static struct stage {
    atomic_int met;  /* calls of meet */
    atomic_int done; /* ranks that have seen the end */
} * stage;

static int victim;

/* Processes come first in a test: who has used Tutti, as the parent of threads does, has children that cannot. */
static void run(ranks_kind kind, const char *const *settings, ranks_body body) {
    if (kind == RANKS_PROCESSES && !ranks_have_processes()) return;
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(stage, MAP_FAILED);
    const char *failure = placement_run(GPUS, kind, settings, body);
    cr_assert(failure == NULL, "%s: %s", kind == RANKS_THREADS ? "threads" : "processes", failure);
}

static void await(const atomic_int *count, int least) {
    for (int i = 0; i < 3000 && atomic_load(count) < least; i++) usleep(10000);
}

/* All ranks are through with what came before; without a call that could be hit by what comes next. */
static void meet(const ranks_context *context) {
    int before = atomic_fetch_add(&stage->met, 1);
    await(&stage->met, (before / context->nranks + 1) * context->nranks);
}

static tutti_status open_rank(const ranks_context *context, cuda_rank *rank, void **memory_out) {
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, rank));
    TUTTI_TRY(cuda_alloc(rank, 4096, memory_out));
    return rank->device->fill(*memory_out, 0, 4096, rank->streams[0]);
}

static tutti_status sum(tutti_comm *comm, cuda_rank *rank, void *memory, tutti_work **work_out) {
    return tutti_all_reduce(comm, memory, memory, 256, TUTTI_INT32, TUTTI_SUM,
                            &TUTTI_OPTIONS(.stream = rank->streams[0], .work = work_out));
}

static tutti_status sum_and_wait(tutti_comm *comm, cuda_rank *rank, void *memory) {
    tutti_work *work = NULL;
    TUTTI_TRY(sum(comm, rank, memory, &work));
    tutti_status status = tutti_work_wait(work, -1);
    if (status != TUTTI_OK) tutti_fail(status, "%s", tutti_work_error(work));
    tutti_work_free(work);
    return status;
}

/* The communicator stays broken, and streams go on; nobody leaves before all have seen that: threads share GPUs. */
static tutti_status check_end(ranks_context *context, cuda_rank *rank, void *memory, int ranks) {
    RANKS_CHECK(sum_and_wait(context->comm, rank, memory) != TUTTI_OK, "a later call is good");
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    atomic_fetch_add(&stage->done, 1);
    await(&stage->done, ranks);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- deaths */

static tutti_status survive(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    char name[32];
    TUTTI_TRY(open_rank(context, &rank, &memory));
    for (int i = 0; i < 3; i++) TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    meet(context);
    if (context->rank == victim) ranks_strike(context, SIGKILL);
    tutti_status status = sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    snprintf(name, sizeof name, "rank %d (host", victim);
    RANKS_CHECK(strstr(tutti_last_error(), name) != NULL, "'%s' is not named: %s", name, tutti_last_error());
    return check_end(context, &rank, memory, context->nranks - 1);
}

Test(mixed_failure, the_death_of_a_leader_is_told_on_all_gpus) {
    victim = 1;
    run(RANKS_PROCESSES, NULL, survive);
}

Test(mixed_failure, so_is_that_of_a_rank_that_leads_nobody) {
    victim = 3;
    run(RANKS_PROCESSES, NULL, survive);
}

/* NCCL's communicator is being made when a leader dies, or one that has no part in it. */
static tutti_status survive_opening(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    char name[32];
    TUTTI_TRY(open_rank(context, &rank, &memory));
    if (context->rank == victim) ranks_strike(context, SIGKILL);
    tutti_status status = sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    snprintf(name, sizeof name, "rank %d (host", victim);
    RANKS_CHECK(strstr(tutti_last_error(), name) != NULL, "'%s' is not named: %s", name, tutti_last_error());
    return TUTTI_OK;
}

Test(mixed_failure, a_death_before_the_first_call_is_told) {
    victim = 4;
    run(RANKS_PROCESSES, NULL, survive_opening);
}

/* What cannot be used is not: NCCL that does not start, memory that cannot be mapped on one of the GPUs. */
static tutti_status do_without(ranks_context *context, cuda_rank *rank) {
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT32, .count = 100};
    return cuda_call_run(rank, &c, context->comm, rank->streams[0], false);
}

static tutti_status without_body(ranks_context *context) {
    return placement_with_rank(context, "staged", do_without);
}

Test(mixed_failure, where_nccl_does_not_start_calls_go_by_host_memory) {
    static const char *const settings[] = {"STANDIN_NCCL_FAIL=ncclCommInitRankConfig:1:3", "STANDIN_NCCL_RANK=1", NULL};
    run(RANKS_PROCESSES, settings, without_body);
    run(RANKS_THREADS, settings, without_body);
}

Test(mixed_failure, so_they_do_where_memory_cannot_be_mapped) {
    static const char *const settings[] = {"STANDIN_FAIL=import_memory:1", NULL};
    run(RANKS_PROCESSES, settings, without_body);
}

static void *abort_soon(void *argument) {
    usleep(200000);
    tutti_comm_abort(argument, "the test has seen enough");
    return NULL;
}

/* Between GPUs it is never opened; the one who ends that leads nobody. */
static tutti_status be_aborted_opening(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    pthread_t thread;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    if (context->rank == 4) pthread_create(&thread, NULL, abort_soon, context->comm);
    tutti_status status = sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "seen enough") != NULL, "%s", tutti_last_error());
    if (context->rank == 4) pthread_join(thread, NULL);
    return TUTTI_OK;
}

Test(mixed_failure, an_abort_ends_the_first_call_as_well) {
    static const char *const settings[] = {"STANDIN_NCCL_FAIL=open:1:7,open:1:7", NULL}; /* 7: still in progress */
    run(RANKS_PROCESSES, settings, be_aborted_opening);
    run(RANKS_THREADS, settings, be_aborted_opening);
}

static tutti_status fail_later(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    for (int i = 0; i < 20 && status == TUTTI_OK; i++) status = sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status != TUTTI_OK, "nothing failed");
    RANKS_CHECK(strstr(tutti_last_error(), "NCCL failed in") != NULL, "the reason is not told: %s", tutti_last_error());
    return check_end(context, &rank, memory, context->nranks);
}

Test(mixed_failure, an_error_between_gpus_is_told_on_all_ranks) {
    static const char *const settings[] = {"STANDIN_NCCL_FAIL=ncclAllReduce:4:4", "STANDIN_NCCL_RANK=1", NULL};
    run(RANKS_PROCESSES, settings, fail_later);
    run(RANKS_THREADS, settings, fail_later);
}

Test(mixed_failure, so_is_one_that_comes_later) {
    static const char *const settings[] = {"STANDIN_NCCL_FAIL=async:3:1", "STANDIN_NCCL_RANK=1", NULL};
    run(RANKS_PROCESSES, settings, fail_later);
    run(RANKS_THREADS, settings, fail_later);
}

/* ------------------------------------------------------------------------------------- lateness, aborts, ends */

/* Rank 4, which leads nobody, does not come. */
static tutti_status stay_away(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    if (context->rank != 4) {
        tutti_status status = sum_and_wait(context->comm, &rank, memory);
        RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
        return check_end(context, &rank, memory, context->nranks);
    }
    await(&stage->done, context->nranks - 1);
    return check_end(context, &rank, memory, context->nranks);
}

Test(mixed_failure, a_rank_that_does_not_come_is_a_timeout_on_all_gpus) {
    static const char *const settings[] = {"TUTTI_TIMEOUT_MS=3000", NULL};
    run(RANKS_THREADS, settings, stay_away);
}

static tutti_status be_aborted(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    meet(context);
    if (context->rank == 4) { /* makes no second call, but ends the others' */
        TUTTI_TRY(tutti_comm_abort(context->comm, "the test has seen enough"));
        return check_end(context, &rank, memory, context->nranks);
    }
    tutti_status status = sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "seen enough") != NULL, "%s", tutti_last_error());
    return check_end(context, &rank, memory, context->nranks);
}

Test(mixed_failure, an_abort_ends_what_is_under_way_on_all_gpus) {
    run(RANKS_PROCESSES, NULL, be_aborted);
    run(RANKS_THREADS, NULL, be_aborted);
}

/* On one GPU two ranks call something else: it is found there, and told on the other. */
static tutti_status differ(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_work *work = NULL;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    meet(context);
    tutti_options options = TUTTI_OPTIONS(.stream = rank.streams[0], .work = &work);
    tutti_status status =
        tutti_all_reduce(context->comm, memory, memory, context->rank == 3 ? 11 : 10, TUTTI_INT32, TUTTI_SUM, &options);
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "rank 3 all_reduce(int32, 11, sum)") != NULL &&
                    strstr(tutti_last_error(), "all_reduce(int32, 10, sum)") != NULL,
                "both calls are not shown: %s", tutti_last_error());
    tutti_work_free(work);
    return check_end(context, &rank, memory, context->nranks);
}

Test(mixed_failure, calls_that_differ_on_a_gpu_are_shown_on_all) {
    run(RANKS_PROCESSES, NULL, differ);
    run(RANKS_THREADS, NULL, differ);
}

/* Destroyed while a rank has not come, and again after all have. */
static tutti_status destroy_early(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *comm;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    for (int i = 0; i < 3; i++) {
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
        TUTTI_TRY(sum_and_wait(comm, &rank, memory));
        meet(context);
        if (i < 2 && context->rank != 4) sum(comm, &rank, memory, NULL); /* refused, if that one has left already */
        TUTTI_TRY(tutti_comm_destroy(comm));
        TUTTI_TRY(rank.device->stream_sync(rank.streams[0]));
    }
    return cuda_rank_close(&rank, context->comm);
}

Test(mixed_failure, destroying_waits_for_nobody) {
    run(RANKS_PROCESSES, NULL, destroy_early);
    run(RANKS_THREADS, NULL, destroy_early);
}
