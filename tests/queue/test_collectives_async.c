/*
 * Asynchronous collectives: work handles, waiting with a timeout and by several threads, callbacks, freeing early.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

static const int worlds[] = {1, 2, 3, 4, 7, 0};
static const int small_worlds[] = {2, 3, 0};

static void run(const int *sizes, ranks_body body) {
    const char *failure = ranks_run_worlds(sizes, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------- many in flight */

enum { CALLS = 60 };

static tutti_status start_all(const ranks_context *context, call_state *states, tutti_work **works) {
    for (int i = 0; i < CALLS; i++) {
        call c = {.kind = (call_kind)(i % CALL_KINDS),
                  .type = i % 2 == 0 ? TUTTI_FLOAT32 : TUTTI_INT16,
                  .reduction = i % 3 == 0 ? TUTTI_MAX : TUTTI_SUM,
                  .count = (size_t)(i * 37 % 1500),
                  .root = i % context->nranks,
                  .in_place = (call_mode)(i / 2 % CALL_MODES),
                  .shared = (call_mode)(i / 5 % CALL_MODES),
                  .seed = (uint64_t)i};
        TUTTI_TRY(call_prepare(&c, context->rank, context->nranks, &states[i]));
        TUTTI_TRY(call_start(&states[i], context->comm, &TUTTI_OPTIONS(.work = &works[i])));
    }
    return TUTTI_OK;
}

static tutti_status finish_all(call_state *states, tutti_work **works) {
    uint64_t sequence = UINT64_MAX;
    for (int i = CALLS - 1; i >= 0; i--) {
        tutti_work_details details;
        TUTTI_TRY(tutti_work_wait(works[i], -1));
        RANKS_CHECK(tutti_work_done(works[i]) == 1, "call %d is not done after a wait", i);
        TUTTI_TRY(call_check(&states[i]));
        TUTTI_TRY(tutti_work_get(works[i], &details));
        RANKS_CHECK(details.status == TUTTI_OK && details.source == -1 && details.tag == -1, "call %d: details", i);
        RANKS_CHECK(details.sequence < sequence, "call %d: sequence %llu", i, (unsigned long long)details.sequence);
        RANKS_CHECK(details.created_ns > 0 && details.created_ns <= details.start_ns &&
                        details.start_ns <= details.end_ns,
                    "call %d: times %lld %lld %lld", i, (long long)details.created_ns, (long long)details.start_ns,
                    (long long)details.end_ns);
        sequence = details.sequence;
    }
    return TUTTI_OK;
}

static tutti_status many_in_flight(ranks_context *context) {
    call_state *states = calloc(CALLS, sizeof *states);
    tutti_work *works[CALLS] = {NULL};
    tutti_status status = states != NULL ? start_all(context, states, works) : TUTTI_ERR_MEMORY;
    if (status == TUTTI_OK) status = finish_all(states, works);
    for (int i = 0; i < CALLS; i++) {
        if (works[i] != NULL) tutti_work_wait(works[i], -1);
        tutti_work_free(works[i]);
        if (states != NULL) call_release(&states[i]);
    }
    free(states);
    return status;
}

Test(collectives_async, many_calls_may_be_in_flight_and_are_waited_for_in_any_order) {
    setenv("TUTTI_CHUNK_BYTES", "512", 1);
    tutti_settings_reload();
    run(worlds, many_in_flight);
}

/* ---------------------------------------------------------------------------------------------- waiting */

/* Rank 0 enters the barrier only after the others have seen their waits time out. */
static tutti_status wait_too_short(ranks_context *context) {
    char seen = 1, key[16];
    size_t bytes;
    for (int i = 1; context->rank == 0 && i < context->nranks; i++) {
        snprintf(key, sizeof key, "seen/%d", i);
        TUTTI_TRY(context->store->get(context->store->context, key, &seen, 1, &bytes, 20000));
    }
    if (context->rank == 0) return tutti_barrier(context->comm, NULL);
    tutti_work *work;
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.work = &work)));
    RANKS_CHECK(tutti_work_done(work) == 0, "done although rank 0 has not come");
    RANKS_EXPECT(TUTTI_NOT_YET, tutti_work_wait(work, 0));
    RANKS_EXPECT(TUTTI_NOT_YET, tutti_work_wait(work, 30));
    tutti_work_details details;
    TUTTI_TRY(tutti_work_get(work, &details));
    RANKS_CHECK(details.status == TUTTI_NOT_YET && details.end_ns == 0, "details of a work that goes on");
    snprintf(key, sizeof key, "seen/%d", context->rank);
    TUTTI_TRY(context->store->set(context->store->context, key, &seen, 1));
    TUTTI_TRY(tutti_work_wait(work, -1));
    TUTTI_TRY(tutti_work_wait(work, 0)); /* again: waiting never frees a work */
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(context->comm));
    tutti_work_free(work);
    return TUTTI_OK;
}

Test(collectives_async, a_wait_that_times_out_says_not_yet_and_breaks_nothing) {
    run(small_worlds, wait_too_short);
}

static void *wait_in_thread(void *work) {
    return (void *)(intptr_t)tutti_work_wait(work, -1);
}

static tutti_status several_waiters(ranks_context *context) {
    for (int round = 0; round < 10; round++) {
        int value = context->rank;
        tutti_work *work;
        pthread_t threads[4];
        if (round % context->nranks == context->rank) usleep(3000);
        TUTTI_TRY(
            tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &work)));
        for (int i = 0; i < 4; i++)
            RANKS_CHECK(pthread_create(&threads[i], NULL, wait_in_thread, work) == 0, "no thread");
        tutti_status own = tutti_work_wait(work, -1);
        for (int i = 0; i < 4; i++) {
            void *result;
            pthread_join(threads[i], &result);
            RANKS_CHECK((intptr_t)result == TUTTI_OK, "a waiter got %d", (int)(intptr_t)result);
        }
        RANKS_CHECK(own == TUTTI_OK, "%s", tutti_work_error(work));
        RANKS_CHECK(value == context->nranks * (context->nranks - 1) / 2, "the sum is %d", value);
        tutti_work_free(work);
    }
    return TUTTI_OK;
}

Test(collectives_async, several_threads_may_wait_for_one_work) {
    run(worlds, several_waiters);
}

static tutti_status free_early(ranks_context *context) {
    static _Thread_local int values[50];
    for (int i = 0; i < 50; i++) {
        tutti_work *work;
        values[i] = i;
        TUTTI_TRY(tutti_all_reduce(context->comm, &values[i], &values[i], 1, TUTTI_INT32, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.work = &work)));
        tutti_work_free(work);
    }
    tutti_work_free(NULL);
    TUTTI_TRY(tutti_barrier(context->comm, NULL)); /* after all that were started before */
    for (int i = 0; i < 50; i++) RANKS_CHECK(values[i] == i * context->nranks, "value %d is %d", i, values[i]);
    return TUTTI_OK;
}

Test(collectives_async, a_work_freed_early_goes_on) {
    run(worlds, free_early);
}

/* -------------------------------------------------------------------------------------------- callbacks */

typedef struct called {
    tutti_comm *other;
    atomic_int count;
    _Atomic(tutti_status) status;
    int nranks;
    int sum;
} called;

static void call_blocking(tutti_status status, void *context) {
    called *c = context;
    int one = 1;
    if (status == TUTTI_OK && c->other != NULL)
        status = tutti_all_reduce(c->other, &one, &c->sum, 1, TUTTI_INT32, TUTTI_SUM, NULL);
    atomic_store(&c->status, status);
    atomic_fetch_add(&c->count, 1);
}

static bool await_calls(called *c, int expected) {
    for (int ms = 0; ms < 20000 && atomic_load(&c->count) < expected; ms++) usleep(1000);
    return atomic_load(&c->count) == expected;
}

static tutti_status callbacks(ranks_context *context) {
    called c = {.nranks = context->nranks};
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &c.other));
    tutti_work *work;
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.work = &work)));
    TUTTI_TRY(tutti_work_on_done(work, call_blocking, &c));
    RANKS_CHECK(await_calls(&c, 1), "the callback was called %d times", atomic_load(&c.count));
    RANKS_CHECK(atomic_load(&c.status) == TUTTI_OK, "the blocking call in the callback failed");
    RANKS_CHECK(c.sum == context->nranks, "its sum is %d", c.sum);
    tutti_work_free(work);

    /* A callback on a work that has already ended. */
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.work = &work)));
    TUTTI_TRY(tutti_work_wait(work, -1));
    TUTTI_TRY(tutti_work_on_done(work, call_blocking, &c));
    RANKS_CHECK(await_calls(&c, 2), "the second callback did not come");
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_work_on_done(work, call_blocking, &c));
    tutti_work_free(work);
    return tutti_comm_destroy(c.other);
}

Test(collectives_async, a_callback_runs_once_and_may_call_blocking_collectives) {
    run(worlds, callbacks);
}

static tutti_status callbacks_that_wait_for_each_other(ranks_context *context) {
    enum { DEPTH = 8 }; /* all callbacks block at once: the pool must grow */
    called c[DEPTH] = {0};
    for (int i = 0; i < DEPTH; i++) TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &c[i].other));
    for (int i = 0; i < DEPTH; i++) {
        int which = context->rank % 2 == 0 ? i : DEPTH - 1 - i; /* opposite orders */
        tutti_work *work;
        TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.work = &work)));
        TUTTI_TRY(tutti_work_on_done(work, call_blocking, &c[which]));
        tutti_work_free(work);
    }
    for (int i = 0; i < DEPTH; i++) {
        RANKS_CHECK(await_calls(&c[i], 1), "callback %d did not end", i);
        RANKS_CHECK(atomic_load(&c[i].status) == TUTTI_OK && c[i].sum == context->nranks, "callback %d failed", i);
    }
    for (int i = 0; i < DEPTH; i++) TUTTI_TRY(tutti_comm_destroy(c[i].other));
    return TUTTI_OK;
}

Test(collectives_async, blocked_callbacks_do_not_hold_up_others) {
    run(small_worlds, callbacks_that_wait_for_each_other);
}

/* --------------------------------------------------------------------------------------------- threads */

typedef struct caller {
    tutti_comm *comm;
    int index;
    char text[256];
} caller;

static void *call_often(void *argument) {
    caller *c = argument;
    for (int i = 0; i < 60; i++) {
        call one = {.kind = (call_kind)((i + c->index) % CALL_KINDS),
                    .type = TUTTI_FLOAT32,
                    .count = (size_t)(i * 53 % 700),
                    .root = i % tutti_comm_size(c->comm),
                    .in_place = CALL_MIXED,
                    .shared = CALL_MIXED,
                    .seed = (uint64_t)(i + 1000 * c->index)};
        if (call_run(&one, c->comm) == TUTTI_OK) continue;
        snprintf(c->text, sizeof c->text, "thread %d: %s", c->index, tutti_last_error());
        return c;
    }
    return NULL;
}

static tutti_status threads_on_communicators(ranks_context *context) {
    caller callers[4] = {0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        callers[i].index = i;
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &callers[i].comm));
    }
    for (int i = 0; i < 4; i++)
        RANKS_CHECK(pthread_create(&threads[i], NULL, call_often, &callers[i]) == 0, "no thread");
    const caller *failed = NULL;
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        if (result != NULL) failed = result;
    }
    RANKS_CHECK(failed == NULL, "%s", failed->text);
    for (int i = 0; i < 4; i++) TUTTI_TRY(tutti_comm_destroy(callers[i].comm));
    return TUTTI_OK;
}

Test(collectives_async, threads_may_call_on_different_communicators_at_once) {
    setenv("TUTTI_CHUNK_BYTES", "512", 1);
    tutti_settings_reload();
    run(small_worlds, threads_on_communicators);
}

/* ------------------------------------------------------------------------------------------ the worker */

enum { STREAM_MS = 200, MOST_WAKES = 150 };

static int64_t elapsed_ms(const struct timespec *since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - since->tv_sec) * 1000 + (now.tv_nsec - since->tv_nsec) / 1000000;
}

/* A thread that calls and waits runs the operation itself. A worker that polled every 0.4 ms would sleep 500 times
 * meanwhile; this process itself never sleeps. Soon after, a call that no thread waits for must begin all the same. */
static tutti_status stream_of_short_calls(ranks_context *context) {
    struct rusage before, after;
    struct timespec began;
    tutti_work *work;
    float value = 1;
    clock_gettime(CLOCK_MONOTONIC, &began);
    getrusage(RUSAGE_SELF, &before);
    while (elapsed_ms(&began) < STREAM_MS) {
        TUTTI_TRY(tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_FLOAT32, TUTTI_MAX,
                                   &TUTTI_OPTIONS(.work = &work)));
        TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
    }
    getrusage(RUSAGE_SELF, &after);
    RANKS_CHECK(after.ru_nvcsw - before.ru_nvcsw < MOST_WAKES, "%ld sleeps in %d ms of calls that are waited for",
                after.ru_nvcsw - before.ru_nvcsw, STREAM_MS);
    TUTTI_TRY(
        tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_FLOAT32, TUTTI_MAX, &TUTTI_OPTIONS(.work = &work)));
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (!tutti_work_done(work) && elapsed_ms(&began) < 5000) usleep(1000);
    RANKS_CHECK(tutti_work_done(work), "a call that no thread waits for has not begun within 5 s");
    tutti_work_free(work);
    return TUTTI_OK;
}

Test(collectives_async, calls_that_are_waited_for_at_once_wake_no_worker) {
    static const int alone[] = {1, 0};
    run(alone, stream_of_short_calls);
}
