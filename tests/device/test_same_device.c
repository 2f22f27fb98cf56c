/*
 * Several ranks on one GPU: all kinds, types and sizes, in memory that peers can map and in memory that they cannot,
 * in one piece and in several; ranks that are late, die, or make a different call. The GPU is a stand-in
 * (support/standins/standin_cuda.c), or the first of this machine's (support/gpu/cuda_call.h).
 */
#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tutti/device.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "comm/gpu/same_gpu/same_gpu.h"
#include "comm/gpu/stream.h"
#include "tests/support/gpu/cuda_call.h"

#define SLOT_BYTES 4096 /* so that even little data goes in pieces */

static const int standin_worlds[] = {2, 3, 4, 7, 0}, gpu_worlds[] = {2, 4, 8, 0};
static const int small_worlds[] = {3, 0};
static const char *const environment[] = {"STANDIN_GPUS=1", "TUTTI_CUDA_SLOT_BYTES=4096", "TUTTI_ALGORITHM=same_gpu",
                                          "TUTTI_CUDA_MAP=tutti", NULL};

enum { ORDINARY = 0, SHARED = -1, MIXED = 0x5a };

static const int *worlds(void) {
    return cuda_real_gpus() > 0 ? gpu_worlds : standin_worlds;
}

static void prepare(int64_t shared) {
    setenv("STANDIN_GPUS", "1", 1); /* for ranks that are threads */
    setenv("TUTTI_CUDA_SLOT_BYTES", "4096", 1);
    setenv("TUTTI_CUDA_MAP", "tutti", 1);
    setenv("TUTTI_ALGORITHM", "same_gpu", 1);
    tutti_settings_reload();
    cuda_shared_arenas = (uint64_t)shared;
}

static void run(const int *sizes, int64_t shared, ranks_body body) {
    prepare(shared);
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 200, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    tutti_status status = cuda_rank_open(context, (size_t)16 << 20, &rank);
    if (status == TUTTI_OK) status = body(context, &rank);
    if (status == TUTTI_OK && strcmp(context->comm->cuda.streams->engine->name, "same_gpu") != 0)
        status = tutti_fail(TUTTI_ERR_DATA, "another engine did it: %s", context->comm->cuda.streams->engine->name);
    if (status == TUTTI_OK) status = cuda_rank_close(&rank, context->comm);
    return status;
}

/* For bodies that break their communicator. */
static tutti_status break_comm(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(body(context, &rank));
    return cuda_rank_close(&rank, NULL);
}

/* ------------------------------------------------------------------------------------------------ results */

static tutti_status all_sizes(ranks_context *context, cuda_rank *rank) {
    return cuda_sweep_sizes(rank, context, SLOT_BYTES);
}

static tutti_status sizes_body(ranks_context *context) {
    return with_rank(context, all_sizes);
}

Test(same_device, all_kinds_are_right_in_memory_that_peers_cannot_map, .timeout = 300) {
    run(worlds(), ORDINARY, sizes_body);
}

Test(same_device, all_kinds_are_right_in_memory_that_peers_map, .timeout = 300) {
    run(worlds(), SHARED, sizes_body);
}

Test(same_device, all_kinds_are_right_where_some_can_be_mapped_and_some_cannot, .timeout = 300) {
    run(worlds(), MIXED, sizes_body);
}

/* Where each rank is a process, peers map memory of cudaMalloc. */
static void run_mapping(const int *sizes, ranks_body body) {
    static const char *const mapping[] = {"STANDIN_GPUS=1", "TUTTI_CUDA_SLOT_BYTES=4096", "TUTTI_ALGORITHM=same_gpu",
                                          "TUTTI_CUDA_MAP=any", NULL};
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    prepare(ORDINARY);
    for (; *sizes > 0; sizes++) {
        ranks_options options = {.kind = RANKS_PROCESSES, .nranks = *sizes, .timeout_s = 200, .environment = mapping};
        const char *failure = ranks_run(&options, body);
        cr_assert(failure == NULL, "%d processes: %s", *sizes, failure);
    }
}

Test(same_device, all_kinds_are_right_in_any_memory_that_peers_map, .timeout = 300) {
    run_mapping(worlds(), sizes_body);
}

/* Allocates and frees memory, mostly at the addresses of earlier allocations, and more than the directory has room
 * for. Every third allocation stays for some rounds. */
static tutti_status use_and_free(ranks_context *context, cuda_rank *rank) {
    enum { ROUNDS = 300, KEPT = 5 };
    void *kept[KEPT] = {NULL};
    const int n = context->nranks;
    for (int round = 0; round < ROUNDS; round++) {
        size_t count = (size_t)(1 + round * 37 % 5000);
        void *memory, *result;
        uint32_t *values = NULL;
        TUTTI_TRY(tutti_calloc(count, sizeof *values, &values));
        for (size_t i = 0; i < count; i++) values[i] = (uint32_t)(context->rank * 1000003 + round) + (uint32_t)i;
        TUTTI_TRY(rank->device->alloc(count * sizeof *values, &memory));
        TUTTI_TRY(rank->device->alloc(count * sizeof *values, &result));
        TUTTI_TRY(rank->device->copy(memory, values, count * sizeof *values, rank->streams[0]));
        TUTTI_TRY(tutti_all_reduce(context->comm, memory, result, count, TUTTI_UINT32, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA)));
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
        TUTTI_TRY(rank->device->copy(values, result, count * sizeof *values, rank->streams[0]));
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
        for (size_t i = 0; i < count; i++) {
            uint32_t expected = (uint32_t)n * ((uint32_t)round + (uint32_t)i) + 1000003u * (uint32_t)(n * (n - 1) / 2);
            RANKS_CHECK(values[i] == expected, "round %d: [%zu] is %u, not %u", round, i, values[i], expected);
        }
        free(values);
        TUTTI_TRY(rank->device->free(memory));
        if (round % 3 == 0) {
            TUTTI_TRY(rank->device->free(kept[round / 3 % KEPT]));
            kept[round / 3 % KEPT] = result;
        } else {
            TUTTI_TRY(rank->device->free(result));
        }
    }
    const tutti_same_gpu *s = context->comm->cuda.streams->engine_state;
    RANKS_CHECK(atomic_load(&s->own->nexports) < 100, "freed allocations keep their %u entries",
                atomic_load(&s->own->nexports));
    for (int i = 0; i < KEPT; i++) TUTTI_TRY(rank->device->free(kept[i]));
    return TUTTI_OK;
}

static tutti_status free_and_use_body(ranks_context *context) {
    return with_rank(context, use_and_free);
}

Test(same_device, any_memory_may_be_freed_while_peers_map_it, .timeout = 300) {
    run_mapping(small_worlds, free_and_use_body);
}

static tutti_status all_types(ranks_context *context, cuda_rank *rank) {
    return cuda_sweep_types(rank, context);
}

static tutti_status types_body(ranks_context *context) {
    return with_rank(context, all_types);
}

Test(same_device, all_types_and_reductions_are_right, .timeout = 300) {
    run(small_worlds, MIXED, types_body);
}

/* CUDA may run a stream's work behind that of any other stream of the process, whatever streams and hardware queues
 * there are: on an H100, 3 threads with 9 streams and 32 queues hung once in some 3500 calls. One queue shows it. */
Test(same_device, threads_need_no_order_but_that_of_events, .timeout = 100) {
    prepare(MIXED);
    setenv("STANDIN_IN_ORDER", "1", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    const int nranks[] = {2, 3, 8};
    for (size_t i = 0; i < TUTTI_COUNT_OF(nranks); i++) {
        ranks_options options = {.kind = RANKS_THREADS, .nranks = nranks[i], .environment = environment};
        const char *failure = ranks_run(&options, i == 1 ? types_body : sizes_body);
        cr_assert(failure == NULL, "%d threads: %s", nranks[i], failure);
    }
}

/* Rank 1 makes no second call: it sleeps, or aborts its communicator. Rank 0, a thread of the same process, waits on
 * the host. */
static tutti_status wait_in_vain(ranks_context *context, cuda_rank *rank) {
    const bool aborts = context->argument != NULL;
    void *memory = NULL;
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA);
    TUTTI_TRY(cuda_alloc(rank, 4000, &memory));
    TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1000, TUTTI_INT32, TUTTI_SUM, &options));
    if (context->rank == 1) {
        usleep(aborts ? 200000 : 1500000);
        if (aborts) TUTTI_TRY(tutti_comm_abort(context->comm, "enough"));
        return TUTTI_OK;
    }
    int64_t start_ns = tutti_now_ns();
    options.timeout_ms = aborts ? 20000 : 500;
    tutti_status status = tutti_all_reduce(context->comm, memory, memory, 1000, TUTTI_INT32, TUTTI_SUM, &options);
    int64_t spent_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(status == (aborts ? TUTTI_ERR_ABORTED : TUTTI_ERR_TIMEOUT), "'%s' (%s)", tutti_status_name(status),
                tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), aborts ? "enough" : "missing: rank 1") != NULL, "%s", tutti_last_error());
    RANKS_CHECK(spent_ms < 5000, "the error came after %d ms", (int)spent_ms);
    return rank->device->stream_sync(rank->streams[0]);
}

static tutti_status vain_body(ranks_context *context) {
    return break_comm(context, wait_in_vain);
}

Test(same_device, a_thread_stops_waiting_for_others_at_its_deadline_and_at_an_abort, .timeout = 60) {
    prepare(ORDINARY);
    for (int aborts = 0; aborts < 2; aborts++) {
        ranks_options options = {.kind = RANKS_THREADS, .nranks = 2, .environment = environment};
        if (aborts) options.argument = &options;
        const char *failure = ranks_run(&options, vain_body);
        cr_assert(failure == NULL, "%s: %s", aborts ? "abort" : "deadline", failure);
    }
}

/* More blocks than the directory of those that peers map has room for: the last ones, and ordinary memory, go by way
 * of slots. */
static tutti_status use_many_blocks(ranks_context *context, cuda_rank *rank) {
    enum { BLOCKS = TUTTI_SAME_GPU_EXPORTS + 10 };
    static void *blocks[BLOCKS];
    const size_t page = (size_t)2 << 20; /* CUDA exports whole pages: peers must not map other data with a block */
    int value = context->rank + 1;
    const int expected = context->nranks * (context->nranks + 1) / 2;
    for (int i = 0; i < BLOCKS; i++) {
        tutti_device_place place;
        TUTTI_TRY(tutti_mem_alloc_cuda(sizeof value, &blocks[i]));
        TUTTI_TRY(rank->device->locate(blocks[i], &place));
        RANKS_CHECK(place.bytes % page == 0, "block %d is in an allocation of %zu bytes", i, (size_t)place.bytes);
        TUTTI_TRY(rank->device->copy(blocks[i], &value, sizeof value, rank->streams[0]));
        TUTTI_TRY(tutti_all_reduce(context->comm, blocks[i], blocks[i], 1, TUTTI_INT32, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA)));
    }
    for (int i = 0; i < BLOCKS; i++) {
        int sum = 0;
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
        TUTTI_TRY(rank->device->copy(&sum, blocks[i], sizeof sum, rank->streams[0]));
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
        RANKS_CHECK(sum == expected, "block %d has %d, not %d", i, sum, expected);
    }
    const call c = {.kind = CALL_ALL_TO_ALL, .type = TUTTI_INT32, .count = 3001, .seed = 5};
    TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[0], false));
    for (int i = 0; i < BLOCKS; i++) TUTTI_TRY(tutti_mem_free(blocks[i]));
    return TUTTI_OK;
}

static tutti_status blocks_body(ranks_context *context) {
    return with_rank(context, use_many_blocks);
}

Test(same_device, memory_that_peers_map_may_be_in_any_number_of_blocks, .timeout = 200) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    prepare(ORDINARY);
    const char *failure = ranks_run(&(ranks_options){.nranks = 2, .environment = environment}, blocks_body);
    cr_assert(failure == NULL, "%s", failure);
}

static void *open_later(void *gate) {
    usleep(100000);
    cuda_gate_open(gate);
    return NULL;
}

/* The work behind the gate may still write to the block, and the next caller that asks for this size gets it. Freeing
 * does not wait: the stream may wait for a rank that this one keeps waiting. */
static tutti_status free_block(ranks_context *context, cuda_rank *rank) {
    cuda_gate gate;
    pthread_t thread;
    void *block, *next;
    TUTTI_TRY(tutti_mem_alloc_cuda(4000, &block));
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA);
    TUTTI_TRY(tutti_all_reduce(context->comm, block, block, 1000, TUTTI_INT32, TUTTI_SUM, &options));
    TUTTI_TRY(cuda_gate_create(rank, &gate));
    TUTTI_TRY(cuda_gate_close(rank, &gate, rank->streams[0]));
    TUTTI_TRY(rank->device->fill(block, 1, 4000, rank->streams[0]));
    TUTTI_TRY(tutti_mem_free(block));
    RANKS_CHECK(pthread_create(&thread, NULL, open_later, &gate) == 0, "no thread");
    TUTTI_TRY(tutti_mem_alloc_cuda(4000, &next));
    bool waited = atomic_load(gate.host) != 0;
    pthread_join(thread, NULL);
    RANKS_CHECK(next == block, "the block was not reused");
    RANKS_CHECK(waited, "the memory was given out before the stream had passed");
    TUTTI_TRY(tutti_mem_free(next));
    cuda_gate_destroy(rank, &gate);
    return TUTTI_OK;
}

static tutti_status free_body(ranks_context *context) {
    return with_rank(context, free_block);
}

Test(same_device, memory_that_peers_map_is_reused_when_the_gpu_has_passed, .timeout = 60) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    prepare(ORDINARY);
    const char *failure = ranks_run(&(ranks_options){.nranks = 2, .environment = environment}, free_body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------- order */

enum { FEW_CALLS = 20 };

/* A driver call costs as much for many waits and writes as for one, so those of a call go together: before and behind
 * the launcher's kernel, on other ranks all at once. */
static tutti_status make_few_driver_calls(ranks_context *context, cuda_rank *rank) {
    void *memory = NULL;
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA);
    TUTTI_TRY(cuda_alloc(rank, 4000, &memory));
    TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1000, TUTTI_INT32, TUTTI_SUM, &options));
    setenv("STANDIN_FAIL", "write_value:1,wait_value:1,use_values:41", 1); /* two for each call */
    for (int i = 0; i < FEW_CALLS; i++)
        TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1000, TUTTI_INT32, TUTTI_SUM, &options));
    unsetenv("STANDIN_FAIL");
    return TUTTI_OK;
}

static tutti_status few_body(ranks_context *context) {
    return with_rank(context, make_few_driver_calls);
}

Test(same_device, a_call_makes_few_driver_calls, .timeout = 60) {
    if (cuda_real_gpus() > 0) cr_skip_test("the number of calls is known of the stand-in only");
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    prepare(SHARED);
    ranks_options options = {.kind = RANKS_PROCESSES, .nranks = 4, .environment = environment};
    const char *failure = ranks_run(&options, few_body);
    cr_assert(failure == NULL, "%s", failure);
}

/* The last rank to call launches. The ranks, which are threads, take turns at that. */
static tutti_status take_turns(ranks_context *context, cuda_rank *rank) {
    void *memory = NULL;
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA);
    TUTTI_TRY(cuda_alloc(rank, 4000, &memory));
    TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1000, TUTTI_INT32, TUTTI_SUM, &options));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    const tutti_same_gpu *s = context->comm->cuda.streams->engine_state;
    uint64_t before = atomic_load(&s->counters->changes), first = atomic_load(&s->counters->launcher) - 1;
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    for (int i = 0; i < FEW_CALLS; i++) {
        bool last = context->rank == i / 2 % 2; /* each of them twice in a row */
        const _Atomic uint64_t *arrived = &s->counters->arrived[(s->places + 1) % TUTTI_SAME_GPU_DEPTH].value;
        while (last && atomic_load(arrived) == 0) sched_yield();
        TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1000, TUTTI_INT32, TUTTI_SUM, &options));
    }
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
    uint64_t changes = atomic_load(&s->counters->changes) - before;
    RANKS_CHECK(changes == FEW_CALLS / 2 - (first == 0), "the launcher changed %d times", (int)changes);
    return TUTTI_OK;
}

static tutti_status turns_body(ranks_context *context) {
    return with_rank(context, take_turns);
}

Test(same_device, changes_of_the_launcher_are_counted, .timeout = 60) {
    prepare(ORDINARY);
    const char *failure =
        ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 2, .environment = environment}, turns_body);
    cr_assert(failure == NULL, "%s", failure);
}

#define CALLS 200 /* more than the board has places */

/* One rank's stream is closed by a gate; the other ranks make further calls, which wait for it on the host only when
 * they are too far ahead. Each call reduces the result of the call before, in changing streams. */
static tutti_status run_ahead(ranks_context *context, cuda_rank *rank) {
    int n = context->nranks, *there = NULL, value = 1;
    void *memory = NULL;
    TUTTI_TRY(cuda_alloc(rank, sizeof *there, &memory));
    TUTTI_TRY(cuda_put(rank, memory, &value, sizeof value, rank->streams[0]));
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    if (context->rank == n - 1) usleep(300000);
    for (int i = 0; i < CALLS; i++) {
        tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[i % CUDA_STREAMS], .memory = TUTTI_MEMORY_CUDA);
        tutti_reduction reduction = i % 8 == 7 ? TUTTI_SUM : TUTTI_MAX;
        TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 1, TUTTI_INT32, reduction, &options));
    }
    int expected = 1;
    for (int i = 7; i < CALLS; i += 8) expected = (int)((unsigned)expected * (unsigned)n);
    TUTTI_TRY(cuda_fetch(rank, &value, memory, sizeof value, rank->streams[(CALLS - 1) % CUDA_STREAMS]));
    RANKS_CHECK(value == expected, "%d, not %d", value, expected);
    return TUTTI_OK;
}

static tutti_status ahead_body(ranks_context *context) {
    return with_rank(context, run_ahead);
}

Test(same_device, calls_follow_each_other_whatever_their_streams_and_whichever_rank_is_late, .timeout = 200) {
    run(worlds(), MIXED, ahead_body);
}

/* ------------------------------------------------------------------------------------------------ failure */

static tutti_status lose_rank(ranks_context *context) {
    cuda_rank rank;
    char name[64];
    void *memory = NULL;
    int victim = context->nranks - 1;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(cuda_alloc(&rank, 40000, &memory));
    tutti_options options = TUTTI_OPTIONS(.stream = rank.streams[0], .memory = TUTTI_MEMORY_CUDA);
    TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, 10000, TUTTI_INT32, TUTTI_SUM, &options));
    TUTTI_TRY(rank.device->stream_sync(rank.streams[0]));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == victim) ranks_strike(context, SIGKILL);
    tutti_work *work = NULL;
    options.work = &work;
    int64_t start_ns = tutti_now_ns();
    tutti_status status = tutti_all_reduce(context->comm, memory, memory, 10000, TUTTI_INT32, TUTTI_SUM, &options);
    if (status == TUTTI_OK) status = tutti_work_wait(work, 30000);
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    snprintf(name, sizeof name, "rank %d (host", victim);
    RANKS_CHECK(strstr(tutti_last_error(), name) != NULL, "'%s' is not named: %s", name, tutti_last_error());
    RANKS_CHECK(tutti_now_ns() - start_ns < 20 * INT64_C(1000000000), "the error came late");
    TUTTI_TRY(rank.device->stream_sync(rank.streams[0])); /* released */
    tutti_work_free(work);
    return TUTTI_OK;
}

Test(same_device, streams_are_released_when_a_rank_dies, .timeout = 200) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    for (int64_t shared = SHARED; shared <= ORDINARY; shared++) {
        prepare(shared);
        ranks_options options = {.kind = RANKS_PROCESSES, .nranks = 3, .environment = environment};
        const char *failure = ranks_run(&options, lose_rank);
        cr_assert(failure == NULL, "%s", failure);
    }
}

/* The last rank to call detects the difference; the other ranks get its error. */
static tutti_status call_differently(ranks_context *context, cuda_rank *rank) {
    void *memory = NULL;
    tutti_work *work = NULL;
    size_t count = context->rank == 1 ? 11 : 10;
    TUTTI_TRY(cuda_alloc(rank, 1000, &memory));
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA, .work = &work);
    tutti_status status = tutti_all_reduce(context->comm, memory, memory, count, TUTTI_INT32, TUTTI_SUM, &options);
    if (status == TUTTI_OK) status = tutti_work_wait(work, 30000);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "all_reduce(int32, 11, sum)") != NULL &&
                    strstr(tutti_last_error(), "all_reduce(int32, 10, sum)") != NULL,
                "both calls are not shown: %s", tutti_last_error());
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    tutti_work_free(work);
    return TUTTI_OK;
}

static tutti_status different_body(ranks_context *context) {
    return break_comm(context, call_differently);
}

Test(same_device, calls_that_differ_are_an_error_on_all_ranks_that_shows_both, .timeout = 200) {
    run(small_worlds, MIXED, different_body);
}

/* The memory is not accessed. */
static tutti_status call_in_too_many_pieces(ranks_context *context) {
    cuda_rank rank;
    void *memory = NULL;
    size_t count = (TUTTI_SAME_GPU_END + 1) * (size_t)SLOT_BYTES;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(cuda_alloc(&rank, 1000, &memory));
    tutti_options options = TUTTI_OPTIONS(.stream = rank.streams[0], .memory = TUTTI_MEMORY_CUDA);
    RANKS_EXPECT(TUTTI_ERR_CONFIG,
                 tutti_all_reduce(context->comm, memory, memory, count, TUTTI_UINT8, TUTTI_SUM, &options));
    RANKS_CHECK(strstr(tutti_last_error(), "TUTTI_CUDA_SLOT_BYTES") != NULL, "%s", tutti_last_error());
    return cuda_rank_close(&rank, NULL);
}

Test(same_device, a_call_of_too_many_pieces_is_refused, .timeout = 60) {
    prepare(ORDINARY);
    const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 2}, call_in_too_many_pieces);
    cr_assert(failure == NULL, "%s", failure);
}

/* All ranks use the default stream: the rank that calls first would wait in it for a rank whose work is queued
 * behind. */
static tutti_status share_stream(ranks_context *context) {
    cuda_rank rank;
    void *memory = NULL;
    tutti_work *work = NULL;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(cuda_alloc(&rank, 1000, &memory));
    tutti_options options = TUTTI_OPTIONS(.stream = NULL, .memory = TUTTI_MEMORY_CUDA, .work = &work);
    tutti_status status = tutti_all_reduce(context->comm, memory, memory, 10, TUTTI_INT32, TUTTI_SUM, &options);
    if (status == TUTTI_OK) status = tutti_work_wait(work, 10000);
    RANKS_CHECK(status == TUTTI_ERR_ARGUMENT, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "use the same stream") != NULL, "%s", tutti_last_error());
    tutti_work_free(work);
    return cuda_rank_close(&rank, NULL);
}

Test(same_device, ranks_of_one_process_that_share_a_stream_get_an_error, .timeout = 60) {
    prepare(ORDINARY);
    const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 3}, share_stream);
    cr_assert(failure == NULL, "%s", failure);
}

/* On one rank, an operation that sharing a GPU needs fails, as in a container that forbids it. */
static tutti_status fail_to_share(ranks_context *context) {
    cuda_rank rank;
    const call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_FLOAT32, .count = 3001, .seed = 3};
    if (context->rank == 1) setenv("STANDIN_FAIL", context->argument, 1);
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(cuda_call_run(&rank, &c, context->comm, rank.streams[0], true));
    const char *engine = context->comm->cuda.streams->engine->name;
    RANKS_CHECK(strcmp(engine, "staged") == 0, "'%s' did it", engine);
    return cuda_rank_close(&rank, context->comm);
}

Test(same_device, where_memory_cannot_be_shared_calls_go_through_host_memory, .timeout = 60) {
    static const char *const failing[] = {"pin:1", "export_memory:1", "import_memory:1"};
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    prepare(ORDINARY);
    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        ranks_options options = {.nranks = 3, .environment = environment, .argument = (void *)(uintptr_t)failing[i]};
        const char *failure = ranks_run(&options, fail_to_share);
        cr_assert(failure == NULL, "%s: %s", failing[i], failure);
    }
}

/* One rank aborts a communicator on which nothing is under way, so that the others do not learn of it; streams of the
 * next communicator must wait for each other all the same. */
static tutti_status begin_anew(ranks_context *context, cuda_rank *rank) {
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT32, .count = 3001};
    for (unsigned round = 0; round < 3; round++) {
        tutti_comm *comm;
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
        if (context->rank == 1) usleep(20000); /* a stream that does not wait for this rank gets ahead of it */
        c.seed = round;
        TUTTI_TRY(cuda_call_run(rank, &c, comm, rank->streams[0], true));
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        if (context->rank == 1) {
            TUTTI_TRY(tutti_comm_abort(comm, "a test"));
            TUTTI_TRY(tutti_comm_destroy(comm));
        }
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        if (context->rank != 1) TUTTI_TRY(tutti_comm_destroy(comm));
    }
    c.seed = 10;
    return cuda_call_run(rank, &c, context->comm, rank->streams[0], true);
}

static tutti_status anew_body(ranks_context *context) {
    return with_rank(context, begin_anew);
}

Test(same_device, a_communicator_that_one_rank_aborted_does_not_harm_the_next, .timeout = 200) {
    run(small_worlds, ORDINARY, anew_body);
}
