/*
 * Collectives on CUDA memory by NCCL compute what those on host memory do: all kinds, types and reductions, by
 * NCCL's own calls and by ours in the order of ranks. GPUs and NCCL are stand-ins (support/standins/), so these
 * tests do not test NCCL's own results, but the engine: what it asks of NCCL, in which order, and what it does
 * with the results.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/gpu/stream.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/reference.h"

TestSuite(nccl, .timeout = 240);

static const int worlds[] = {1, 2, 3, 4, 0};
static const int small_worlds[] = {1, 2, 3, 0};

/* Each call is one NCCL call, which the stand-in sums in rank order: its results are the reference's. */
static const char *const in_rank_order[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", "STANDIN_NCCL_ORDER=ranks", NULL};
/* The stand-in sums in an order of its own, which must not matter where Tutti promises rank order. */
static const char *const deterministic[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", "TUTTI_DETERMINISTIC=1", NULL};
static const char *const plain[] = {"STANDIN_GPUS=8", NULL};
static const char *const few_sources[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", "TUTTI_DETERMINISTIC=1",
                                          "TUTTI_FAULT=nccl_few_sources:0:1000000", NULL};
static const char *const slow[] = {"STANDIN_GPUS=8", "STANDIN_NCCL_PROGRESS_US=60000", "STANDIN_NCCL_ORDER=ranks",
                                   NULL};

/* On real GPUs, keeps the worlds for which there are enough GPUs, and adds one rank, which then uses NCCL, too. With
 * more than two ranks NCCL sums floats in an order of its own. */
static const int *fitting_worlds(const int *sizes, const char *const *environment) {
    static int fitting[8];
    int count = 0, most = cuda_real_gpus();
    if (most == 0) return sizes;
    if (environment != deterministic && most > 2) most = 2;
    fitting[count++] = 1;
    for (; *sizes > 0; sizes++)
        if (*sizes <= most && *sizes > 1) fitting[count++] = *sizes;
    fitting[count] = 0;
    setenv("TUTTI_ALGORITHM", "nccl", 1);
    return fitting;
}

static void need_gpus(int count) {
    int real = cuda_real_gpus();
    if (real > 0 && real < count) cr_skip("needs %d GPUs (TUTTI_TEST_GPUS)", count);
}

static void need_standin(const char *why) {
    if (cuda_real_gpus() > 0) cr_skip("%s", why);
}

/* Runs ranks as processes and as threads, which have this process's environment. */
static void run(const int *sizes, const char *const *environment, ranks_body body) {
    ranks_adopt(environment); /* for threads */
    sizes = fitting_worlds(sizes, environment);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 200, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    tutti_status status = cuda_rank_open(context, (size_t)8 << 20, &rank);
    if (status == TUTTI_OK) status = body(context, &rank);
    if (status == TUTTI_OK && cuda_real_gpus() > 0 && strcmp(context->comm->cuda.streams->engine->name, "nccl") != 0)
        status = tutti_fail(TUTTI_ERR_DATA, "another engine did it: %s", context->comm->cuda.streams->engine->name);
    if (status == TUTTI_OK) status = cuda_rank_close(&rank, context->comm);
    return status;
}

/* ---------------------------------------------------------------------------------------- what is computed */

/* Returns whether the last bits may differ: multiplied inputs are rounded once more, and NCCL computes averages of
 * floats from multiplied inputs, too, which is exact for 2 or 4 ranks. */
static bool rounds_otherwise(const call *c, int nranks) {
    bool narrow = reference_is_float(c->type) && tutti_type_bytes(c->type) <= 2;
    bool average = c->reduction == TUTTI_AVG && reference_is_float(c->type);
    bool ordered = tutti_setting_int(TUTTI_SETTING_DETERMINISTIC) == 1;
    return call_reduces(c->kind) &&
           ((narrow && c->reduction == TUTTI_PREMUL_SUM) || (average && !ordered && (narrow || nranks == 3)));
}

static tutti_status all_types(ranks_context *context, cuda_rank *rank) {
    unsigned seed = 1000;
    for (int kind = 0; kind < CALL_KINDS; kind++)
        for (int type = 0; type < TUTTI_TYPE_COUNT; type++)
            for (int reduction = 0; reduction < (call_reduces((call_kind)kind) ? TUTTI_REDUCTION_COUNT : 1);
                 reduction++) {
                call c = {.kind = (call_kind)kind,
                          .type = (tutti_type)type,
                          .reduction = (tutti_reduction)reduction,
                          .count = 67,
                          .root = context->nranks - 1,
                          .in_place = (call_mode)(++seed % CALL_MODES),
                          .seed = seed};
                if (!reference_supports(c.type, c.reduction) || rounds_otherwise(&c, context->nranks)) continue;
                TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[seed % CUDA_STREAMS], false));
            }
    return TUTTI_OK;
}

static tutti_status types_body(ranks_context *context) {
    return with_rank(context, all_types);
}

Test(nccl, all_types_and_reductions_give_what_the_reference_gives) {
    run(small_worlds, in_rank_order, types_body);
}

Test(nccl, with_deterministic_1_nccls_order_does_not_matter) {
    run(small_worlds, deterministic, types_body);
}

static tutti_status all_sizes(ranks_context *context, cuda_rank *rank) {
    size_t n = (size_t)context->nranks;
    const size_t counts[] = {0, 1, n - 1, n, n + 1, 251, 4099};
    const tutti_type types[] = {TUTTI_FLOAT32, TUTTI_INT16, TUTTI_UINT8};
    unsigned seed = 0;
    for (int kind = 0; kind < CALL_KINDS; kind++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, seed++) {
            call c = {.kind = (call_kind)kind,
                      .type = types[seed % 3],
                      .reduction = seed % 2 == 0 ? TUTTI_SUM : TUTTI_MAX,
                      .count = counts[i],
                      .root = (int)(seed % n),
                      .in_place = (call_mode)(seed % CALL_MODES),
                      .seed = seed};
            TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[0], seed % 2 == 0));
        }
    return TUTTI_OK;
}

static tutti_status sizes_body(ranks_context *context) {
    return with_rank(context, all_sizes);
}

Test(nccl, all_kinds_give_what_the_reference_gives_at_all_sizes) {
    run(worlds, in_rank_order, sizes_body);
}

Test(nccl, calls_that_stay_in_progress_for_long_are_waited_for) {
    need_standin("how long it takes is NCCL's affair");
    run((const int[]){2, 0}, slow, sizes_body);
}

Test(nccl, more_ranks_than_sources_of_a_kernel_are_summed_in_turn) {
    need_standin("the test limits how many sources its kernel takes");
    run((const int[]){4, 0}, few_sources, sizes_body);
}

/* More than the scratch of 16 MiB holds, so that the call takes several rounds. */
static tutti_status large(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)160 << 20, &rank));
    static const call calls[] = {
        {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT16, .reduction = TUTTI_SUM, .count = 9000001},
        {.kind = CALL_REDUCE_SCATTER, .type = TUTTI_BOOL, .reduction = TUTTI_BXOR, .count = 5000011},
        {.kind = CALL_REDUCE, .type = TUTTI_UINT16, .reduction = TUTTI_PREMUL_SUM, .count = 5000011, .root = 1},
        {.kind = CALL_ALL_TO_ALL, .type = TUTTI_FLOAT32, .count = 2500003, .in_place = CALL_MIXED},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        call c = calls[i];
        c.root %= context->nranks;
        TUTTI_TRY(cuda_call_run(&rank, &c, context->comm, rank.streams[0], false));
    }
    return cuda_rank_close(&rank, context->comm);
}

Test(nccl, calls_larger_than_the_scratch_go_in_rounds) {
    run((const int[]){2, 0}, plain, large);
}

/* ------------------------------------------------------------------------------------------ order of sums */

/* (1e8 - 1e8) + 1 is 1; the stand-in begins with the last rank: (1 - 1e8) + 1e8 is 0. */
static tutti_status sum_of_three(ranks_context *context, cuda_rank *rank, float *sum_out) {
    static const float values[] = {1e8f, -1e8f, 1.0f};
    float value = values[context->rank], sum = -1;
    void *memory;
    TUTTI_TRY(cuda_alloc(rank, sizeof value, &memory));
    TUTTI_TRY(cuda_put(rank, memory, &value, sizeof value, rank->streams[0]));
    TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1, TUTTI_FLOAT32, TUTTI_SUM,
                               &TUTTI_OPTIONS(.stream = rank->streams[0])));
    TUTTI_TRY(cuda_fetch(rank, &sum, memory, sizeof sum, rank->streams[0]));
    *sum_out = sum;
    return TUTTI_OK;
}

static tutti_status in_nccls_order(ranks_context *context, cuda_rank *rank) {
    float sum;
    TUTTI_TRY(sum_of_three(context, rank, &sum));
    RANKS_CHECK(sum == 0.0f, "the sum is %g, so not NCCL's", (double)sum);
    return TUTTI_OK;
}

static tutti_status nccls_order_body(ranks_context *context) {
    return with_rank(context, in_nccls_order);
}

Test(nccl, nccls_order_is_the_default_for_floats_on_several_gpus) {
    need_standin("the order is NCCL's affair, the stand-in's is known");
    run((const int[]){3, 0}, plain, nccls_order_body);
}

static tutti_status in_order_of_ranks(ranks_context *context, cuda_rank *rank) {
    float sum;
    TUTTI_TRY(sum_of_three(context, rank, &sum));
    RANKS_CHECK(sum == 1.0f, "the sum is %g, so not in the order of ranks", (double)sum);
    return TUTTI_OK;
}

static tutti_status order_of_ranks_body(ranks_context *context) {
    return with_rank(context, in_order_of_ranks);
}

Test(nccl, deterministic_1_sums_in_the_order_of_ranks) {
    need_gpus(3);
    run((const int[]){3, 0}, deterministic, order_of_ranks_body);
}

static const char *const instances[] = {"STANDIN_GPUS=3", "STANDIN_IDS=a/1,b,a/2", NULL};

Test(nccl, ranks_in_mig_instances_of_one_gpu_do_not_use_nccl) {
    need_standin("it stands for three GPUs, two of them parts of one");
    run((const int[]){3, 0}, instances, order_of_ranks_body);
}

/* --------------------------------------------------------------------------------- communicators and streams */

/* Several communicators, made by splits, used in turn, each in a stream of its own. */
static tutti_status many(ranks_context *context, cuda_rank *rank) {
    enum { COMMS = 6 };
    tutti_comm *comms[COMMS];
    for (int i = 0; i < COMMS; i++)
        TUTTI_TRY(tutti_comm_split(context->comm, i % 2 == 0 ? 0 : context->rank % 2, -context->rank, NULL, &comms[i]));
    for (unsigned round = 0; round < 5; round++)
        for (int i = 0; i < COMMS; i++) {
            call c = {.kind = (call_kind)((round * 5 + (unsigned)i) % CALL_KINDS),
                      .type = round % 2 == 0 ? TUTTI_INT32 : TUTTI_INT16,
                      .count = 301,
                      .in_place = (call_mode)(round % CALL_MODES),
                      .seed = round * 10 + (unsigned)i};
            TUTTI_TRY(cuda_call_run(rank, &c, comms[i], rank->streams[i % CUDA_STREAMS], i % 3 == 0));
        }
    /* with_rank checks the engine of the communicator that was split, so it needs a call. This must come before the
     * others are destroyed: destroying frees memory, which waits for the streams of all ranks that are threads, and
     * so would wait for this rank. */
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = rank->streams[0])));
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    for (int i = 0; i < COMMS; i++) TUTTI_TRY(tutti_comm_destroy(comms[i]));
    return TUTTI_OK;
}

static tutti_status many_body(ranks_context *context) {
    return with_rank(context, many);
}

Test(nccl, split_communicators_have_an_nccl_communicator_each) {
    run(worlds, plain, many_body);
}

/* Calls that share scratch, in two streams, the first of which is held up: the second call waits for the first. */
static tutti_status two_streams(ranks_context *context, cuda_rank *rank) {
    cuda_gate gate;
    cuda_call first, second;
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT16, .count = 5003, .seed = 1}, d = c;
    d.seed = 2;
    d.kind = CALL_REDUCE_SCATTER;
    TUTTI_TRY(cuda_gate_create(rank, &gate));
    TUTTI_TRY(cuda_call_prepare(rank, &c, context->rank, context->nranks, rank->streams[0], &first));
    TUTTI_TRY(cuda_call_prepare(rank, &d, context->rank, context->nranks, rank->streams[1], &second));
    tutti_options here = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = rank->streams[0]), there = here;
    there.stream = rank->streams[1];
    TUTTI_TRY(tutti_barrier(context->comm, &here)); /* the ranks meet in it */
    TUTTI_TRY(cuda_gate_close(rank, &gate, rank->streams[0]));
    TUTTI_TRY(call_start(&first.there, context->comm, &here));
    TUTTI_TRY(call_start(&second.there, context->comm, &there));
    cuda_gate_open(&gate);
    TUTTI_TRY(cuda_call_check(rank, &second, rank->streams[1]));
    TUTTI_TRY(cuda_call_check(rank, &first, rank->streams[0]));
    cuda_call_release(&first);
    cuda_call_release(&second);
    return TUTTI_OK;
}

static tutti_status two_streams_body(ranks_context *context) {
    return with_rank(context, two_streams);
}

Test(nccl, calls_in_several_streams_do_not_share_scratch_at_once) {
    run(small_worlds, plain, two_streams_body);
}
