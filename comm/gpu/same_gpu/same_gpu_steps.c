/*
 * How the streams of ranks on one GPU wait for each other, and how they are released. See same_gpu.h.
 *
 *   calls            counters only grow: nothing is ever reset
 *   calls in graphs  the values written and waited for are the same in each replay: pieces alone, from 0. The launcher
 *                    waits for all others, writes 0 to their `ready`, then writes done for each; each rank waits for
 *                    its own `done` and writes 0 there.
 *
 * Invariant of graphs: a rank counts on `ready` again only behind its `done`, so after `ready` was reset; and the
 * launcher counts on a `done` again only behind that rank's `ready`, so after that rank has reset `done`. If all
 * ranks replay the same calls in the same order, one set of counters is therefore enough for all graphs of a
 * communicator.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/same_gpu/same_gpu.h"

/* ----------------------------------------------------------------------------------------------------- steps */

static uint64_t step_of(const tutti_same_gpu_plan *plan, uint64_t pieces) {
    return plan->captured ? pieces : tutti_same_gpu_step(plan->number, pieces);
}

static tutti_same_gpu_counter *ready_of(const tutti_same_gpu *s, const tutti_same_gpu_plan *plan, int rank) {
    return plan->captured ? &s->on_device->graph_ready[rank] : &s->on_device->ready[rank];
}

tutti_status tutti_same_gpu_flush(const tutti_same_gpu *s, tutti_same_gpu_plan *plan) {
    int count = plan->nvalues;
    plan->nvalues = 0;
    return count > 0 ? s->device->use_values(plan->stream, plan->values, count) : TUTTI_OK;
}

static tutti_status add(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, tutti_device_value value) {
    if (plan->nvalues == TUTTI_DEVICE_MOST_VALUES) TUTTI_TRY(tutti_same_gpu_flush(s, plan));
    plan->values[plan->nvalues++] = value;
    return TUTTI_OK;
}

static tutti_status add_wait(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, tutti_same_gpu_counter *counter,
                             uint64_t value) {
    return add(s, plan, (tutti_device_value){.at = &counter->value, .value = value, .waits = true});
}

static tutti_status add_write(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, tutti_same_gpu_counter *counter,
                              uint64_t value) {
    return add(s, plan, (tutti_device_value){.at = &counter->value, .value = value, .waits = false});
}

tutti_status tutti_same_gpu_put_mark(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, tutti_stream_event *mark) {
    tutti_device_value value;
    if (mark == NULL) return TUTTI_OK;
    if (tutti_stream_event_value(mark, &value)) return add(s, plan, value);
    TUTTI_TRY(tutti_same_gpu_flush(s, plan));
    return tutti_stream_event_put(mark, plan->stream);
}

tutti_status tutti_same_gpu_say_ready(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces) {
    return add_write(s, plan, ready_of(s, plan, s->rank), step_of(plan, pieces));
}

tutti_status tutti_same_gpu_wait_done(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces) {
    tutti_same_gpu_counter *done = plan->captured ? &s->on_device->graph_done[s->rank] : &s->on_device->done;
    TUTTI_TRY(add_wait(s, plan, done, step_of(plan, pieces)));
    return plan->captured && pieces == TUTTI_SAME_GPU_END ? add_write(s, plan, done, 0) : TUTTI_OK;
}

tutti_status tutti_same_gpu_wait_ready(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces) {
    for (int rank = 0; rank < s->nranks; rank++)
        if (rank != s->rank) TUTTI_TRY(add_wait(s, plan, ready_of(s, plan, rank), step_of(plan, pieces)));
    return TUTTI_OK;
}

/* Writes to the counters of all other ranks. */
static tutti_status add_writes(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, tutti_same_gpu_counter *counters,
                               uint64_t value) {
    for (int rank = 0; rank < s->nranks; rank++)
        if (rank != s->rank) TUTTI_TRY(add_write(s, plan, &counters[rank], value));
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_say_done(const tutti_same_gpu *s, tutti_same_gpu_plan *plan, uint64_t pieces) {
    if (!plan->captured) return add_write(s, plan, &s->on_device->done, step_of(plan, pieces));
    if (pieces == TUTTI_SAME_GPU_END) TUTTI_TRY(add_writes(s, plan, s->on_device->graph_ready, 0));
    return add_writes(s, plan, s->on_device->graph_done, pieces);
}

/* --------------------------------------------------------------------------------------------------- capturing */

/* Checks that the driver can capture the operations on counters; uses a counter that no rank waits for. */
static tutti_status try_counter(tutti_same_gpu *s, tutti_stream stream) {
    _Atomic uint64_t *trial = &s->on_device->trial.value;
    const tutti_device_value values[] = {{trial, 1, .waits = false}, {trial, 1, .waits = true}};
    return s->device->use_values(stream, values, 2);
}

tutti_status tutti_same_gpu_try_capture(tutti_comm *comm, tutti_same_gpu *s, tutti_stream stream) {
    if (!comm->cuda.streams->own.stream_waits) /* otherwise a host function waits, which can run only once */
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "calls of communicator \"%s\" cannot be captured into a CUDA graph (engine "
                          "\"same_gpu\"): streams of this GPU cannot wait for memory by themselves",
                          comm->name);
    if (!atomic_load(&s->graphs) && try_counter(s, stream) != TUTTI_OK)
        return tutti_fail_context(TUTTI_ERR_UNSUPPORTED,
                                  "calls of communicator \"%s\" cannot be captured into a CUDA graph (engine "
                                  "\"same_gpu\"): the driver does not capture waits for memory",
                                  comm->name);
    atomic_store(&s->graphs, true); /* before the check: an abort sees it, or is seen */
    return atomic_load(&s->released) ? tutti_comm_check(comm) : TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------------- releasing */

/* All waits end at this value; not larger, since devices compare by the sign of the difference. */
#define RELEASED ((uint64_t)INT64_MAX)

/* Streams that had already continued may count once more, which undoes a release: it is repeated until they end. */
#define RELEASE_MS 10000

typedef struct tutti_same_gpu_release {
    tutti_same_gpu_counters *counters;
    int nranks;
    atomic_bool lasts; /* graphs may still be launched; written by the communicator; keeps the release alive */
    char *slots[TUTTI_SAME_GPU_SLOTS]; /* slots to return */
    int nslots;
} tutti_same_gpu_release;

static void release_once(tutti_same_gpu_counters *counters, int nranks) {
    atomic_store_explicit(&counters->done.value, RELEASED, memory_order_release);
    for (int rank = 0; rank < nranks; rank++) {
        atomic_store_explicit(&counters->ready[rank].value, RELEASED, memory_order_release);
        atomic_store_explicit(&counters->graph_done[rank].value, RELEASED, memory_order_release);
        atomic_store_explicit(&counters->graph_ready[rank].value, RELEASED, memory_order_release);
    }
}

static void *keep_releasing(void *argument) {
    tutti_same_gpu_release *r = argument;
    for (int64_t end_ns = tutti_now_ns() + RELEASE_MS * TUTTI_NS_PER_MS; tutti_now_ns() < end_ns;) {
        if (atomic_load(&r->lasts)) end_ns = tutti_now_ns() + RELEASE_MS * TUTTI_NS_PER_MS;
        release_once(r->counters, r->nranks);
        tutti_nap(TUTTI_NS_PER_MS);
    }
    for (int i = 0; i < r->nslots; i++) tutti_same_gpu_return_slot(r->slots[i]);
    free(r);
    return NULL;
}

void tutti_same_gpu_release_streams(tutti_same_gpu *s) {
    if (atomic_exchange(&s->released, true)) return;
    atomic_store_explicit(&s->counters->released, true, memory_order_release);
    release_once(s->counters, s->nranks);
    tutti_same_gpu_release *r = malloc(sizeof *r);
    if (r == NULL) return; /* streams are released only once, and the slots are leaked */
    bool lasts = atomic_load(&s->graphs);
    *r = (tutti_same_gpu_release){.counters = s->counters, .nranks = s->nranks, .lasts = lasts, .nslots = s->nkept};
    memcpy(r->slots, s->kept, sizeof r->slots);
    s->nkept = 0;
    if (tutti_thread_start(TUTTI_THREAD_GPU_FREE, keep_releasing, r, NULL) != 0) free(r);
    else if (lasts) s->release = r;
}

void tutti_same_gpu_release_leave(tutti_same_gpu *s) {
    if (s->release != NULL) atomic_store(&s->release->lasts, false);
    s->release = NULL;
}
