/*
 * What goes wrong with NCCL: a rank dies, comes late, makes a call fail, aborts, destroys. The others must be told, within 2 s
 * where it is a death, and no stream may wait for ever: NCCL's stand-in (support/standin_nccl.c) hangs like NCCL until it is
 * aborted. Nothing here needs a GPU or NCCL, or says anything of them.
 *
 * Whoever ends something first lets all ranks meet outside of the library: a rank whose call is done may be ahead of one whose
 * call is not, and what breaks the communicator then ends that call, too.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/cuda_call.h"

enum { VICTIM = 1 };

static void skip_on_gpus(void) {
    if (cuda_real_gpus() > 0) cr_skip("only the stand-in fails when told to, and ranks need GPUs of their own");
}

TestSuite(nccl_failure, .init = skip_on_gpus, .timeout = 120);

/* Shared by the ranks of a run. */
static struct stage {
    atomic_llong event_ns;
    atomic_llong told_ns; /* after the event, at the latest */
    atomic_long arrived;  /* in `meet` */
    bool ordered;         /* calls go by our kernel, so in several steps */
    const char *words;    /* what the error must say */
} * stage;

static void set_stage(void) {
    stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(stage, MAP_FAILED);
}

/* Processes come first in a test: who has used Tutti, as the parent of threads does, has children that cannot. */
static void run(int nranks, ranks_kind kind, const char *const *environment, ranks_body body) {
    if (kind == RANKS_PROCESSES && !ranks_have_processes()) return;
    for (int i = 0; environment[i] != NULL; i++) { /* for threads */
        char name[64];
        const char *equals = strchr(environment[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - environment[i]), environment[i]);
        setenv(name, equals + 1, 1);
    }
    tutti_settings_reload();
    const char *failure =
        ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .timeout_s = 60, .environment = environment}, body);
    cr_assert(failure == NULL, "%s: %s", kind == RANKS_THREADS ? "threads" : "processes", failure);
}

/* Until all ranks are here. */
static tutti_status meet(const ranks_context *context) {
    long turn = atomic_fetch_add(&stage->arrived, 1) / context->nranks;
    for (int i = 0; atomic_load(&stage->arrived) < (turn + 1) * context->nranks; i++) {
        RANKS_CHECK(i < 3000, "a rank did not come to meet the others");
        usleep(10000);
    }
    return TUTTI_OK;
}

/* A buffer that no call's end gives back: a rank's arena on its GPU. */
static tutti_status open_rank(const ranks_context *context, cuda_rank *rank, void **memory_out) {
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, rank));
    TUTTI_TRY(cuda_alloc(rank, 4096, memory_out));
    return rank->device->fill(*memory_out, 0, 4096, rank->streams[0]);
}

static tutti_status sum_within(tutti_comm *comm, cuda_rank *rank, void *memory, int64_t timeout_ms,
                               tutti_work **work_out) {
    return tutti_all_reduce(comm, memory, memory, 256, stage->ordered ? TUTTI_INT16 : TUTTI_INT32, TUTTI_SUM,
                            &TUTTI_OPTIONS(.stream = rank->streams[0], .timeout_ms = timeout_ms, .work = work_out));
}

static tutti_status sum(tutti_comm *comm, cuda_rank *rank, void *memory, tutti_work **work_out) {
    return sum_within(comm, rank, memory, 0, work_out);
}

static tutti_status wait_within(tutti_comm *comm, cuda_rank *rank, void *memory, int64_t timeout_ms) {
    tutti_work *work = NULL;
    TUTTI_TRY(sum_within(comm, rank, memory, timeout_ms, &work));
    tutti_status status = tutti_work_wait(work, -1);
    if (status != TUTTI_OK) tutti_fail(status, "%s", tutti_work_error(work));
    tutti_work_free(work);
    return status;
}

static tutti_status sum_and_wait(tutti_comm *comm, cuda_rank *rank, void *memory) {
    return wait_within(comm, rank, memory, 0);
}

/* Streams do not wait any more, whatever became of the communicator. */
static tutti_status check_streams(cuda_rank *rank) {
    int64_t start_ns = tutti_now_ns();
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(took_ms < 20000, "the stream went on after %lld ms", (long long)took_ms);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- deaths */

static tutti_status check_death(const ranks_context *context, tutti_status status) {
    char name[32], pid[32], text[1024];
    long long after_ns = tutti_now_ns() - atomic_load(&stage->event_ns), before_ns = atomic_load(&stage->told_ns);
    while (before_ns < after_ns && !atomic_compare_exchange_weak(&stage->told_ns, &before_ns, after_ns)) {}
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
    TUTTI_TRY(open_rank(context, &rank, &memory));
    for (int i = 0; i < 3; i++) TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(meet(context));
    if (context->rank == VICTIM) {
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    tutti_status status = TUTTI_OK;
    for (int64_t end_ns = tutti_now_ns() + 30 * INT64_C(1000000000); status == TUTTI_OK && tutti_now_ns() < end_ns;)
        status = sum_and_wait(context->comm, &rank, memory);
    TUTTI_TRY(check_death(context, status));
    RANKS_CHECK(sum(context->comm, &rank, memory, NULL) != TUTTI_OK, "a later call is accepted");
    return check_streams(&rank);
}

static const char *const plain[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", NULL};

/* All must be told within 2 s; a machine that does other things as well has three tries. */
static void expect_death(bool ordered, ranks_body body) {
    double after_s = 0;
    for (int attempt = 0; attempt < 3; attempt++) {
        set_stage();
        stage->ordered = ordered;
        run(3, RANKS_PROCESSES, plain, body);
        after_s = (double)atomic_load(&stage->told_ns) / 1e9;
        if (after_s < 2.0) return;
    }
    cr_assert_fail("told %.2f s after the death", after_s);
}

Test(nccl_failure, a_rank_that_was_killed_is_named_within_2_seconds) {
    expect_death(/* ordered */ false, survive);
}

Test(nccl_failure, so_it_is_where_a_call_has_several_steps) {
    expect_death(/* ordered */ true, survive);
}

/* The stand-in for CUDA has no graphs: it says that the stream is captured, and runs what is enqueued at once. */
static tutti_status capture_sum(tutti_comm *comm, cuda_rank *rank, void *memory) {
    void (*capture)(void *stream, bool captures);
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module != NULL ? dlsym(module, "standin_capture") : NULL;
    RANKS_CHECK(symbol != NULL, "no standin_capture");
    memcpy(&capture, &symbol, sizeof capture);
    capture(rank->streams[0], true);
    tutti_status status = sum(comm, rank, memory, NULL);
    capture(rank->streams[0], false);
    return status;
}

/* A graph is launched without a call of ours; a rank that dies then is found all the same, and the stream goes on. */
static tutti_status survive_in_graph(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *left;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &left));
    TUTTI_TRY(sum_and_wait(left, &rank, memory));
    TUTTI_TRY(capture_sum(left, &rank, memory));
    TUTTI_TRY(check_streams(&rank));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        TUTTI_TRY(tutti_comm_destroy(left));
        usleep(600000);
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    TUTTI_TRY(capture_sum(context->comm, &rank, memory));
    tutti_status status = TUTTI_OK;
    for (int64_t end_ns = tutti_now_ns() + 5 * INT64_C(1000000000); status == TUTTI_OK && tutti_now_ns() < end_ns;) {
        usleep(1000);
        status = tutti_comm_error(context->comm);
    }
    TUTTI_TRY(check_death(context, status));
    TUTTI_TRY(check_streams(&rank));
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(left)); /* who dies after he has left harms nobody */
    return tutti_comm_destroy(left);
}

Test(nccl_failure, so_it_is_where_the_call_is_in_a_graph) {
    set_stage();
    run(3, RANKS_PROCESSES, plain, survive_in_graph);
}

/* It has joined the exchange, and dies before NCCL's communicators are made: of them the others hear nothing. */
static tutti_status survive_opening(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    if (context->rank == VICTIM) {
        usleep(100000);
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_forgive(context, VICTIM);
        setenv("STANDIN_NCCL_FAIL", "die:1", 1); /* in ncclCommInitRankConfig */
    }
    TUTTI_TRY(check_death(context, sum_and_wait(context->comm, &rank, memory)));
    return check_streams(&rank);
}

Test(nccl_failure, a_rank_that_dies_while_nccl_starts_is_named) {
    expect_death(/* ordered */ false, survive_opening);
}

/* --------------------------------------------------------------------------------------------- failing calls */

static tutti_status fail_somewhere(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    tutti_status status = TUTTI_OK;
    int64_t start_ns = tutti_now_ns();
    for (int i = 0; i < 20 && status == TUTTI_OK; i++) status = sum_and_wait(context->comm, &rank, memory);
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(status != TUTTI_OK, "nothing failed");
    RANKS_CHECK(strstr(tutti_last_error(), stage->words) != NULL, "'%s' is not in: %s", stage->words,
                tutti_last_error());
    RANKS_CHECK(took_ms < 30000, "told after %lld ms", (long long)took_ms);
    return check_streams(&rank);
}

/* The call fails on one rank, and all are told, of that call and that rank. */
static void expect_failure(const char *fault, const char *words) {
    char setting[128];
    snprintf(setting, sizeof setting, "STANDIN_NCCL_FAIL=%s", fault);
    const char *const environment[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", "STANDIN_NCCL_RANK=1", setting, NULL};
    set_stage();
    stage->words = words;
    run(3, RANKS_THREADS, environment, fail_somewhere);
}

Test(nccl_failure, no_unique_id) {
    expect_failure("ncclGetUniqueId:1:2", "NCCL makes no id on rank 0: unhandled system error");
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

/* ------------------------------------------------------------------------------------- lateness, aborts, ends */

static tutti_status come_late(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(meet(context));
    if (context->rank == VICTIM) { /* comes when the others have given up */
        TUTTI_TRY(meet(context));
        RANKS_CHECK(sum_and_wait(context->comm, &rank, memory) != TUTTI_OK, "who came too late was not told");
        return check_streams(&rank);
    }
    tutti_status status = wait_within(context->comm, &rank, memory, 700);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    TUTTI_TRY(meet(context));
    return check_streams(&rank);
}

Test(nccl_failure, a_rank_that_does_not_come_is_a_timeout) {
    set_stage();
    run(3, RANKS_PROCESSES, plain, come_late);
    run(3, RANKS_THREADS, plain, come_late);
}

static void *abort_soon(void *argument) {
    usleep(100000);
    tutti_comm_abort(argument, "the test has seen enough");
    return NULL;
}

static tutti_status be_aborted(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    pthread_t thread;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(meet(context));
    if (context->rank == VICTIM) { /* makes no second call, but ends the others' */
        pthread_create(&thread, NULL, abort_soon, context->comm);
        pthread_join(thread, NULL);
        return check_streams(&rank);
    }
    tutti_status status = sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "seen enough") != NULL, "%s", tutti_last_error());
    return check_streams(&rank);
}

Test(nccl_failure, an_abort_ends_what_is_under_way_on_all_ranks) {
    set_stage();
    run(3, RANKS_PROCESSES, plain, be_aborted);
    run(3, RANKS_THREADS, plain, be_aborted);
}

/* Two communicators hang in one stream: aborts that wait for each other would hang for ever. */
static tutti_status abort_two(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *other;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &other));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(sum_and_wait(other, &rank, memory));
    TUTTI_TRY(meet(context));
    if (context->rank != VICTIM) {
        TUTTI_TRY(sum(context->comm, &rank, memory, NULL));
        TUTTI_TRY(sum(other, &rank, memory, NULL));
        usleep(100000);
        TUTTI_TRY(tutti_comm_abort(other, "the one behind"));
        TUTTI_TRY(tutti_comm_abort(context->comm, "the one in front"));
    }
    TUTTI_TRY(check_streams(&rank));
    TUTTI_TRY(meet(context)); /* not to leave before */
    return tutti_comm_destroy(other);
}

Test(nccl_failure, aborts_do_not_wait_for_each_other) {
    set_stage();
    run(2, RANKS_PROCESSES, plain, abort_two);
    set_stage();
    run(2, RANKS_THREADS, plain, abort_two);
}

/* Destroyed while a rank has neither made the call nor destroyed its own. */
static tutti_status destroy_early(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *comm;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
    TUTTI_TRY(sum_and_wait(comm, &rank, memory));
    TUTTI_TRY(meet(context));
    if (context->rank == VICTIM) TUTTI_TRY(meet(context));
    else sum(comm, &rank, memory, NULL); /* refused, if another has destroyed it already */
    TUTTI_TRY(tutti_comm_destroy(comm));
    if (context->rank != VICTIM) TUTTI_TRY(meet(context));
    return check_streams(&rank);
}

Test(nccl_failure, destroying_waits_for_nobody) {
    set_stage();
    run(3, RANKS_PROCESSES, plain, destroy_early);
    run(3, RANKS_THREADS, plain, destroy_early);
}

/* ------------------------------------------------------------------------------------------------- messages */

/* Both others wait for a message of the rank that dies. */
static tutti_status lose_sender(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_work *work = NULL;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(meet(context));
    if (context->rank == VICTIM) {
        atomic_store(&stage->event_ns, tutti_now_ns());
        ranks_strike(context, SIGKILL);
    }
    while (atomic_load(&stage->event_ns) == 0) usleep(1000);
    tutti_status status = tutti_recv(context->comm, memory, 100, TUTTI_INT32, VICTIM, 0,
                                     &TUTTI_OPTIONS(.stream = rank.streams[0], .work = &work));
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    TUTTI_TRY(check_death(context, status));
    return check_streams(&rank);
}

Test(nccl_failure, a_message_of_a_rank_that_died_is_an_error_that_names_it) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "TUTTI_CUDA_MESSAGES=nccl", NULL};
    if (!ranks_have_processes()) cr_skip_test("needs ranks that are processes");
    set_stage();
    run(3, RANKS_PROCESSES, environment, lose_sender);
}

/* NCCL is not touched: its start would fail. */
static tutti_status do_without(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    if (context->rank == VICTIM) setenv("STANDIN_NCCL_VERSION", "22005", 1);
    TUTTI_TRY(open_rank(context, &rank, &memory));
    for (int i = 0; i < 3; i++) TUTTI_TRY(sum_and_wait(context->comm, &rank, memory));
    return check_streams(&rank);
}

Test(nccl_failure, different_versions_do_without_nccl) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "STANDIN_NCCL_FAIL=ncclCommInitRankConfig:1:3", NULL};
    set_stage();
    run(2, RANKS_PROCESSES, environment, do_without);
}
