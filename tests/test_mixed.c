/*
 * Several GPUs with several ranks on some of them: all kinds, types and sizes give what the reference gives, which sums up each
 * GPU's ranks first; captured streams are refused; MIG instances of a GPU do without NCCL. GPUs and NCCL are stand-ins
 * (support/standin_cuda.c, standin_nccl.c): nothing here says what hardware does.
 */
#include <criterion/criterion.h>

#include <string.h>

#include <tutti/device.h>

#include "comm/device_memory.h"
#include "tests/support/hosts.h"
#include "tests/support/placement.h"
#include "tests/support/reference.h"

#define SCRATCH_BYTES 4096 /* so that little data goes in rounds */

TestSuite(mixed, .timeout = 150);

/* NCCL's order must not show in sums that are compared bit for bit. */
static const char *const in_rank_order[] = {"TUTTI_CUDA_SLOT_BYTES=4096", "STANDIN_NCCL_ORDER=ranks",
                                            "STANDIN_NCCL_PROGRESS_US=20", NULL};
static const char *const deterministic[] = {"TUTTI_CUDA_SLOT_BYTES=4096", "TUTTI_DETERMINISTIC=1",
                                            "STANDIN_NCCL_PROGRESS_US=20", NULL};

static void run(const char *gpus, const char *const *settings, ranks_body body) {
    const char *failure = ranks_have_processes() ? placement_run(gpus, RANKS_PROCESSES, settings, body) : NULL;
    cr_assert(failure == NULL, "%s, processes: %s", gpus, failure);
    failure = placement_run(gpus, RANKS_THREADS, settings, body);
    cr_assert(failure == NULL, "%s, threads: %s", gpus, failure);
}

/* Where that is enough. */
static void run_threads(const char *gpus, const char *const *settings, ranks_body body) {
    const char *failure = placement_run(gpus, RANKS_THREADS, settings, body);
    cr_assert(failure == NULL, "%s, threads: %s", gpus, failure);
}

/* ------------------------------------------------------------------------------------------------ results */

/* Kinds that the engine leaves to the host: their sizes and types are other tests'. */
static bool is_staged(call_kind kind) {
    switch (kind) {
    case CALL_ALL_TO_ALL:
    case CALL_GATHER:
    case CALL_SCATTER:
    case CALL_ALL_TO_ALL_V:
    case CALL_GATHER_V:
    case CALL_SCATTER_V: return true;
    default: return false;
    }
}

static tutti_status all_sizes(ranks_context *context, cuda_rank *rank) {
    static const tutti_reduction reductions[] = {TUTTI_SUM, TUTTI_PREMUL_SUM, TUTTI_AVG, TUTTI_MAX};
    const size_t all = SCRATCH_BYTES / sizeof(float), counts[] = {0, 1, 5, 251, all, 2 * all + 3};
    unsigned seed = 0;
    for (int kind = 0; kind < CALL_KINDS; kind++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, seed++) {
            call c = {.kind = (call_kind)kind,
                      .type = TUTTI_FLOAT32,
                      .reduction = reductions[seed % 4],
                      .count = counts[i],
                      .root = (int)(seed % (unsigned)context->nranks),
                      .in_place = (call_mode)(seed % CALL_MODES),
                      .seed = seed};
            if (is_staged(c.kind) && c.count != 251) continue;
            TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[seed % CUDA_STREAMS], seed % 2 == 0));
        }
    return TUTTI_OK;
}

static tutti_status sizes_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", all_sizes);
}

Test(mixed, three_ranks_in_turn_on_two_gpus) {
    run("aba", in_rank_order, sizes_body);
}

Test(mixed, four_ranks_in_turn_on_two_gpus) {
    run_threads("abab", in_rank_order, sizes_body);
}

Test(mixed, three_ranks_on_one_gpu_and_one_on_another) {
    run("aaab", in_rank_order, sizes_body);
}

Test(mixed, one_rank_on_one_gpu_and_three_on_another) {
    run_threads("abbb", in_rank_order, sizes_body);
}

Test(mixed, five_ranks_on_three_gpus) {
    run_threads("abcab", in_rank_order, sizes_body);
}

Test(mixed, six_ranks_on_three_gpus_in_no_order) {
    run("abacbb", in_rank_order, sizes_body);
}

/* Averages of short floats are rounded before they are divided; the reference divides first. */
static bool rounds_otherwise(const call *c) {
    return reference_is_float(c->type) && tutti_type_bytes(c->type) <= 2 && c->reduction == TUTTI_AVG;
}

/* What reduces in all ways, what moves as integers of every size. */
static bool is_worth_it(const call *c) {
    if (is_staged(c->kind)) return false;
    if (call_reduces(c->kind)) return reference_supports(c->type, c->reduction) && !rounds_otherwise(c);
    return !reference_is_float(c->type) && c->reduction == TUTTI_SUM;
}

static tutti_status sweep(ranks_context *context, cuda_rank *rank, bool floats_only) {
    unsigned seed = 1000;
    for (int i = 0; i < CALL_KINDS * TUTTI_TYPE_COUNT * TUTTI_REDUCTION_COUNT; i++) {
        call c = {.kind = (call_kind)(i % CALL_KINDS),
                  .type = (tutti_type)(i / CALL_KINDS % TUTTI_TYPE_COUNT),
                  .reduction = (tutti_reduction)(i / CALL_KINDS / TUTTI_TYPE_COUNT),
                  .count = 67};
        if (!is_worth_it(&c) || (floats_only && !(reference_is_float(c.type) && call_reduces(c.kind)))) continue;
        c.seed = ++seed;
        c.root = (int)(seed % (unsigned)context->nranks);
        c.in_place = (call_mode)(seed / 2 % CALL_MODES);
        TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[seed % CUDA_STREAMS], false));
    }
    return TUTTI_OK;
}

static tutti_status all_types(ranks_context *context, cuda_rank *rank) {
    return sweep(context, rank, /* floats only */ false);
}

static tutti_status all_floats(ranks_context *context, cuda_rank *rank) {
    return sweep(context, rank, /* floats only */ true);
}

static tutti_status types_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", all_types);
}

static tutti_status floats_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", all_floats);
}

Test(mixed, all_types_and_reductions_are_right) {
    run("aba", in_rank_order, types_body);
}

Test(mixed, with_deterministic_1_nccls_order_does_not_matter) {
    run_threads("abba", deterministic, floats_body);
}

/* Memory that peers on the GPU map, where they can, and a scratch of the default size. */
static tutti_status large(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)16 << 20, &rank));
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        call c = {.kind = (call_kind)kind,
                  .type = TUTTI_FLOAT32,
                  .count = 100003,
                  .root = 2,
                  .in_place = CALL_MIXED,
                  .seed = (uint64_t)kind};
        TUTTI_TRY(cuda_call_run(&rank, &c, context->comm, rank.streams[kind % CUDA_STREAMS], kind % 2 == 0));
    }
    return cuda_rank_close(&rank, context->comm);
}

Test(mixed, large_calls_are_right) {
    cuda_shared_arenas = 0x55;
    run("aba", (const char *const[]){"STANDIN_NCCL_ORDER=ranks", NULL}, large);
}

/* ------------------------------------------------------------------------------------- streams and hosts */

/* Calls that follow each other without a wait, in changing streams: scratch and parts serve one at a time. */
static tutti_status many(ranks_context *context, cuda_rank *rank) {
    enum { CALLS = 30 };
    static const call_kind kinds[] = {CALL_ALL_REDUCE, CALL_ALL_GATHER, CALL_REDUCE, CALL_REDUCE_SCATTER_V,
                                      CALL_BROADCAST};
    cuda_call calls[CALLS];
    for (int i = 0; i < CALLS; i++) {
        call c = {.kind = kinds[i % 5],
                  .type = i % 2 == 0 ? TUTTI_INT32 : TUTTI_INT16,
                  .count = (size_t)(i * 37 + 1),
                  .root = i % context->nranks,
                  .seed = (uint64_t)i};
        TUTTI_TRY(
            cuda_call_prepare(rank, &c, context->rank, context->nranks, rank->streams[i % CUDA_STREAMS], &calls[i]));
    }
    for (int i = 0; i < CALLS; i++) {
        tutti_options options = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = rank->streams[i % CUDA_STREAMS]);
        TUTTI_TRY(call_start(&calls[i].there, context->comm, &options));
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        TUTTI_TRY(cuda_call_check(rank, &calls[i], rank->streams[i % CUDA_STREAMS]));
        cuda_call_release(&calls[i]);
    }
    return TUTTI_OK;
}

static tutti_status many_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", many);
}

Test(mixed, calls_in_several_streams_keep_apart) {
    run("abab", in_rank_order, many_body);
}

/* Host 0 has GPUs a and b, host 1 has c. */
static tutti_status hosts_body(ranks_context *context) {
    reference_set_hosts(placement_gpus("abacc"));
    return placement_with_rank(context, "mixed", all_sizes);
}

Test(mixed, gpus_may_be_on_several_hosts) {
    static const char *const environment[] = {"STANDIN_GPUS=5",
                                              "STANDIN_IDS=a,b,a,c,c",
                                              "STANDIN_NCCL_ORDER=ranks",
                                              "STANDIN_NCCL_PROGRESS_US=20",
                                              "TUTTI_CUDA_SLOT_BYTES=4096",
                                              NULL};
    HOSTS_NEED(0);
    const char *failure = hosts_run(
        &(hosts_options){.ranks_per_host = (const int[]){3, 2, 0}, .timeout_s = 100, .environment = environment},
        hosts_body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ---------------------------------------------------------------------------------------- which engine it is */

static tutti_status few(ranks_context *context, cuda_rank *rank) {
    for (int kind = 0; kind < CALL_KINDS; kind++) {
        call c = {.kind = (call_kind)kind, .type = TUTTI_INT32, .count = 23, .seed = (uint64_t)kind};
        TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[0], false));
    }
    return TUTTI_OK;
}

static tutti_status staged_body(ranks_context *context) {
    return placement_with_rank(context, "staged", few);
}

/* NCCL would refuse them, and they cannot map each other's memory. */
Test(mixed, mig_instances_of_one_gpu_go_by_host_memory) {
    run("a1a2", NULL, staged_body);
}

Test(mixed, so_do_several_ranks_on_each_of_them) {
    run("a1a2a1a2", NULL, staged_body);
}

static tutti_status nccl_body(ranks_context *context) {
    return placement_with_rank(context, "nccl", few);
}

Test(mixed, mig_instances_of_several_gpus_go_by_nccl) {
    run("a1b1", in_rank_order, nccl_body);
}

static tutti_status mixed_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", few);
}

Test(mixed, ranks_on_one_mig_instance_of_each_gpu_are_a_mixed_placement) {
    run("a1b2a1", in_rank_order, mixed_body);
}

Test(mixed, without_ipc_processes_go_by_host_memory_and_threads_need_none) {
    static const char *const settings[] = {"STANDIN_IPC=0", NULL};
    const char *failure = ranks_have_processes() ? placement_run("aba", RANKS_PROCESSES, settings, staged_body) : NULL;
    cr_assert(failure == NULL, "processes: %s", failure);
    failure = placement_run("aba", RANKS_THREADS, settings, mixed_body);
    cr_assert(failure == NULL, "threads: %s", failure);
}

/* A thread of the host waits for all streams of a process then: two ranks in it would wait for each other. */
static void run_without_stream_waits(const char *gpus, ranks_body processes) {
    static const char *const settings[] = {"STANDIN_STREAM_WAITS=0", NULL};
    const char *failure = ranks_have_processes() ? placement_run(gpus, RANKS_PROCESSES, settings, processes) : NULL;
    cr_assert(failure == NULL, "processes: %s", failure);
    failure = placement_run(gpus, RANKS_THREADS, settings, staged_body);
    cr_assert(failure == NULL, "threads: %s", failure);
}

static tutti_status same_device_body(ranks_context *context) {
    return placement_with_rank(context, "same_device", few);
}

Test(mixed, where_streams_cannot_wait_threads_on_one_gpu_go_by_host_memory) {
    run_without_stream_waits("aa", same_device_body);
}

Test(mixed, so_do_those_on_some_gpus_of_several) {
    run_without_stream_waits("aba", mixed_body);
}

/* --------------------------------------------------------------------------------------------------- graphs */

static tutti_status expect_refusal(tutti_status status, const char *engine) {
    RANKS_CHECK(status == TUTTI_ERR_UNSUPPORTED, "'%s'", tutti_status_name(status));
    RANKS_CHECK(strstr(tutti_last_error(), "cannot be captured into a CUDA graph") != NULL &&
                    strstr(tutti_last_error(), engine) != NULL,
                "'%s' is not in: %s", engine, tutti_last_error());
    return TUTTI_OK;
}

/* It changes nothing: the next call is as good as ever. The kinds that go through host memory say so. */
static tutti_status captured(ranks_context *context, cuda_rank *rank) {
    void *memory;
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0]);
    TUTTI_TRY(few(context, rank));
    TUTTI_TRY(cuda_alloc(rank, 64, &memory));
    TUTTI_TRY(placement_capture(rank->streams[0], true));
    TUTTI_TRY(
        expect_refusal(tutti_all_reduce(context->comm, memory, memory, 8, TUTTI_INT32, TUTTI_SUM, &options), "mixed"));
    TUTTI_TRY(expect_refusal(tutti_all_to_all(context->comm, memory, memory, 2, TUTTI_INT32, &options), "staged"));
    TUTTI_TRY(expect_refusal(tutti_send(context->comm, memory, 2, TUTTI_INT32, 0, 0, &options), "send"));
    TUTTI_TRY(placement_capture(rank->streams[0], false));
    return few(context, rank);
}

static tutti_status captured_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", captured);
}

Test(mixed, a_captured_stream_is_refused) {
    run("aba", in_rank_order, captured_body);
}

/* --------------------------------------------------------------------------------------------------- memory */

enum { ITEMS = 5000 }; /* more than a slot takes at once */

/* The sum of ones, in that memory. */
static tutti_status sum_there(tutti_comm *comm, cuda_rank *rank, void *memory) {
    static _Thread_local int32_t values[ITEMS];
    for (int i = 0; i < ITEMS; i++) values[i] = 1;
    TUTTI_TRY(rank->device->copy(memory, values, sizeof values, rank->streams[0]));
    TUTTI_TRY(tutti_all_reduce(comm, memory, memory, ITEMS, TUTTI_INT32, TUTTI_SUM,
                               &TUTTI_OPTIONS(.stream = rank->streams[0])));
    TUTTI_TRY(rank->device->copy(values, memory, sizeof values, rank->streams[0]));
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    for (int i = 0; i < ITEMS; i++) RANKS_CHECK(values[i] == tutti_comm_size(comm), "[%d] is %d", i, (int)values[i]);
    return TUTTI_OK;
}

static tutti_status expect_shareable(const void *memory, bool expected) {
    void *block;
    size_t bytes;
    bool can = tutti_device_memory_share(memory, ITEMS * sizeof(int32_t), &block, &bytes);
    RANKS_CHECK(can == expected, "peers %s map it", can ? "can" : "cannot");
    return TUTTI_OK;
}

/* Ranks 0 and 2 have GPUs of their own to each other, so that NCCL allocates at first. Once ranks 0 and 1 are seen to share one,
 * they get memory that can be mapped; rank 2, alone on its GPU, still gets NCCL's. */
static tutti_status blocks(ranks_context *context, cuda_rank *rank) {
    tutti_comm *apart;
    void *before, *behind;
    size_t bytes = ITEMS * sizeof(int32_t);
    int color = context->rank == 1 ? TUTTI_COLOR_NONE : 0;
    TUTTI_TRY(tutti_comm_split(context->comm, color, 0, NULL, &apart));
    if (apart != NULL) TUTTI_TRY(tutti_barrier(apart, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA)));
    TUTTI_TRY(tutti_mem_alloc_cuda(bytes, &before));
    TUTTI_TRY(expect_shareable(before, context->rank == 1));
    TUTTI_TRY(sum_there(context->comm, rank, before));
    TUTTI_TRY(tutti_mem_alloc_cuda(bytes, &behind));
    TUTTI_TRY(expect_shareable(behind, context->rank != 2));
    TUTTI_TRY(sum_there(context->comm, rank, behind));
    if (apart != NULL) TUTTI_TRY(sum_there(apart, rank, behind));
    TUTTI_TRY(tutti_comm_destroy(apart));
    TUTTI_TRY(tutti_mem_free(before));
    return tutti_mem_free(behind);
}

static tutti_status blocks_body(ranks_context *context) {
    return placement_with_rank(context, "mixed", blocks);
}

Test(mixed, memory_can_be_mapped_where_ranks_share_a_gpu_and_is_nccl_s_elsewhere) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    const char *failure = placement_run("aab", RANKS_PROCESSES, in_rank_order, blocks_body);
    cr_assert(failure == NULL, "%s", failure);
}
