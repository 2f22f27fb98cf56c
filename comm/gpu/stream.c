/*
 * Calls on CUDA memory, on the calling thread. See stream.h.
 *
 * In the first collective of a communicator the ranks exchange their capabilities by an all_gather on host memory
 * that carries the signature of this call. So ranks that made another call, or the same call on host memory, get a
 * mismatch error here.
 */
#include "comm/gpu/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "comm/gpu/call_log.h"
#include "comm/gpu/stream_state.h"
#include "comm/p2p/p2p.h"

/* Distinguishes calls on CUDA memory from those on host memory. */
#define CUDA_SIGNATURE UINT64_C(0x5bd1e9955bd1e995)

/* --------------------------------------------------------------------------------------------- comm->cuda */

/* True if a collective is in flight. */
static bool is_busy(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    bool busy = !TAILQ_EMPTY(&gpu->tracks->under_way) && !gpu->tracks->aborted;
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return busy;
}

/* Waits until the streams have passed all collectives, at most for the connect timeout: one may be blocked. */
static void drain(tutti_stream_comm *gpu) {
    tutti_deadline deadline = tutti_deadline_after_ms(gpu->comm->connect_timeout_ms);
    tutti_stream_attend(1);
    while (is_busy(gpu) && !tutti_deadline_passed(&deadline)) tutti_nap(50 * TUTTI_NS_PER_US);
    tutti_stream_attend(-1);
}

tutti_status tutti_stream_split(tutti_comm *parent, tutti_comm *child, int color) {
    tutti_stream_comm *gpu = atomic_load_explicit(&parent->cuda.streams, memory_order_acquire);
    int before;
    if (gpu == NULL || gpu->engine == NULL || gpu->engine->split == NULL) return TUTTI_OK; /* the same on all ranks */
    drain(gpu);
    tutti_lock_in(TUTTI_LOCK_STREAM_ORDER, &gpu->order);
    tutti_status status = tutti_stream_enter(gpu, &before);
    if (status == TUTTI_OK) {
        status = gpu->engine->split(parent, child, color);
        tutti_stream_leave(gpu, before);
    }
    tutti_unlock_in(TUTTI_LOCK_STREAM_ORDER, &gpu->order);
    return status;
}

/* ----------------------------------------------------------------------------------------- first collective */

/* Opens the engine, and aborts it at once if the communicator broke meanwhile. */
static tutti_status open_engine(tutti_stream_comm *gpu, const tutti_stream_engine *engine) {
    tutti_status status = engine->open != NULL ? engine->open(gpu->comm) : TUTTI_OK;
    if (status != TUTTI_OK) {
        if (!engine->yields || status != TUTTI_ERR_UNSUPPORTED) status = tutti_comm_give_up(gpu->comm, status);
        if (engine->close != NULL) engine->close(gpu->comm);
        return status;
    }
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    if (gpu->engine == NULL) gpu->engine = engine;
    if (engine == &tutti_engine_staged) gpu->staged = engine;
    if (gpu->tracks->aborted && engine->abort != NULL) engine->abort(gpu->comm);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return TUTTI_OK;
}

static tutti_status meet(tutti_stream_comm *gpu, const tutti_op *op) {
    tutti_stream_caps own = {.stream_waits = gpu->own.stream_waits, .ipc = gpu->own.ipc}, *all;
    memcpy(own.device_id, gpu->own.id, sizeof own.device_id);
    memcpy(own.pci, gpu->own.pci, sizeof own.pci);
    tutti_engines_fill_caps(gpu->comm, &own);
    TUTTI_TRY(tutti_calloc((size_t)gpu->comm->nranks, sizeof *all, &all));
    tutti_status status = tutti_stream_gather_for(gpu->comm, op, &own, all, sizeof own);
    if (status != TUTTI_OK) {
        free(all);
        return status;
    }
    gpu->facts = all;
    const tutti_stream_engine *engine = tutti_engines_choose(gpu->comm);
    status = open_engine(gpu, engine);
    if (status == TUTTI_ERR_UNSUPPORTED && engine->yields) {
        if (gpu->comm->rank == 0)
            tutti_log(TUTTI_LOG_WARN,
                      "communicator \"%s\": engine \"%s\" cannot be used (%s); calls go through host memory",
                      gpu->comm->name, engine->name, tutti_last_error());
        engine = &tutti_engine_staged;
        status = open_engine(gpu, engine);
    }
    TUTTI_TRY(status);
    tutti_log(TUTTI_LOG_INFO, "communicator \"%s\": collectives on CUDA memory use engine \"%s\"", gpu->comm->name,
              engine->name);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- collectives */

/* Undoes tutti_stream_work for a call that never began. */
static void unmake_work(tutti_work *work) {
    if (work == NULL) return;
    if (work->whole != NULL) {
        atomic_fetch_sub_explicit(&work->whole->parts, 1, memory_order_relaxed);
        tutti_work_free(work->whole);
    }
    tutti_work_free(work);
}

/* Chooses the engine for op and checks that the stream allows the call. */
static tutti_status prepare(tutti_stream_comm *gpu, const tutti_op *op, tutti_stream stream, bool wants_work,
                            const tutti_stream_engine **engine_out, bool *captures_out) {
    const tutti_stream_engine *engine = gpu->engine;
    TUTTI_TRY(gpu->device->stream_captures(stream, captures_out));
    if (engine == NULL && *captures_out)
        return tutti_fail(
            TUTTI_ERR_UNSUPPORTED,
            "%s: the first collective of communicator \"%s\" on CUDA memory cannot be captured into a CUDA "
            "graph, since it connects the ranks; make one before the capture",
            tutti_kind_name(op->kind), gpu->comm->name);
    if (engine == NULL) TUTTI_TRY(meet(gpu, op));
    engine = gpu->engine;
    if (engine->takes != NULL && !engine->takes(gpu->comm, op)) {
        engine = &tutti_engine_staged;
        if (gpu->staged == NULL && !*captures_out) TUTTI_TRY(open_engine(gpu, engine));
    }
    if (*captures_out && (!engine->captures || wants_work))
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s%s cannot be captured into a CUDA graph (engine \"%s\")",
                          tutti_kind_name(op->kind), engine->captures ? " with options.work" : "", engine->name);
    if (*captures_out && gpu->comm->nranks > 1) {
        tutti_inflight_capture(gpu);
        tutti_stream_watch(gpu);
    }
    *engine_out = engine;
    return TUTTI_OK;
}

static tutti_status enqueue(tutti_stream_comm *gpu, const tutti_stream_engine *engine, const tutti_stream_call *call,
                            tutti_inflight *track) {
    if (engine->puts_marks) {
        tutti_stream_call marked = *call;
        marked.begun = track->begun;
        marked.done = track->done;
        marked.track = track;
        return engine->enqueue(gpu->comm, &marked);
    }
    if (!engine->minds_deaths) TUTTI_TRY(tutti_stream_event_put(track->begun, call->stream));
    TUTTI_TRY(engine->enqueue(gpu->comm, call));
    return tutti_stream_event_put(track->done, call->stream);
}

/* The call becomes part of a graph: without a number, not in flight. If refused, it may be repeated or left out. */
static tutti_status enqueue_captured(tutti_stream_comm *gpu, const tutti_stream_engine *engine,
                                     const tutti_stream_call *call) {
    tutti_status status = engine->enqueue(gpu->comm, call);
    if (status == TUTTI_OK) return status;
    const tutti_error error = tutti_fail_save();
    bool spared = engine->spares == NULL || engine->spares(gpu->comm);
    tutti_fail_again(status, &error);
    return spared ? status : tutti_comm_give_up(gpu->comm, status);
}

/* Copies what reports and errors need while the call is in flight; without its buffers. */
static void fill_track(tutti_inflight *track, const tutti_stream_engine *engine, const tutti_stream_call *call) {
    track->engine = engine;
    track->op = *call->op;
    track->op.src = track->op.dst = NULL;
    track->op.srcs = NULL;
    track->op.dsts = NULL;
    track->op.src_counts = track->op.dst_counts = NULL;
    track->work = call->work;
    if (track->work != NULL) {
        tutti_work_retain(track->work);
        track->work->sequence = call->number;
    }
    track->timeout_ms = call->timeout_ms;
}

/* Publishes the call for ranks that wait for this rank in another call on CUDA memory (call_log.h) or in one on
 * host memory (monitor.c). Staged calls have posts like any call on host memory, so only the log is needed. */
static void publish(tutti_stream_comm *gpu, const tutti_stream_engine *engine, const tutti_op *op) {
    tutti_call call = tutti_call_of(op);
    tutti_call_log_add(gpu, op);
    if (gpu->comm->net.hosts != NULL || engine == &tutti_engine_staged) return;
    atomic_store_explicit(&gpu->comm->page->stream_call, tutti_call_pack(&call), memory_order_release);
}

/* With gpu->order held and the GPU current. */
static tutti_status submit(tutti_stream_comm *gpu, tutti_op *op, tutti_stream stream, tutti_work *whole,
                           tutti_work **work_out) {
    const tutti_stream_engine *engine = NULL;
    tutti_inflight *track = NULL;
    tutti_work *work = NULL;
    bool captures = false;
    op->sequence = gpu->number + 1;
    TUTTI_TRY(prepare(gpu, op, stream, work_out != NULL, &engine, &captures));
    if (!captures) TUTTI_TRY(tutti_inflight_take(gpu, &track));
    tutti_status status = work_out != NULL ? tutti_stream_work(gpu->comm, whole, &work) : TUTTI_OK;
    if (status != TUTTI_OK) {
        tutti_inflight_drop(gpu, track);
        return status;
    }
    tutti_stream_call call = {.op = op,
                              .stream = stream,
                              .number = op->sequence,
                              .timeout_ms = op->timeout_ms > 0 ? op->timeout_ms : gpu->comm->timeout_ms,
                              .work = work,
                              .captured = captures};
    if (captures) return enqueue_captured(gpu, engine, &call);
    gpu->number = call.number;
    fill_track(track, engine, &call);
    publish(gpu, engine, op);
    status = enqueue(gpu, engine, &call, track);
    if (status != TUTTI_OK) { /* the other ranks wait for this call, so this rank cannot continue with them */
        status = tutti_comm_give_up(gpu->comm, status);
        tutti_inflight_drop(gpu, track);
        unmake_work(work);
        tutti_stream_watch(gpu);
        return status;
    }
    tutti_inflight_add(gpu, track);
    tutti_stream_watch(gpu);
    if (work_out != NULL) *work_out = work;
    return TUTTI_OK;
}

tutti_status tutti_stream_submit(tutti_comm *comm, const tutti_op *op, int index, tutti_stream stream,
                                 tutti_work *whole, tutti_work **work_out) {
    tutti_stream_comm *gpu;
    int before;
    tutti_op own = *op;
    own.cuda = true;
    own.signature = (own.signature ^ CUDA_SIGNATURE) >> 1;
    TUTTI_TRY(tutti_stream_gpu(comm, index, &gpu));
    tutti_lock_in(TUTTI_LOCK_STREAM_ORDER, &gpu->order);
    tutti_status status = tutti_stream_enter(gpu, &before);
    if (status == TUTTI_OK) {
        status = submit(gpu, &own, stream, whole, work_out);
        tutti_stream_leave(gpu, before);
    }
    tutti_unlock_in(TUTTI_LOCK_STREAM_ORDER, &gpu->order);
    return status;
}

/* ----------------------------------------------------------------------------------- messages, and the end */

tutti_status tutti_stream_submit_message(tutti_comm *comm, const tutti_message *message, tutti_work *whole,
                                         tutti_work **work_out) {
    tutti_stream_comm *gpu;
    int before;
    TUTTI_TRY(tutti_stream_gpu(comm, message->gpu, &gpu));
    tutti_lock_in(TUTTI_LOCK_STREAM_ORDER, &gpu->order);
    tutti_status status = tutti_stream_enter(gpu, &before);
    if (status == TUTTI_OK) {
        status = tutti_stream_message_submit(gpu, message, whole, work_out);
        tutti_stream_watch(gpu);
        tutti_stream_leave(gpu, before);
    }
    tutti_unlock_in(TUTTI_LOCK_STREAM_ORDER, &gpu->order);
    return status;
}

static void close_engines(tutti_stream_comm *gpu) {
    if (gpu->engine != NULL && gpu->engine->close != NULL) gpu->engine->close(gpu->comm);
    if (gpu->staged != NULL && gpu->staged != gpu->engine) gpu->staged->close(gpu->comm);
}

void tutti_stream_close(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->cuda.streams, memory_order_acquire);
    int before = gpu != NULL ? gpu->index : 0;
    if (comm->cuda.seed != NULL) comm->cuda.seed->drop(comm->cuda.seed);
    comm->cuda.seed = NULL;
    if (gpu == NULL) return;
    tutti_stream_enter(gpu, &before);
    if (tutti_inflight_close(gpu)) tutti_stream_attend(0); /* so that the watcher drops its reference now */
    close_engines(gpu);
    tutti_stream_messages_free(gpu);
    tutti_inflight_free(gpu);
    tutti_stream_leave(gpu, before);
}
