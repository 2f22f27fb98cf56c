/*
 * A thread of the program is inside a CUDA call that waits for streams (cudaFree, cudaDeviceSynchronize) and blocks
 * all other CUDA calls until then. Meanwhile works must end, messages must arrive, and streams that wait for a dead
 * rank must be released: the watcher must not need CUDA for that. GPUs and NCCL are stand-ins (support/standins/),
 * or real.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "comm/gpu/stream.h"
#include "tests/support/gpu/cuda_call.h"

TestSuite(stream_watch, .timeout = 120);

#define ARENA_BYTES ((size_t)1 << 20)
#define PATIENCE_MS 20000
#define ITEMS       1000

enum { RANKS = 3 };

/* The environment for each engine, the engine's name last. */
static const char *const staged[] = {"TUTTI_ALGORITHM=staged", NULL};
static const char *const same_device[] = {"STANDIN_GPUS=1", "TUTTI_ALGORITHM=same_gpu", NULL};
static const char *const nccl[] = {"STANDIN_GPUS=3", "TUTTI_ALGORITHM=nccl", NULL};

static atomic_int *met; /* calls of meet; shared by the ranks of a run */

static void run_as(ranks_kind kind, const char *const *environment, ranks_body body) {
    if (kind == RANKS_PROCESSES && !ranks_have_processes()) return;
    met = mmap(NULL, sizeof *met, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(met, MAP_FAILED);
    if (kind == RANKS_THREADS) ranks_adopt(environment);
    const char *failure =
        ranks_run(&(ranks_options){.kind = kind, .nranks = RANKS, .timeout_s = 50, .environment = environment}, body);
    cr_assert(failure == NULL, "%s: %s", kind == RANKS_THREADS ? "threads" : "processes", failure);
}

static void run(const char *const *environment, ranks_body body) {
    run_as(RANKS_PROCESSES, environment, body);
    run_as(RANKS_THREADS, environment, body);
}

/* Waits until all ranks are here, outside of the library: a barrier would queue behind a staged call that waits for
 * its stream. */
static tutti_status meet(const ranks_context *context) {
    int turn = atomic_fetch_add(met, 1) / context->nranks;
    for (int i = 0; atomic_load(met) < (turn + 1) * context->nranks; i++) {
        RANKS_CHECK(i < 30000, "a rank did not come to meet the others");
        usleep(1000);
    }
    return TUTTI_OK;
}

static void need_standin(void) {
    if (cuda_real_gpus() > 0) cr_skip("each rank needs its own GPU");
}

/* ------------------------------------------------------------------------------------- a program that waits */

/* A rank with a stream that is held up until `last` opens, and a thread that is inside CUDA until then. */
typedef struct scene {
    cuda_rank rank;
    void *memory, *other;
    cuda_gate first, last;
    bool frees; /* the thread frees memory; otherwise it waits for the GPU */
    pthread_t program;
    tutti_status status; /* the thread's result */
} scene;

static void *be_inside(void *context) {
    scene *s = context;
    s->status = s->frees ? s->rank.device->free(s->other) : s->rank.device->sync();
    return NULL;
}

/* Waits until the thread is inside CUDA. A real GPU does not report this. */
static void await_inside(void) {
    bool (*is_freeing)(void) = NULL;
    const char *file = getenv("TUTTI_CUDA_MODULE");
    void *module = file != NULL ? dlopen(file, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = module != NULL ? dlsym(module, "standin_is_freeing") : NULL;
    memcpy(&is_freeing, &symbol, sizeof symbol);
    for (int i = 0; i < 200 && (is_freeing == NULL || !is_freeing()); i++) usleep(1000);
    if (module != NULL) dlclose(module);
}

static tutti_status sum(const ranks_context *context, scene *s, tutti_work **work_out) {
    return tutti_all_reduce(
        context->comm, s->memory, s->memory, ITEMS, TUTTI_INT32, TUTTI_SUM,
        &TUTTI_OPTIONS(.stream = s->rank.streams[0], .memory = TUTTI_MEMORY_CUDA, .work = work_out));
}

/* Opens the rank and makes a first call, so that the engine has what it needs. */
static tutti_status open_scene(const ranks_context *context, scene *s) {
    int32_t ones[ITEMS];
    tutti_work *work = NULL;
    for (int i = 0; i < ITEMS; i++) ones[i] = 1;
    *s = (scene){.frees = context->rank % 2 == 0};
    TUTTI_TRY(cuda_rank_open(context, ARENA_BYTES, &s->rank));
    TUTTI_TRY(cuda_alloc(&s->rank, sizeof ones, &s->memory));
    TUTTI_TRY(s->rank.device->alloc(4000, &s->other));
    TUTTI_TRY(cuda_gate_create(&s->rank, &s->first));
    TUTTI_TRY(cuda_gate_create(&s->rank, &s->last));
    TUTTI_TRY(cuda_put(&s->rank, s->memory, ones, sizeof ones, s->rank.streams[0]));
    TUTTI_TRY(sum(context, s, &work));
    TUTTI_TRY(tutti_work_wait(work, -1));
    tutti_work_free(work);
    const char *wanted = getenv("TUTTI_ALGORITHM"), *used = context->comm->cuda.streams->engine->name;
    RANKS_CHECK(strcmp(used, wanted) == 0, "\"%s\" did it, not \"%s\"", used, wanted);
    return TUTTI_OK;
}

/* All calls are in their streams, behind `first`; the threads of this process make no CUDA call until end_inside. */
static tutti_status go_inside(const ranks_context *context, scene *s) {
    TUTTI_TRY(cuda_gate_close(&s->rank, &s->last, s->rank.streams[2]));
    TUTTI_TRY(meet(context));
    RANKS_CHECK(pthread_create(&s->program, NULL, be_inside, s) == 0, "no thread");
    await_inside();
    cuda_gate_open(&s->first);
    return TUTTI_OK;
}

/* Lets the thread return, whatever the result is. */
static tutti_status end_inside(scene *s, tutti_status status) {
    char text[512];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    cuda_gate_open(&s->last);
    pthread_join(s->program, NULL);
    if (status == TUTTI_NOT_YET) return tutti_fail(TUTTI_ERR_DATA, "no thread ended it while the program was in CUDA");
    if (status != TUTTI_OK) return tutti_fail(status, "%s", text);
    return s->status;
}

static tutti_status close_scene(ranks_context *context, scene *s) {
    TUTTI_TRY(meet(context));
    cuda_gate_destroy(&s->rank, &s->first);
    cuda_gate_destroy(&s->rank, &s->last);
    if (!s->frees) TUTTI_TRY(s->rank.device->free(s->other));
    return cuda_rank_close(&s->rank, context->comm);
}

static tutti_status expect_all(scene *s, const void *memory, int32_t expected) {
    int32_t values[ITEMS];
    TUTTI_TRY(cuda_fetch(&s->rank, values, memory, sizeof values, s->rank.streams[0]));
    for (int i = 0; i < ITEMS; i++)
        RANKS_CHECK(values[i] == expected, "[%d] is %d, not %d", i, (int)values[i], (int)expected);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- works that end */

static tutti_status end_collective(ranks_context *context) {
    scene s;
    tutti_work *work = NULL;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(cuda_gate_close(&s.rank, &s.first, s.rank.streams[0]));
    TUTTI_TRY(sum(context, &s, &work));
    TUTTI_TRY(go_inside(context, &s));
    TUTTI_TRY(end_inside(&s, tutti_work_wait(work, PATIENCE_MS)));
    tutti_work_free(work);
    TUTTI_TRY(expect_all(&s, s.memory, context->nranks * context->nranks));
    return close_scene(context, &s);
}

Test(stream_watch, a_staged_call_ends_while_the_program_is_inside_cuda) {
    run(staged, end_collective);
}

Test(stream_watch, a_call_of_ranks_that_share_a_gpu_ends_while_the_program_is_inside_cuda) {
    run(same_device, end_collective);
}

Test(stream_watch, a_call_by_nccl_ends_while_the_program_is_inside_cuda) {
    need_standin();
    run(nccl, end_collective);
}

/* ------------------------------------------------------------------------------------------------ messages */

/* Sends around the ring; the receive's stream waits, and goes on only when the message has come. */
static tutti_status end_messages(ranks_context *context) {
    scene s;
    void *received = NULL;
    tutti_work *send = NULL, *receive = NULL;
    int n = context->nranks, to = (context->rank + 1) % n, from = (context->rank + n - 1) % n;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(cuda_alloc(&s.rank, sizeof(int32_t[ITEMS]), &received));
    TUTTI_TRY(cuda_gate_close(&s.rank, &s.first, s.rank.streams[0]));
    tutti_options out = TUTTI_OPTIONS(.stream = s.rank.streams[0], .memory = TUTTI_MEMORY_CUDA, .work = &send),
                  in = TUTTI_OPTIONS(.stream = s.rank.streams[1], .memory = TUTTI_MEMORY_CUDA, .work = &receive);
    TUTTI_TRY(tutti_send(context->comm, s.memory, ITEMS, TUTTI_INT32, to, 3, &out));
    TUTTI_TRY(tutti_recv(context->comm, received, ITEMS, TUTTI_INT32, from, 3, &in));
    TUTTI_TRY(go_inside(context, &s));
    tutti_status status = tutti_work_wait(receive, PATIENCE_MS);
    if (status == TUTTI_OK) status = tutti_work_wait(send, PATIENCE_MS);
    TUTTI_TRY(end_inside(&s, status));
    tutti_work_free(send);
    tutti_work_free(receive);
    TUTTI_TRY(expect_all(&s, received, n));
    return close_scene(context, &s);
}

Test(stream_watch, messages_arrive_while_the_program_is_inside_cuda) {
    run(staged, end_messages);
}

/* -------------------------------------------------------------------------------------------------- deaths */

/* The program waits for the stream of this call. */
static tutti_status lose_rank(ranks_context *context) {
    scene s;
    tutti_work *work = NULL;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(meet(context));
    if (context->rank == context->nranks - 1) {
        usleep(200000); /* the other ranks are in their calls */
        ranks_strike(context, SIGKILL);
    }
    TUTTI_TRY(sum(context, &s, &work));
    TUTTI_TRY(s.frees ? s.rank.device->free(s.other) : s.rank.device->sync());
    RANKS_EXPECT(TUTTI_ERR_PEER_DIED, tutti_work_wait(work, PATIENCE_MS));
    tutti_work_free(work);
    return TUTTI_OK;
}

static void lose(const char *const *environment) {
    if (!ranks_have_processes()) cr_skip("ranks have to be processes");
    run_as(RANKS_PROCESSES, environment, lose_rank);
}

Test(stream_watch, a_death_releases_a_staged_call_for_which_the_program_waits) {
    lose(staged);
}

Test(stream_watch, a_death_releases_a_call_of_ranks_that_share_a_gpu_for_which_the_program_waits) {
    lose(same_device);
}

Test(stream_watch, a_death_releases_a_call_by_nccl_for_which_the_program_waits) {
    need_standin();
    lose(nccl);
}

/* ---------------------------------------------------------------------------------------- GPUs that fail */

/* One rank's GPU fails while all wait for another rank, which makes no call until it gets the error: only CUDA
 * reports the failure. */
static tutti_status fail_gpu(ranks_context *context) {
    scene s;
    tutti_work *work = NULL;
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(meet(context)); /* the failure must not reach a rank that still waits for its first call */
    if (context->rank == context->nranks - 1) {
        int32_t value; /* no rank sends it */
        tutti_options patient = TUTTI_OPTIONS(.timeout_ms = PATIENCE_MS);
        RANKS_EXPECT(TUTTI_ERR_SYSTEM, tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, 9, &patient));
        return TUTTI_OK;
    }
    tutti_status status = sum(context, &s, &work); /* refused if rank 0 has failed before */
    void *nowhere = (void *)(uintptr_t)4096;
    if (context->rank == 0) TUTTI_TRY(s.rank.device->copy_counted(nowhere, nowhere, nowhere, 8, s.rank.streams[1]));
    if (status == TUTTI_OK) status = tutti_work_wait(work, PATIENCE_MS);
    RANKS_CHECK(status == TUTTI_ERR_SYSTEM, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "illegal memory access") != NULL, "%s", tutti_last_error());
    tutti_work_free(work);
    return TUTTI_OK;
}

static void fail(const char *const *environment) {
    need_standin();
    if (!ranks_have_processes()) cr_skip("ranks have to be processes");
    run_as(RANKS_PROCESSES, environment, fail_gpu);
}

Test(stream_watch, a_gpu_that_fails_is_reported_in_a_staged_call) {
    fail(staged);
}

Test(stream_watch, a_gpu_that_fails_is_reported_where_ranks_share_it) {
    fail(same_device);
}

Test(stream_watch, a_gpu_that_fails_is_reported_in_a_call_by_nccl) {
    fail(nccl);
}

/* ------------------------------------------------------------------------- GPUs without such operations */

/* The engine uses events then. */
static tutti_status do_without(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)8 << 20, &rank));
    TUTTI_TRY(cuda_sweep_sizes(&rank, context, 4096));
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_watch, where_streams_cannot_write_to_memory_calls_end_all_the_same) {
    static const char *const environment[] = {"STANDIN_STREAM_WAITS=0", "TUTTI_CUDA_STAGE_BYTES=4096",
                                              "TUTTI_ALGORITHM=staged", NULL};
    need_standin();
    run(environment, do_without);
}
