/*
 * The staged engine, which serves every communicator and every call. See staged.h for the flow of pieces.
 *
 * Calls of one communicator share its slots and words, so a call in another stream waits in that stream for the
 * previous call; their collectives on the host run in that order anyway. Only the worker thread runs these
 * collectives, since it may first have to wait for the stream.
 *
 * Invariant: `done` never decreases, and is RELEASED once the communicator is broken.
 */
#include "comm/gpu/staged/staged.h"

#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/base/backoff.h"
#include "comm/gpu/engines.h"
#include "comm/p2p/p2p.h"

/* Larger than any ticket, also for a GPU that compares numbers as signed. */
#define RELEASED (UINT64_MAX >> 1)

#define WORDS_BYTES ((size_t)256) /* two words, each on its own cache lines */

static bool fits(const tutti_comm *comm, char *reason_out, size_t capacity) {
    (void)comm;
    (void)reason_out;
    (void)capacity;
    return true;
}

/* -------------------------------------------------------------------------------------- on the worker thread */

static void store_done(tutti_staged *staged, uint64_t ticket) {
    uint64_t before = atomic_load_explicit(staged->done, memory_order_relaxed);
    while (before < ticket && !atomic_compare_exchange_weak_explicit(staged->done, &before, ticket,
                                                                     memory_order_release, memory_order_relaxed)) {}
}

/* Waits until the piece has arrived from the stream. This takes as long as the earlier work in the stream. */
static tutti_status await_arrival(tutti_comm *comm, const tutti_staged *staged, uint64_t ticket) {
    tutti_backoff backoff = {.yields = true};
    while (atomic_load_explicit(staged->arrived, memory_order_acquire) < ticket) {
        TUTTI_TRY(tutti_comm_check(comm));
        if (tutti_p2p_progress()) backoff.rounds = 0;
        tutti_backoff_pause(&backoff);
    }
    return TUTTI_OK;
}

static tutti_status run(tutti_work *work) {
    tutti_comm *comm = work->comm;
    tutti_staged_job *job = work->arrays;
    tutti_status status = TUTTI_OK;
    for (size_t k = 0; k < job->pieces && status == TUTTI_OK; k++) {
        status = await_arrival(comm, job->staged, job->ticket + k + 1);
        if (status != TUTTI_OK) {
            status = tutti_comm_give_up_running(comm, status);
        } else {
            tutti_op piece = tutti_staged_piece(comm, job, k);
            status = tutti_queue_carry_out(comm, &piece);
        }
        store_done(job->staged, status == TUTTI_OK ? job->ticket + k + 1 : RELEASED);
    }
    return status;
}

/* -------------------------------------------------------------------------------------- on the calling thread */

static tutti_status copy_parts(const tutti_stream_comm *gpu, const tutti_staged_job *job, size_t k, bool to_host,
                               tutti_stream stream) {
    const tutti_staged_part *parts = to_host ? job->ins : job->outs;
    size_t item_bytes = tutti_type_bytes(job->op.type);
    for (int i = 0; i < (to_host ? job->nins : job->nouts); i++) {
        size_t bytes = tutti_staged_part_count(job, &parts[i], k) * item_bytes;
        if (bytes == 0) continue;
        char *there = parts[i].on_gpu + k * job->piece * item_bytes;
        char *here = tutti_staged_part_place(job, &parts[i], k);
        TUTTI_TRY(gpu->device->copy(to_host ? here : there, to_host ? there : here, bytes, stream));
    }
    return TUTTI_OK;
}

static tutti_status enqueue_pieces(const tutti_stream_comm *gpu, const tutti_staged_job *job, tutti_stream stream) {
    const tutti_staged *staged = job->staged;
    const size_t ahead = TUTTI_STAGED_SLOTS - 1;
    for (size_t k = 0; k < job->pieces + ahead; k++) {
        if (k < job->pieces) {
            TUTTI_TRY(copy_parts(gpu, job, k, /* to_host */ true, stream));
            TUTTI_TRY(gpu->device->write_value(stream, staged->arrived_on_device, job->ticket + k + 1));
        }
        if (k < ahead) continue;
        TUTTI_TRY(gpu->device->wait_value(stream, staged->done_on_device, job->ticket + k - ahead + 1));
        TUTTI_TRY(copy_parts(gpu, job, k - ahead, /* to_host */ false, stream));
    }
    return TUTTI_OK;
}

/* Leases memory for a piece that does not fit into a slot. */
static tutti_status lease(const tutti_stream_comm *gpu, tutti_staged_job *job) {
    size_t bytes = tutti_staged_job_bytes(job);
    if (bytes <= job->staged->slot_bytes) return TUTTI_OK;
    return tutti_pinned_lease(gpu->device, bytes, &job->own_slots);
}

/* Pushes the job to the worker's queue. Takes ownership of the job, also on failure. */
static tutti_status push(tutti_comm *comm, tutti_staged_job *job, tutti_work **work_out) {
    tutti_work *work;
    tutti_status status = tutti_work_create(comm, &work);
    if (status != TUTTI_OK) {
        free(job);
        return status;
    }
    work->op = job->op;
    work->run = run;
    work->arrays = job; /* freed with the work */
    atomic_store_explicit(&work->hurried, true, memory_order_relaxed);
    status = tutti_queue_push(comm, work);
    if (status == TUTTI_OK) *work_out = work;
    else tutti_work_free(work);
    return status;
}

/* Puts marks behind the call, for the next call in any stream and for the next user of the memory. */
static tutti_status mark(const tutti_stream_comm *gpu, const tutti_staged_job *job, tutti_stream stream) {
    tutti_stream_event *behind;
    TUTTI_TRY(gpu->device->event_record(job->staged->last, stream));
    job->staged->last_stream = stream;
    job->staged->used = true;
    TUTTI_TRY(tutti_stream_event_put(job->staged->behind, stream));
    if (job->own_slots == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_stream_event_make(gpu, &behind));
    tutti_status status = tutti_stream_event_put(behind, stream);
    if (status != TUTTI_OK) {
        tutti_stream_event_free(behind);
        return status;
    }
    tutti_pinned_return_after(job->own_slots, behind);
    return TUTTI_OK;
}

static tutti_status enqueue_job(const tutti_stream_comm *gpu, const tutti_staged_job *job, tutti_stream stream) {
    const tutti_staged *staged = job->staged;
    if (staged->used && !tutti_stream_is_same(staged->last_stream, stream))
        TUTTI_TRY(gpu->device->stream_wait_event(stream, staged->last));
    TUTTI_TRY(enqueue_pieces(gpu, job, stream));
    return mark(gpu, job, stream);
}

/* The job is pushed to the worker before it is enqueued in the stream: a stream holds about a thousand operations,
 * and a caller that enqueues more waits until the first pieces have been carried out. */
static tutti_status enqueue(tutti_comm *comm, const tutti_stream_call *call) {
    const tutti_stream_comm *gpu = comm->gpu;
    tutti_staged *staged = gpu->staged_state;
    tutti_staged_job *job;
    tutti_work *work;
    TUTTI_TRY(tutti_staged_job_make(comm, call->op, staged->slot_bytes, &job));
    job->staged = staged;
    job->ticket = staged->tickets;
    staged->tickets += job->pieces;
    tutti_status status = tutti_staged_streams_note(staged, call);
    if (status == TUTTI_OK) status = lease(gpu, job);
    if (status != TUTTI_OK) {
        free(job);
        return status;
    }
    tutti_pinned *own_slots = job->own_slots;
    status = push(comm, job, &work);
    if (status != TUTTI_OK) {
        tutti_pinned_return(own_slots);
        return status;
    }
    staged->torn = true;
    status = enqueue_job(gpu, job, call->stream);
    if (status == TUTTI_OK) staged->torn = false;
    else tutti_pinned_abandon(own_slots);
    tutti_work_free(work);
    return status;
}

/* ---------------------------------------------------------------------------------------------------- life */

static void close_staged(tutti_comm *comm) {
    tutti_stream_comm *gpu = comm->gpu;
    tutti_staged *staged = gpu->staged_state;
    if (staged == NULL) return;
    gpu->staged_state = NULL;
    tutti_staged_streams_leave(staged);
    if (staged->last != NULL) gpu->device->event_destroy(staged->last);
    if (staged->torn) {
        tutti_pinned_abandon(staged->memory);
        tutti_stream_event_free(staged->behind);
    } else {
        tutti_pinned_return_after(staged->memory, staged->behind);
    }
    free(staged);
}

static tutti_status open_staged(tutti_comm *comm) {
    tutti_stream_comm *gpu = comm->gpu;
    tutti_staged *staged;
    TUTTI_TRY(tutti_calloc(1, sizeof *staged, &staged));
    gpu->staged_state = staged;
    staged->comm = comm;
    size_t least = (size_t)comm->nranks * TUTTI_CACHE_LINE;
    size_t wanted = tutti_max_size((size_t)tutti_setting_int(TUTTI_SETTING_CUDA_STAGE_BYTES), least);
    staged->slot_bytes = tutti_align_up(wanted, TUTTI_CACHE_LINE);
    tutti_status status;
    TUTTI_TRY_GOTO(
        status, tutti_pinned_lease(gpu->device, WORDS_BYTES + TUTTI_STAGED_SLOTS * staged->slot_bytes, &staged->memory),
        fail);
    TUTTI_TRY_GOTO(status, gpu->device->event_create(&staged->last), fail);
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &staged->behind), fail);
    staged->arrived = (_Atomic uint64_t *)(void *)staged->memory->memory;
    staged->done = (_Atomic uint64_t *)(void *)(staged->memory->memory + WORDS_BYTES / 2);
    staged->arrived_on_device = staged->memory->on_device;
    staged->done_on_device = staged->memory->on_device + WORDS_BYTES / 2;
    staged->slots = staged->memory->memory + WORDS_BYTES;
    tutti_staged_streams_enter(staged);
    return TUTTI_OK;
fail:
    close_staged(comm);
    return status;
}

static void abort_staged(tutti_comm *comm) {
    tutti_staged *staged = comm->gpu->staged_state;
    if (staged != NULL) store_done(staged, RELEASED);
}

const tutti_stream_engine tutti_engine_staged = {
    .name = "staged",
    .when = "always: through host memory, by collectives on the host",
    .fits = fits,
    .open = open_staged,
    .enqueue = enqueue,
    .abort = abort_staged,
    .close = close_staged,
    .minds_deaths = true,
};
