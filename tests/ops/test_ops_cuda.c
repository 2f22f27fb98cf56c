/*
 * Operators on CUDA memory, through the public API: a network forward and backward has the results of host memory,
 * bit for bit the same in each run; calls return before their stream has run them, graphs replay them, and memory is
 * reused.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>
#include <tutti/ops.h>

#include "tests/support/gpu/cuda_call.h"
#include "tests/support/gpu/cuda_graph.h"

TestSuite(ops_cuda, .init = cuda_graph_find, .timeout = 120);

enum { SAMPLES = 8, CLASSES = 8, MOST_RESULTS = 40, MOST_ELEMENTS = 1024 };

#define SHAPE(...)                                                                                                     \
    .ndims = (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)), .shape = (const int64_t[]) {                     \
        __VA_ARGS__                                                                                                    \
    }

static void run(const char *gpus, const int *sizes, ranks_body body) {
    if (cuda_real_gpus() > 0 && cuda_real_gpus() < atoi(gpus)) cr_skip("fewer GPUs than it is for");
    setenv("STANDIN_GPUS", gpus, 1);
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 60}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* --------------------------------------------------------------------------------------------- a network */

typedef struct results {
    int count;
    tutti_tensor *tensors[MOST_RESULTS];
    const char *names[MOST_RESULTS];
} results;

static tutti_tensor *keep(results *all, const char *name, tutti_tensor *tensor) {
    all->names[all->count] = name;
    return all->tensors[all->count++] = tensor;
}

static void drop(results *all, void *stream) {
    for (int i = 0; i < all->count; i++) tutti_tensor_destroy_in_stream(all->tensors[i], stream);
    all->count = 0;
}

/* y = call(..., &y); keeps y. */
#define MAKE(y, call)                                                                                                  \
    tutti_tensor *y = NULL;                                                                                            \
    TUTTI_TRY(call);                                                                                                   \
    keep(all, #y, y)

static const tutti_sbp split_0 = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM}, split_1 = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM};

/* Images to losses and back: convolution, normalisation, pooling, a dense layer whose outputs, the classes, are
 * split. */
static tutti_status train(tutti_placement *place, results *all) {
    const tutti_random_options normal = {.distribution = TUTTI_NORMAL, .b = 1, .seed = 5, .stream = 1},
                               small = {.distribution = TUTTI_UNIFORM, .a = -0.5, .b = 0.5, .seed = 5, .stream = 2};
    const tutti_windows same = {.kernel = {3, 3}, .pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1},
                        halves = {.kernel = {2, 2}, .stride = {2, 2}};
    tutti_layout images = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT32, SHAPE(SAMPLES, 6, 4, 3));
    images.sbp = &split_0;
    const tutti_layout kernels = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT32, SHAPE(3, 3, 3, 4));
    const tutti_layout channels = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT32, SHAPE(4));
    tutti_layout outputs = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT32, SHAPE(24, CLASSES));
    outputs.sbp = &split_1;
    const tutti_layout classes = TUTTI_LAYOUT(.placement = place, .type = TUTTI_INT32, SHAPE(SAMPLES));
    MAKE(x, tutti_op_random(&images, &normal, &x));
    MAKE(kernel, tutti_op_random(&kernels, &small, &kernel));
    MAKE(bias, tutti_op_fill(&channels, 0.25, &bias));
    MAKE(gamma, tutti_op_arange(&channels, 0.5, 0.25, &gamma));
    MAKE(weight, tutti_op_random(&outputs, &small, &weight));
    MAKE(labels, tutti_op_arange(&classes, 0, 1, &labels));
    MAKE(convolved, tutti_op_conv2d(x, kernel, bias, &same, NULL, &convolved));
    tutti_tensor *normal_y = NULL, *statistics = NULL;
    TUTTI_TRY(tutti_op_batch_norm(convolved, gamma, bias, 1e-5, NULL, &normal_y, &statistics));
    keep(all, "normalised", normal_y);
    keep(all, "statistics", statistics);
    MAKE(rectified, tutti_op_relu(normal_y, NULL, &rectified));
    MAKE(pooled, tutti_op_max_pool2d(rectified, &halves, NULL, &pooled));
    MAKE(flat, tutti_op_reshape(pooled, 2, (const int64_t[]){SAMPLES, -1}, NULL, &flat));
    MAKE(logits, tutti_op_dense(flat, weight, NULL, &TUTTI_OP_OPTIONS(.sbp = &split_1), &logits));
    MAKE(losses, tutti_op_softmax_cross_entropy(logits, labels, NULL, &losses));
    MAKE(loss, tutti_op_reduce(losses, TUTTI_AVG, 1, false, NULL, &loss));
    const tutti_layout scalar = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT32, .ndims = 0);
    MAKE(one, tutti_op_fill(&scalar, 1, &one));
    MAKE(dlosses, tutti_op_reduce_backward(losses, NULL, TUTTI_AVG, 1, false, one, &dlosses));
    MAKE(dlogits, tutti_op_softmax_cross_entropy_backward(logits, labels, dlosses, &dlogits));
    tutti_tensor *dflat = NULL, *dweight = NULL, *dnormal = NULL, *dconvolved = NULL, *dgamma = NULL, *dbeta = NULL,
                 *dx = NULL, *dkernel = NULL, *dbias = NULL;
    TUTTI_TRY(tutti_op_dense_backward(flat, weight, NULL, dlogits, &dflat, &dweight, NULL));
    keep(all, "dflat", dflat);
    keep(all, "dweight", dweight);
    MAKE(dpooled, tutti_op_reshape_backward(pooled, dflat, &dpooled));
    MAKE(drectified, tutti_op_max_pool2d_backward(rectified, &halves, dpooled, &drectified));
    TUTTI_TRY(tutti_op_relu_backward(normal_y, rectified, drectified, &dnormal));
    keep(all, "dnormal", dnormal);
    TUTTI_TRY(
        tutti_op_batch_norm_backward(convolved, gamma, bias, statistics, 1e-5, dnormal, &dconvolved, &dgamma, &dbeta));
    keep(all, "dconvolved", dconvolved);
    keep(all, "dgamma", dgamma);
    keep(all, "dbeta", dbeta);
    TUTTI_TRY(tutti_op_conv2d_backward(x, kernel, bias, &same, dconvolved, &dx, &dkernel, &dbias));
    keep(all, "dx", dx);
    keep(all, "dkernel", dkernel);
    keep(all, "dbias", dbias);
    return TUTTI_OK;
}

/* Operators that the network lacks. */
static tutti_status try_others(tutti_placement *place, results *all) {
    const tutti_random_options uniform = {.distribution = TUTTI_UNIFORM, .a = -1, .b = 1, .seed = 9};
    tutti_layout matrix = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT64, SHAPE(6, 10));
    tutti_layout long_row = TUTTI_LAYOUT(.placement = place, .type = TUTTI_FLOAT32, SHAPE(3, 200));
    const tutti_layout numbers = TUTTI_LAYOUT(.placement = place, .type = TUTTI_INT64, SHAPE(7));
    matrix.sbp = &split_0;
    MAKE(a, tutti_op_random(&matrix, &uniform, &a));
    matrix.sbp = &split_1;
    MAKE(b, tutti_op_arange(&matrix, -3, 0.125, &b));
    MAKE(sum, tutti_op_add(a, b, NULL, &sum));
    MAKE(turned, tutti_op_transpose(sum, (const int[]){1, 0}, NULL, &turned));
    MAKE(product, tutti_op_matmul(a, turned, NULL, NULL, &product));
    MAKE(most, tutti_op_reduce(sum, TUTTI_MAX, 2, true, NULL, &most));
    MAKE(dmost, tutti_op_reduce_backward(sum, most, TUTTI_MAX, 2, true, most, &dmost));
    MAKE(shares, tutti_op_softmax(product, NULL, &shares));
    MAKE(dshares, tutti_op_softmax_backward(product, shares, product, &dshares));
    MAKE(soft, tutti_op_gelu(a, TUTTI_GELU_ERF, NULL, &soft));
    MAKE(dropped, tutti_op_dropout(a, &(tutti_dropout_options){.rate = 0.3, .seed = 3}, NULL, &dropped));
    MAKE(both, tutti_op_concat((const tutti_tensor *const[]){a, b}, 2, 0, NULL, &both));
    tutti_tensor *parts[2] = {NULL};
    TUTTI_TRY(tutti_op_concat_backward((const tutti_tensor *const[]){a, b}, 2, 0, both, parts));
    keep(all, "first part", parts[0]);
    keep(all, "second part", parts[1]);
    MAKE(half, tutti_op_cast(a, TUTTI_BFLOAT16, NULL, &half));
    MAKE(indices, tutti_op_arange(&numbers, -1, 1, &indices));
    MAKE(found, tutti_op_embedding(indices, b, NULL, &found));
    MAKE(dtable, tutti_op_embedding_backward(indices, b, found, &dtable));
    MAKE(row, tutti_op_random(&long_row, &uniform, &row));
    MAKE(row_shares, tutti_op_softmax(row, NULL, &row_shares));
    MAKE(slope, tutti_op_scale(row_shares, 3, NULL, &slope));
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ results */

/* The elements of the whole tensor. In host memory other layouts may be the cheapest. */
static tutti_status read_whole(const tutti_tensor *tensor, void *stream, char *bytes, size_t *count_out) {
    tutti_layout layout = *tutti_tensor_layout(tensor);
    tutti_tensor *whole;
    tutti_local local;
    layout.sbp = NULL;
    layout.cuts = NULL;
    TUTTI_TRY(tutti_tensor_create_in_stream(&layout, stream, &whole));
    TUTTI_TRY(tutti_tensor_redistribute(tensor, whole, &TUTTI_OPTIONS(.stream = stream)));
    TUTTI_TRY(tutti_tensor_local(whole, &local));
    *count_out = local.count;
    size_t size = local.count * tutti_type_bytes(layout.type);
    RANKS_CHECK(size <= MOST_ELEMENTS * 8, "%zu elements", local.count);
    if (size > 0 && tutti_placement_memory(layout.placement) == TUTTI_MEMORY_CUDA) {
        const tutti_device *device = NULL;
        TUTTI_TRY(tutti_device_open(&device));
        TUTTI_TRY(
            device->stream_sync(stream)); /* a copy that waits may block other threads, which are ranks, in CUDA */
        TUTTI_TRY(tutti_device_copy(bytes, local.data, size, stream));
    } else if (size > 0) memcpy(bytes, local.data, size);
    tutti_tensor_destroy_in_stream(whole, stream);
    return TUTTI_OK;
}

static double value_at(tutti_type type, const char *bytes, size_t i) {
    uint32_t wide;
    float single;
    switch (type) {
    case TUTTI_FLOAT64: return ((const double *)(const void *)bytes)[i];
    case TUTTI_INT64: return (double)((const int64_t *)(const void *)bytes)[i];
    case TUTTI_INT32: return (double)((const int32_t *)(const void *)bytes)[i];
    case TUTTI_BFLOAT16:
        wide = (uint32_t)((const uint16_t *)(const void *)bytes)[i] << 16;
        memcpy(&single, &wide, sizeof single);
        return (double)single;
    default: return (double)((const float *)(const void *)bytes)[i];
    }
}

/* Whether these are equal except for roundings (of products, and of sums in another order); with tolerance 0, bit for
 * bit. */
static tutti_status compare(const results *is, const results *should, void *stream, double tolerance) {
    static _Thread_local char got[MOST_ELEMENTS * 8], expected[MOST_ELEMENTS * 8];
    RANKS_CHECK(is->count == should->count, "%d results, not %d", is->count, should->count);
    for (int i = 0; i < is->count; i++) {
        const tutti_layout *layout = tutti_tensor_layout(is->tensors[i]);
        size_t count, counted;
        TUTTI_TRY(read_whole(is->tensors[i], stream, got, &count));
        TUTTI_TRY(read_whole(should->tensors[i], stream, expected, &counted));
        RANKS_CHECK(count == counted, "%s: %zu elements, not %zu", is->names[i], count, counted);
        for (size_t k = 0; k < count; k++) {
            double a = value_at(layout->type, got, k), b = value_at(layout->type, expected, k);
            RANKS_CHECK(a == b || fabs(a - b) <= tolerance * fmax(1, fabs(b)), "%s[%zu of %zu] is %.9g, not %.9g",
                        is->names[i], k, count, a, b);
        }
        size_t bytes = count * tutti_type_bytes(layout->type);
        RANKS_CHECK(tolerance > 0 || memcmp(got, expected, bytes) == 0, "%s has other bits", is->names[i]);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ scenes */

typedef struct scene {
    const ranks_context *context;
    cuda_rank rank;
    tutti_placement *gpus, *host;
    void *stream;
} scene;

static tutti_status open_scene(const ranks_context *context, scene *s) {
    int n = context->nranks;
    *s = (scene){.context = context};
    TUTTI_TRY(cuda_rank_open(context, 1, &s->rank));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &s->gpus));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &s->host));
    s->stream = s->rank.streams[0];
    tutti_op_use_stream(s->stream);
    return TUTTI_OK;
}

static tutti_status close_scene(scene *s) {
    for (int i = 0; i < CUDA_STREAMS; i++) TUTTI_TRY(s->rank.device->stream_sync(s->rank.streams[i]));
    TUTTI_TRY(tutti_barrier(s->context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_op_use_stream(NULL);
    tutti_placement_destroy(s->gpus);
    tutti_placement_destroy(s->host);
    return cuda_rank_close(&s->rank, s->context->comm);
}

static tutti_status give_the_hosts_results(ranks_context *context) {
    static tutti_status (*const bodies[])(tutti_placement *, results *) = {train, try_others};
    scene s;
    TUTTI_TRY(open_scene(context, &s));
    for (int i = 0; i < 2; i++) {
        results host = {0}, first = {0}, second = {0};
        TUTTI_TRY(bodies[i](s.host, &host));
        TUTTI_TRY(bodies[i](s.gpus, &first));
        TUTTI_TRY(bodies[i](s.gpus, &second));
        TUTTI_TRY(compare(&first, &host, s.stream, 1e-4));
        TUTTI_TRY(compare(&second, &first, s.stream, 0));
        drop(&host, NULL);
        drop(&first, s.stream);
        drop(&second, s.stream);
    }
    return close_scene(&s);
}

Test(ops_cuda, a_network_has_the_results_of_host_memory_on_one_gpu) {
    run("1", (const int[]){1, 2, 3, 0}, give_the_hosts_results);
}

Test(ops_cuda, a_network_has_the_results_of_host_memory_on_one_gpu_each) {
    run("2", (const int[]){2, 0}, give_the_hosts_results);
}

/* The stream is blocked. A call that waited for it would wait forever. */
static tutti_status return_at_once(ranks_context *context) {
    scene s;
    cuda_gate gate;
    results first = {0}, second = {0};
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(train(s.gpus, &first));
    TUTTI_TRY(s.rank.device->stream_sync(s.stream));
    TUTTI_TRY(cuda_gate_create(&s.rank, &gate));
    TUTTI_TRY(cuda_gate_close(&s.rank, &gate, s.stream));
    TUTTI_TRY(train(s.gpus, &second));
    cuda_gate_open(&gate);
    TUTTI_TRY(s.rank.device->stream_sync(s.stream));
    TUTTI_TRY(compare(&second, &first, s.stream, 0));
    drop(&first, s.stream);
    drop(&second, s.stream);
    TUTTI_TRY(s.rank.device->stream_sync(s.stream));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    cuda_gate_destroy(&s.rank, &gate);
    return close_scene(&s);
}

Test(ops_cuda, calls_return_before_their_stream_runs_them) {
    run("1", (const int[]){1, 2, 0}, return_at_once);
}

/* The number of allocations of a stand-in's memory; 0 on a real GPU. */
static int allocations(void) {
    int (*ask)(void) = NULL;
    void *module = dlopen(getenv("TUTTI_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = module != NULL ? dlsym(module, "standin_allocations") : NULL;
    memcpy(&ask, &symbol, sizeof ask);
    return ask != NULL ? ask() : 0;
}

/* Each run allocates the memory that the previous one has released. */
static tutti_status take_no_more_memory(ranks_context *context) {
    enum { WARM = 2, ROUNDS = 4 };
    scene s;
    int before = 0;
    TUTTI_TRY(open_scene(context, &s));
    for (int round = 0; round <= ROUNDS; round++) {
        results all = {0};
        TUTTI_TRY(s.rank.device->stream_sync(s.stream));
        TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
        if (round == WARM) before = allocations();
        if (round == ROUNDS) break;
        TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
        TUTTI_TRY(train(s.gpus, &all));
        drop(&all, s.stream);
    }
    RANKS_CHECK(cuda_real_gpus() > 0 || before > 0, "the stand-in does not count");
    RANKS_CHECK(allocations() == before, "%d more allocations", allocations() - before);
    return close_scene(&s);
}

Test(ops_cuda, memory_is_used_again_in_the_stream) {
    run("1", (const int[]){1, 2, 0}, take_no_more_memory);
}

/* Replays, and meanwhile direct runs in another stream, which must not get the graph's memory. */
static tutti_status replay(ranks_context *context) {
    scene s;
    void *graph = NULL, *exec = NULL;
    results first = {0}, captured = {0}, other = {0};
    TUTTI_TRY(open_scene(context, &s));
    TUTTI_TRY(train(s.gpus, &first));
    TUTTI_TRY(s.rank.device->stream_sync(s.stream));
    RANKS_CHECK(cuda_graph.begin(s.stream, CUDA_CAPTURE_THREAD_LOCAL) == 0, "the capture does not begin");
    tutti_status status = train(s.gpus, &captured);
    int ended = cuda_graph.end(s.stream, &graph);
    TUTTI_TRY(status);
    RANKS_CHECK(ended == 0 && graph != NULL, "the capture ended with %d", ended);
    RANKS_CHECK(cuda_graph.instantiate(&exec, graph, 0) == 0, "the graph cannot be made");
    RANKS_CHECK(cuda_graph.destroy(graph) == 0, "the graph cannot be freed");
    for (int round = 0; round < 3; round++) {
        RANKS_CHECK(cuda_graph.launch(exec, s.stream) == 0, "replay %d", round);
        tutti_op_use_stream(s.rank.streams[1]);
        TUTTI_TRY(train(s.gpus, &other));
        tutti_op_use_stream(s.stream);
        TUTTI_TRY(s.rank.device->stream_sync(s.stream));
        TUTTI_TRY(compare(&captured, &first, s.stream, 0));
        TUTTI_TRY(compare(&other, &first, s.rank.streams[1], 0));
        drop(&other, s.rank.streams[1]);
    }
    drop(&first, s.stream);
    drop(&captured, s.stream);
    TUTTI_TRY(s.rank.device->stream_sync(s.stream));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    RANKS_CHECK(cuda_graph.forget(exec) == 0, "the graph cannot be freed");
    return close_scene(&s);
}

Test(ops_cuda, graphs_replay_operators) {
    run("1", (const int[]){1, 2, 0}, replay);
}
