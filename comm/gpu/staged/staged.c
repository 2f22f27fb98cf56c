/*
 * The staged engine, which serves every communicator and every call: CUDA memory through pinned host memory, in pieces.
 *
 *   stream            D2H 0 | arrived=1 | D2H 1 | arrived=2 | D2H 2 | arrived=3 | wait done>=1 | H2D 0 | D2H 3 | ...
 *   worker thread              collective 0, done=1     collective 1, done=2     ...
 *
 * Piece k is in slot k % SLOTS. A rank's slot holds what the rank reads and writes of the piece, laid out as a
 * collective on host memory needs it, in place where possible.
 *
 * Calls of one communicator share its slots and words, so a call in another stream waits in that stream for the
 * previous call; their collectives on the host run in that order anyway. Only the worker thread runs these
 * collectives, since it may first have to wait for the stream.
 *
 * Invariant: `done` never decreases, and is RELEASED once the communicator is broken.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/hash.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "comm/base/backoff.h"
#include "comm/base/op.h"
#include "comm/gpu/stream.h"
#include "comm/p2p/p2p.h"

/* Larger than the number of any piece, also for a GPU that compares numbers as signed. */
#define RELEASED (UINT64_MAX >> 1)

#define WORDS_BYTES ((size_t)256) /* two words, each on its own cache lines */

#define PART_ALIGNMENT ((size_t)64)

#define SLOTS 3
#define CALLS 256 /* remembered calls; a waiting stream holds fewer */

typedef struct staged_call {
    uint64_t number; /* 0: none */
    tutti_stream stream;
    uint64_t end; /* number of its last piece */
} staged_call;

/* State of one rank in one communicator. */
typedef struct staged_state {
    const tutti_comm *comm;
    tutti_pinned *memory; /* the words, then the slots */
    char *slots;
    size_t slot_bytes;
    _Atomic uint64_t *arrived; /* written in streams: pieces that have arrived in their slots */
    _Atomic uint64_t *done;    /* written by the worker: pieces whose results are ready; pairs with the stream's wait */
    void *arrived_on_device, *done_on_device;
    uint64_t enqueued;          /* pieces enqueued so far; calling thread only, like the fields up to behind */
    bool torn;                  /* a call is partly enqueued, with no mark behind it */
    tutti_stream_chain chain;   /* for streams: slots and words serve one call at a time */
    tutti_stream_event *behind; /* mark behind the last call, for the host */
    staged_call calls[CALLS];   /* the last calls; under TUTTI_LOCK_STAGED */
    struct staged_state *next;  /* list of shared streams, under TUTTI_LOCK_STAGED */
} staged_state;

/* A contiguous range of the caller's memory, and the place of its pieces in a slot. */
typedef struct staged_part {
    char *on_gpu;
    size_t count;
    size_t slice; /* index of the slice, if slices are equal */
    size_t at;    /* if slices differ (v-kinds): bytes from the start of the slot */
} staged_part;

/* A call split into pieces: piece k is the elements [k * piece, (k + 1) * piece) of every part. */
typedef struct staged_job {
    staged_state *staged;
    tutti_op op; /* the whole call, for reports and errors */
    size_t piece, pieces;
    bool equal;              /* all parts have op.count elements: slices of a piece are as long as the piece */
    tutti_pinned *own_slots; /* memory for a single piece that is larger than a slot; or NULL */
    uint64_t before;         /* pieces enqueued before this job: piece k has the number before + k + 1 */
    int nins, nouts;
    staged_part *ins, *outs;
    const void **srcs; /* arrays of the running piece, for v-kinds */
    void **dsts;
    size_t *src_counts, *dst_counts;
} staged_job;

/* ---------------------------------------------------------------------------------------------- jobs and pieces
 * If all ranks know all counts, pieces are as long as fits into a slot, and all ranks have the same number of them.
 * The counts of all_to_all_v, gather_v and scatter_v are known pairwise only: such a call is one piece, in its own
 * memory.
 */

static bool counts_are_known(const tutti_op *op) {
    return op->kind != TUTTI_KIND_ALL_TO_ALL_V && op->kind != TUTTI_KIND_GATHER_V && op->kind != TUTTI_KIND_SCATTER_V;
}

/* Number of slices of a piece in the slot of the rank that has most of them. */
static size_t slices(const tutti_comm *comm, const tutti_op *op) {
    switch (op->kind) {
    case TUTTI_KIND_ALL_REDUCE:
    case TUTTI_KIND_REDUCE:
    case TUTTI_KIND_BROADCAST:
    case TUTTI_KIND_BARRIER: return 1;
    default: return (size_t)comm->nranks;
    }
}

static void add(staged_part *parts, int *count, tutti_span span, size_t item_bytes, size_t slice) {
    parts[(*count)++] =
        (staged_part){.on_gpu = (char *)(uintptr_t)span.data, .count = span.bytes / item_bytes, .slice = slice};
}

/* The slice of the slot that holds the rank's only input or output. */
static size_t own_slice(const tutti_comm *comm, const tutti_op *op) {
    switch (op->kind) {
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_ALL_GATHER_V:
    case TUTTI_KIND_REDUCE_SCATTER_V: return (size_t)comm->rank;
    case TUTTI_KIND_GATHER:
    case TUTTI_KIND_SCATTER:
    case TUTTI_KIND_GATHER_V:
    case TUTTI_KIND_SCATTER_V: return comm->rank == op->root ? (size_t)comm->rank : 0;
    default: return 0;
    }
}

static void list_parts(const tutti_comm *comm, staged_job *job) {
    const tutti_op *op = &job->op;
    size_t item_bytes = tutti_type_bytes(op->type);
    int ins = !tutti_op_has_input(op, comm->rank) ? 0 : tutti_op_is_split(op) ? comm->nranks : 1;
    int outs = !tutti_op_has_output(op, comm->rank) ? 0 : tutti_op_collects(op) ? comm->nranks : 1;
    for (int i = 0; i < ins; i++)
        add(job->ins, &job->nins, tutti_op_input(comm, op, i), item_bytes, ins > 1 ? (size_t)i : own_slice(comm, op));
    for (int i = 0; i < outs; i++)
        add(job->outs, &job->nouts, tutti_op_output(comm, op, i), item_bytes,
            outs > 1 ? (size_t)i : own_slice(comm, op));
}

/* Places slices of different sizes one after the other; returns the bytes of all. */
static size_t lay_out(staged_part *parts, int count, size_t piece, size_t item_bytes, size_t at) {
    for (int i = 0; i < count; i++) {
        parts[i].at = at;
        at += tutti_align_up(tutti_min_size(parts[i].count, piece) * item_bytes, PART_ALIGNMENT);
    }
    return at;
}

/* Places both lists. A list of one part is placed in this rank's slice of the other list, if that has several. */
static size_t lay_out_both(staged_job *job, size_t item_bytes) {
    bool both = job->nins > 1 && job->nouts > 1;
    staged_part *longer = job->nins > job->nouts ? job->ins : job->outs;
    staged_part *shorter = longer == job->ins ? job->outs : job->ins;
    int nlonger = longer == job->ins ? job->nins : job->nouts, nshorter = longer == job->ins ? job->nouts : job->nins;
    size_t bytes = lay_out(longer, nlonger, job->piece, item_bytes, 0);
    if (both) return lay_out(shorter, nshorter, job->piece, item_bytes, bytes);
    if (nshorter == 1) shorter[0].at = nlonger > 1 ? longer[shorter[0].slice].at : 0;
    return bytes;
}

static size_t longest(const staged_job *job) {
    size_t most = job->equal ? job->op.count : 0;
    for (int i = 0; i < job->nins; i++) most = tutti_max_size(most, job->ins[i].count);
    for (int i = 0; i < job->nouts; i++) most = tutti_max_size(most, job->outs[i].count);
    return most;
}

static void cut(const tutti_comm *comm, staged_job *job, size_t slot_bytes) {
    size_t item_bytes = tutti_type_bytes(job->op.type), most = longest(job);
    if (job->op.kind == TUTTI_KIND_BARRIER || !counts_are_known(&job->op)) {
        job->piece = tutti_max_size(most, 1);
        job->pieces = 1;
    } else {
        size_t for_slice = slot_bytes / slices(comm, &job->op) & ~(PART_ALIGNMENT - 1);
        job->piece = tutti_max_size(for_slice / item_bytes, 1);
        job->pieces = tutti_max_size((most + job->piece - 1) / job->piece, 1);
    }
    if (!job->equal) lay_out_both(job, item_bytes);
}

/* Makes a job for op; the job and all of its arrays are one malloc block. */
static tutti_status make_job(tutti_comm *comm, const tutti_op *op, size_t slot_bytes, staged_job **job_out) {
    size_t n = (size_t)comm->nranks;
    char *block;
    TUTTI_TRY(tutti_calloc(1, sizeof(staged_job) + 2 * n * sizeof(staged_part) + 4 * n * sizeof(void *), &block));
    staged_job *job = (staged_job *)(void *)block;
    job->ins = (staged_part *)(void *)(job + 1);
    job->outs = job->ins + n;
    job->srcs = (const void **)(void *)(job->outs + n);
    job->dsts = (void **)(void *)(job->srcs + n);
    job->src_counts = (size_t *)(void *)(job->dsts + n);
    job->dst_counts = job->src_counts + n;
    job->op = *op;
    job->equal = !tutti_op_has_counts(op);
    list_parts(comm, job);
    cut(comm, job, slot_bytes);
    job->op.src = job->op.dst = NULL; /* the host must not access these, and the arrays end with the call */
    job->op.srcs = NULL;
    job->op.dsts = NULL;
    job->op.src_counts = job->op.dst_counts = NULL;
    *job_out = job;
    return TUTTI_OK;
}

/* Bytes of the largest slot that the job needs. */
static size_t bytes_of_job(const staged_job *job) {
    size_t item_bytes = tutti_type_bytes(job->op.type), most = 0;
    for (int i = 0; i < job->nins + job->nouts; i++) {
        const staged_part *part = i < job->nins ? &job->ins[i] : &job->outs[i - job->nins];
        size_t count = tutti_min_size(part->count, job->piece);
        most = tutti_max_size(most, (job->equal ? part->slice * count * item_bytes : part->at) + count * item_bytes);
    }
    return most;
}

/* Elements of `part` in piece k. */
static size_t count_of(const staged_job *job, const staged_part *part, size_t k) {
    size_t start = k * job->piece;
    return part->count <= start ? 0 : tutti_min_size(part->count - start, job->piece);
}

static char *slot_of(const staged_job *job, size_t k) {
    if (job->own_slots != NULL) return job->own_slots->memory;
    return job->staged->slots + (job->before + k) % SLOTS * job->staged->slot_bytes;
}

/* The place of these elements in their slot. */
static char *place_of(const staged_job *job, const staged_part *part, size_t k) {
    size_t slice_bytes = count_of(job, part, k) * tutti_type_bytes(job->op.type);
    return slot_of(job, k) + (job->equal ? part->slice * slice_bytes : part->at);
}

/* Fills the lists of the piece entry by entry, if the kind has lists. */
static void fill_lists(staged_job *job, size_t k, tutti_op *piece) {
    bool lists = tutti_op_has_counts(piece);
    bool input_list = lists && tutti_op_is_split(piece), output_list = lists && tutti_op_collects(piece);
    for (int i = 0; i < job->nins && input_list; i++) {
        job->srcs[i] = place_of(job, &job->ins[i], k);
        job->src_counts[i] = count_of(job, &job->ins[i], k);
    }
    for (int i = 0; i < job->nouts && output_list; i++) {
        job->dsts[i] = place_of(job, &job->outs[i], k);
        job->dst_counts[i] = count_of(job, &job->outs[i], k);
    }
    if (input_list && job->nins > 0) {
        piece->srcs = job->srcs;
        piece->src_counts = job->src_counts;
    }
    if (output_list && job->nouts > 0) {
        piece->dsts = job->dsts;
        piece->dst_counts = job->dst_counts;
    }
    if (!input_list && job->nins > 0) {
        piece->src = place_of(job, &job->ins[0], k);
        piece->count = count_of(job, &job->ins[0], k);
    }
    if (!output_list && job->nouts > 0) {
        piece->dst = place_of(job, &job->outs[0], k);
        piece->count = count_of(job, &job->outs[0], k);
    }
}

/* Piece k as a collective on host memory. */
static tutti_op piece_of(tutti_comm *comm, staged_job *job, size_t k) {
    const tutti_op *op = &job->op;
    tutti_op piece = *op;
    piece.part_of = op;
    piece.signature = tutti_hash_add(op->signature, k) >> 1;
    if (!job->equal) {
        piece.count = 0;
        fill_lists(job, k, &piece);
        return piece;
    }
    size_t start = k * job->piece;
    piece.count = op->count <= start ? 0 : tutti_min_size(op->count - start, job->piece);
    if (piece.count == 0) return piece;
    if (job->nins > 0) piece.src = place_of(job, &job->ins[0], k);
    if (job->nouts > 0) piece.dst = place_of(job, &job->outs[0], k);
    if (op->kind == TUTTI_KIND_BROADCAST) {
        if (comm->rank == op->root) piece.dst = (void *)(uintptr_t)piece.src;
        else piece.src = piece.dst;
    }
    return piece;
}

/* ---------------------------------------------------------------------------------------------- shared streams
 * If two ranks of this process use one stream, the first caller's wait for the result is ahead of the second caller's
 * copy, but the result needs that copy: a deadlock. The second caller gets an error instead.
 *
 * Ranks of one process find each other in a list; each stores its last calls there. A stream is identified by its
 * handle and its GPU: the default stream of every GPU has the same handle. A call whose results are ready does not
 * block any stream, even if its handle was reused.
 */

static staged_state *first; /* under TUTTI_LOCK_STAGED, like the links of the list and the calls in it */

static void enter_streams(staged_state *staged) {
    tutti_lock(TUTTI_LOCK_STAGED);
    staged->next = first;
    first = staged;
    tutti_unlock(TUTTI_LOCK_STAGED);
}

static void leave_streams(const staged_state *staged) {
    tutti_lock(TUTTI_LOCK_STAGED);
    staged_state **link = &first;
    while (*link != NULL && *link != staged) link = &(*link)->next;
    if (*link != NULL) *link = staged->next;
    tutti_unlock(TUTTI_LOCK_STAGED);
}

/* True if the stream waits in `other` for that call, or a later one. */
static bool is_held_up(const staged_state *other, uint64_t number, tutti_stream stream) {
    uint64_t done = atomic_load_explicit(other->done, memory_order_relaxed);
    for (int i = 0; i < CALLS; i++) {
        const staged_call *call = &other->calls[i];
        if (call->number >= number && call->stream == stream && call->end > done) return true;
    }
    return false;
}

/* True if they are ranks of one communicator, on one GPU. */
static bool belong_together(const tutti_comm *a, const tutti_comm *b) {
    return a->id == b->id && a->cuda.streams->index == b->cuda.streams->index;
}

/* Returns the rank that blocks the stream; -1: none. With the lock held. */
static int find(const staged_state *staged, uint64_t number, tutti_stream stream) {
    for (const staged_state *other = first; other != NULL; other = other->next)
        if (other != staged && belong_together(staged->comm, other->comm) && is_held_up(other, number, stream))
            return other->comm->rank;
    return -1;
}

/* Adds the call whose piece was enqueued last. TUTTI_ERR_ARGUMENT: the stream waits for it for another rank here. */
static tutti_status note_stream(staged_state *staged, const tutti_stream_call *call) {
    const tutti_comm *comm = staged->comm;
    if ((uintptr_t)call->stream == TUTTI_STREAM_OF_THREAD) return TUTTI_OK; /* a different stream in each thread */
    tutti_lock(TUTTI_LOCK_STAGED);
    int other = find(staged, call->number, call->stream);
    staged->calls[call->number % CALLS] =
        (staged_call){.number = call->number, .stream = call->stream, .end = staged->enqueued};
    tutti_unlock(TUTTI_LOCK_STAGED);
    return other < 0 ? TUTTI_OK : tutti_stream_shared(comm, call->op, other, comm->rank);
}

static bool fits(const tutti_comm *comm, char *reason_out, size_t capacity) {
    (void)comm;
    (void)reason_out;
    (void)capacity;
    return true;
}

/* -------------------------------------------------------------------------------------- on the worker thread */

static void store_done(staged_state *staged, uint64_t piece) {
    uint64_t before = atomic_load_explicit(staged->done, memory_order_relaxed);
    while (before < piece && !atomic_compare_exchange_weak_explicit(staged->done, &before, piece, memory_order_release,
                                                                    memory_order_relaxed)) {}
}

/* Waits until the piece has arrived from the stream. This takes as long as the earlier work in the stream. */
static tutti_status await_arrival(tutti_comm *comm, const staged_state *staged, uint64_t piece) {
    tutti_backoff backoff = {.yields = true};
    while (atomic_load_explicit(staged->arrived, memory_order_acquire) < piece) {
        TUTTI_TRY(tutti_comm_check(comm));
        if (tutti_p2p_progress()) backoff.rounds = 0;
        tutti_backoff_pause(&backoff);
    }
    return TUTTI_OK;
}

static tutti_status run(tutti_work *work) {
    tutti_comm *comm = work->comm;
    staged_job *job = work->arrays;
    tutti_status status = TUTTI_OK;
    for (size_t k = 0; k < job->pieces && status == TUTTI_OK; k++) {
        status = await_arrival(comm, job->staged, job->before + k + 1);
        if (status != TUTTI_OK) {
            status = tutti_comm_give_up_running(comm, status);
        } else {
            tutti_op piece = piece_of(comm, job, k);
            status = tutti_queue_carry_out(comm, &piece);
        }
        store_done(job->staged, status == TUTTI_OK ? job->before + k + 1 : RELEASED);
    }
    return status;
}

/* -------------------------------------------------------------------------------------- on the calling thread */

static tutti_status copy_parts(const tutti_stream_comm *gpu, const staged_job *job, size_t k, bool to_host,
                               tutti_stream stream) {
    const staged_part *parts = to_host ? job->ins : job->outs;
    size_t item_bytes = tutti_type_bytes(job->op.type);
    for (int i = 0; i < (to_host ? job->nins : job->nouts); i++) {
        size_t bytes = count_of(job, &parts[i], k) * item_bytes;
        if (bytes == 0) continue;
        char *there = parts[i].on_gpu + k * job->piece * item_bytes;
        char *here = place_of(job, &parts[i], k);
        TUTTI_TRY(gpu->device->copy(to_host ? here : there, to_host ? there : here, bytes, stream));
    }
    return TUTTI_OK;
}

static tutti_status enqueue_pieces(const tutti_stream_comm *gpu, const staged_job *job, tutti_stream stream) {
    const staged_state *staged = job->staged;
    const size_t ahead = SLOTS - 1;
    for (size_t k = 0; k < job->pieces + ahead; k++) {
        if (k < job->pieces) {
            TUTTI_TRY(copy_parts(gpu, job, k, /* to_host */ true, stream));
            TUTTI_TRY(gpu->device->write_value(stream, staged->arrived_on_device, job->before + k + 1));
        }
        if (k < ahead) continue;
        TUTTI_TRY(gpu->device->wait_value(stream, staged->done_on_device, job->before + k - ahead + 1));
        TUTTI_TRY(copy_parts(gpu, job, k - ahead, /* to_host */ false, stream));
    }
    return TUTTI_OK;
}

/* Leases memory for a piece that does not fit into a slot. */
static tutti_status lease(const tutti_stream_comm *gpu, staged_job *job) {
    size_t bytes = bytes_of_job(job);
    if (bytes <= job->staged->slot_bytes) return TUTTI_OK;
    return tutti_pinned_lease(gpu->device, bytes, &job->own_slots);
}

/* Pushes the job to the worker's queue. Takes ownership of the job, also on failure. */
static tutti_status push(tutti_comm *comm, staged_job *job, tutti_work **work_out) {
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
static tutti_status mark(const tutti_stream_comm *gpu, const staged_job *job, tutti_stream stream) {
    tutti_stream_event *behind;
    TUTTI_TRY(tutti_stream_chain_extend(&job->staged->chain, gpu->device, stream));
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

static tutti_status enqueue_job(const tutti_stream_comm *gpu, const staged_job *job, tutti_stream stream) {
    TUTTI_TRY(tutti_stream_chain_follow(&job->staged->chain, gpu->device, stream));
    TUTTI_TRY(enqueue_pieces(gpu, job, stream));
    return mark(gpu, job, stream);
}

/* The job is pushed to the worker before it is enqueued in the stream: a stream holds about a thousand operations,
 * and a caller that enqueues more waits until the first pieces have been carried out. */
static tutti_status enqueue(tutti_comm *comm, const tutti_stream_call *call) {
    const tutti_stream_comm *gpu = comm->cuda.streams;
    staged_state *staged = gpu->staged_state;
    staged_job *job;
    tutti_work *work;
    TUTTI_TRY(make_job(comm, call->op, staged->slot_bytes, &job));
    job->staged = staged;
    job->before = staged->enqueued;
    staged->enqueued += job->pieces;
    tutti_status status = note_stream(staged, call);
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
    tutti_stream_comm *gpu = comm->cuda.streams;
    staged_state *staged = gpu->staged_state;
    if (staged == NULL) return;
    gpu->staged_state = NULL;
    leave_streams(staged);
    if (staged->chain.tail != NULL) gpu->device->event_destroy(staged->chain.tail);
    if (staged->torn) {
        tutti_pinned_abandon(staged->memory);
        tutti_stream_event_free(staged->behind);
    } else {
        tutti_pinned_return_after(staged->memory, staged->behind);
    }
    free(staged);
}

static tutti_status open_staged(tutti_comm *comm) {
    tutti_stream_comm *gpu = comm->cuda.streams;
    staged_state *staged;
    TUTTI_TRY(tutti_calloc(1, sizeof *staged, &staged));
    gpu->staged_state = staged;
    staged->comm = comm;
    size_t least = (size_t)comm->nranks * TUTTI_CACHE_LINE;
    size_t wanted = tutti_max_size((size_t)tutti_setting_int(TUTTI_SETTING_CUDA_STAGE_BYTES), least);
    staged->slot_bytes = tutti_align_up(wanted, TUTTI_CACHE_LINE);
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_pinned_lease(gpu->device, WORDS_BYTES + SLOTS * staged->slot_bytes, &staged->memory),
                   fail);
    TUTTI_TRY_GOTO(status, gpu->device->event_create(&staged->chain.tail), fail);
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &staged->behind), fail);
    staged->arrived = (_Atomic uint64_t *)(void *)staged->memory->memory;
    staged->done = (_Atomic uint64_t *)(void *)(staged->memory->memory + WORDS_BYTES / 2);
    staged->arrived_on_device = staged->memory->on_device;
    staged->done_on_device = staged->memory->on_device + WORDS_BYTES / 2;
    staged->slots = staged->memory->memory + WORDS_BYTES;
    enter_streams(staged);
    return TUTTI_OK;
fail:
    close_staged(comm);
    return status;
}

static void abort_staged(tutti_comm *comm) {
    staged_state *staged = comm->cuda.streams->staged_state;
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
