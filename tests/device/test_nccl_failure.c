/*
 * What goes wrong with NCCL: a rank dies, or makes a call fail. The others must get an error, within 2 s after a
 * death, and no stream may wait for ever: NCCL's stand-in (support/standins/standin_nccl.c) hangs like NCCL until it is
 * aborted. The tests need neither a GPU nor NCCL, and test neither.
 *
 * Before a rank ends something, all ranks meet outside of the library: a rank whose call is done may be ahead of one
 * whose call is not, and whatever breaks the communicator then ends that call, too.
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
#include "tests/support/gpu/nccl_scene.h"

enum { VICTIM = 1 };

static void skip_on_gpus(void) {
    if (cuda_real_gpus() > 0) cr_skip("only the stand-in fails on demand, and each rank needs its own GPU");
}

TestSuite(nccl_failure, .init = skip_on_gpus, .timeout = 120);

/* ------------------------------------------------------------------------------------------------- deaths */

static tutti_status check_death(const ranks_context *context, tutti_status status) {
    char name[32], pid[32], text[1024];
    long long after_ns = tutti_now_ns() - atomic_load(&nccl_stage->event_ns),
              before_ns = atomic_load(&nccl_stage->told_ns);
    while (before_ns < after_ns && !atomic_compare_exchange_weak(&nccl_stage->told_ns, &before_ns, after_ns)) {}
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    snprintf(name, sizeof name, "rank %d", VICTIM);
    snprintf(pid, sizeof pid, "%d", ranks_pid(context, VICTIM));
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, name) != NULL && strstr(text, pid) != NULL, "%s is not named with pid %s: %s", name, pid,
                text);
    return TUTTI_OK;
}

static tutti_status survive(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    for (int i = 0; i < 3; i++) TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank == VICTIM) {
        atomic_store(&nccl_stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = TUTTI_OK;
    for (int64_t end_ns = tutti_now_ns() + 30 * INT64_C(1000000000); status == TUTTI_OK && tutti_now_ns() < end_ns;)
        status = nccl_sum_and_wait(context->comm, &rank, memory);
    TUTTI_TRY(check_death(context, status));
    RANKS_CHECK(nccl_sum(context->comm, &rank, memory, NULL) != TUTTI_OK, "a later call is accepted");
    return nccl_check_streams(&rank);
}

static const char *const plain[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", NULL};

/* All ranks must get the error within 2 s; there are three tries, since the machine may be busy. */
static void expect_death(bool ordered, ranks_body body) {
    double after_s = 0;
    for (int attempt = 0; attempt < 3; attempt++) {
        nccl_set_stage();
        nccl_stage->ordered = ordered;
        nccl_run_as(3, RANKS_PROCESSES, plain, body);
        after_s = (double)atomic_load(&nccl_stage->told_ns) / 1e9;
        if (after_s < 2.0) return;
    }
    cr_assert_fail("the error came %.2f s after the death", after_s);
}

Test(nccl_failure, a_rank_that_was_killed_is_named_within_2_seconds) {
    expect_death(/* ordered */ false, survive);
}

Test(nccl_failure, a_death_in_a_call_of_several_steps_is_named_within_2_seconds) {
    expect_death(/* ordered */ true, survive);
}

static tutti_status capture_sum(tutti_comm *comm, cuda_rank *rank, void *memory) {
    TUTTI_TRY(nccl_capture(rank->streams[0], true));
    tutti_status status = nccl_sum(comm, rank, memory, NULL);
    TUTTI_TRY(nccl_capture(rank->streams[0], false));
    return status;
}

/* A graph is launched without a call to the library; a rank that dies then is detected all the same, and the stream
 * goes on. */
static tutti_status survive_in_graph(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *left;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &left));
    TUTTI_TRY(nccl_sum_and_wait(left, &rank, memory));
    TUTTI_TRY(capture_sum(left, &rank, memory));
    TUTTI_TRY(nccl_check_streams(&rank));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        TUTTI_TRY(tutti_comm_destroy(left));
        usleep(600000);
        atomic_store(&nccl_stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    TUTTI_TRY(capture_sum(context->comm, &rank, memory));
    tutti_status status = TUTTI_OK;
    for (int64_t end_ns = tutti_now_ns() + 5 * INT64_C(1000000000); status == TUTTI_OK && tutti_now_ns() < end_ns;) {
        usleep(1000);
        status = tutti_comm_error(context->comm);
    }
    TUTTI_TRY(check_death(context, status));
    TUTTI_TRY(nccl_check_streams(&rank));
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(left)); /* a rank that dies after it has left harms no other rank */
    return tutti_comm_destroy(left);
}

Test(nccl_failure, a_death_during_a_graph_is_named_within_2_seconds) {
    nccl_set_stage();
    nccl_run_as(3, RANKS_PROCESSES, plain, survive_in_graph);
}

/* The victim has joined the exchange, and dies before NCCL's communicators exist, so NCCL reports nothing to the
 * others. */
static tutti_status survive_opening(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    if (context->rank == VICTIM) {
        usleep(100000);
        atomic_store(&nccl_stage->event_ns, tutti_now_ns());
        ranks_forgive(context, VICTIM);
        setenv("STANDIN_NCCL_FAIL", "die:1", 1); /* in ncclCommInitRankConfig */
    }
    TUTTI_TRY(check_death(context, nccl_sum_and_wait(context->comm, &rank, memory)));
    return nccl_check_streams(&rank);
}

Test(nccl_failure, a_rank_that_dies_while_nccl_starts_is_named) {
    expect_death(/* ordered */ false, survive_opening);
}

/* NCCL takes long to enqueue the call that gets the error: it must not do so after the caller has freed the memory. */
static tutti_status free_after_death(ranks_context *context) {
    cuda_rank rank;
    void *unused, *memory = NULL;
    TUTTI_TRY(nccl_open_rank(context, &rank, &unused));
    TUTTI_TRY(rank.device->alloc(4096, &memory));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank == VICTIM) {
        atomic_store(&nccl_stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 100 && status == TUTTI_OK; i++) status = nccl_sum(context->comm, &rank, memory, NULL);
    TUTTI_TRY(check_death(context, status));
    TUTTI_TRY(nccl_check_streams(&rank));
    TUTTI_TRY(rank.device->free(memory));
    usleep(300000);
    return nccl_check_streams(&rank);
}

Test(nccl_failure, memory_can_be_freed_after_a_death) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl",
                                              "STANDIN_NCCL_PROGRESS_US=200000", NULL};
    nccl_set_stage();
    nccl_run_as(3, RANKS_PROCESSES, environment, free_after_death);
}

/* --------------------------------------------------------------------------------------------- failing calls */

static tutti_status fail_somewhere(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    tutti_status status = TUTTI_OK;
    int64_t start_ns = tutti_now_ns();
    for (int i = 0; i < 20 && status == TUTTI_OK; i++) status = nccl_sum_and_wait(context->comm, &rank, memory);
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(status != TUTTI_OK, "nothing failed");
    RANKS_CHECK(strstr(tutti_last_error(), nccl_stage->words) != NULL, "'%s' is not in: %s", nccl_stage->words,
                tutti_last_error());
    RANKS_CHECK(took_ms < 30000, "the error came after %lld ms", (long long)took_ms);
    return nccl_check_streams(&rank);
}

/* The call fails on one rank, and every rank gets an error that names that call and that rank. */
static void expect_failure(const char *fault, const char *words) {
    char setting[128];
    snprintf(setting, sizeof setting, "STANDIN_NCCL_FAIL=%s", fault);
    const char *const environment[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", "STANDIN_NCCL_RANK=1", setting, NULL};
    nccl_set_stage();
    nccl_stage->words = words;
    nccl_run_as(3, RANKS_THREADS, environment, fail_somewhere);
}

Test(nccl_failure, no_unique_id) {
    expect_failure("ncclGetUniqueId:1:2", "NCCL created no unique id on rank 0: unhandled system error");
}

Test(nccl_failure, no_communicator) {
    expect_failure("ncclCommInitRankConfig:1:3", "NCCL failed in ncclCommInitRankConfig on rank 1");
}

Test(nccl_failure, an_opening_that_ends_badly) {
    expect_failure("open:1:2", "NCCL failed in ncclCommInitRankConfig on rank 1");
}

Test(nccl_failure, a_collective_that_is_refused) {
    expect_failure("ncclAllReduce:4:4", "NCCL failed in ncclAllReduce on rank 1");
}

Test(nccl_failure, an_error_while_in_progress) {
    expect_failure("async:3:1", "on rank 1 of communicator");
}

Test(nccl_failure, a_remote_error_without_a_death) {
    expect_failure("async:2:6", "on rank 1 of communicator");
}

Test(nccl_failure, a_group_that_does_not_end) {
    expect_failure("ncclGroupEnd:5:1", "NCCL failed in ncclGroupEnd on rank");
}

Test(nccl_failure, a_group_that_does_not_start) {
    expect_failure("ncclGroupStart:5:3", "NCCL failed in ncclGroupStart on rank");
}

/* ------------------------------------------------------------------------------------------------- messages */

/* Both other ranks wait for a message from the rank that dies. */
static tutti_status lose_sender(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_work *work = NULL;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank == VICTIM) {
        atomic_store(&nccl_stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    while (atomic_load(&nccl_stage->event_ns) == 0) usleep(1000);
    tutti_status status = tutti_recv(context->comm, memory, 100, TUTTI_INT32, VICTIM, 0,
                                     &TUTTI_OPTIONS(.stream = rank.streams[0], .work = &work));
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    TUTTI_TRY(check_death(context, status));
    return nccl_check_streams(&rank);
}

Test(nccl_failure, a_message_of_a_rank_that_died_is_an_error_that_names_it) {
    static const char *const environment[] = {"STANDIN_GPUS=8", NULL};
    if (!ranks_have_processes()) cr_skip_test("needs ranks that are processes");
    nccl_set_stage();
    nccl_run_as(3, RANKS_PROCESSES, environment, lose_sender);
}

/* NCCL must not be used: its start would fail. */
static tutti_status do_without(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    for (int i = 0; i < 3; i++) TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    return nccl_check_streams(&rank);
}

static tutti_status differ_in_version(ranks_context *context) {
    if (context->rank == VICTIM) setenv("STANDIN_NCCL_VERSION", "22005", 1);
    return do_without(context);
}

Test(nccl_failure, ranks_with_different_versions_do_not_use_nccl) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "STANDIN_NCCL_FAIL=ncclCommInitRankConfig:1:3", NULL};
    nccl_set_stage();
    nccl_run_as(2, RANKS_PROCESSES, environment, differ_in_version);
}

/* With this setting NCCL blocks, in calls that only an abort can end. */
static tutti_status be_told_to_block(ranks_context *context) {
    if (context->rank == VICTIM) setenv("NCCL_COMM_BLOCKING", "1", 1);
    return do_without(context);
}

Test(nccl_failure, ranks_of_which_one_would_block_do_not_use_nccl) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "STANDIN_NCCL_FAIL=ncclCommInitRankConfig:1:3", NULL};
    nccl_set_stage();
    nccl_run_as(2, RANKS_PROCESSES, environment, be_told_to_block);
}
