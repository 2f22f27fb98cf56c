/*
 * Global tensors in CUDA memory have the results of those in host memory (both.h), which tests/tensor/model.py tests:
 * all pairs of simple layouts, types, shapes, ranks, cuts, many tensors in one round, with ranks on one GPU each and
 * on one for all; and errors for memory that is not of the placement's kind. Streams are in test_tensor_stream.c.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>

#include "tests/tensor/both.h"

TestSuite(tensor_cuda, .timeout = 200);

#define ARENA ((size_t)16 << 20)

static void run_on(const char *gpus, const int *sizes, ranks_body body) {
    if (cuda_real_gpus() > 0 && cuda_real_gpus() < atoi(gpus)) cr_skip("fewer GPUs than it is for");
    setenv("STANDIN_GPUS", gpus, 1); /* for processes and threads */
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 150}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* Rank r is on GPU r modulo their number: one GPU for all, some ranks on each, or one GPU for each. */
#define ON_GPUS(name, gpus, body, ...)                                                                                 \
    Test(tensor_cuda, name##_on_##gpus) {                                                                              \
        run_on(#gpus, (const int[]){__VA_ARGS__, 0}, body);                                                            \
    }

#define EXPECT_ERROR(status, words, expr)                                                                              \
    do {                                                                                                               \
        RANKS_EXPECT(status, expr);                                                                                    \
        RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "line %d: '%s', not '%s'", __LINE__,                    \
                    tutti_last_error(), words);                                                                        \
    } while (0)

static tutti_status with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    tutti_placement *keeper; /* timeout of communicators, for all cases */
    int n = context->nranks;
    TUTTI_TRY(cuda_rank_open(context, ARENA, &rank));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &keeper));
    TUTTI_TRY(body(context, &rank));
    for (int i = 0; i < CUDA_STREAMS; i++) TUTTI_TRY(rank.device->stream_sync(rank.streams[i]));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_placement_destroy(keeper);
    return cuda_rank_close(&rank, context->comm);
}

/* --------------------------------------------------------------------------------------------------- pairs */

static const tutti_sbp kinds[] = {{TUTTI_SBP_BROADCAST, 0, TUTTI_SUM}, {TUTTI_SBP_SPLIT, 0, TUTTI_SUM},
                                  {TUTTI_SBP_SPLIT, 1, TUTTI_SUM},     {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM},
                                  {TUTTI_SBP_PARTIAL, 0, TUTTI_MAX},   {TUTTI_SBP_PARTIAL, 0, TUTTI_PROD}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const int64_t oblong[] = {5, 3};

static tutti_status all_lines(ranks_context *context, cuda_rank *rank) {
    int n = context->nranks;
    for (int pair = 0; pair < KINDS * KINDS; pair++) {
        const both_side src = {.axes = &n, .naxes = 1, .ndims = 2, .sbp = &kinds[pair / KINDS], .shape = oblong},
                        dst = {.axes = &n, .naxes = 1, .ndims = 2, .sbp = &kinds[pair % KINDS], .shape = oblong};
        TUTTI_TRY(
            both_convert(context, rank, rank->streams[pair % CUDA_STREAMS], TUTTI_INT64, &src, &dst, BOTH_ON_GPU));
        TUTTI_TRY(both_convert(context, rank, rank->streams[0], TUTTI_FLOAT32, &src, &dst,
                               pair % 2 == 0 ? SOURCE_ON_GPU : TARGET_ON_GPU));
    }
    return TUTTI_OK;
}

static tutti_status lines_body(ranks_context *context) {
    return with_rank(context, all_lines);
}

ON_GPUS(all_pairs_on_one_axis, 1, lines_body, 1, 2, 3, 4)
ON_GPUS(all_pairs_on_one_axis, 2, lines_body, 2, 3, 4)
ON_GPUS(all_pairs_on_one_axis, 4, lines_body, 2, 4)

static tutti_status some_grids(ranks_context *context, cuda_rank *rank) {
    enum { EVERY = 11 };
    const int axes[] = {2, 2}, turned[] = {1, 0, 3, 2};
    for (int pair = 0; pair < KINDS * KINDS * KINDS * KINDS; pair += EVERY) {
        tutti_sbp src_sbp[] = {kinds[pair % KINDS], kinds[pair / KINDS % KINDS]};
        tutti_sbp dst_sbp[] = {kinds[pair / KINDS / KINDS % KINDS], kinds[pair / KINDS / KINDS / KINDS]};
        const both_side src = {.axes = axes, .naxes = 2, .ndims = 2, .sbp = src_sbp, .shape = oblong};
        both_side dst = {.axes = axes, .naxes = 2, .ndims = 2, .sbp = dst_sbp, .shape = oblong};
        if (pair % 3 == 0) dst.ranks = turned;
        TUTTI_TRY(both_convert(context, rank, rank->streams[0], pair % 2 == 0 ? TUTTI_BFLOAT16 : TUTTI_UINT8, &src,
                               &dst, (both_where)(pair % BOTH_WHERES)));
    }
    return TUTTI_OK;
}

static tutti_status grids_body(ranks_context *context) {
    return with_rank(context, some_grids);
}

ON_GPUS(pairs_on_two_axes, 1, grids_body, 4)
ON_GPUS(pairs_on_two_axes, 2, grids_body, 4)

static tutti_status other_ranks(ranks_context *context, cuda_rank *rank) {
    static const int low[] = {0, 1}, targets[][2] = {{3, 2}, {1, 2}}, two = 2;
    for (int i = 0; i < 2 * KINDS * KINDS; i++) {
        const both_side src = {.ranks = low,
                               .axes = &two,
                               .naxes = 1,
                               .ndims = 2,
                               .sbp = &kinds[i / KINDS % KINDS],
                               .shape = oblong},
                        dst = {.ranks = targets[i / KINDS / KINDS],
                               .axes = &two,
                               .naxes = 1,
                               .ndims = 2,
                               .sbp = &kinds[i % KINDS],
                               .shape = oblong};
        TUTTI_TRY(
            both_convert(context, rank, rank->streams[0], TUTTI_INT32, &src, &dst, (both_where)(i % BOTH_WHERES)));
    }
    return TUTTI_OK;
}

static tutti_status others_body(ranks_context *context) {
    return with_rank(context, other_ranks);
}

ON_GPUS(pairs_between_other_ranks, 1, others_body, 4)
ON_GPUS(pairs_between_other_ranks, 4, others_body, 4)

/* ------------------------------------------------------------------------------------------ types and shapes */

static tutti_status all_types(ranks_context *context, cuda_rank *rank) {
    static const tutti_sbp sbp[] = {{TUTTI_SBP_SPLIT, 0, TUTTI_SUM},
                                    {TUTTI_SBP_SPLIT, 1, TUTTI_SUM},
                                    {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM},
                                    {TUTTI_SBP_PARTIAL, 0, TUTTI_PROD}};
    static const int pairs[][2] = {{0, 1}, {1, 0}, {2, 0}, {1, 2}, {0, 3}};
    int n = context->nranks;
    for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            const both_side src = {.axes = &n, .naxes = 1, .ndims = 2, .sbp = &sbp[pairs[i][0]], .shape = oblong},
                            dst = {.axes = &n, .naxes = 1, .ndims = 2, .sbp = &sbp[pairs[i][1]], .shape = oblong};
            TUTTI_TRY(both_convert(context, rank, rank->streams[0], (tutti_type)type, &src, &dst, BOTH_ON_GPU));
        }
    return TUTTI_OK;
}

static tutti_status types_body(ranks_context *context) {
    return with_rank(context, all_types);
}

ON_GPUS(all_types_with_the_bits_of_their_identities, 1, types_body, 3)

/* No dimensions, empty parts and tensors, chunks, cuts, other shapes, and one that is large. */
static tutti_status all_shapes(ranks_context *context, cuda_rank *rank) {
    static const tutti_sbp rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM}, columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM},
                           depth = {TUTTI_SBP_SPLIT, 2, TUTTI_SUM}, copies = {TUTTI_SBP_BROADCAST, 0, TUTTI_SUM},
                           terms = {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM};
    static const int64_t one[] = {1}, none[] = {0, 4}, flat[] = {24}, cube[] = {4, 3, 2}, square[] = {6, 4},
                         few[] = {2, 7}, big[] = {300, 517}, tall[] = {1612, 7}, wide[] = {868, 13};
    const int64_t *const some[] = {(int64_t[]){0, 0, 5, 6}, NULL}, *const others[] = {NULL, (int64_t[]){0, 3, 3, 4}};
    const struct {
        int src_dims, dst_dims;
        const int64_t *src, *dst;
        const tutti_sbp *from, *to;
        tutti_split_rule rule;
        const int64_t *const *src_cuts, *const *dst_cuts;
    } cases[] = {
        {0, 0, NULL, NULL, &copies, &terms, 0, NULL, NULL},
        {0, 0, NULL, NULL, &terms, &copies, 0, NULL, NULL},
        {1, 1, one, one, &rows, &copies, 0, NULL, NULL},
        {2, 2, none, none, &rows, &columns, 0, NULL, NULL},
        {2, 2, none, none, &terms, &rows, 0, NULL, NULL},
        {1, 3, flat, cube, &rows, &columns, 0, NULL, NULL},
        {3, 2, cube, square, &depth, &columns, 0, NULL, NULL},
        {2, 1, square, flat, &terms, &rows, 0, NULL, NULL},
        {2, 2, few, few, &rows, &columns, TUTTI_SPLIT_CHUNK, NULL, NULL},
        {2, 2, few, few, &columns, &copies, TUTTI_SPLIT_CHUNK, NULL, NULL},
        {2, 2, square, square, &rows, &columns, 0, some, others},
        {2, 2, square, square, &terms, &rows, 0, NULL, some},
        {2, 2, square, square, &rows, &copies, 0, some, NULL},
        {2, 2, tall, wide, &columns, &columns, 0, NULL, NULL}, /* hundreds of pieces */
        {2, 2, big, big, &rows, &columns, 0, NULL, NULL},
        {2, 2, big, big, &terms, &columns, 0, NULL, NULL},
        {2, 2, big, big, &columns, &copies, 0, NULL, NULL},
    };
    int n = context->nranks;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int where = 0; where < BOTH_WHERES; where++) {
            const both_side src = {.axes = &n,
                                   .naxes = 1,
                                   .ndims = cases[i].src_dims,
                                   .sbp = cases[i].from,
                                   .shape = cases[i].src,
                                   .rule = cases[i].rule,
                                   .cuts = cases[i].src_cuts},
                            dst = {.axes = &n,
                                   .naxes = 1,
                                   .ndims = cases[i].dst_dims,
                                   .sbp = cases[i].to,
                                   .shape = cases[i].dst,
                                   .rule = cases[i].rule,
                                   .cuts = cases[i].dst_cuts};
            TUTTI_TRY(both_convert(context, rank, rank->streams[0], TUTTI_FLOAT32, &src, &dst, (both_where)where));
        }
    return TUTTI_OK;
}

static tutti_status shapes_body(ranks_context *context) {
    return with_rank(context, all_shapes);
}

ON_GPUS(shapes_of_all_kinds, 1, shapes_body, 3)
ON_GPUS(shapes_of_all_kinds, 2, shapes_body, 3)

/* ------------------------------------------------------------------------------------------- many in one round */

enum { TENSORS = 9 };

/* The values of tensor i begin at 1000 * i. Number 4 is a sum, whose value is on the first rank. */
static void make_values(int i, const tutti_local *local, int64_t columns, int rank, int64_t *values) {
    for (size_t k = 0; k < local->count; k++)
        values[k] = i == 4 && rank > 0 ? 0
                                       : 1000 * i + columns * (local->first[0] + (int64_t)k / local->shape[1]) +
                                             local->first[1] + (int64_t)k % local->shape[1];
}

/* Memory: 0: all in CUDA memory; 1: every second target in host memory. */
static tutti_status move_many(ranks_context *context, cuda_rank *rank, int mixed) {
    static const tutti_sbp sum = {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM}, rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM},
                           columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM};
    tutti_placement *line, *last, *host;
    int n = context->nranks, one = 1, end = n - 1;
    int64_t shapes[TENSORS][2], values[200], got[200];
    tutti_layout srcs[TENSORS], dsts[TENSORS];
    tutti_tensor *src[TENSORS], *dst[TENSORS];
    tutti_local local;
    tutti_plan *plan;
    tutti_stream stream = rank->streams[1];
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &line));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, &end, &one, 1, &last));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &host));
    for (int i = 0; i < TENSORS; i++) {
        bool on_host = mixed != 0 && i % 2 == 1 && i != 7;
        shapes[i][0] = 3 + i;
        shapes[i][1] = i % 3 + 1;
        srcs[i] = TUTTI_LAYOUT(.placement = line, .sbp = i == 4 ? &sum : &rows, .type = TUTTI_INT64, .ndims = 2,
                               .shape = shapes[i]);
        dsts[i] = srcs[i];
        dsts[i].placement = i == 7 ? last : on_host ? host : line;
        dsts[i].sbp = i == 7 ? NULL : i == 2 ? &rows : &columns;
        TUTTI_TRY(both_tensor(rank, &srcs[i], true, &src[i]));
        TUTTI_TRY(both_tensor(rank, &dsts[i], !on_host, &dst[i]));
        TUTTI_TRY(tutti_tensor_local(src[i], &local));
        make_values(i, &local, shapes[i][1], context->rank, values);
        TUTTI_TRY(both_put(rank, src[i], values, stream));
    }
    TUTTI_TRY(tutti_plan_create(srcs, dsts, TENSORS, &plan));
    for (int round = 0; round < 3; round++)
        TUTTI_TRY(tutti_plan_run(plan, (const tutti_tensor *const *)src, dst, &TUTTI_OPTIONS(.stream = stream)));
    if (mixed == 0)
        EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "in CUDA memory",
                     tutti_plan_run(plan, (const tutti_tensor *const *)dst, src, &TUTTI_OPTIONS(.stream = stream)));
    for (int i = 0; i < TENSORS; i++) {
        TUTTI_TRY(tutti_tensor_local(dst[i], &local));
        make_values(i, &local, shapes[i][1], 0, values);
        TUTTI_TRY(both_get(rank, dst[i], got, stream));
        RANKS_CHECK(local.count == 0 || memcmp(got, values, both_bytes(dst[i])) == 0, "tensor %d has changed", i);
        tutti_tensor_destroy(src[i]);
        tutti_tensor_destroy(dst[i]);
    }
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_plan_destroy(plan);
    tutti_placement_destroy(last);
    tutti_placement_destroy(line);
    tutti_placement_destroy(host);
    return TUTTI_OK;
}

static tutti_status move_both(ranks_context *context, cuda_rank *rank) {
    TUTTI_TRY(move_many(context, rank, 0));
    return move_many(context, rank, 1);
}

static tutti_status many_body(ranks_context *context) {
    return with_rank(context, move_both);
}

ON_GPUS(many_tensors_are_sent_in_one_round, 1, many_body, 2, 3)
ON_GPUS(many_tensors_are_sent_in_one_round, 2, many_body, 2, 4)

/* -------------------------------------------------------------------------------------------------- locals */

static tutti_status gather_locals(ranks_context *context, cuda_rank *rank) {
    tutti_placement *line;
    tutti_tensor *tensor, *whole;
    tutti_local local;
    int n = context->nranks, own = context->rank;
    int64_t extent[] = {own == 1 ? 0 : own + 1, 2}, values[64], rows = 0;
    void *data;
    TUTTI_TRY(cuda_alloc(rank, sizeof values, &data));
    for (int64_t i = 0; i < 64; i++) values[i] = 100 * own + i;
    TUTTI_TRY(rank->device->copy(data, values, sizeof values, rank->streams[0]));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &line));
    tutti_layout like =
        TUTTI_LAYOUT(.placement = line, .sbp = &TUTTI_SPLIT(0), .type = TUTTI_INT64, .ndims = 2, .name = "x");
    TUTTI_TRY(tutti_tensor_from_local(&like, extent, data, &tensor));
    TUTTI_TRY(tutti_tensor_to_global(tensor, NULL, NULL, &TUTTI_OPTIONS(.stream = rank->streams[0]), &whole));
    TUTTI_TRY(both_get(rank, whole, values, rank->streams[0]));
    TUTTI_TRY(tutti_tensor_local(whole, &local));
    for (int other = 0; other < n; other++)
        for (int64_t i = 0; other != 1 && i < 2 * (other + 1); i++)
            RANKS_CHECK(values[rows++] == 100 * other + i, "rank %d's number %lld", other, (long long)i);
    RANKS_CHECK(2 * local.shape[0] == rows, "the number of rows");
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    tutti_tensor_destroy(whole);
    tutti_tensor_destroy(tensor);

    like.sbp = NULL;
    extent[0] = 20; /* a size beyond a word of the hash does not matter: all are whole words */
    memset(values, 3, sizeof values);
    TUTTI_TRY(rank->device->copy(data, values, sizeof values, rank->streams[0]));
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    TUTTI_TRY(tutti_tensor_from_local(&like, extent, data, &tensor));
    tutti_tensor_destroy(tensor);
    values[39] = own == n - 1;
    TUTTI_TRY(rank->device->copy(data, values, sizeof values, rank->streams[0]));
    if (n > 1)
        EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "must hold the same elements",
                     tutti_tensor_from_local(&like, extent, data, &tensor));
    EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "rank 0 passes memory of another kind",
                 tutti_tensor_from_local(&like, extent, own == 0 ? values : data, &tensor));
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

static tutti_status locals_body(ranks_context *context) {
    return with_rank(context, gather_locals);
}

ON_GPUS(tensors_are_made_from_local_ones, 1, locals_body, 1, 2, 3)
ON_GPUS(tensors_are_made_from_local_ones, 2, locals_body, 3)

/* --------------------------------------------------------------------------------------------- what is refused */

static tutti_status refuse(ranks_context *context, cuda_rank *rank) {
    tutti_placement *line, *host, *other;
    tutti_tensor *tensor, *copy;
    tutti_work *work;
    int n = context->nranks;
    int64_t shape[] = {4}, values[4] = {0};
    void *data;
    TUTTI_TRY(cuda_alloc(rank, sizeof values, &data));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &line));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &n, 1, &host));
    EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "3 is not a kind of memory",
                 tutti_placement_create(context->comm, (tutti_memory)3, NULL, &n, 1, &other));
    tutti_layout layout = TUTTI_LAYOUT(.placement = line, .type = TUTTI_INT64, .ndims = 1, .shape = shape, .name = "w");
    EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "is memory of the host; this rank's shards of 'w' int64[4] B on",
                 tutti_tensor_wrap(&layout, values, &tensor));
    layout.placement = host;
    EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "shards of 'w' int64[4] B on", tutti_tensor_wrap(&layout, data, &tensor));
    layout.placement = line;
    TUTTI_TRY(tutti_tensor_wrap(&layout, data, &tensor));
    EXPECT_ERROR(TUTTI_ERR_UNSUPPORTED, "with CUDA memory the call only enqueues",
                 tutti_tensor_to_global(tensor, NULL, NULL, &TUTTI_OPTIONS(.work = &work), &copy));
    EXPECT_ERROR(TUTTI_ERR_UNSUPPORTED, "between host and CUDA memory the call waits for its end",
                 tutti_tensor_to_global(tensor, host, NULL, &TUTTI_OPTIONS(.work = &work), &copy));
    tutti_tensor_destroy(tensor);
    if (cuda_real_gpus() == 0) {
        void *elsewhere;
        TUTTI_TRY(rank->device->use(1 - rank->index));
        EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "use one communicator for each GPU",
                     tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &other));
        TUTTI_TRY(tutti_mem_alloc_cuda(sizeof values, &elsewhere));
        EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "lie in memory of GPU", tutti_tensor_wrap(&layout, elsewhere, &tensor));
        TUTTI_TRY(tutti_mem_free(elsewhere));
        TUTTI_TRY(rank->device->use(rank->index));
    }
    tutti_placement_destroy(host);
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

static tutti_status refuse_body(ranks_context *context) {
    return with_rank(context, refuse);
}

ON_GPUS(memory_of_another_kind_or_gpu_is_refused, 2, refuse_body, 2)

/* ---------------------------------------------------------------------------------------- what only the host has */

/* Prices, reads of peers' shards and plans differ between host memory and CUDA memory for the same layouts. */
static tutti_status keep_apart(ranks_context *context, cuda_rank *rank) {
    enum { EXTENT = 256 };
    static const tutti_memory memories[] = {TUTTI_MEMORY_HOST, TUTTI_MEMORY_CUDA};
    static const tutti_sbp rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM}, columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM};
    int n = context->nranks;
    int64_t shape[] = {EXTENT, EXTENT};
    tutti_placement *places[2];
    tutti_layout srcs[2], dsts[2];
    tutti_tensor *src, *dst;
    tutti_plan *plan;
    tutti_plan_details details;
    char text[300];
    double us;
    for (int i = 0; i < 2; i++) {
        TUTTI_TRY(tutti_placement_create(context->comm, memories[i], NULL, &n, 1, &places[i]));
        srcs[i] = TUTTI_LAYOUT(.placement = places[i], .sbp = &rows, .type = TUTTI_INT32, .ndims = 2, .shape = shape);
        dsts[i] = srcs[i];
        dsts[i].sbp = &columns;
    }
    RANKS_CHECK(!tutti_placement_is_equal(places[0], places[1]), "they differ in memory");
    for (int way = 0; way < 4; way++) {
        bool host = way == 0;
        TUTTI_TRY(tutti_plan_create(&srcs[way & 1], &dsts[way >> 1], 1, &plan));
        TUTTI_TRY(tutti_plan_get(plan, &details));
        TUTTI_TRY(tutti_plan_describe(plan, text, sizeof text));
        RANKS_CHECK((details.predicted_us > 0) == host, "way %d: predicted %g us", way, details.predicted_us);
        RANKS_CHECK((strstr(text, "predicted") != NULL) == host, "way %d: %s", way, text);
        RANKS_CHECK((strstr(text, "by reading") != NULL) == host, "way %d: %s", way, text);
        if (host) TUTTI_TRY(tutti_layout_predict(&srcs[0], &dsts[0], &us));
        else
            EXPECT_ERROR(TUTTI_ERR_UNSUPPORTED, way == 3 ? "tutti_placement_measure" : "is not measured",
                         tutti_layout_predict(&srcs[way & 1], &dsts[way >> 1], &us));
        if (way == 0) {
            TUTTI_TRY(both_tensor(rank, &srcs[1], true, &src));
            TUTTI_TRY(both_tensor(rank, &dsts[0], false, &dst));
            EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "in CUDA memory; the plan is for",
                         tutti_plan_run(plan, (const tutti_tensor *const *)&src, &dst, NULL));
            tutti_tensor_destroy(src);
            tutti_tensor_destroy(dst);
        }
        tutti_plan_destroy(plan);
    }
    /* The cached plans, found again by the hash of the layouts. */
    for (int round = 0; round < 2; round++)
        for (int where = 0; where < BOTH_WHERES; where++) {
            const both_side from = {.axes = &n, .naxes = 1, .ndims = 2, .sbp = &rows, .shape = shape},
                            to = {.axes = &n, .naxes = 1, .ndims = 2, .sbp = &columns, .shape = shape};
            TUTTI_TRY(both_convert(context, rank, rank->streams[0], TUTTI_INT32, &from, &to, (both_where)where));
        }
    for (int i = 0; i < 2; i++) tutti_placement_destroy(places[i]);
    return TUTTI_OK;
}

/* Ranks agree on their measurements, and plans predict the same. Whether larger tensors take longer depends on the
 * machine's noise. */
static tutti_status measure(ranks_context *context, cuda_rank *rank) {
    static const tutti_sbp rows = {TUTTI_SBP_SPLIT, 0, TUTTI_SUM}, columns = {TUTTI_SBP_SPLIT, 1, TUTTI_SUM},
                           all = {TUTTI_SBP_BROADCAST, 0, TUTTI_SUM}, sum = {TUTTI_SBP_PARTIAL, 0, TUTTI_SUM};
    static const tutti_sbp *const pairs[][2] = {{&rows, &columns}, {&rows, &all}, {&sum, &all}, {&sum, &rows}};
    const int n = context->nranks;
    tutti_placement *place;
    tutti_plan *plan;
    tutti_plan_details details;
    (void)rank;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_CUDA, NULL, &n, 1, &place));
    for (int round = 0; round < 2; round++) TUTTI_TRY(tutti_placement_measure(place, (size_t)4 << 20));
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        double us[3];
        for (int size = 0; size < 3; size++) {
            int64_t shape[] = {size < 2 ? 16 : 1024, 1024};
            const tutti_layout src =
                TUTTI_LAYOUT(.placement = place, .sbp = pairs[p][0], .type = TUTTI_FLOAT32, .ndims = 2, .shape = shape);
            tutti_layout dst = src;
            dst.sbp = pairs[p][1];
            TUTTI_TRY(tutti_layout_predict(&src, &dst, &us[size]));
            TUTTI_TRY(tutti_plan_create(&src, &dst, 1, &plan));
            TUTTI_TRY(tutti_plan_get(plan, &details));
            tutti_plan_destroy(plan);
            RANKS_CHECK(details.predicted_us == us[size], "pair %zu: a plan predicts %g us, not %g", p,
                        details.predicted_us, us[size]);
        }
        double most[3], least[3];
        TUTTI_TRY(tutti_all_reduce(context->comm, us, most, 3, TUTTI_FLOAT64, TUTTI_MAX, NULL));
        TUTTI_TRY(tutti_all_reduce(context->comm, us, least, 3, TUTTI_FLOAT64, TUTTI_MIN, NULL));
        RANKS_CHECK(memcmp(most, least, sizeof most) == 0, "pair %zu: ranks predict %g and %g us", p, least[0],
                    most[0]);
        RANKS_CHECK(us[0] > 0 && us[0] == us[1] && us[2] > 0, "pair %zu: predicted %g, %g and %g us", p, us[0], us[1],
                    us[2]);
    }
    tutti_placement_destroy(place);
    return TUTTI_OK;
}

static tutti_status apart_body(ranks_context *context) {
    return with_rank(context, keep_apart);
}

ON_GPUS(plans_of_the_host_are_kept_apart, 1, apart_body, 2)
ON_GPUS(plans_of_the_host_are_kept_apart, 2, apart_body, 2)

/* Ranks disagree whether one layout is in CUDA memory. */
static tutti_status differ(ranks_context *context, cuda_rank *rank) {
    tutti_placement *line;
    tutti_plan *plan;
    int n = context->nranks;
    int64_t shape[] = {4};
    (void)rank;
    TUTTI_TRY(tutti_placement_create(context->comm, context->rank == 1 ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST, NULL,
                                     &n, 1, &line));
    const tutti_layout layout =
        TUTTI_LAYOUT(.placement = line, .type = TUTTI_INT64, .ndims = 1, .shape = shape, .name = "w");
    EXPECT_ERROR(TUTTI_ERR_ARGUMENT, "rank 1 'w' int64[4] B on ranks 0,1 as 2 in CUDA memory to",
                 tutti_plan_create(&layout, &layout, 1, &plan));
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

static tutti_status differ_body(ranks_context *context) {
    return with_rank(context, differ);
}

ON_GPUS(ranks_that_mean_other_memory_are_told, 1, differ_body, 2)

static tutti_status measure_body(ranks_context *context) {
    return with_rank(context, measure);
}

ON_GPUS(what_moves_tensors_is_predicted_once_it_is_measured, 1, measure_body, 3)
ON_GPUS(what_moves_tensors_is_predicted_once_it_is_measured, 2, measure_body, 2)
