/*
 * Calls in CUDA graphs: captured and replayed, by the engine for one rank, by NCCL, and by the engine for ranks that
 * share a GPU, whose ranks die, make different calls, or cannot capture; and refused by the engine that goes through
 * the host, which harms no rank. GPUs are stand-ins, whose graphs are lists of tasks (support/standins/),
 * or real ones.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/device.h>

#include "bootstrap/base/settings.h"
#include "comm/gpu/stream.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/gpu/cuda_graph.h"

enum { REPLAYS = 5, FACTOR = 3, ITEMS = 1000 };

TestSuite(stream_graph, .init = cuda_graph_find, .timeout = 200);

static tutti_status multiply(ranks_context *context, cuda_rank *rank, void *memory) {
    return tutti_all_reduce(context->comm, memory, memory, ITEMS, TUTTI_INT32, TUTTI_PREMUL_SUM,
                            &TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA, .factor = FACTOR));
}

static tutti_status expect_all(cuda_rank *rank, const void *memory, int32_t expected) {
    int32_t values[ITEMS];
    TUTTI_TRY(cuda_fetch(rank, values, memory, sizeof values, rank->streams[0]));
    for (int i = 0; i < ITEMS; i++)
        RANKS_CHECK(values[i] == expected, "[%d] is %d, not %d", i, (int)values[i], (int)expected);
    return TUTTI_OK;
}

static tutti_status put_ones(cuda_rank *rank, void **memory_out) {
    int32_t ones[ITEMS];
    for (int i = 0; i < ITEMS; i++) ones[i] = 1;
    TUTTI_TRY(cuda_alloc(rank, sizeof ones, memory_out));
    TUTTI_TRY(cuda_put(rank, *memory_out, ones, sizeof ones, rank->streams[0]));
    return rank->device->stream_sync(rank->streams[0]);
}

/* Each replay multiplies the values once more; capturing does not. */
static tutti_status replay(ranks_context *context) {
    cuda_rank rank;
    void *memory, *graph = NULL, *exec = NULL;
    int32_t expected = FACTOR;
    const char *engine = context->argument;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(put_ones(&rank, &memory));
    TUTTI_TRY(multiply(context, &rank, memory));
    TUTTI_TRY(expect_all(&rank, memory, expected));
    RANKS_CHECK(strcmp(context->comm->cuda.streams->engine->name, engine) == 0, "another engine did it: %s",
                context->comm->cuda.streams->engine->name);
    RANKS_CHECK(cuda_graph.begin(rank.streams[0], CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    TUTTI_TRY(multiply(context, &rank, memory));
    tutti_work *work = NULL;
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED,
                 tutti_barrier(context->comm,
                               &TUTTI_OPTIONS(.stream = rank.streams[0], .work = &work, .memory = TUTTI_MEMORY_CUDA)));
    RANKS_CHECK(strstr(tutti_last_error(), "with options.work") != NULL, "%s", tutti_last_error());
    int ended = cuda_graph.end(rank.streams[0], &graph);
    RANKS_CHECK(ended == 0 && graph != NULL, "the capture ended with %d", ended);
    RANKS_CHECK(cuda_graph.instantiate(&exec, graph, 0) == 0, "the graph cannot be instantiated");
    TUTTI_TRY(expect_all(&rank, memory, expected));
    for (int i = 0; i < REPLAYS; i++, expected *= FACTOR)
        RANKS_CHECK(cuda_graph.launch(exec, rank.streams[0]) == 0, "replay %d", i);
    TUTTI_TRY(expect_all(&rank, memory, expected));
    TUTTI_TRY(multiply(context, &rank, memory)); /* and outside of a graph again */
    TUTTI_TRY(expect_all(&rank, memory, expected * FACTOR));
    RANKS_CHECK(cuda_graph.forget(exec) == 0 && cuda_graph.destroy(graph) == 0, "the graph cannot be freed");
    return cuda_rank_close(&rank, context->comm);
}

static void run(const char *engine, int nranks, ranks_body body) {
    ranks_options options = {.nranks = nranks, .argument = (void *)(uintptr_t)engine};
    setenv("STANDIN_GPUS", "1", 1);
    setenv("TUTTI_ALGORITHM", engine, 1);
    tutti_settings_reload();
    for (ranks_kind kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS; kind <= RANKS_THREADS; kind++) {
        options.kind = kind;
        const char *failure = ranks_run(&options, body);
        cr_assert(failure == NULL, "%s: %s", kind == RANKS_THREADS ? "threads" : "processes", failure);
    }
}

Test(stream_graph, a_call_of_one_rank_is_captured_and_replayed) {
    run("single", 1, replay);
}

Test(stream_graph, a_call_by_nccl_is_captured_and_replayed) {
    if (cuda_real_gpus() == 0) cr_skip("test_nccl_calls.c has NCCL's stand-in");
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
    RANKS_CHECK(cuda_graph.begin(rank.streams[0], CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, multiply(context, &rank, memory));
    RANKS_CHECK(strstr(tutti_last_error(), engine) != NULL && strstr(tutti_last_error(), "graph") != NULL,
                "it is not said why: %s", tutti_last_error());
    if (cuda_graph.end(rank.streams[0], &graph) == 0 && graph != NULL) cuda_graph.destroy(graph);
    TUTTI_TRY(multiply(context, &rank, memory));
    TUTTI_TRY(expect_all(&rank, memory, sum * sum));
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_graph, calls_through_the_host_are_refused_and_ranks_go_on) {
    run("staged", 2, refuse);
}

/* ------------------------------------------------------------------------------------- ranks that share a GPU */

enum { LAUNCHES = 100, GPU_LAUNCHES = 30, LONG = 3001 }; /* several pieces of a slot each, the last one shorter */

static const char *const one_gpu[] = {"STANDIN_GPUS=1", "TUTTI_CUDA_SLOT_BYTES=4096", "TUTTI_ALGORITHM=same_gpu", NULL};

/* A rank's buffers on the GPU, LONG integers each: own values, all ranks' values, their sum, and one rank's values. */
typedef struct board {
    cuda_rank rank;
    tutti_comm *comm;
    tutti_stream stream;
    char *own, *all, *sum, *word;
    void *turn, *add; /* graphs */
} board;

static tutti_status put_values(const ranks_context *context, board *b) {
    int32_t values[LONG];
    void *places[4];
    for (int i = 0; i < LONG; i++) values[i] = context->rank * 10000 + i;
    for (int i = 0; i < 4; i++)
        TUTTI_TRY(cuda_alloc(&b->rank, sizeof values * (size_t)(i == 1 ? context->nranks : 1), &places[i]));
    b->own = places[0], b->all = places[1], b->sum = places[2], b->word = places[3];
    TUTTI_TRY(cuda_put(&b->rank, b->own, values, sizeof values, b->stream));
    return b->rank.device->stream_sync(b->stream);
}

/* Every rank's values become those of the next one. */
static tutti_status turn(const board *b) {
    tutti_options options = TUTTI_OPTIONS(.stream = b->stream, .memory = TUTTI_MEMORY_CUDA);
    size_t bytes = LONG * sizeof(int32_t), next = (size_t)((tutti_comm_rank(b->comm) + 1) % tutti_comm_size(b->comm));
    TUTTI_TRY(tutti_all_gather(b->comm, b->own, b->all, LONG, TUTTI_INT32, &options));
    return b->rank.device->copy(b->own, b->all + next * bytes, bytes, b->stream);
}

static tutti_status add(const board *b) {
    tutti_options options = TUTTI_OPTIONS(.stream = b->stream, .memory = TUTTI_MEMORY_CUDA);
    TUTTI_TRY(tutti_all_reduce(b->comm, b->own, b->sum, LONG, TUTTI_INT32, TUTTI_SUM, &options));
    TUTTI_TRY(b->rank.device->copy(b->word, b->own, LONG * sizeof(int32_t), b->stream));
    TUTTI_TRY(tutti_broadcast(b->comm, b->word, LONG, TUTTI_INT32, 1, &options));
    TUTTI_TRY(tutti_all_to_all(b->comm, b->all, b->all, 10, TUTTI_INT32, &options)); /* in place: by way of slots */
    return tutti_barrier(b->comm, &options);
}

static tutti_status capture(board *b, tutti_status (*calls)(const board *), void **exec_out) {
    void *graph = NULL;
    RANKS_CHECK(cuda_graph.begin(b->stream, CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    TUTTI_TRY(calls(b));
    RANKS_CHECK(cuda_graph.end(b->stream, &graph) == 0 && graph != NULL, "the capture does not end");
    RANKS_CHECK(cuda_graph.instantiate(exec_out, graph, 0) == 0, "the graph cannot be instantiated");
    RANKS_CHECK(cuda_graph.destroy(graph) == 0, "the captured graph cannot be freed");
    return TUTTI_OK;
}

static tutti_status open_board(ranks_context *context, board *b) {
    *b = (board){.comm = context->comm};
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &b->rank));
    b->stream = b->rank.streams[0];
    TUTTI_TRY(put_values(context, b));
    TUTTI_TRY(add(b)); /* the ranks meet in it */
    TUTTI_TRY(capture(b, turn, &b->turn));
    return capture(b, add, &b->add);
}

static tutti_status close_board(board *b, tutti_comm *comm) {
    RANKS_CHECK(cuda_graph.forget(b->turn) == 0 && cuda_graph.forget(b->add) == 0, "the graphs cannot be freed");
    return cuda_rank_close(&b->rank, comm);
}

static tutti_status expect(board *b, const char *memory, int times, int first, const char *what) {
    int32_t values[LONG];
    TUTTI_TRY(cuda_fetch(&b->rank, values, memory, sizeof values, b->stream));
    for (int i = 0; i < LONG; i++)
        RANKS_CHECK(values[i] == first + times * i, "%s: [%d] is %d, not %d", what, i, (int)values[i],
                    first + times * i);
    return TUTTI_OK;
}

/* Replays two graphs in turn, with calls outside of graphs between them; some ranks are late. */
static tutti_status replay_in_turns(ranks_context *context) {
    board b;
    int n = context->nranks, turns = 0, added = 0, launches = cuda_real_gpus() > 0 ? GPU_LAUNCHES : LAUNCHES;
    TUTTI_TRY(open_board(context, &b));
    TUTTI_TRY(expect(&b, b.own, 1, context->rank * 10000, "a capture has run"));
    for (int i = 0; i < launches; i++) {
        if ((context->rank + i) % 7 == 0) usleep(1000);
        RANKS_CHECK(cuda_graph.launch(b.turn, b.stream) == 0, "launch %d", i);
        turns++;
        if (i % 4 == 3) TUTTI_TRY(turn(&b));
        turns += i % 4 == 3;
        if (i % 3 != 0) continue;
        RANKS_CHECK(cuda_graph.launch(b.add, b.stream) == 0, "launch %d", i);
        added = turns;
    }
    TUTTI_TRY(expect(&b, b.own, 1, (context->rank + turns) % n * 10000, "own values"));
    TUTTI_TRY(expect(&b, b.sum, n, n * (n - 1) / 2 * 10000, "their sum"));
    TUTTI_TRY(expect(&b, b.word, 1, (1 + added) % n * 10000, "rank 1's"));
    RANKS_CHECK(strcmp(context->comm->cuda.streams->engine->name, "same_gpu") == 0, "'%s' did it",
                context->comm->cuda.streams->engine->name);
    return close_board(&b, context->comm);
}

static void run_shared(uint64_t shared) {
    ranks_adopt(one_gpu);
    cuda_shared_arenas = shared;
    const char *failure =
        ranks_run_worlds((const int[]){2, 3, 0}, &(ranks_options){.environment = one_gpu}, replay_in_turns);
    cr_assert(failure == NULL, "%s", failure);
}

Test(stream_graph, ranks_that_share_a_gpu_replay_graphs_in_memory_that_peers_map) {
    run_shared(~UINT64_C(0));
}

Test(stream_graph, ranks_that_share_a_gpu_replay_graphs_in_memory_that_some_map) {
    run_shared(0x5a);
}

Test(stream_graph, ranks_that_share_a_gpu_replay_graphs_through_slots) {
    run_shared(0);
}

/* Captures one call of each kind, in memory that was written outside of its graph. */
static tutti_status replay_call(ranks_context *context, cuda_rank *rank, const call *c) {
    cuda_call mine;
    void *graph = NULL, *exec = NULL;
    tutti_stream stream = rank->streams[0];
    TUTTI_TRY(cuda_call_prepare(rank, c, context->rank, context->nranks, stream, &mine));
    RANKS_CHECK(cuda_graph.begin(stream, CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    tutti_options options = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = stream);
    tutti_status status = call_start(&mine.there, context->comm, &options);
    RANKS_CHECK(cuda_graph.end(stream, &graph) == 0 && cuda_graph.instantiate(&exec, graph, 0) == 0, "no graph");
    RANKS_CHECK(cuda_graph.launch(exec, stream) == 0, "no launch");
    if (status == TUTTI_OK) status = cuda_call_check(rank, &mine, stream);
    RANKS_CHECK(cuda_graph.forget(exec) == 0 && cuda_graph.destroy(graph) == 0, "the graph cannot be freed");
    cuda_call_release(&mine);
    return status;
}

static tutti_status replay_kinds(ranks_context *context) {
    cuda_rank rank;
    const call first = {.kind = CALL_BARRIER, .type = TUTTI_INT32};
    TUTTI_TRY(cuda_rank_open(context, (size_t)4 << 20, &rank));
    TUTTI_TRY(cuda_call_run(&rank, &first, context->comm, rank.streams[0], false));
    for (unsigned seed = 0; seed < 3 * CALL_KINDS; seed++) {
        static const size_t counts[] = {0, 251, 5003};
        call c = {.kind = (call_kind)(seed / 3),
                  .type = TUTTI_FLOAT32,
                  .count = counts[seed % 3],
                  .root = (int)(seed % (unsigned)context->nranks),
                  .in_place = (call_mode)(seed % CALL_MODES),
                  .seed = seed};
        rank.used = 0;
        TUTTI_TRY(replay_call(context, &rank, &c));
    }
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_graph, all_kinds_are_right_in_graphs) {
    ranks_adopt(one_gpu);
    cuda_shared_arenas = 0x5a;
    const char *failure = ranks_run_worlds((const int[]){3, 0}, &(ranks_options){.environment = one_gpu}, replay_kinds);
    cr_assert(failure == NULL, "%s", failure);
}

/* The error names the rank that died, and streams are released, also those in which graphs are launched afterwards. */
static tutti_status lose_rank(ranks_context *context) {
    board b;
    tutti_status status = TUTTI_OK;
    TUTTI_TRY(open_board(context, &b));
    for (int i = 0; i < 10; i++) RANKS_CHECK(cuda_graph.launch(b.turn, b.stream) == 0, "launch %d", i);
    TUTTI_TRY(b.rank.device->stream_sync(b.stream));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == context->nranks - 1) ranks_strike(context, SIGKILL);
    for (int i = 0; i < 3; i++) RANKS_CHECK(cuda_graph.launch(b.turn, b.stream) == 0, "launch after a death");
    TUTTI_TRY(b.rank.device->stream_sync(b.stream));
    for (int i = 0; i < 1000 && status == TUTTI_OK; i++, usleep(10000)) status = tutti_comm_error(context->comm);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && strstr(tutti_last_error(), "rank 2 (host") != NULL, "'%s' (%s)",
                tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(cuda_graph.launch(b.add, b.stream) == 0, "launch in a broken communicator");
    TUTTI_TRY(b.rank.device->stream_sync(b.stream));
    return close_board(&b, NULL);
}

static void run_processes(int nranks, ranks_body body) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    ranks_options options = {.kind = RANKS_PROCESSES, .nranks = nranks, .environment = one_gpu};
    const char *failure = ranks_run(&options, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* A block that a peer has mapped is kept when it is freed, for the next caller, who has to wait for the GPU first. No
 * capture permits that: during one the caller gets other memory, and what is freed then is kept as well. */
static tutti_status allocate_in_capture(ranks_context *context) {
    cuda_rank rank;
    cuda_gate gate;
    void *graph = NULL, *block, *other, *third, *again, *memory;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(put_ones(&rank, &memory));
    TUTTI_TRY(multiply(context, &rank, memory)); /* from now on blocks are such as peers can map */
    TUTTI_TRY(tutti_mem_alloc_cuda(sizeof(int32_t) * ITEMS, &block));
    TUTTI_TRY(multiply(context, &rank, block));
    TUTTI_TRY(rank.device->stream_sync(rank.streams[0]));
    TUTTI_TRY(tutti_mem_alloc_cuda(12345, &third));
    TUTTI_TRY(cuda_gate_create(&rank, &gate));
    TUTTI_TRY(cuda_gate_close(&rank, &gate, rank.streams[1]));
    TUTTI_TRY(rank.device->fill(block, 1, sizeof(int32_t) * ITEMS, rank.streams[1]));
    TUTTI_TRY(tutti_mem_free(block));
    RANKS_CHECK(cuda_graph.begin(rank.streams[0], CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    tutti_device_captures = true;
    TUTTI_TRY(tutti_mem_alloc_cuda(sizeof(int32_t) * ITEMS, &other));
    TUTTI_TRY(tutti_mem_free(third));
    tutti_device_captures = false;
    TUTTI_TRY(rank.device->fill(memory, 1, 64, rank.streams[0]));
    int ended = cuda_graph.end(rank.streams[0], &graph);
    RANKS_CHECK(ended == 0 && graph != NULL, "the capture ended with %d", ended);
    RANKS_CHECK(other != block, "memory that a stream still uses was given out");
    cuda_gate_open(&gate);
    TUTTI_TRY(tutti_mem_alloc_cuda(12345, &again));
    RANKS_CHECK(again == third, "memory that was freed during the capture is lost");
    TUTTI_TRY(rank.device->stream_sync(rank.streams[1]));
    RANKS_CHECK(cuda_graph.destroy(graph) == 0, "the graph cannot be freed");
    TUTTI_TRY(tutti_mem_free(again));
    TUTTI_TRY(tutti_mem_free(other));
    cuda_gate_destroy(&rank, &gate);
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_graph, memory_is_allocated_and_freed_during_a_capture) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    setenv("STANDIN_GPUS", "1", 1);
    setenv("TUTTI_ALGORITHM", "same_gpu", 1);
    tutti_settings_reload();
    ranks_options options = {.nranks = 2, .kind = RANKS_PROCESSES};
    const char *failure = ranks_run(&options, allocate_in_capture);
    cr_assert(failure == NULL, "%s", failure);
}

Test(stream_graph, a_death_during_replays_is_reported_and_streams_go_on) {
    cuda_shared_arenas = 0x5a;
    run_processes(3, lose_rank);
}

/* Rank 0 captures a call that the others do not. */
static tutti_status capture_alone(ranks_context *context) {
    cuda_rank rank;
    void *memory, *graph = NULL;
    tutti_status status;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(put_ones(&rank, &memory));
    TUTTI_TRY(multiply(context, &rank, memory));
    if (context->rank == 0)
        RANKS_CHECK(cuda_graph.begin(rank.streams[0], CUDA_CAPTURE_THREAD_LOCAL) == 0, "no capture");
    status = multiply(context, &rank, memory);
    for (int i = 0; i < 1000 && status == TUTTI_OK; i++, usleep(10000)) status = tutti_comm_error(context->comm);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH &&
                    strstr(tutti_last_error(), "rank 0 captures it into a CUDA graph, and rank 1 does not") != NULL,
                "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    if (context->rank == 0 && cuda_graph.end(rank.streams[0], &graph) == 0) cuda_graph.destroy(graph);
    return cuda_rank_close(&rank, NULL);
}

Test(stream_graph, a_call_that_only_one_rank_captures_is_an_error_on_both) {
    run("same_gpu", 2, capture_alone);
}

/* The driver cannot capture waits, as older ones may not. All ranks must get the same answer before any has announced
 * its call to the others. */
static tutti_status cannot_capture(ranks_context *context) {
    cuda_rank rank;
    void *memory, *graph = NULL;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(put_ones(&rank, &memory));
    TUTTI_TRY(multiply(context, &rank, memory));
    RANKS_CHECK(cuda_graph.begin(rank.streams[0], CUDA_CAPTURE_THREAD_LOCAL) == 0, "no capture");
    if (context->argument != NULL) setenv("STANDIN_FAIL", "use_values:1", 1);
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, multiply(context, &rank, memory));
    unsetenv("STANDIN_FAIL");
    RANKS_CHECK(strstr(tutti_last_error(), "cannot be captured into a CUDA graph") != NULL, "%s", tutti_last_error());
    if (cuda_graph.end(rank.streams[0], &graph) == 0) cuda_graph.destroy(graph);
    TUTTI_TRY(multiply(context, &rank, memory));
    int32_t each = FACTOR * context->nranks;
    TUTTI_TRY(expect_all(&rank, memory, each * each));
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_graph, a_driver_that_cannot_capture_waits_is_reported_and_ranks_go_on) {
    static const char *const by_host[] = {"STANDIN_GPUS=1", "TUTTI_ALGORITHM=same_gpu", "STANDIN_STREAM_WAITS=0", NULL};
    if (cuda_real_gpus() > 0) cr_skip("only a stand-in fails on demand");
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    for (int i = 0; i < 2; i++) {
        ranks_options options = {.nranks = 3, .environment = i == 0 ? one_gpu : by_host};
        options.argument = i == 0 ? &options : NULL;
        const char *failure = ranks_run(&options, cannot_capture);
        cr_assert(failure == NULL, "%s", failure);
    }
}
