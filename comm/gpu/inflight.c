/*
 * Collectives in flight in streams, and how they end. See stream_state.h.
 *
 * A call succeeds if the stream has passed its mark and the communicator was not broken until then. When the
 * communicator breaks, its engine releases the streams, works fail at once, and in-flight calls are freed when the
 * streams have passed their marks.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "comm/gpu/stream_state.h"
#include "comm/p2p/p2p.h"

/* ---------------------------------------------------------------------------------------------- the list */

static void track_free(tutti_inflight *track) {
    tutti_stream_event_free(track->begun);
    tutti_stream_event_free(track->done);
    free(track);
}

static tutti_status track_make(const tutti_stream_comm *gpu, tutti_inflight **track_out) {
    tutti_inflight *track;
    tutti_status status;
    TUTTI_TRY(tutti_calloc(1, sizeof *track, &track));
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &track->begun), fail);
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &track->done), fail);
    *track_out = track;
    return TUTTI_OK;
fail:
    track_free(track);
    return status;
}

tutti_status tutti_inflight_take(tutti_stream_comm *gpu, tutti_inflight **track_out) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    tutti_inflight *track = TAILQ_FIRST(&gpu->tracks->spare);
    if (track != NULL) TAILQ_REMOVE(&gpu->tracks->spare, track, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    if (track == NULL) TUTTI_TRY(track_make(gpu, &track));
    track->has_begun = track->reported = false;
    track->ended_ns = track->late_ns = 0;
    track->work = NULL;
    *track_out = track;
    return TUTTI_OK;
}

static void put_back(tutti_stream_comm *gpu, tutti_inflight *track) {
    tutti_work_free(track->work);
    track->work = NULL;
    TAILQ_INSERT_HEAD(&gpu->tracks->spare, track, link);
}

void tutti_inflight_drop(tutti_stream_comm *gpu, tutti_inflight *track) {
    if (track == NULL) return;
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    put_back(gpu, track);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
}

void tutti_inflight_add(tutti_stream_comm *gpu, tutti_inflight *track) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    TAILQ_INSERT_TAIL(&gpu->tracks->under_way, track, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
}

void tutti_inflight_capture(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    gpu->tracks->captured = true;
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
}

/* --------------------------------------------------------------------------------------------- completion */

static void end_work(tutti_inflight *track, tutti_status status) {
    if (track->work == NULL) return;
    tutti_work_end(track->work, status);
    tutti_work_free(track->work);
    track->work = NULL;
}

/* True if the stream has passed the call. A GPU failure breaks the communicator. */
static bool has_passed(tutti_stream_comm *gpu, tutti_inflight *track) {
    char name[160], error[TUTTI_ERROR_TEXT_BYTES];
    tutti_status status = tutti_stream_event_ask(track->done);
    if (status == TUTTI_NOT_YET) return false;
    if (status != TUTTI_OK) {
        snprintf(error, sizeof error, "%s", tutti_last_error());
        status = tutti_fail(status, "%s of communicator \"%s\" failed in its stream on rank %d: %s",
                            tutti_inflight_describe(track, name, sizeof name), gpu->comm->name, gpu->comm->rank, error);
        tutti_comm_give_up(gpu->comm, status);
    }
    return true;
}

/* The status of a call that the stream has passed. A rank that breaks a communicator publishes this before its
 * engine releases any stream, so a released stream is never taken for success. */
static tutti_status outcome(tutti_comm *comm) {
    TUTTI_TRY(tutti_comm_check(comm));
    return tutti_stream_check_broken(comm);
}

static void end_passed(tutti_stream_comm *gpu) {
    tutti_inflight *track = TAILQ_FIRST(&gpu->tracks->under_way), *next;
    for (; track != NULL; track = next) {
        next = TAILQ_NEXT(track, link);
        if (!has_passed(gpu, track)) continue;
        TAILQ_REMOVE(&gpu->tracks->under_way, track, link);
        end_work(track, outcome(gpu->comm));
        put_back(gpu, track);
    }
}

/* -------------------------------------------------------------------------------------------------- checks */

/* Callers without a work continue with invalid data in their buffers, and get the error only at their next call, if
 * there is one: so log it. */
static void tell_unheard(const tutti_stream_comm *gpu) {
    const tutti_inflight *track;
    char name[160];
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        if (track->work != NULL) continue;
        tutti_comm_check(gpu->comm); /* sets the error text */
        tutti_log(TUTTI_LOG_WARN, "%s failed, and its buffers do not hold its result: %s",
                  tutti_inflight_describe(track, name, sizeof name), tutti_last_error());
        return;
    }
}

/* Releases streams and fails works. With the lock held. */
static void release_all(tutti_stream_comm *gpu, tutti_status status) {
    tutti_inflight *track;
    if (!gpu->tracks->aborted) {
        gpu->tracks->aborted = true;
        tell_unheard(gpu);
        if (gpu->engine != NULL && gpu->engine->abort != NULL) gpu->engine->abort(gpu->comm);
        if (gpu->staged != NULL && gpu->staged != gpu->engine) gpu->staged->abort(gpu->comm);
    }
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        tutti_comm_check(gpu->comm); /* sets the error text */
        end_work(track, status);
    }
    tutti_stream_messages_fail(gpu);
}

static bool is_busy(const tutti_stream_comm *gpu) {
    return !TAILQ_EMPTY(&gpu->tracks->under_way) || !TAILQ_EMPTY(&gpu->tracks->messages);
}

/* Marks that are CUDA events are queried on the communicator's GPU: a thread without a current GPU would use GPU
 * 0. */
static void prepare_to_ask(tutti_stream_comm *gpu) {
    if (gpu->fault != NULL) {
        tutti_error_poll_expect(gpu->fault);
        return;
    }
    tutti_status status = gpu->device->use(gpu->index);
    if (status != TUTTI_OK) tutti_comm_give_up(gpu->comm, status);
}

/* With the lock held. */
static void look(tutti_stream_comm *gpu) {
    if (is_busy(gpu)) prepare_to_ask(gpu);
    end_passed(gpu);
    tutti_stream_messages_advance(gpu);
    tutti_status status = tutti_comm_check(gpu->comm);
    if (status == TUTTI_OK) status = tutti_stream_check(gpu);
    if (status == TUTTI_OK && gpu->tracks->captured) status = tutti_stream_check_graphs(gpu);
    if (status != TUTTI_OK) release_all(gpu, status);
}

bool tutti_stream_look(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    bool goes_on = !gpu->tracks->closed;
    if (goes_on) {
        look(gpu);
        goes_on = is_busy(gpu) || (gpu->tracks->captured && !gpu->tracks->aborted);
    }
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return goes_on;
}

bool tutti_stream_is_busy(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    bool busy = is_busy(gpu);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return busy;
}

/* --------------------------------------------------------------------------------------------- destruction */

void tutti_stream_abandon(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->cuda.streams, memory_order_acquire);
    int before = gpu != NULL ? gpu->index : 0;
    if (gpu == NULL) return;
    tutti_stream_enter(gpu, &before); /* continue on failure: the GPU may have failed */
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    look(gpu);
    if (is_busy(gpu)) {
        tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was destroyed by rank %d while operations were under way",
                   comm->name, comm->rank);
        release_all(gpu, tutti_comm_give_up(comm, TUTTI_ERR_ABORTED));
    }
    bool idle = !is_busy(gpu);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    tutti_stream_leave(gpu, before);
    if (idle && gpu->staged != NULL)
        tutti_queue_settle(comm); /* the thread that stored the last result is about to leave */
}

bool tutti_inflight_close(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    gpu->tracks->closed = true;
    bool captured = gpu->tracks->captured;
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return captured;
}

/* Takes them out of the lists with the lock held and frees them without it: CUDA may block the caller. */
void tutti_inflight_free(tutti_stream_comm *gpu) {
    struct tutti_inflight_list left = TAILQ_HEAD_INITIALIZER(left);
    tutti_inflight *track;
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    TAILQ_CONCAT(&left, &gpu->tracks->spare, link);
    TAILQ_CONCAT(&left, &gpu->tracks->under_way, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    while ((track = TAILQ_FIRST(&left)) != NULL) {
        TAILQ_REMOVE(&left, track, link);
        track_free(track);
    }
}
