/*
 * What is specific to NCCL: calls in captured streams, communicators that are split, calls that differ, memory that
 * is registered. GPUs and NCCL are stand-ins (support/standins/standin_cuda.c, standin_nccl.c), which count their
 * calls.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>

#include "tests/support/gpu/nccl_scene.h"

TestSuite(nccl_calls, .timeout = 240);

static const char *const plain[] = {"STANDIN_GPUS=8", NULL};

/* --------------------------------------------------------------------------------------------------- graphs */

static tutti_status sum_of(ranks_context *context, void *memory, tutti_type type, tutti_stream stream) {
    return tutti_all_reduce(context->comm, memory, memory, 8, type, TUTTI_SUM, &TUTTI_OPTIONS(.stream = stream));
}

/* Calls that need scratch are refused, without further effect: calls before and after them are carried out. */
static tutti_status captured(ranks_context *context, cuda_rank *rank) {
    void *memory;
    tutti_stream stream = rank->streams[0];
    tutti_work *work = NULL;
    TUTTI_TRY(cuda_alloc(rank, 64, &memory));
    TUTTI_TRY(rank->device->fill(memory, 0, 64, stream));
    TUTTI_TRY(sum_of(context, memory, TUTTI_INT32, stream));
    TUTTI_TRY(nccl_capture(stream, true));
    for (int i = 0; i < 3; i++) {
        TUTTI_TRY(sum_of(context, memory, TUTTI_FLOAT32, stream));
        RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, sum_of(context, memory, TUTTI_BOOL, stream));
        RANKS_CHECK(strstr(tutti_last_error(), "cannot be captured into a CUDA graph") != NULL, "%s",
                    tutti_last_error());
        RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED, tutti_all_reduce(context->comm, memory, memory, 8, TUTTI_INT32, TUTTI_SUM,
                                                             &TUTTI_OPTIONS(.stream = stream, .work = &work)));
        TUTTI_TRY(tutti_all_gather(context->comm, (char *)memory + context->rank * 8, memory, 8, TUTTI_UINT8,
                                   &TUTTI_OPTIONS(.stream = stream)));
    }
    TUTTI_TRY(nccl_capture(stream, false));
    TUTTI_TRY(tutti_comm_error(context->comm));
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT16, .count = 301, .seed = 5};
    return cuda_call_run(rank, &c, context->comm, rank->streams[0], true);
}

static tutti_status captured_body(ranks_context *context) {
    return nccl_with_rank(context, captured);
}

Test(nccl_calls, a_captured_stream_takes_calls_without_scratch_and_refuses_others_without_harm) {
    nccl_run((const int[]){2, 0}, plain, captured_body);
}

/* NCCL refuses a call while all ranks capture. If NCCL accepts calls later, the communicator does, too. */
static tutti_status refused(ranks_context *context, cuda_rank *rank, bool for_good) {
    void *memory;
    TUTTI_TRY(cuda_alloc(rank, 64, &memory));
    TUTTI_TRY(rank->device->fill(memory, 0, 64, rank->streams[0]));
    TUTTI_TRY(sum_of(context, memory, TUTTI_INT32, rank->streams[0]));
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    TUTTI_TRY(tutti_barrier(context->comm, NULL)); /* otherwise the first refusal could end another rank's call */
    TUTTI_TRY(nccl_capture(rank->streams[0], true));
    tutti_status status = sum_of(context, memory, TUTTI_INT32, rank->streams[0]);
    RANKS_CHECK(status != TUTTI_OK && strstr(tutti_last_error(), "NCCL failed in") != NULL, "'%s'",
                tutti_status_name(status));
    TUTTI_TRY(nccl_capture(rank->streams[0], false));
    if (for_good) {
        RANKS_CHECK(sum_of(context, memory, TUTTI_INT32, rank->streams[0]) != TUTTI_OK, "NCCL's error is forgotten");
        return TUTTI_OK;
    }
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT32, .count = 301, .seed = 5};
    return cuda_call_run(rank, &c, context->comm, rank->streams[0], true);
}

static tutti_status refused_for_now(ranks_context *context, cuda_rank *rank) {
    return refused(context, rank, /* for_good */ false);
}

static tutti_status refused_for_now_body(ranks_context *context) {
    return nccl_with_rank(context, refused_for_now);
}

static tutti_status refused_for_good_body(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(refused(context, &rank, /* for_good */ true));
    return cuda_rank_close(&rank, NULL);
}

Test(nccl_calls, a_refusal_in_a_captured_stream_leaves_the_communicator_whole) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "STANDIN_NCCL_FAIL=ncclGroupStart:2:5", NULL};
    nccl_run_processes(2, environment, refused_for_now_body);
}

Test(nccl_calls, a_refusal_after_which_nccl_takes_no_call_breaks_the_communicator) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "STANDIN_NCCL_FAIL=ncclAllReduce:2:5", NULL};
    nccl_run_processes(2, environment, refused_for_good_body);
}

/* --------------------------------------------------------------------------------------------------- splits */

#define EXPECT_COUNT(name, expected)                                                                                   \
    RANKS_CHECK(nccl_count(name) == (expected), "line %d: %d calls of " name, __LINE__, nccl_count(name))

/* Splits by ncclCommSplit if the parent uses NCCL; ranks without a colour take part in that, too. */
static tutti_status splits(ranks_context *context, cuda_rank *rank) {
    tutti_comm *early, *halves, *some, *unused;
    call c = {.kind = CALL_ALL_GATHER_V, .type = TUTTI_INT32, .count = 301, .seed = 4};
    int color = context->rank == 0 ? TUTTI_COLOR_NONE : 7;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, -context->rank, NULL, &early));
    TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[0], true));
    EXPECT_COUNT("ncclCommSplit", 0);
    EXPECT_COUNT("ncclCommInitRankConfig", 1);
    TUTTI_TRY(tutti_comm_split(context->comm, context->rank % 2, -context->rank, NULL, &halves));
    TUTTI_TRY(tutti_comm_split(context->comm, color, 0, NULL, &some));
    TUTTI_TRY(tutti_comm_split(halves, 0, 0, NULL, &unused)); /* nothing to split: halves has made no call yet */
    EXPECT_COUNT("ncclCommSplit", 2);
    for (int i = 0; i < 3; i++) {
        TUTTI_TRY(cuda_call_run(rank, &c, halves, rank->streams[1], i % 2 == 0));
        if (some != NULL) TUTTI_TRY(cuda_call_run(rank, &c, some, rank->streams[2], i % 2 == 0));
    }
    EXPECT_COUNT("ncclCommInitRankConfig", 1);
    TUTTI_TRY(cuda_call_run(rank, &c, early, rank->streams[0], true));
    EXPECT_COUNT("ncclCommInitRankConfig", 2);
    TUTTI_TRY(tutti_comm_destroy(unused));
    TUTTI_TRY(tutti_comm_split(halves, 0, 0, NULL, &unused));
    EXPECT_COUNT("ncclCommSplit", 3);
    TUTTI_TRY(tutti_comm_destroy(unused)); /* with the memory that NCCL has allocated for it */
    TUTTI_TRY(tutti_comm_destroy(halves));
    TUTTI_TRY(tutti_comm_destroy(some));
    return tutti_comm_destroy(early);
}

static tutti_status splits_body(ranks_context *context) {
    return nccl_with_rank(context, splits);
}

Test(nccl_calls, an_nccl_communicator_is_split_from_the_parents) {
    nccl_run_processes(4, plain, splits_body);
}

/* ------------------------------------------------------------------------------------------ calls that differ */

enum { ODD = 1 };

/* The calls that rank ODD makes instead of all_reduce(int32, 256, sum). */
typedef struct odd_call {
    tutti_status (*make)(tutti_comm *comm, void *memory, const tutti_options *options);
    const char *words;
} odd_call;

static tutti_status odd_broadcast(tutti_comm *comm, void *memory, const tutti_options *options) {
    return tutti_broadcast(comm, memory, 256, TUTTI_INT32, ODD, options);
}

static tutti_status odd_root(tutti_comm *comm, void *memory, const tutti_options *options) {
    return tutti_reduce(comm, memory, memory, 256, TUTTI_INT32, TUTTI_SUM, ODD, options);
}

static tutti_status odd_count(tutti_comm *comm, void *memory, const tutti_options *options) {
    return tutti_all_reduce(comm, memory, memory, 255, TUTTI_INT32, TUTTI_SUM, options);
}

static tutti_status odd_type(tutti_comm *comm, void *memory, const tutti_options *options) {
    return tutti_all_reduce(comm, memory, memory, 256, TUTTI_FLOAT32, TUTTI_SUM, options);
}

static const odd_call odd_calls[] = {{odd_broadcast, "broadcast(int32, 256, root 1)"},
                                     {odd_root, "reduce(int32, 256, sum, root 1)"},
                                     {odd_count, "all_reduce(int32, 255, sum)"},
                                     {odd_type, "all_reduce(float32, 256, sum)"}};

static tutti_status sum_and_wait(tutti_comm *comm, cuda_rank *rank, void *memory) {
    tutti_work *work = NULL;
    TUTTI_TRY(tutti_all_reduce(comm, memory, memory, 256, TUTTI_INT32, TUTTI_SUM,
                               &TUTTI_OPTIONS(.stream = rank->streams[0], .work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    return status;
}

static tutti_status call_oddly(tutti_comm *comm, cuda_rank *rank, void *memory, const odd_call *odd) {
    tutti_work *work = NULL;
    TUTTI_TRY(odd->make(comm, memory, &TUTTI_OPTIONS(.stream = rank->streams[0], .work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    return status;
}

/* A rank that needs no data from others, or already has it, gets the error at a later call. */
static tutti_status differ(ranks_context *context, tutti_comm *comm, cuda_rank *rank, const odd_call *odd) {
    void *memory;
    TUTTI_TRY(cuda_alloc(rank, 4096, &memory));
    TUTTI_TRY(rank->device->fill(memory, 0, 4096, rank->streams[0]));
    TUTTI_TRY(sum_and_wait(comm, rank, memory));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    tutti_status status = context->rank == ODD ? call_oddly(comm, rank, memory, odd) : sum_and_wait(comm, rank, memory);
    for (int i = 0; i < 10 && status == TUTTI_OK; i++) status = sum_and_wait(comm, rank, memory);
    char text[1024];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "%s: '%s' (%s)", odd->words, tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, odd->words) != NULL && strstr(text, "all_reduce(int32, 256, sum)") != NULL,
                "%s is not in: %s", odd->words, text);
    return rank->device->stream_sync(rank->streams[0]);
}

static tutti_status differ_in_turn(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    for (size_t i = 0; i < sizeof odd_calls / sizeof *odd_calls; i++) {
        tutti_comm *comm;
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
        TUTTI_TRY(differ(context, comm, &rank, &odd_calls[i]));
        TUTTI_TRY(tutti_barrier(context->comm, NULL)); /* no rank may leave earlier */
        TUTTI_TRY(tutti_comm_destroy(comm));
    }
    return TUTTI_OK;
}

Test(nccl_calls, calls_that_differ_are_shown_on_all_ranks) {
    static const char *const environment[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", "TUTTI_STALL_MS=200", NULL};
    nccl_run((const int[]){3, 0}, environment, differ_in_turn);
}

/* --------------------------------------------------------------------------------------------------- memory */

static int registered(void) {
    int (*count)(void) = NULL;
    void *library = dlopen(getenv("TUTTI_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library != NULL ? dlsym(library, "standin_nccl_registered") : NULL;
    if (symbol == NULL) return -1;
    memcpy(&count, &symbol, sizeof count);
    return count();
}

/* Blocks of tutti_mem_alloc_cuda are registered at their first use, and deregistered when they are freed or the
 * communicator is destroyed. */
static tutti_status blocks(ranks_context *context, cuda_rank *rank) {
    tutti_comm *comm;
    void *first, *second;
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0]);
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
    TUTTI_TRY(tutti_barrier(comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA)));
    TUTTI_TRY(tutti_mem_alloc_cuda(4096, &first));
    TUTTI_TRY(tutti_mem_alloc_cuda(4096, &second));
    TUTTI_TRY(rank->device->fill(first, 0, 4096, rank->streams[0]));
    TUTTI_TRY(rank->device->fill(second, 0, 4096, rank->streams[0]));
    for (int i = 0; i < 3; i++) {
        TUTTI_TRY(tutti_all_reduce(comm, first, first, 1024, TUTTI_FLOAT32, TUTTI_SUM, &options));
        TUTTI_TRY(tutti_broadcast(comm, second, 1024, TUTTI_FLOAT32, 0, &options));
    }
    TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
    RANKS_CHECK(registered() == 2, "%d blocks are registered", registered());
    for (int i = 0; i < 3; i++) TUTTI_TRY(tutti_broadcast(comm, first, 1024, TUTTI_FLOAT32, 0, &options));
    TUTTI_TRY(tutti_mem_free(first)); /* waits for the work on it */
    RANKS_CHECK(registered() == 1, "%d blocks are registered after one was freed", registered());
    TUTTI_TRY(tutti_comm_destroy(comm));
    RANKS_CHECK(registered() == 0, "%d blocks are registered after the end", registered());
    return tutti_mem_free(second);
}

static tutti_status blocks_body(ranks_context *context) {
    return nccl_with_rank(context, blocks);
}

Test(nccl_calls, blocks_are_registered_while_they_are_used) {
    nccl_run_processes(2, plain, blocks_body);
}
