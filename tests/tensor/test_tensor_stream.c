/*
 * Global tensors in CUDA memory, and streams: calls return before the stream has run them and are done in its order,
 * a plan's runs in several streams do not share scratch memory, plans are destroyed after their last run, graphs
 * replay them, and no GPU memory leaks.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/device.h>

#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_graph.h"
#include "tests/tensor/both.h"

TestSuite(tensor_stream, .init = cuda_graph_find, .timeout = 100);

enum { ROWS = 37, COLUMNS = 53, ELEMENTS = ROWS * COLUMNS };
#define ARENA ((size_t)4 << 20)

static const int64_t shape[] = {ROWS, COLUMNS};
static const tutti_sbp rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM}, columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM},
                       copies = {TUTTI_SBP_BROADCAST, 0, TUTTI_SUM}, terms = {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM};

static void run(const char *gpus, const char *plan, const int *sizes, ranks_body body) {
    if (cuda_real_gpus() > 0 && cuda_real_gpus() < atoi(gpus)) cr_skip("fewer GPUs than it is for");
    setenv("STANDIN_GPUS", gpus, 1);
    setenv("TUTTI_PLAN", plan, 1);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 40}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* A rank with sources and targets of one pair of layouts. */
typedef struct scene {
    const ranks_context *context;
    cuda_rank rank;
    tutti_placement *line;
    tutti_tensor *src[2], *dst[2];
    void *fresh[2]; /* new values for the sources, on the GPU */
} scene;

/* Element number i of a source in round `round`; of a sum the first rank has the whole value. */
static int32_t value_of(int round, int64_t number) {
    return (int32_t)(number * 3 + round * 100000);
}

static tutti_status list_values(const scene *s, const tutti_tensor *tensor, bool is_source, int round,
                                int32_t *values) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    bool zero = is_source && tutti_tensor_layout(tensor)->sbp[0].kind == TUTTI_SBP_PARTIAL && s->context->rank > 0;
    for (size_t i = 0; i < local.count; i++) {
        int64_t row = local.first[0] + (int64_t)i / local.shape[1],
                column = local.first[1] + (int64_t)i % local.shape[1];
        values[i] = zero ? 0 : value_of(round, row * COLUMNS + column);
    }
    return TUTTI_OK;
}

/* Copies from the host to the GPU; a stream then copies it into the source. */
static tutti_status prepare(scene *s, int which, int round) {
    int32_t values[ELEMENTS];
    const tutti_device *device = s->rank.device;
    TUTTI_TRY(list_values(s, s->src[which], true, round, values));
    TUTTI_TRY(device->copy(s->fresh[which], values, both_bytes(s->src[which]), s->rank.streams[2]));
    return device->stream_sync(s->rank.streams[2]);
}

static tutti_status enqueue_source(scene *s, int which, tutti_stream stream) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(s->src[which], &local));
    return s->rank.device->copy(local.data, s->fresh[which], both_bytes(s->src[which]), stream);
}

static tutti_status expect(scene *s, int which, int round, tutti_stream stream) {
    int32_t expected[ELEMENTS], got[ELEMENTS];
    tutti_local local;
    TUTTI_TRY(list_values(s, s->dst[which], false, round, expected));
    TUTTI_TRY(both_get(&s->rank, s->dst[which], got, stream));
    TUTTI_TRY(tutti_tensor_local(s->dst[which], &local));
    for (size_t i = 0; i < local.count; i++)
        RANKS_CHECK(got[i] == expected[i], "round %d, target %d: rank %d has %d at %zu, not %d", round, which,
                    s->context->rank, (int)got[i], i, (int)expected[i]);
    return TUTTI_OK;
}

static tutti_status redistribute(scene *s, int which, tutti_stream stream) {
    return tutti_tensor_redistribute(s->src[which], s->dst[which], &TUTTI_OPTIONS(.stream = stream));
}

/* Also makes a first run, in which the ranks connect. */
static tutti_status open_scene(const ranks_context *context, scene *s, const tutti_sbp *from, const tutti_sbp *to) {
    int n = context->nranks;
    *s = (scene){.context = context};
    TUTTI_TRY(cuda_rank_open(context, ARENA, &s->rank));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &s->line));
    tutti_layout layout =
        TUTTI_LAYOUT(.placement = s->line, .sbp = from, .type = TUTTI_INT32, .ndims = 2, .shape = shape);
    for (int i = 0; i < 2; i++) {
        layout.sbp = from;
        TUTTI_TRY(both_tensor(&s->rank, &layout, true, &s->src[i]));
        TUTTI_TRY(cuda_alloc(&s->rank, ELEMENTS * sizeof(int32_t), &s->fresh[i]));
        layout.sbp = to;
        TUTTI_TRY(both_tensor(&s->rank, &layout, true, &s->dst[i]));
    }
    TUTTI_TRY(prepare(s, 0, 0));
    TUTTI_TRY(enqueue_source(s, 0, s->rank.streams[0]));
    TUTTI_TRY(redistribute(s, 0, s->rank.streams[0]));
    return expect(s, 0, 0, s->rank.streams[0]);
}

/* Calls that wait for the GPU must come after all ranks' streams have drained. */
static tutti_status meet(scene *s) {
    for (int i = 0; i < CUDA_STREAMS; i++) TUTTI_TRY(s->rank.device->stream_sync(s->rank.streams[i]));
    return tutti_barrier(s->context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST));
}

static tutti_status close_scene(scene *s) {
    TUTTI_TRY(meet(s));
    for (int i = 0; i < 2; i++) {
        tutti_tensor_destroy(s->src[i]);
        tutti_tensor_destroy(s->dst[i]);
    }
    tutti_placement_destroy(s->line);
    TUTTI_TRY(cuda_rank_close(&s->rank, s->context->comm));
    /* A thread that frees memory waits for the streams of all, also for one that another thread then blocks. */
    return tutti_barrier(s->context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST));
}

/* --------------------------------------------------------------------------------------------------- order */

static const tutti_sbp *const ways[][2] = {{&rows, &columns},  {&columns, &copies}, {&rows, &copies},
                                           {&terms, &columns}, {&terms, &copies},   {&copies, &rows}};
enum { WAYS = sizeof ways / sizeof *ways };

/* The stream is blocked before the source is written. A call that waited for it would wait forever. */
static tutti_status return_at_once(ranks_context *context) {
    for (int way = 0; way < WAYS; way++) {
        scene s;
        cuda_gate gate;
        TUTTI_TRY(open_scene(context, &s, ways[way][0], ways[way][1]));
        tutti_stream stream = s.rank.streams[0];
        TUTTI_TRY(cuda_gate_create(&s.rank, &gate));
        TUTTI_TRY(prepare(&s, 0, 1));
        TUTTI_TRY(cuda_gate_close(&s.rank, &gate, stream));
        TUTTI_TRY(enqueue_source(&s, 0, stream));
        TUTTI_TRY(redistribute(&s, 0, stream));
        cuda_gate_open(&gate);
        TUTTI_TRY(expect(&s, 0, 1, stream));
        TUTTI_TRY(meet(&s));
        cuda_gate_destroy(&s.rank, &gate);
        TUTTI_TRY(close_scene(&s));
    }
    return TUTTI_OK;
}

#define ON_GPUS(name, gpus, plan, body)                                                                                \
    Test(tensor_stream, name##_on_##gpus) {                                                                            \
        run(#gpus, plan, (const int[]){1, 2, 3, 0}, body);                                                             \
    }

ON_GPUS(calls_return_before_their_stream_runs_them, 1, "", return_at_once)
ON_GPUS(calls_return_before_their_stream_runs_them, 2, "", return_at_once)
ON_GPUS(calls_return_before_their_stream_runs_them, 3, "", return_at_once)
ON_GPUS(so_they_do_with_messages, 1, "messages,pieces", return_at_once)
ON_GPUS(so_they_do_with_messages, 2, "messages,pieces", return_at_once)

/* The first stream is blocked; the second one runs the same plan with other tensors, before and after it. */
static tutti_status run_in_two(ranks_context *context) {
    for (int way = 0; way < WAYS; way++) {
        scene s;
        cuda_gate gate;
        TUTTI_TRY(open_scene(context, &s, ways[way][0], ways[way][1]));
        TUTTI_TRY(cuda_gate_create(&s.rank, &gate));
        TUTTI_TRY(prepare(&s, 0, 1));
        TUTTI_TRY(prepare(&s, 1, 2));
        TUTTI_TRY(cuda_gate_close(&s.rank, &gate, s.rank.streams[0]));
        TUTTI_TRY(enqueue_source(&s, 0, s.rank.streams[0]));
        TUTTI_TRY(redistribute(&s, 0, s.rank.streams[0]));
        TUTTI_TRY(enqueue_source(&s, 1, s.rank.streams[1]));
        TUTTI_TRY(redistribute(&s, 1, s.rank.streams[1]));
        cuda_gate_open(&gate);
        TUTTI_TRY(expect(&s, 0, 1, s.rank.streams[0]));
        TUTTI_TRY(expect(&s, 1, 2, s.rank.streams[1]));
        TUTTI_TRY(meet(&s));
        cuda_gate_destroy(&s.rank, &gate);
        TUTTI_TRY(close_scene(&s));
    }
    return TUTTI_OK;
}

ON_GPUS(runs_in_two_streams_keep_apart, 1, "", run_in_two)
ON_GPUS(runs_in_two_streams_keep_apart, 2, "", run_in_two)
ON_GPUS(runs_in_two_streams_keep_apart, 3, "", run_in_two)
ON_GPUS(messages_in_two_streams_keep_apart, 1, "messages,pieces", run_in_two)

/* Messages from host memory may overtake earlier ones from CUDA memory. Here the run through host memory follows a
 * run in the stream at once, with messages of other sizes between the same ranks. */
static tutti_status go_through_the_host(ranks_context *context) {
    enum { ROUNDS = 60 };
    scene s;
    tutti_placement *host;
    tutti_tensor *whole;
    tutti_local local;
    int n = context->nranks;
    TUTTI_TRY(open_scene(context, &s, &rows, &columns));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &host));
    const tutti_layout layout =
        TUTTI_LAYOUT(.placement = host, .sbp = &copies, .type = TUTTI_INT32, .ndims = 2, .shape = shape);
    TUTTI_TRY(tutti_tensor_create(&layout, &whole));
    TUTTI_TRY(tutti_tensor_local(whole, &local));
    const int32_t *got = local.data;
    for (int round = 1; round < ROUNDS; round++) {
        TUTTI_TRY(prepare(&s, 0, round));
        TUTTI_TRY(enqueue_source(&s, 0, s.rank.streams[0]));
        TUTTI_TRY(redistribute(&s, 0, s.rank.streams[0]));
        TUTTI_TRY(tutti_tensor_redistribute(s.src[0], whole, &TUTTI_OPTIONS(.stream = s.rank.streams[0])));
        for (int i = 0; i < ELEMENTS; i++)
            RANKS_CHECK(got[i] == value_of(round, i), "round %d: element %d in host memory is %d, not %d", round, i,
                        (int)got[i], (int)value_of(round, i));
        TUTTI_TRY(expect(&s, 0, round, s.rank.streams[0]));
    }
    tutti_tensor_destroy(whole);
    tutti_placement_destroy(host);
    return close_scene(&s);
}

ON_GPUS(runs_through_host_memory_do_not_overtake, 1, "messages,pieces", go_through_the_host)
ON_GPUS(runs_through_host_memory_do_not_overtake, 2, "messages,pieces", go_through_the_host)

/* Tensors, plan and placement are destroyed after the run is enqueued, before the stream has run it. Ranks that are
 * threads must not wait for the GPU then: processes only. */
static tutti_status destroy_behind(ranks_context *context) {
    const tutti_sbp *const *way = context->argument;
    scene s;
    tutti_plan *plan = NULL;
    tutti_local local;
    int32_t expected[ELEMENTS], got[ELEMENTS];
    TUTTI_TRY(open_scene(context, &s, way[0], way[1]));
    tutti_stream stream = s.rank.streams[1];
    if (way[1] == &columns)
        TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(s.src[1]), tutti_tensor_layout(s.dst[1]), 1, &plan));
    TUTTI_TRY(prepare(&s, 1, 7));
    TUTTI_TRY(list_values(&s, s.dst[1], false, 7, expected));
    TUTTI_TRY(tutti_tensor_local(s.dst[1], &local));
    TUTTI_TRY(enqueue_source(&s, 1, stream));
    if (plan == NULL) TUTTI_TRY(redistribute(&s, 1, stream));
    else
        TUTTI_TRY(
            tutti_plan_run(plan, (const tutti_tensor *const *)&s.src[1], &s.dst[1], &TUTTI_OPTIONS(.stream = stream)));
    tutti_plan_destroy(plan);
    for (int i = 0; i < 2; i++) {
        tutti_tensor_destroy(s.src[i]);
        tutti_tensor_destroy(s.dst[i]);
    }
    tutti_placement_destroy(s.line);
    size_t bytes = local.count * sizeof *got;
    TUTTI_TRY(s.rank.device->stream_sync(stream));
    TUTTI_TRY(s.rank.device->copy(got, local.data, bytes, stream));
    TUTTI_TRY(s.rank.device->stream_sync(stream));
    RANKS_CHECK(memcmp(got, expected, bytes) == 0, "the target is wrong");
    return cuda_rank_close(&s.rank, context->comm);
}

/* One pair packs, and one needs no scratch memory of the plan. */
static void destroy_on(const char *gpus, const char *plan) {
    char words[2][60];
    const char *const environment[] = {words[0], words[1], "STANDIN_DELAY_US=3000", NULL};
    snprintf(words[0], sizeof words[0], "STANDIN_GPUS=%s", gpus);
    snprintf(words[1], sizeof words[1], "TUTTI_PLAN=%s", plan);
    if (!ranks_have_processes()) cr_skip("needs ranks that are processes");
    static const tutti_sbp *const pairs[][2] = {{&rows, &columns}, {&rows, &copies}};
    for (int i = 0; i < 2; i++) {
        const char *failure = ranks_run(
            &(ranks_options){
                .nranks = 3, .timeout_s = 40, .environment = environment, .argument = (void *)(uintptr_t)pairs[i]},
            destroy_behind);
        cr_assert(failure == NULL, "%s", failure);
    }
}

Test(tensor_stream, objects_may_be_destroyed_after_a_run_is_enqueued) {
    destroy_on("1", "");
    destroy_on("2", "");
    destroy_on("2", "messages");
}

/* --------------------------------------------------------------------------------------------------- graphs */

static tutti_status capture(scene *s, void **exec_out) {
    void *graph = NULL;
    tutti_stream stream = s->rank.streams[0];
    RANKS_CHECK(cuda_graph.begin(stream, CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    tutti_status status = redistribute(s, 0, stream);
    int ended = cuda_graph.end(stream, &graph);
    if (status != TUTTI_OK && graph != NULL) (void)cuda_graph.destroy(graph);
    TUTTI_TRY(status);
    RANKS_CHECK(ended == 0 && graph != NULL, "the capture ended with %d", ended);
    RANKS_CHECK(cuda_graph.instantiate(exec_out, graph, 0) == 0, "the graph cannot be made");
    RANKS_CHECK(cuda_graph.destroy(graph) == 0, "the graph cannot be freed");
    return TUTTI_OK;
}

/* Replays, and meanwhile direct runs in another stream, which have their own scratch memory. */
static tutti_status replay(ranks_context *context) {
    for (int way = 0; way < WAYS; way++) {
        scene s;
        void *exec = NULL;
        TUTTI_TRY(open_scene(context, &s, ways[way][0], ways[way][1]));
        TUTTI_TRY(capture(&s, &exec));
        TUTTI_TRY(expect(&s, 0, 0, s.rank.streams[0]));
        for (int round = 1; round < 4; round++) {
            TUTTI_TRY(prepare(&s, 0, round));
            TUTTI_TRY(prepare(&s, 1, 10 * round));
            TUTTI_TRY(enqueue_source(&s, 0, s.rank.streams[0]));
            TUTTI_TRY(enqueue_source(&s, 1, s.rank.streams[1]));
            RANKS_CHECK(cuda_graph.launch(exec, s.rank.streams[0]) == 0, "replay %d", round);
            TUTTI_TRY(redistribute(&s, 1, s.rank.streams[1]));
            TUTTI_TRY(expect(&s, 0, round, s.rank.streams[0]));
            TUTTI_TRY(expect(&s, 1, 10 * round, s.rank.streams[1]));
        }
        TUTTI_TRY(meet(&s));
        RANKS_CHECK(cuda_graph.forget(exec) == 0, "the graph cannot be freed");
        TUTTI_TRY(close_scene(&s));
    }
    return TUTTI_OK;
}

Test(tensor_stream, graphs_replay_redistributions_of_ranks_that_share_a_gpu) {
    run("1", "all_to_all", (const int[]){1, 2, 3, 0}, replay);
}

/* Messages cannot be part of graphs; the error has no side effects. */
static tutti_status refuse_capture(ranks_context *context) {
    scene s;
    void *exec;
    TUTTI_TRY(open_scene(context, &s, &rows, &columns));
    tutti_status status = capture(&s, &exec);
    RANKS_CHECK(status == TUTTI_ERR_UNSUPPORTED, "it gave '%s'", tutti_status_name(status));
    RANKS_CHECK(strstr(tutti_last_error(), "cannot be captured into a CUDA graph") != NULL, "%s", tutti_last_error());
    TUTTI_TRY(prepare(&s, 0, 5));
    TUTTI_TRY(enqueue_source(&s, 0, s.rank.streams[1]));
    TUTTI_TRY(redistribute(&s, 0, s.rank.streams[1]));
    TUTTI_TRY(expect(&s, 0, 5, s.rank.streams[1]));
    return close_scene(&s);
}

Test(tensor_stream, operations_that_graphs_cannot_contain_are_refused) {
    run("1", "messages", (const int[]){2, 0}, refuse_capture);
}

/* Neither can redistributions through host memory. */
static tutti_status refuse_staged(ranks_context *context) {
    scene s;
    void *exec;
    tutti_placement *host;
    int n = context->nranks;
    TUTTI_TRY(open_scene(context, &s, &rows, &columns));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &host));
    tutti_layout layout = *tutti_tensor_layout(s.dst[0]);
    layout.placement = host;
    tutti_tensor *on_gpu = s.dst[0];
    TUTTI_TRY(tutti_tensor_create(&layout, &s.dst[0])); /* reads the layout of the other one */
    tutti_tensor_destroy(on_gpu);
    TUTTI_TRY(redistribute(&s, 0, s.rank.streams[0]));
    tutti_status status = capture(&s, &exec);
    RANKS_CHECK(status == TUTTI_ERR_UNSUPPORTED, "it gave '%s'", tutti_status_name(status));
    RANKS_CHECK(strstr(tutti_last_error(), "goes through host memory") != NULL, "%s", tutti_last_error());
    TUTTI_TRY(prepare(&s, 0, 6));
    TUTTI_TRY(enqueue_source(&s, 0, s.rank.streams[1]));
    TUTTI_TRY(redistribute(&s, 0, s.rank.streams[1]));
    TUTTI_TRY(expect(&s, 0, 6, s.rank.streams[1]));
    tutti_placement_destroy(host);
    return close_scene(&s);
}

Test(tensor_stream, redistributions_through_host_memory_are_refused_in_graphs) {
    run("1", "", (const int[]){2, 0}, refuse_staged);
}

/* --------------------------------------------------------------------------------------------------- memory */

static int allocated(void) {
    int (*ask)(void) = NULL;
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module != NULL ? dlsym(module, "standin_allocated") : NULL;
    memcpy(&ask, &symbol, sizeof ask);
    return ask != NULL ? ask() : -1;
}

/* A target for each stream, since their writes are not ordered. */
static tutti_status once(const ranks_context *context, cuda_rank *rank) {
    tutti_placement *line;
    tutti_tensor *src, *dst[CUDA_STREAMS];
    int n = context->nranks;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &line));
    tutti_layout layout =
        TUTTI_LAYOUT(.placement = line, .sbp = &terms, .type = TUTTI_INT32, .ndims = 2, .shape = shape);
    TUTTI_TRY(tutti_tensor_create(&layout, &src));
    layout.sbp = &columns;
    for (int i = 0; i < CUDA_STREAMS; i++) {
        TUTTI_TRY(tutti_tensor_create(&layout, &dst[i]));
        TUTTI_TRY(tutti_tensor_redistribute(src, dst[i], &TUTTI_OPTIONS(.stream = rank->streams[i])));
    }
    for (int i = 0; i < CUDA_STREAMS; i++) TUTTI_TRY(rank->device->stream_sync(rank->streams[i]));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_tensor_destroy(src);
    for (int i = 0; i < CUDA_STREAMS; i++) tutti_tensor_destroy(dst[i]);
    tutti_placement_destroy(line);
    return tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST));
}

static tutti_status lose_nothing(ranks_context *context) {
    enum { WARM = 3, ROUNDS = 12 };
    cuda_rank rank;
    int before = 0;
    TUTTI_TRY(cuda_rank_open(context, 4096, &rank));
    for (int round = 0; round < ROUNDS; round++) {
        if (round == WARM) before = allocated();
        TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
        TUTTI_TRY(once(context, &rank));
    }
    int after = allocated();
    RANKS_CHECK(before > 0 && after <= before, "%d pieces of the GPU's memory, and %d after some rounds", before,
                after);
    return cuda_rank_close(&rank, context->comm);
}

/* Writes to a destroyed tensor happen before writes to the tensor that reuses its memory, in any stream. */
static tutti_status use_again(ranks_context *context) {
    scene s;
    cuda_gate gate;
    tutti_tensor *old = NULL, *new = NULL;
    tutti_local old_local, new_local;
    char got[ELEMENTS * sizeof(int32_t)];
    TUTTI_TRY(open_scene(context, &s, &rows, &columns));
    const tutti_layout layout = TUTTI_LAYOUT(.placement = s.line, .type = TUTTI_INT32, .ndims = 2, .shape = shape);
    TUTTI_TRY(cuda_gate_create(&s.rank, &gate));
    for (int other = 0; other < 2; other++) {
        tutti_stream first = s.rank.streams[0], second = s.rank.streams[other];
        TUTTI_TRY(tutti_tensor_create_in_stream(&layout, first, &old));
        TUTTI_TRY(tutti_tensor_local(old, &old_local));
        if (other == 1) TUTTI_TRY(cuda_gate_close(&s.rank, &gate, first));
        TUTTI_TRY(tutti_device_fill(old_local.data, 1, sizeof got, first));
        tutti_tensor_destroy_in_stream(old, first);
        TUTTI_TRY(tutti_tensor_create_in_stream(&layout, second, &new));
        TUTTI_TRY(tutti_tensor_local(new, &new_local));
        RANKS_CHECK(new_local.data == old_local.data, "the memory is not used again");
        TUTTI_TRY(tutti_device_fill(new_local.data, 2, sizeof got, second));
        if (other == 1) usleep(20000); /* a fill that does not wait would be done by then */
        cuda_gate_open(&gate);
        for (int i = 0; i < 2; i++) TUTTI_TRY(s.rank.device->stream_sync(s.rank.streams[i]));
        TUTTI_TRY(both_get(&s.rank, new, got, second));
        for (size_t i = 0; i < sizeof got; i++) RANKS_CHECK(got[i] == 2, "byte %zu is %d", i, got[i]);
        tutti_tensor_destroy_in_stream(new, second);
    }
    TUTTI_TRY(meet(&s));
    cuda_gate_destroy(&s.rank, &gate);
    return close_scene(&s);
}

Test(tensor_stream, memory_of_tensors_is_reused_after_their_stream) {
    run("1", "", (const int[]){1, 2, 0}, use_again);
}

Test(tensor_stream, no_gpu_memory_leaks) {
    if (cuda_real_gpus() > 0) cr_skip("only a stand-in counts");
    run("2", "reduce_scatter", (const int[]){1, 2, 3, 0}, lose_nothing);
}
