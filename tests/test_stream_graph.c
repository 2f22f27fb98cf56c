/*
 * CUDA graphs on a real GPU: calls of one rank are captured and replayed, by the engine for one rank and by NCCL; where several
 * ranks share a GPU a captured stream is refused, which harms nobody. The stand-in has no graphs, so all is skipped there.
 *
 * Graphs are made by calls of the driver's, found at run time: the tests are built without CUDA's headers.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/stream.h"
#include "tests/support/cuda_call.h"

/* The driver's; 0 is success, a CUstream is the runtime's stream. */
static struct driver {
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph_out);
    int (*instantiate)(void **exec_out, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*forget)(void *exec);
    int (*destroy)(void *graph);
} driver;

enum { CAPTURE_THREAD_LOCAL = 1, REPLAYS = 5, FACTOR = 3, ITEMS = 1000 };

static void find_driver(void) {
    static const struct {
        const char *name;
        void *place;
    } calls[] = {{"cuStreamBeginCapture_v2", &driver.begin},
                 {"cuStreamEndCapture", &driver.end},
                 {"cuGraphInstantiateWithFlags", &driver.instantiate},
                 {"cuGraphLaunch", &driver.launch},
                 {"cuGraphExecDestroy", &driver.forget},
                 {"cuGraphDestroy", &driver.destroy}};
    if (cuda_real_gpus() == 0) cr_skip("the stand-in has no graphs");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    cr_assert(library != NULL, "%s", dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(library, calls[i].name);
        cr_assert(found != NULL, "%s", calls[i].name);
        memcpy(calls[i].place, &found, sizeof found);
    }
}

TestSuite(stream_graph, .init = find_driver, .timeout = 120);

static tutti_status multiply(ranks_context *context, cuda_rank *rank, void *memory) {
    return tutti_all_reduce(context->comm, memory, memory, ITEMS, TUTTI_INT32, TUTTI_PREMUL_SUM,
                            &TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA, .factor = FACTOR));
}

static tutti_status expect_all(cuda_rank *rank, const void *memory, int32_t expected) {
    int32_t values[ITEMS];
    TUTTI_TRY(rank->device->copy(values, memory, sizeof values, rank->streams[0]));
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    for (int i = 0; i < ITEMS; i++)
        RANKS_CHECK(values[i] == expected, "[%d] is %d, not %d", i, (int)values[i], (int)expected);
    return TUTTI_OK;
}

static tutti_status put_ones(cuda_rank *rank, void **memory_out) {
    int32_t ones[ITEMS];
    for (int i = 0; i < ITEMS; i++) ones[i] = 1;
    TUTTI_TRY(cuda_alloc(rank, sizeof ones, memory_out));
    TUTTI_TRY(rank->device->copy(*memory_out, ones, sizeof ones, rank->streams[0]));
    return rank->device->stream_sync(rank->streams[0]);
}

/* Each replay multiplies what is there once more; capturing does not. */
static tutti_status replay(ranks_context *context) {
    cuda_rank rank;
    void *memory, *graph = NULL, *exec = NULL;
    int32_t expected = FACTOR;
    const char *engine = context->argument;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(put_ones(&rank, &memory));
    TUTTI_TRY(multiply(context, &rank, memory));
    TUTTI_TRY(expect_all(&rank, memory, expected));
    RANKS_CHECK(strcmp(context->comm->gpu->engine->name, engine) == 0, "another engine did it: %s",
                context->comm->gpu->engine->name);
    RANKS_CHECK(driver.begin(rank.streams[0], CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    TUTTI_TRY(multiply(context, &rank, memory));
    int ended = driver.end(rank.streams[0], &graph);
    RANKS_CHECK(ended == 0 && graph != NULL, "the capture ended with %d", ended);
    RANKS_CHECK(driver.instantiate(&exec, graph, 0) == 0, "the graph cannot be made");
    TUTTI_TRY(expect_all(&rank, memory, expected));
    for (int i = 0; i < REPLAYS; i++, expected *= FACTOR)
        RANKS_CHECK(driver.launch(exec, rank.streams[0]) == 0, "replay %d", i);
    TUTTI_TRY(expect_all(&rank, memory, expected));
    TUTTI_TRY(multiply(context, &rank, memory)); /* and by hand again */
    TUTTI_TRY(expect_all(&rank, memory, expected * FACTOR));
    RANKS_CHECK(driver.forget(exec) == 0 && driver.destroy(graph) == 0, "the graph cannot be freed");
    return cuda_rank_close(&rank, context->comm);
}

static void run(const char *engine, int nranks, ranks_body body) {
    ranks_options options = {.nranks = nranks, .argument = (void *)(uintptr_t)engine};
    setenv("TUTTI_ALGORITHM", engine, 1);
    tutti_settings_reload();
    for (ranks_kind kind = RANKS_PROCESSES; kind <= RANKS_THREADS; kind++) {
        options.kind = kind;
        const char *failure = ranks_run(&options, body);
        cr_assert(failure == NULL, "%s: %s", kind == RANKS_THREADS ? "threads" : "processes", failure);
    }
}

Test(stream_graph, a_call_of_one_rank_is_captured_and_replayed) {
    run("solo", 1, replay);
}

Test(stream_graph, so_it_is_by_nccl) {
    run("nccl", 1, replay);
}

static tutti_status refuse(ranks_context *context) {
    cuda_rank rank;
    void *memory, *graph = NULL;
    const char *engine = context->argument;
    int32_t sum = FACTOR * context->nranks;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(put_ones(&rank, &memory));
    TUTTI_TRY(multiply(context, &rank, memory));
    TUTTI_TRY(expect_all(&rank, memory, sum));
    RANKS_CHECK(driver.begin(rank.streams[0], CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, multiply(context, &rank, memory));
    RANKS_CHECK(strstr(tutti_last_error(), engine) != NULL && strstr(tutti_last_error(), "graph") != NULL,
                "it is not said why: %s", tutti_last_error());
    if (driver.end(rank.streams[0], &graph) == 0 && graph != NULL) driver.destroy(graph);
    TUTTI_TRY(multiply(context, &rank, memory));
    TUTTI_TRY(expect_all(&rank, memory, sum * sum));
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_graph, ranks_that_share_a_gpu_are_refused_and_go_on) {
    run("same_device", 2, refuse);
}

Test(stream_graph, so_they_are_by_way_of_the_host) {
    run("staged", 2, refuse);
}
