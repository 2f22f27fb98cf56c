/*
 * NCCL calls: groups, waits, and the meaning of results. See nccl_state.h.
 *
 * A non-blocking communicator returns "in progress" while an NCCL thread connects to peers and launches kernels.
 * Until it returns another result, nothing may be called on it, and no later work may be enqueued: the call may not
 * be in the stream yet.
 */
#include <sched.h>
#include <stdio.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "comm/gpu/call_log.h"
#include "comm/gpu/nccl/nccl_state.h"
#include "comm/health/heartbeat.h"
#include "comm/health/monitor.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"

#define YIELDS      200                    /* before a wait sleeps */
#define NAP_NS      (50 * TUTTI_NS_PER_US) /* between two polls */
#define LOOK_NS     (10 * TUTTI_NS_PER_MS) /* between two checks of the peers */
#define NO_SEQUENCE (UINT64_C(1) << 39)    /* of no call on host memory: no page reports it as complete */

/* Checks that every peer is alive, nothing is broken, and all ranks have made the same calls. Errors describe op. */
static tutti_status look(const tutti_nccl_state *state, const tutti_op *op) {
    tutti_op asked = *op;
    asked.sequence = NO_SEQUENCE;
    asked.part_of = op;
    if (state->comm->net.hosts != NULL) tutti_heartbeat_read_deaths(state->comm);
    TUTTI_TRY(tutti_call_log_look(state->comm));
    return tutti_monitor_look(state->comm, &asked, /* deaths */ true);
}

static tutti_status status_of(tutti_nccl_result result) {
    switch (result) {
    case TUTTI_NCCL_INVALID_ARGUMENT:
    case TUTTI_NCCL_INVALID_USAGE: return TUTTI_ERR_UNSUPPORTED;
    case TUTTI_NCCL_REMOTE_ERROR: return TUTTI_ERR_BROKEN;
    default: return TUTTI_ERR_SYSTEM;
    }
}

tutti_status tutti_nccl_failure(tutti_nccl_state *state, const tutti_op *op, tutti_nccl_result result,
                                const char *name) {
    char detail[512] = "";
    TUTTI_TRY(look(state, op));
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    const char *last =
        state->nccl->ncclGetLastError != NULL && !state->aborted ? state->nccl->ncclGetLastError(state->handle) : NULL;
    if (last != NULL && last[0] != '\0') snprintf(detail, sizeof detail, " (%s)", last);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    return tutti_fail(status_of(result),
                      "NCCL failed in %s on rank %d of communicator \"%s\": %s%s; set NCCL_DEBUG=WARN for details",
                      name, state->comm->rank, state->comm->name, state->nccl->ncclGetErrorString(result), detail);
}

/* NCCL sometimes detects the end of a peer before us: its connections close at once. So waits for our own detection. */
static tutti_status await_death(const tutti_nccl_state *state, const tutti_op *op) {
    for (int64_t waited_ns = 0; waited_ns < TUTTI_NCCL_DOUBT_NS; waited_ns += LOOK_NS) {
        TUTTI_TRY(look(state, op));
        tutti_nap(LOOK_NS);
    }
    return TUTTI_OK;
}

/* A peer that is gone may have done its part before: NCCL's result has priority for a while. `gone_ns`: since when
 * a peer is missing; 0 at first. */
static tutti_status look_again(const tutti_nccl_state *state, const tutti_op *op, int64_t *gone_ns) {
    int64_t now_ns = tutti_now_ns();
    TUTTI_TRY(tutti_comm_check(state->comm));
    tutti_status status = look(state, op);
    if (*gone_ns == 0) *gone_ns = now_ns;
    if (status != TUTTI_OK && now_ns - *gone_ns < TUTTI_NCCL_DOUBT_NS) return TUTTI_OK;
    if (status == TUTTI_OK) *gone_ns = 0;
    return status;
}

/* False: the communicator was aborted. */
static bool ask(tutti_nccl_state *state, tutti_nccl_result *result_out) {
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    bool whole = !state->aborted;
    if (whole) {
        tutti_nccl_result answer = state->nccl->ncclCommGetAsyncError(state->handle, result_out);
        if (answer != TUTTI_NCCL_SUCCESS) *result_out = answer;
    }
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    return whole;
}

static tutti_status aborted(tutti_nccl_state *state) {
    TUTTI_TRY(tutti_comm_check(state->comm)); /* an abort follows a break */
    return tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was aborted", state->comm->name);
}

static tutti_status timed_out(const tutti_nccl_state *state, const tutti_nccl_reason *reason) {
    const tutti_op *shown = reason->op->part_of != NULL ? reason->op->part_of : reason->op;
    char missing[800];
    return tutti_fail(TUTTI_ERR_TIMEOUT,
                      "%s of NCCL did not complete within %lld ms on rank %d of communicator \"%s\": a rank has not "
                      "made the call, or the network between GPUs does not work (set NCCL_DEBUG=INFO for details)%s",
                      reason->name, (long long)reason->timeout_ms, state->comm->rank, state->comm->name,
                      tutti_call_log_missing(state->comm, shown->sequence, missing, sizeof missing));
}

tutti_status tutti_nccl_wait(tutti_nccl_state *state, const tutti_nccl_reason *reason) {
    const tutti_op *op = reason->op;
    tutti_deadline deadline = tutti_deadline_after_ms(reason->timeout_ms > 0 ? reason->timeout_ms : -1);
    int64_t next_look_ns = tutti_now_ns() + LOOK_NS, gone_ns = 0;
    for (unsigned asked = 0;; asked++) {
        tutti_nccl_result result = TUTTI_NCCL_SUCCESS;
        if (!ask(state, &result)) return aborted(state);
        if (result == TUTTI_NCCL_SUCCESS) return TUTTI_OK;
        if (result == TUTTI_NCCL_REMOTE_ERROR) TUTTI_TRY(await_death(state, op));
        if (result != TUTTI_NCCL_IN_PROGRESS) return tutti_nccl_failure(state, op, result, reason->name);
        if (asked < YIELDS) {
            sched_yield();
            continue;
        }
        tutti_nap(NAP_NS);
        if (tutti_now_ns() < next_look_ns) continue;
        TUTTI_TRY(look_again(state, op, &gone_ns));
        if (tutti_deadline_passed(&deadline)) return timed_out(state, reason);
        next_look_ns = tutti_now_ns() + LOOK_NS;
    }
}

tutti_status tutti_nccl_begin(tutti_nccl_state *state, const tutti_stream_call *call, tutti_nccl_batch *batch_out) {
    *batch_out =
        (tutti_nccl_batch){.state = state, .op = call->op, .timeout_ms = call->timeout_ms, .stream = call->stream};
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (state->aborted) {
        tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
        return aborted(state);
    }
    batch_out->handle = state->handle;
    tutti_nccl_result result = state->nccl->ncclGroupStart();
    if (result == TUTTI_NCCL_SUCCESS) return TUTTI_OK;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    return tutti_nccl_failure(state, call->op, result, "ncclGroupStart");
}

void tutti_nccl_note(tutti_nccl_batch *batch, tutti_nccl_result result, const char *name) {
    if (batch->failed != NULL || result == TUTTI_NCCL_SUCCESS || result == TUTTI_NCCL_IN_PROGRESS) return;
    batch->result = result;
    batch->failed = name;
}

void tutti_nccl_send(tutti_nccl_batch *batch, const void *memory, size_t bytes, int peer) {
    const tutti_nccl *nccl = batch->state->nccl;
    if (bytes == 0) return;
    tutti_nccl_note(batch, nccl->ncclSend(memory, bytes, TUTTI_NCCL_UINT8, peer, batch->handle, batch->stream),
                    "ncclSend");
}

void tutti_nccl_recv(tutti_nccl_batch *batch, const void *memory, size_t bytes, int peer) {
    const tutti_nccl *nccl = batch->state->nccl;
    if (bytes == 0) return;
    tutti_nccl_note(batch, nccl->ncclRecv((void *)memory, bytes, TUTTI_NCCL_UINT8, peer, batch->handle, batch->stream),
                    "ncclRecv");
}

/* NCCL may be about to enqueue the calls, and then works on memory that the caller, given an error, may have freed; it
 * never does so after an abort has ended. The end is not awaited for ever: an abort frees memory, and so waits for
 * streams that may hang until this thread has made a call on another communicator. */
static tutti_status withdraw(tutti_nccl_state *state, tutti_status status) {
    status = tutti_comm_give_up(state->comm, status); /* before streams are released: they would be taken for success */
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_ending_abort(state);
    const tutti_nccl_ending *ending = state->ending;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_ending_wait(ending, tutti_now_ns() + TUTTI_NCCL_LINGER_NS);
    return status;
}

tutti_status tutti_nccl_finish(tutti_nccl_batch *batch) {
    tutti_nccl_state *state = batch->state;
    tutti_nccl_result result = state->nccl->ncclGroupEnd(); /* always, or this thread's group stays open */
    tutti_nccl_note(batch, result, "ncclGroupEnd");
    if (state->failed == NULL) state->failed = batch->failed;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (batch->failed != NULL) return tutti_nccl_failure(state, batch->op, batch->result, batch->failed);
    if (result == TUTTI_NCCL_SUCCESS) return TUTTI_OK;
    tutti_status status = tutti_nccl_wait(state, &(tutti_nccl_reason){.op = batch->op,
                                                                      .timeout_ms = batch->timeout_ms,
                                                                      .name = tutti_kind_name(batch->op->kind)});
    return status == TUTTI_OK ? TUTTI_OK : withdraw(state, status);
}

/* ------------------------------------------------------------------------------------------------- scratch */

tutti_status tutti_nccl_scratch_take(tutti_nccl_state *state, const tutti_stream_call *call) {
    const tutti_device *device = state->comm->cuda.streams->device;
    if (call->captured)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "%s of %s (%s) cannot be captured into a CUDA graph: NCCL does not support it, and its "
                          "replacement uses memory that other calls share",
                          tutti_kind_name(call->op->kind), tutti_type_name(call->op->type),
                          tutti_reduction_name(call->op->reduction));
    if (state->scratch == NULL) return device->alloc(state->scratch_bytes, &state->scratch);
    return device->stream_wait_event(call->stream, state->scratch_free);
}

tutti_status tutti_nccl_scratch_give(tutti_nccl_state *state, const tutti_stream_call *call) {
    return state->comm->cuda.streams->device->event_record(state->scratch_free, call->stream);
}
