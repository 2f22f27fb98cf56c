/*
 * Calls in a thread's own default stream (cudaStreamPerThread), whose handle is the same in all threads: the engine
 * must not pass it to NCCL, which enqueues on threads of its own, and calls of two threads are in two streams. GPUs
 * and NCCL are stand-ins.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/support/gpu/placement.h"

TestSuite(stream_thread, .timeout = 100);

#define COUNT     1000
#define OF_THREAD ((tutti_stream)(uintptr_t)TUTTI_STREAM_OF_THREAD)

/* A buffer of the call of one thread. */
typedef struct part {
    ranks_context *context;
    cuda_rank *rank;
    void *memory;
    tutti_type type;
} part;

static tutti_status sum(const part *p) {
    return tutti_all_reduce(p->context->comm, p->memory, p->memory, COUNT, p->type, TUTTI_SUM,
                            &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = OF_THREAD));
}

/* Checks in the calling thread's stream: bytes of 1 have become bytes of n. */
static tutti_status check(const part *p) {
    uint8_t bytes[COUNT * sizeof(uint16_t)];
    size_t count = COUNT * tutti_type_bytes(p->type);
    TUTTI_TRY(cuda_fetch(p->rank, bytes, p->memory, count, OF_THREAD));
    for (size_t i = 0; i < count; i++) RANKS_CHECK(bytes[i] == p->context->nranks, "byte %zu is %d", i, (int)bytes[i]);
    return TUTTI_OK;
}

/* The other thread's call, which comes after the first one's only by the order of calls. */
static void *call_beside(void *argument) {
    part *p = argument;
    tutti_status status = p->rank->device->use(p->rank->index);
    if (status == TUTTI_OK) status = p->rank->device->fill(p->memory, 1, COUNT * sizeof(uint16_t), OF_THREAD);
    if (status == TUTTI_OK) status = sum(p);
    return (void *)(intptr_t)status;
}

static tutti_status run_beside(part *p) {
    pthread_t thread;
    void *result;
    RANKS_CHECK(pthread_create(&thread, NULL, call_beside, p) == 0, "no thread");
    pthread_join(thread, &result);
    RANKS_CHECK((intptr_t)result == TUTTI_OK, "the other thread's call: %s",
                tutti_status_name((tutti_status)(intptr_t)result));
    return TUTTI_OK;
}

/* This thread's stream is held up; the calls must sum the values that are filled in behind that, also after the other
 * thread's call. Types: one that NCCL reduces, and one that our kernel reduces. */
static tutti_status call_in_two_threads(ranks_context *context, cuda_rank *rank) {
    cuda_gate gate;
    part first = {context, rank, NULL, TUTTI_UINT8}, second = {context, rank, NULL, TUTTI_UINT16}, third = second;
    TUTTI_TRY(cuda_alloc(rank, COUNT, &first.memory));
    TUTTI_TRY(cuda_alloc(rank, COUNT * sizeof(uint16_t), &second.memory));
    TUTTI_TRY(cuda_alloc(rank, COUNT * sizeof(uint16_t), &third.memory));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = OF_THREAD)));
    TUTTI_TRY(cuda_gate_create(rank, &gate));
    TUTTI_TRY(cuda_gate_close(rank, &gate, OF_THREAD));
    TUTTI_TRY(rank->device->fill(first.memory, 1, COUNT, OF_THREAD));
    TUTTI_TRY(rank->device->fill(second.memory, 1, COUNT * sizeof(uint16_t), OF_THREAD));
    TUTTI_TRY(sum(&first));
    TUTTI_TRY(sum(&second));
    TUTTI_TRY(run_beside(&third));
    cuda_gate_open(&gate);
    TUTTI_TRY(check(&first));
    TUTTI_TRY(check(&second));
    TUTTI_TRY(rank->device->sync());
    TUTTI_TRY(check(&third));
    cuda_gate_destroy(rank, &gate);
    return TUTTI_OK;
}

static const char *wanted; /* the engine */

static tutti_status body(ranks_context *context) {
    return placement_with_rank(context, wanted, call_in_two_threads);
}

static void run(const char *gpus, const char *engine) {
    char setting[64];
    const char *const settings[] = {setting, "STANDIN_DELAY_US=200", NULL};
    snprintf(setting, sizeof setting, "TUTTI_ALGORITHM=%s", engine);
    wanted = engine;
    const char *failure = placement_run(gpus, RANKS_THREADS, settings, body);
    cr_assert(failure == NULL, "%s", failure);
}

Test(stream_thread, calls_keep_their_order_by_nccl) {
    run("ab", "nccl");
}

Test(stream_thread, calls_keep_their_order_on_one_gpu) {
    run("aa", "same_gpu");
}

Test(stream_thread, calls_keep_their_order_where_some_ranks_share_a_gpu) {
    run("aba", "staged");
}

Test(stream_thread, calls_keep_their_order_through_the_host) {
    run("ab", "staged");
}
