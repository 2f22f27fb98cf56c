/*
 * Calls of ranks that are all threads of one process. See same_gpu.h.
 *
 * Invariant: no event is recorded again before all waits for its last record are enqueued, since a wait is for the last
 * record so far. A rank records `ready` again in its next call, and it leaves this one after the launcher has enqueued
 * its waits. A launcher records `done` again when it launches another call, so when all ranks have made that one, and
 * have left this one.
 */
#include <stdlib.h>

#include "bootstrap/base/deadline.h"
#include "comm/base/backoff.h"
#include "comm/gpu/same_gpu/same_gpu.h"

typedef struct tutti_same_gpu_events {
    const tutti_device *device;
    tutti_event_handle ready, done;
} tutti_same_gpu_events;

tutti_status tutti_same_gpu_events_make(const tutti_device *device, tutti_same_gpu_events **events_out) {
    tutti_same_gpu_events *made;
    TUTTI_TRY(tutti_calloc(1, sizeof *made, &made));
    made->device = device;
    *events_out = made; /* after a failure, too: the engine is then closed */
    TUTTI_TRY(device->event_create(&made->ready));
    return device->event_create(&made->done);
}

void tutti_same_gpu_events_free(void *events) {
    tutti_same_gpu_events *gone = events;
    if (gone->ready != NULL) gone->device->event_destroy(gone->ready);
    if (gone->done != NULL) gone->device->event_destroy(gone->done);
    free(gone);
}

/* Waits on the host until the last rank has enqueued the call for all, while the call's deadline, deaths and different
 * calls are minded as they are for calls in streams. */
static tutti_status await_launch(tutti_comm *comm, const tutti_same_gpu *s, uint64_t place,
                                 const tutti_stream_call *call) {
    const _Atomic uint64_t *launched = &s->counters->launched[place % TUTTI_SAME_GPU_DEPTH].value;
    tutti_backoff backoff = {.yields = true};
    int64_t next_ns = 0;
    while (atomic_load_explicit(launched, memory_order_acquire) < place) { /* pairs with the release in launch_end */
        if (tutti_now_ns() >= next_ns) {
            TUTTI_TRY(tutti_interrupt_check());
            TUTTI_TRY(tutti_inflight_mind(comm->cuda.streams, call->track));
            next_ns = tutti_now_ns() + TUTTI_NS_PER_MS;
        }
        tutti_backoff_pause(&backoff);
    }
    return TUTTI_OK;
}

static tutti_status follow(tutti_comm *comm, tutti_same_gpu *s, const tutti_same_gpu_plan *plan,
                           const tutti_stream_call *call) {
    TUTTI_TRY(await_launch(comm, s, plan->place, call));
    int launcher = (int)atomic_load_explicit(&s->counters->launcher, memory_order_relaxed) - 1;
    return s->device->stream_wait_event(plan->stream, tutti_same_gpu_post_at(s, launcher, plan->place)->done);
}

static tutti_status launch(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan) {
    tutti_same_gpu_launch *launch = NULL;
    TUTTI_TRY(tutti_same_gpu_launch_begin(comm, s, plan, &launch));
    tutti_status status = tutti_same_gpu_launch_together(launch);
    if (status == TUTTI_OK) status = s->device->event_record(s->events->done, plan->stream);
    if (status == TUTTI_OK) tutti_same_gpu_launch_end(launch);
    else tutti_same_gpu_launch_drop(launch);
    return status;
}

tutti_status tutti_same_gpu_put_together(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                                         tutti_same_gpu_post *post, const tutti_stream_call *call) {
    TUTTI_TRY(tutti_same_gpu_flush(s, plan)); /* the mark `begun` starts the deadline */
    TUTTI_TRY(s->device->event_record(s->events->ready, plan->stream));
    post->ready = s->events->ready;
    post->done = s->events->done;
    bool last = tutti_same_gpu_arrive(s, post, plan->place);
    TUTTI_TRY(last ? launch(comm, s, plan) : follow(comm, s, plan, call));
    TUTTI_TRY(tutti_same_gpu_put_mark(s, plan, call->done));
    return tutti_same_gpu_flush(s, plan);
}
