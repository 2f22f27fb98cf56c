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
#include <time.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "comm/base/call.h"
#include "comm/gpu/call_log.h"
#include "comm/gpu/engines.h"
#include "comm/gpu/stream_state.h"
#include "comm/p2p/p2p.h"

/* Distinguishes calls on CUDA memory from those on host memory. */
#define CUDA_SIGNATURE   UINT64_C(0x5bd1e9955bd1e995)
#define GATHER_SIGNATURE UINT64_C(0x2545f4914f6cdd1d)

#define DRAIN_NAP_NS INT64_C(50000)

/* --------------------------------------------------------------------------------------------- comm->cuda */

tutti_status tutti_stream_enter(const tutti_stream_comm *gpu, int *before_out) {
    int before = gpu->index;
    TUTTI_TRY(gpu->device->current(&before));
    *before_out = before;
    return before == gpu->index ? TUTTI_OK : gpu->device->use(gpu->index);
}

void tutti_stream_leave(const tutti_stream_comm *gpu, int before) {
    if (before != gpu->index) gpu->device->leave(before);
}

static void gpu_free(tutti_stream_comm *gpu) {
    if (gpu == NULL) return;
    if (gpu->tracks != NULL) pthread_mutex_destroy(&gpu->tracks->lock);
    pthread_mutex_destroy(&gpu->order);
    free(gpu->tracks);
    free(gpu->facts);
    free(gpu);
}

static tutti_status gpu_make(tutti_comm *comm, int index, tutti_stream_comm **gpu_out) {
    tutti_stream_comm *gpu;
    TUTTI_TRY(tutti_calloc(1, sizeof *gpu, &gpu));
    gpu->comm = comm;
    gpu->index = index;
    pthread_mutex_init(&gpu->order, NULL);
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc(1, sizeof *gpu->tracks, &gpu->tracks), fail);
    pthread_mutex_init(&gpu->tracks->lock, NULL);
    TAILQ_INIT(&gpu->tracks->under_way);
    TAILQ_INIT(&gpu->tracks->spare);
    TAILQ_INIT(&gpu->tracks->messages);
    TUTTI_TRY_GOTO(status, tutti_device_open(&gpu->device), fail);
    TUTTI_TRY_GOTO(status, gpu->device->facts(index, &gpu->own), fail);
    if (gpu->own.stream_waits) gpu->fault = tutti_error_poll_of(gpu->device, index);
    *gpu_out = gpu;
    return TUTTI_OK;
fail:
    gpu_free(gpu);
    return status;
}

tutti_status tutti_stream_event_make(const tutti_stream_comm *gpu, tutti_stream_event **mark_out) {
    return tutti_stream_event_take(gpu->device, gpu->fault, mark_out);
}

tutti_status tutti_stream_gpu(tutti_comm *comm, int index, tutti_stream_comm **gpu_out) {
    tutti_stream_comm *gpu =
        atomic_load_explicit(&comm->cuda.streams, memory_order_acquire); /* pairs with the release below */
    tutti_status status = TUTTI_OK;
    if (gpu == NULL) {
        tutti_lock(TUTTI_LOCK_GPU_MAKING);
        gpu = atomic_load_explicit(&comm->cuda.streams, memory_order_relaxed);
        if (gpu == NULL) status = gpu_make(comm, index, &gpu);
        if (status == TUTTI_OK) atomic_store_explicit(&comm->cuda.streams, gpu, memory_order_release);
        tutti_unlock(TUTTI_LOCK_GPU_MAKING);
        TUTTI_TRY(status);
    }
    if (gpu->index != index)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "communicator \"%s\" uses memory of GPU %d since its first call on CUDA memory, not of "
                          "GPU %d; use one communicator for each GPU",
                          comm->name, gpu->index, index);
    *gpu_out = gpu;
    return TUTTI_OK;
}

/* True if a collective is in flight. */
static bool is_busy(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    bool busy = !TAILQ_EMPTY(&gpu->tracks->under_way) && !gpu->tracks->aborted;
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return busy;
}

/* Waits until the streams have passed all collectives, but not longer than the connect timeout: a blocked stream
 * must not block a split for ever. */
static void drain(tutti_stream_comm *gpu) {
    tutti_deadline deadline = tutti_deadline_after_ms(gpu->comm->connect_timeout_ms);
    tutti_stream_attend(1);
    while (is_busy(gpu) && !tutti_deadline_passed(&deadline))
        nanosleep(&(struct timespec){.tv_nsec = DRAIN_NAP_NS}, NULL);
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

void tutti_stream_free(tutti_comm *comm) {
    gpu_free(atomic_load_explicit(&comm->cuda.streams, memory_order_acquire));
}

/* ----------------------------------------------------------------------------------------- first collective */

/* An all_gather on host memory that reports and errors describe as `shown`. */
static tutti_status gather(tutti_comm *comm, const tutti_op *shown, const void *mine, void *all, size_t bytes) {
    tutti_op op = {.kind = TUTTI_KIND_ALL_GATHER,
                   .type = TUTTI_UINT8,
                   .src = mine,
                   .dst = all,
                   .count = bytes,
                   .timeout_ms = shown->timeout_ms,
                   .signature = (shown->signature ^ GATHER_SIGNATURE ^ bytes) >> 1,
                   .part_of = shown};
    return tutti_queue_run(comm, &op);
}

tutti_status tutti_stream_gather(tutti_comm *comm, const void *mine, void *all, size_t bytes) {
    tutti_op shown = {.kind = TUTTI_KIND_ALL_GATHER,
                      .type = TUTTI_UINT8,
                      .count = bytes,
                      .cuda = true,
                      .timeout_ms = comm->connect_timeout_ms};
    return gather(comm, &shown, mine, all, bytes);
}

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
    if (engine == &tutti_engine_staged) gpu->staged = true;
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
    tutti_status status = gather(gpu->comm, op, &own, all, sizeof own);
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

tutti_status tutti_stream_work(tutti_comm *comm, tutti_work *whole, tutti_work **work_out) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->streamed = true;
    work->start_ns = work->created_ns;
    if (whole != NULL) {
        work->whole = whole;
        tutti_work_retain(whole);
        atomic_fetch_add_explicit(&whole->parts, 1, memory_order_relaxed);
        whole->streamed = true;
    }
    *work_out = work;
    return TUTTI_OK;
}

/* Undoes tutti_stream_work for a call that never began. */
static void unmake_work(tutti_work *work) {
    if (work == NULL) return;
    if (work->whole != NULL) {
        atomic_fetch_sub_explicit(&work->whole->parts, 1, memory_order_relaxed);
        tutti_work_free(work->whole);
    }
    tutti_work_free(work);
}

tutti_status tutti_stream_refuse_capture(const tutti_stream_comm *gpu, tutti_stream stream, const char *name) {
    bool captures;
    TUTTI_TRY(gpu->device->stream_captures(stream, &captures));
    if (!captures) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s cannot be captured into a CUDA graph", name);
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
        if (!gpu->staged && !*captures_out) TUTTI_TRY(open_engine(gpu, engine));
    }
    if (*captures_out && (!engine->captures || wants_work))
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s%s cannot be captured into a CUDA graph (engine \"%s\")",
                          tutti_kind_name(op->kind), engine->captures ? " with options.work" : "", engine->name);
    if (*captures_out) tutti_inflight_capture(gpu);
    *engine_out = engine;
    return TUTTI_OK;
}

static tutti_status enqueue(tutti_stream_comm *gpu, const tutti_stream_engine *engine, const tutti_stream_call *call,
                            tutti_inflight *track) {
    if (!engine->minds_deaths) TUTTI_TRY(tutti_stream_event_put(track->begun, call->stream));
    TUTTI_TRY(engine->enqueue(gpu->comm, call));
    return tutti_stream_event_put(track->done, call->stream);
}

/* The call becomes part of a graph: it has no number, and nothing is in flight. If it is refused, the caller may
 * repeat it or leave it out. */
static tutti_status enqueue_captured(tutti_stream_comm *gpu, const tutti_stream_engine *engine,
                                     const tutti_stream_call *call) {
    char text[TUTTI_ERROR_TEXT_BYTES];
    tutti_status status = engine->enqueue(gpu->comm, call);
    if (status == TUTTI_OK) return status;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    bool spared = engine->spares == NULL || engine->spares(gpu->comm);
    tutti_fail(status, "%s", text);
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
