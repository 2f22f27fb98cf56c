/*
 * What goes wrong with calls on CUDA memory: ranks that make different calls, die, stop or leave, GPUs that fail. In
 * every case streams go on, works report the error, and later calls on the communicator return it. The GPUs are
 * stand-ins (support/standins/standin_cuda.c), or real ones (support/gpu/cuda_call.h).
 *
 * A rank that learns of a failure early refuses its next call with the error that the others' works report, and any
 * rank may be the early one: so both ways are accepted.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/device.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_call.h"

TestSuite(stream_failure, .timeout = 120);

#define ARENA_BYTES ((size_t)1 << 20)

enum { VICTIM = 1 };

static const int worlds[] = {2, 3, 0};

static void run(ranks_body body, const char *const *environment) {
    const char *failure = ranks_run_worlds(worlds, &(ranks_options){.timeout_s = 50, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static void run_processes(ranks_body body) {
    if (!ranks_have_processes()) cr_skip("needs ranks that are processes");
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 50}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* A rank with its place on a GPU and buffers on both sides. */
typedef struct scene {
    cuda_rank rank;
    void *buffer;
    int32_t host[256];
} scene;

static tutti_status open_scene(const ranks_context *context, scene *s) {
    TUTTI_TRY(cuda_rank_open(context, ARENA_BYTES, &s->rank));
    return cuda_alloc(&s->rank, sizeof s->host, &s->buffer);
}

/* Called once the streams have gone on; without a barrier, since the communicator is broken. */
static tutti_status close_scene(scene *s) {
    return cuda_rank_close(&s->rank, NULL);
}

static tutti_status sum(const ranks_context *context, scene *s, size_t count, tutti_work **work_out) {
    return tutti_all_reduce(
        context->comm, s->buffer, s->buffer, count, TUTTI_INT32, TUTTI_SUM,
        &TUTTI_OPTIONS(.stream = s->rank.streams[0], .memory = TUTTI_MEMORY_CUDA, .work = work_out));
}

/* Returns the call's outcome, whether the call is refused or its work reports it. */
static tutti_status sum_and_wait(const ranks_context *context, scene *s, size_t count, int64_t timeout_ms) {
    tutti_work *work = NULL;
    TUTTI_TRY(tutti_all_reduce(context->comm, s->buffer, s->buffer, count, TUTTI_INT32, TUTTI_SUM,
                               &TUTTI_OPTIONS(.stream = s->rank.streams[0], .memory = TUTTI_MEMORY_CUDA,
                                              .timeout_ms = timeout_ms, .work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    return status;
}

static tutti_status sum_on_host(const ranks_context *context, scene *s, size_t count) {
    return tutti_all_reduce(context->comm, s->host, s->host, count, TUTTI_INT32, TUTTI_SUM, NULL);
}

static tutti_status expect_text(const char *part) {
    RANKS_CHECK(strstr(tutti_last_error(), part) != NULL, "'%s' is not in: %s", part, tutti_last_error());
    return TUTTI_OK;
}

/* Checks that the stream is released within that time. */
static tutti_status expect_released(scene *s, int64_t since_ns, int64_t most_ms) {
    TUTTI_TRY(s->rank.device->stream_sync(s->rank.streams[0]));
    int64_t took_ms = (tutti_now_ns() - since_ns) / TUTTI_NS_PER_MS;
    RANKS_CHECK(took_ms <= most_ms, "the stream went on after %lld ms", (long long)took_ms);
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- mismatches */

/* One rank's data is on its GPU, the other ranks' data is not. */
static tutti_status differ_by_memory(ranks_context *context, bool warm) {
    scene s;
    TUTTI_TRY(open_scene(context, &s));
    if (warm) {
        TUTTI_TRY(sum(context, &s, 16, NULL));
        TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[0]));
    }
    tutti_status status = context->rank == 0 ? sum_and_wait(context, &s, 200, 0) : sum_on_host(context, &s, 200);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "it gave '%s': %s", tutti_status_name(status), tutti_last_error());
    TUTTI_TRY(expect_text("all_reduce(int32, 200, sum) on CUDA memory"));
    TUTTI_TRY(expect_text("all_reduce(int32, 200, sum) #"));
    RANKS_CHECK(tutti_comm_error(context->comm) != TUTTI_OK, "the communicator is whole");
    return close_scene(&s);
}

static tutti_status differ_at_first(ranks_context *context) {
    return differ_by_memory(context, /* warm */ false);
}

static tutti_status differ_later(ranks_context *context) {
    return differ_by_memory(context, /* warm */ true);
}

Test(stream_failure, host_and_cuda_memory_in_one_call_is_an_error_on_all_ranks) {
    run(differ_at_first, NULL);
}

Test(stream_failure, host_and_cuda_memory_in_a_later_call_is_an_error_on_all_ranks) {
    run(differ_later, NULL);
}

/* An engine for ranks that share a GPU need not use posts. */
Test(stream_failure, host_and_cuda_memory_on_one_gpu_is_an_error_on_all_ranks) {
    static const char *const environment[] = {"STANDIN_IDS=a,a", NULL};
    if (!ranks_have_processes()) cr_skip("needs ranks that are processes");
    const char *failure =
        ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 50, .environment = environment}, differ_later);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status differ_by_count(ranks_context *context) {
    scene s;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(sum(context, &s, 16, NULL));
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, sum_and_wait(context, &s, context->rank == 0 ? 100 : 101, 0));
    TUTTI_TRY(expect_text("100"));
    TUTTI_TRY(expect_text("101"));
    TUTTI_TRY(expect_released(&s, tutti_now_ns(), 20000));
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, sum(context, &s, 16, NULL));
    return close_scene(&s);
}

Test(stream_failure, calls_that_differ_are_shown_on_all_ranks) {
    run(differ_by_count, NULL);
}

/* ------------------------------------------------------------------------------- missing ranks */

static tutti_status lose_one(ranks_context *context) {
    scene s;
    char name[32];
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(sum(context, &s, 16, NULL));
    TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[0]));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) ranks_strike(context, SIGKILL);
    int64_t start_ns = tutti_now_ns();
    tutti_status status = sum(context, &s, 100, NULL); /* no caller waits for it */
    if (status == TUTTI_OK) status = sum_and_wait(context, &s, 100, 0);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "the work reports '%s': %s", tutti_status_name(status),
                tutti_last_error());
    snprintf(name, sizeof name, "rank %d", VICTIM);
    TUTTI_TRY(expect_text(name));
    TUTTI_TRY(expect_text("died"));
    TUTTI_TRY(expect_released(&s, start_ns, 20000));
    RANKS_EXPECT(TUTTI_ERR_PEER_DIED, tutti_comm_error(context->comm));
    return close_scene(&s);
}

Test(stream_failure, a_death_releases_streams_and_is_named) {
    run_processes(lose_one);
}

static tutti_status outlive_a_stop(ranks_context *context) {
    scene s;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(sum(context, &s, 16, NULL));
    TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[0]));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        ranks_strike(context, SIGSTOP);
        return TUTTI_OK;
    }
    int64_t start_ns = tutti_now_ns();
    RANKS_EXPECT(TUTTI_ERR_TIMEOUT, sum_and_wait(context, &s, 100, 700));
    bool told = strstr(tutti_last_error(), "reported by") != NULL; /* set by a rank that began to wait earlier */
    RANKS_CHECK(told || tutti_now_ns() - start_ns >= 600 * TUTTI_NS_PER_MS, "it did not wait so long");
    TUTTI_TRY(expect_released(&s, start_ns, 20000));
    return close_scene(&s);
}

Test(stream_failure, a_deadline_ends_the_wait_for_a_rank_that_is_stopped) {
    run_processes(outlive_a_stop);
}

static void *abort_soon(void *comm) {
    usleep(100000);
    tutti_comm_abort(comm, "enough");
    return NULL;
}

/* The last rank makes no call; another rank aborts the calls of the others. */
static tutti_status give_up(ranks_context *context) {
    scene s;
    pthread_t thread;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(sum(context, &s, 16, NULL));
    if (context->rank == context->nranks - 1) {
        TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[0]));
        while (tutti_comm_error(context->comm) == TUTTI_OK) { /* this rank must poll: nothing is under way here */
            int32_t value = 0;
            if (tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, 9, &TUTTI_OPTIONS(.timeout_ms = 5000)) != TUTTI_OK)
                break;
        }
        RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_comm_error(context->comm));
        return close_scene(&s);
    }
    bool aborts = context->rank == 0;
    if (aborts && pthread_create(&thread, NULL, abort_soon, context->comm) != 0) return TUTTI_ERR_SYSTEM;
    int64_t start_ns = tutti_now_ns();
    RANKS_EXPECT(TUTTI_ERR_ABORTED, sum_and_wait(context, &s, 100, 0));
    TUTTI_TRY(expect_text("enough"));
    if (aborts) pthread_join(thread, NULL);
    TUTTI_TRY(expect_released(&s, start_ns, 20000));
    return close_scene(&s);
}

Test(stream_failure, abort_from_another_thread_ends_what_is_under_way) {
    run(give_up, NULL);
}

/* ------------------------------------------------------------------------------------------------ destroy */

static tutti_status destroy_under_way(ranks_context *context) {
    scene s;
    cuda_gate gate;
    tutti_comm *comm = NULL;
    tutti_work *works[3] = {NULL};
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(cuda_gate_create(&s.rank, &gate));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
    tutti_options options = TUTTI_OPTIONS(.stream = s.rank.streams[0], .memory = TUTTI_MEMORY_CUDA, .work = &works[0]);
    TUTTI_TRY(tutti_all_reduce(comm, s.buffer, s.buffer, 10, TUTTI_INT32, TUTTI_SUM, &options));
    TUTTI_TRY(tutti_work_wait(works[0], -1));
    TUTTI_TRY(tutti_barrier(context->comm, NULL)); /* otherwise a rank that destroys could end another's first call */
    TUTTI_TRY(cuda_gate_close(&s.rank, &gate, s.rank.streams[0]));
    options.work = &works[1];
    TUTTI_TRY(tutti_all_reduce(comm, s.buffer, s.buffer, 200, TUTTI_INT32, TUTTI_SUM, &options));
    options.work = &works[2];
    TUTTI_TRY(tutti_recv(comm, s.buffer, 10, TUTTI_INT32, 0, 1, &options));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    TUTTI_TRY(tutti_comm_destroy(comm)); /* it would hang if it waited for the stream */
    for (int i = 1; i < 3; i++) {
        RANKS_CHECK(tutti_work_done(works[i]), "work %d is not done", i);
        RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_work_wait(works[i], -1));
    }
    for (int i = 0; i < 3; i++) tutti_work_free(works[i]);
    cuda_gate_open(&gate);
    TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[0]));
    call c = {
        .kind = CALL_ALL_GATHER, .type = TUTTI_INT32, .count = 300, .seed = 3}; /* uses the memory that was returned */
    TUTTI_TRY(cuda_call_run(&s.rank, &c, context->comm, s.rank.streams[1], true));
    TUTTI_TRY(
        tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST))); /* freeing waits for all streams */
    cuda_gate_destroy(&s.rank, &gate);
    return cuda_rank_close(&s.rank, context->comm);
}

Test(stream_failure, destroy_ends_what_is_under_way_and_waits_for_no_stream) {
    run(destroy_under_way, NULL);
}

/* --------------------------------------------------------------------------------------- GPUs that fail */

/* On every rank the same CUDA call fails, sooner or later: each rank gets an error, and no rank hangs. */
static tutti_status fail_sometime(ranks_context *context) {
    scene s;
    tutti_work *work = NULL;
    tutti_status status = open_scene(context, &s);
    for (int i = 0; i < 30 && status == TUTTI_OK; i++) {
        work = NULL;
        status = sum(context, &s, 100, i % 2 == 0 ? &work : NULL);
        if (status == TUTTI_OK && work != NULL) status = tutti_work_wait(work, -1);
        tutti_work_free(work);
    }
    RANKS_CHECK(status != TUTTI_OK && status != TUTTI_ERR_TIMEOUT, "it gave '%s'", tutti_status_name(status));
    RANKS_CHECK(tutti_last_error()[0] != '\0', "the error has no text");
    return TUTTI_OK;
}

Test(stream_failure, cuda_calls_that_fail_are_reported_and_break_the_communicator) {
    static const char *const failures[] = {"STANDIN_FAIL=copy:9",        "STANDIN_FAIL=wait_value:7",
                                           "STANDIN_FAIL=write_value:5", "STANDIN_FAIL=event_record:12",
                                           "STANDIN_FAIL=task:40",       "STANDIN_FAIL=alloc_pinned:1",
                                           "STANDIN_FAIL=event_create:2"};
    if (!ranks_have_processes()) cr_skip("needs ranks that are processes");
    if (cuda_real_gpus() > 0) cr_skip("only stand-ins fail on demand");
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        const char *const environment[] = {failures[i], NULL};
        const char *failure =
            ranks_run(&(ranks_options){.nranks = 2, .timeout_s = 30, .environment = environment}, fail_sometime);
        cr_assert(failure == NULL, "%s: %s", failures[i], failure);
    }
}

/* ----------------------------------------------------------------------------------- what is refused */

static tutti_status use_in_child(ranks_context *context, scene *s, const tutti_work *work) {
    tutti_work *other = NULL;
    void *memory;
    RANKS_EXPECT(TUTTI_ERR_FORKED, sum(context, s, 16, &other));
    RANKS_EXPECT(TUTTI_ERR_FORKED, tutti_work_wait((tutti_work *)(uintptr_t)work, -1));
    RANKS_EXPECT(TUTTI_ERR_FORKED, tutti_mem_alloc_cuda(100, &memory));
    return tutti_comm_destroy(context->comm);
}

static tutti_status fork_child(ranks_context *context) {
    scene s;
    tutti_work *work = NULL;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(sum(context, &s, 100, &work));
    pid_t child = fork();
    if (child == 0) {
        tutti_status status = use_in_child(context, &s, work);
        if (status != TUTTI_OK) dprintf(STDERR_FILENO, "child: %s\n", tutti_last_error());
        _exit(status == TUTTI_OK ? 0 : 1);
    }
    int result = -1;
    RANKS_CHECK(waitpid(child, &result, 0) == child && result == 0, "the child failed: %d", result);
    TUTTI_TRY(tutti_work_wait(work, -1));
    tutti_work_free(work);
    return cuda_rank_close(&s.rank, context->comm);
}

Test(stream_failure, a_forked_child_makes_no_call) {
    run_processes(fork_child);
}

static tutti_status refused(ranks_context *context) {
    scene s;
    void *elsewhere, *own;
    void (*capture)(void *, bool) = NULL;
    tutti_work *work = NULL;
    TUTTI_TRY(open_scene(context, &s));
    const tutti_device *device = s.rank.device;
    TUTTI_TRY(device->use(1 - s.rank.index));
    TUTTI_TRY(device->alloc(1024, &elsewhere));
    TUTTI_TRY(device->use(s.rank.index));
    tutti_comm *comm = context->comm;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_all_reduce(comm, s.buffer, elsewhere, 10, TUTTI_INT32, TUTTI_SUM, NULL));
    TUTTI_TRY(expect_text("must be on one GPU"));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_all_reduce(comm, s.buffer, s.host, 10, TUTTI_INT32, TUTTI_SUM, NULL));
    TUTTI_TRY(expect_text("must be of one kind"));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_all_reduce(comm, s.host, s.host, 10, TUTTI_INT32, TUTTI_SUM,
                                                      &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA)));
    TUTTI_TRY(expect_text("is host memory"));
    /* In a captured stream, the first collective is refused, and every collective of an engine that waits for the
     * host. */
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module != NULL ? dlsym(module, "standin_capture") : NULL;
    RANKS_CHECK(symbol != NULL, "the stand-in is not there");
    memcpy(&capture, &symbol, sizeof capture);
    capture(s.rank.streams[0], true);
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, sum(context, &s, 16, NULL));
    TUTTI_TRY(expect_text("graph"));
    TUTTI_TRY(tutti_all_reduce(comm, s.buffer, s.buffer, 16, TUTTI_INT32, TUTTI_SUM,
                               &TUTTI_OPTIONS(.stream = s.rank.streams[1], .work = &work)));
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, sum(context, &s, 16, NULL));
    TUTTI_TRY(expect_text("staged"));
    capture(s.rank.streams[0], false);
    dlclose(module);
    /* The communicator is bound to its GPU now. */
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_all_reduce(comm, elsewhere, elsewhere, 10, TUTTI_INT32, TUTTI_SUM, NULL));
    TUTTI_TRY(expect_text("one communicator for each GPU"));
    TUTTI_TRY(tutti_work_wait(work, -1)); /* the earlier call is not affected */
    tutti_work_free(work);
    TUTTI_TRY(tutti_mem_alloc_cuda(1000, &own));
    TUTTI_TRY(sum(context, &s, 16, NULL));
    TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[0]));
    TUTTI_TRY(tutti_barrier(comm, NULL)); /* freeing memory waits for the streams of all threads */
    TUTTI_TRY(tutti_mem_free(own));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_mem_free(own));
    TUTTI_TRY(device->free(elsewhere));
    return cuda_rank_close(&s.rank, comm);
}

Test(stream_failure, wrong_memory_and_captured_streams_are_refused_without_harm) {
    if (cuda_real_gpus() > 0) cr_skip("needs two GPUs and a simulated capture; see test_stream_graph.c");
    run(refused, NULL);
}
