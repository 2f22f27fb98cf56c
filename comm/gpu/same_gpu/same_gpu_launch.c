/*
 * The launch: the last rank to post enqueues the call in its stream for all ranks. See same_gpu.h.
 *
 * For each piece: wait until all ranks have theirs ready, reduce or copy from all inputs to all outputs in rank
 * order, and count on `done`. Every pointer of the other ranks is found before the first piece, so that nothing
 * fails half-way.
 */
#include <stdlib.h>

#include "comm/gpu/same_gpu/same_gpu.h"

/* Where one rank's segments are in this process. */
typedef struct party {
    const tutti_same_gpu_post *post;
    char *in_slot, *out_slot; /* NULL: the segments are used in place */
    char **in, **out;         /* by reader, by source; a common segment is entered for all */
    size_t *in_bytes, *out_bytes;
} party;

struct tutti_same_gpu_launch {
    tutti_comm *comm;
    tutti_same_gpu *s;
    tutti_same_gpu_plan *plan;
    uint64_t pieces;
    party parties[];
};

/* -------------------------------------------------------------------------------------------- arriving */

bool tutti_same_gpu_arrive(tutti_same_gpu *s, tutti_same_gpu_post *post, uint64_t place) {
    _Atomic uint64_t *arrived = &s->counters->arrived[place % TUTTI_SAME_GPU_DEPTH].value;
    atomic_store_explicit(&post->number, place, memory_order_release);
    /* The last rank sees everything that all others wrote before. */
    if (atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1 < (uint64_t)s->nranks) return false;
    atomic_store_explicit(arrived, 0, memory_order_relaxed); /* before launched, which frees the place */
    return true;
}

/* --------------------------------------------------------------------------------------------- finding */

static tutti_status find_segments(tutti_same_gpu_launch *launch, int rank, int count,
                                  const tutti_same_gpu_region *regions, char **segments, size_t *bytes) {
    for (int i = 0; i < launch->s->nranks; i++) {
        void *memory = NULL;
        const tutti_same_gpu_region *region = &regions[count == 1 ? 0 : i];
        if (count == 0) continue;
        TUTTI_TRY(tutti_same_gpu_find(launch->s, launch->comm, rank, region, &memory));
        segments[i] = memory;
        bytes[i] = region->bytes;
    }
    return TUTTI_OK;
}

/* Staged segments are not mapped: only their sizes matter. */
static void note_sizes(int nranks, int count, const tutti_same_gpu_region *regions, size_t *bytes) {
    for (int i = 0; i < nranks && count > 0; i++) bytes[i] = regions[count == 1 ? 0 : i].bytes;
}

static tutti_status find_slot(tutti_same_gpu_launch *launch, int rank, const tutti_same_gpu_region *slot,
                              char **slot_out) {
    void *memory;
    TUTTI_TRY(tutti_same_gpu_find(launch->s, launch->comm, rank, slot, &memory));
    *slot_out = memory;
    return TUTTI_OK;
}

static tutti_status find_party(tutti_same_gpu_launch *launch, int rank) {
    party *p = &launch->parties[rank];
    const tutti_same_gpu_post *post = p->post;
    const tutti_same_gpu_region *in = post->regions, *out = post->regions + launch->s->nranks;
    if (post->in_slot.bytes > 0) {
        TUTTI_TRY(find_slot(launch, rank, &post->in_slot, &p->in_slot));
        note_sizes(launch->s->nranks, post->nin, in, p->in_bytes);
    } else {
        TUTTI_TRY(find_segments(launch, rank, post->nin, in, p->in, p->in_bytes));
    }
    if (post->out_slot.bytes > 0) {
        TUTTI_TRY(find_slot(launch, rank, &post->out_slot, &p->out_slot));
        note_sizes(launch->s->nranks, post->nout, out, p->out_bytes);
        return TUTTI_OK;
    }
    return find_segments(launch, rank, post->nout, out, p->out, p->out_bytes);
}

static void count_pieces(tutti_same_gpu_launch *launch) {
    launch->pieces = 1;
    for (int rank = 0; rank < launch->s->nranks; rank++)
        if (launch->parties[rank].post->pieces > launch->pieces) launch->pieces = launch->parties[rank].post->pieces;
}

static tutti_status compare_posts(tutti_same_gpu_launch *launch) {
    tutti_call own = tutti_call_of(launch->plan->op);
    const tutti_same_gpu_post *mine = launch->parties[launch->s->rank].post;
    for (int rank = 0; rank < launch->s->nranks; rank++) {
        const tutti_same_gpu_post *post = launch->parties[rank].post;
        if (post->captured != mine->captured)
            return tutti_fail(TUTTI_ERR_MISMATCH,
                              "%s of communicator \"%s\": rank %d captures it into a CUDA graph, and rank %d does not",
                              tutti_kind_name(own.kind), launch->comm->name, post->captured ? rank : launch->s->rank,
                              post->captured ? launch->s->rank : rank);
        if (post->signature != mine->signature)
            return tutti_calls_differ(launch->comm, &own, rank, &post->call, " (their counts per rank differ)");
    }
    return TUTTI_OK;
}

/* Ranks of one process with one stream: the first caller would wait in it for the other, whose work is behind it. A
 * thread's own default stream has the same handle in all threads. */
static tutti_status compare_streams(const tutti_same_gpu_launch *launch) {
    const tutti_member *members = launch->comm->members;
    for (int rank = 0; rank < launch->s->nranks; rank++)
        for (int other = 0; other < rank; other++) {
            uint64_t stream = launch->parties[rank].post->stream;
            if (members[rank].process != members[other].process || stream == TUTTI_STREAM_OF_THREAD ||
                stream != launch->parties[other].post->stream)
                continue;
            return tutti_stream_shared(launch->comm, launch->plan->op, other, rank);
        }
    return TUTTI_OK;
}

/* Sent and expected sizes must be equal: for v-kinds, whose counts are not part of the signature. */
static tutti_status compare_sizes(tutti_same_gpu_launch *launch) {
    int n = launch->s->nranks;
    if (!tutti_op_collects(launch->plan->op) && !tutti_op_is_split(launch->plan->op)) return TUTTI_OK;
    for (int to = 0; to < n; to++)
        for (int from = 0; from < n; from++) {
            const party *source = &launch->parties[from], *target = &launch->parties[to];
            if (source->post->nin == 0 || target->post->nout == 0) continue;
            if (tutti_op_reduces(launch->plan->op) && from != to) continue;
            if (source->in_bytes[to] == target->out_bytes[from]) continue;
            return tutti_fail(TUTTI_ERR_MISMATCH,
                              "%s of communicator \"%s\": rank %d has %zu bytes for rank %d, which expects %zu",
                              tutti_kind_name(launch->plan->op->kind), launch->comm->name, from, source->in_bytes[to],
                              to, target->out_bytes[from]);
        }
    return TUTTI_OK;
}

static tutti_status create(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                           tutti_same_gpu_launch **launch_out) {
    size_t n = (size_t)s->nranks, heads = sizeof(tutti_same_gpu_launch) + n * sizeof(party);
    char *memory;
    TUTTI_TRY(tutti_calloc(1, heads + n * 4 * n * sizeof(void *), &memory));
    tutti_same_gpu_launch *launch = (tutti_same_gpu_launch *)(void *)memory;
    *launch = (tutti_same_gpu_launch){.comm = comm, .s = s, .plan = plan};
    char **next = (char **)(void *)(memory + heads);
    for (int rank = 0; rank < s->nranks; rank++, next += 4 * n)
        launch->parties[rank] = (party){.post = tutti_same_gpu_post_at(s, rank, plan->place),
                                        .in = next,
                                        .out = next + n,
                                        .in_bytes = (size_t *)(void *)(next + 2 * n),
                                        .out_bytes = (size_t *)(void *)(next + 3 * n)};
    *launch_out = launch;
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_launch_begin(tutti_comm *comm, tutti_same_gpu *s, tutti_same_gpu_plan *plan,
                                         tutti_same_gpu_launch **launch_out) {
    tutti_same_gpu_launch *launch = NULL;
    tutti_status status;
    TUTTI_TRY_GOTO(status, create(comm, s, plan, &launch), fail);
    TUTTI_TRY_GOTO(status, compare_posts(launch), fail);
    TUTTI_TRY_GOTO(status, compare_streams(launch), fail);
    for (int rank = 0; rank < s->nranks; rank++) TUTTI_TRY_GOTO(status, find_party(launch, rank), fail);
    TUTTI_TRY_GOTO(status, compare_sizes(launch), fail);
    count_pieces(launch);
    *launch_out = launch;
    return TUTTI_OK;
fail:
    free(launch);
    return status;
}

/* ------------------------------------------------------------------------------------------- one piece */

/* The piece's part of a rank's input segment for `reader`. */
static const char *input_at(const tutti_same_gpu_launch *launch, int rank, int reader, uint64_t piece, size_t start) {
    const party *p = &launch->parties[rank];
    if (p->in_slot == NULL) return p->in[reader] == NULL ? NULL : p->in[reader] + start;
    size_t segment = p->post->nin == 1 ? 0 : (size_t)reader;
    return p->in_slot + piece % 2 * p->post->in_half + segment * p->post->in_stride;
}

static char *output_at(const tutti_same_gpu_launch *launch, int rank, int source, uint64_t piece, size_t start) {
    const party *p = &launch->parties[rank];
    if (p->out_slot == NULL) return p->out[source] == NULL ? NULL : p->out[source] + start;
    size_t segment = p->post->nout == 1 ? 0 : (size_t)source;
    return p->out_slot + piece % 2 * p->post->out_half + segment * p->post->out_stride;
}

/* Reduces all ranks' segments for `reader` into the outputs of the ranks first..end. */
static tutti_status reduce_segment(const tutti_same_gpu_launch *launch, int reader, int first, int end,
                                   uint64_t piece) {
    const tutti_same_gpu *s = launch->s;
    const tutti_op *op = launch->plan->op;
    size_t start,
        bytes = tutti_same_gpu_piece(launch->parties[first].out_bytes[0], launch->plan->segment_bytes, piece, &start);
    int ndsts = 0;
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_same_gpu_flush(s, launch->plan));
    for (int rank = 0; rank < s->nranks; rank++) {
        s->srcs[rank] = input_at(launch, rank, reader, piece, start);
        s->factors[rank] = launch->parties[rank].post->factor;
    }
    for (int rank = first; rank < end; rank++) s->dsts[ndsts++] = output_at(launch, rank, 0, piece, start);
    const tutti_reduce_args args = {.srcs = s->srcs,
                                    .factors = op->reduction == TUTTI_PREMUL_SUM ? s->factors : NULL,
                                    .nsrcs = s->nranks,
                                    .count = bytes / launch->plan->item_bytes,
                                    .type = op->type,
                                    .reduction = op->reduction,
                                    .divisor = s->nranks};
    return s->device->reduce(&args, s->dsts, ndsts, launch->plan->stream);
}

static tutti_status reduce_piece(const tutti_same_gpu_launch *launch, uint64_t piece) {
    const tutti_op *op = launch->plan->op;
    int n = launch->s->nranks;
    if (op->kind == TUTTI_KIND_ALL_REDUCE) return reduce_segment(launch, 0, 0, n, piece);
    if (op->kind == TUTTI_KIND_REDUCE) return reduce_segment(launch, 0, op->root, op->root + 1, piece);
    for (int rank = 0; rank < n; rank++) TUTTI_TRY(reduce_segment(launch, rank, rank, rank + 1, piece));
    return TUTTI_OK;
}

static tutti_status move_piece(const tutti_same_gpu_launch *launch, uint64_t piece) {
    const tutti_same_gpu *s = launch->s;
    int count = 0;
    for (int to = 0; to < s->nranks; to++)
        for (int from = 0; from < s->nranks; from++) {
            const party *source = &launch->parties[from], *target = &launch->parties[to];
            if (source->post->nin == 0 || target->post->nout == 0) continue;
            size_t start,
                bytes = tutti_same_gpu_piece(source->in_bytes[to], launch->plan->segment_bytes, piece, &start);
            s->srcs[count] = input_at(launch, from, to, piece, start);
            s->dsts[count] = output_at(launch, to, from, piece, start);
            s->bytes[count] = bytes;
            count += bytes > 0 && s->srcs[count] != s->dsts[count]; /* in place: already there */
        }
    if (count == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_same_gpu_flush(s, launch->plan));
    return s->device->copy_many(s->dsts, s->srcs, s->bytes, count, launch->plan->stream);
}

static tutti_status run_piece(const tutti_same_gpu_launch *launch, uint64_t piece) {
    const tutti_op *op = launch->plan->op;
    if (tutti_op_reduces(op)) return reduce_piece(launch, piece);
    return op->kind != TUTTI_KIND_BARRIER ? move_piece(launch, piece) : TUTTI_OK;
}

tutti_status tutti_same_gpu_launch_piece(tutti_same_gpu_launch *launch, uint64_t piece) {
    const tutti_same_gpu *s = launch->s;
    tutti_same_gpu_plan *plan = launch->plan;
    /* A rank with fewer pieces has already counted all of its pieces as ready. */
    TUTTI_TRY(tutti_same_gpu_wait_ready(s, plan, piece + 1));
    TUTTI_TRY(run_piece(launch, piece));
    bool last = piece + 1 == launch->pieces;
    return tutti_same_gpu_say_done(s, plan, last ? TUTTI_SAME_GPU_END : piece + 1);
}

/* Copies this piece of a rank's input to its slot. */
static tutti_status fill_slot(const tutti_same_gpu_launch *launch, int rank, uint64_t piece) {
    const tutti_same_gpu *s = launch->s;
    const party *p = &launch->parties[rank];
    int count = 0;
    for (int i = 0; i < p->post->nin; i++) {
        const tutti_same_gpu_region *region = &p->post->regions[i];
        size_t start, bytes = tutti_same_gpu_piece(region->bytes, launch->plan->segment_bytes, piece, &start);
        if (bytes == 0) continue;
        s->srcs[count] = (const char *)(uintptr_t)region->address + start;
        s->dsts[count] = p->in_slot + piece % 2 * p->post->in_half + (size_t)i * p->post->in_stride;
        s->bytes[count++] = bytes;
    }
    if (count == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_same_gpu_flush(s, launch->plan));
    return s->device->copy_many(s->dsts, s->srcs, s->bytes, count, launch->plan->stream);
}

tutti_status tutti_same_gpu_launch_together(tutti_same_gpu_launch *launch) {
    const tutti_same_gpu *s = launch->s;
    for (int rank = 0; rank < s->nranks; rank++)
        if (rank != s->rank)
            TUTTI_TRY(s->device->stream_wait_event(launch->plan->stream, launch->parties[rank].post->ready));
    for (uint64_t piece = 0; piece < launch->pieces; piece++) {
        for (int rank = 0; rank < s->nranks; rank++)
            if (launch->parties[rank].in_slot != NULL) TUTTI_TRY(fill_slot(launch, rank, piece));
        TUTTI_TRY(run_piece(launch, piece));
    }
    return TUTTI_OK;
}

uint64_t tutti_same_gpu_launch_pieces(const tutti_same_gpu_launch *launch) {
    return launch->pieces;
}

void tutti_same_gpu_launch_drop(tutti_same_gpu_launch *launch) {
    free(launch);
}

void tutti_same_gpu_launch_end(tutti_same_gpu_launch *launch) {
    const tutti_same_gpu *s = launch->s;
    uint64_t place = launch->plan->place, own = (uint64_t)s->rank + 1;
    uint64_t before = atomic_exchange_explicit(&s->counters->launcher, own, memory_order_relaxed);
    if (before != 0 && before != own) atomic_fetch_add_explicit(&s->counters->changes, 1, memory_order_relaxed);
    atomic_store_explicit(&s->counters->launched[place % TUTTI_SAME_GPU_DEPTH].value, place,
                          memory_order_release); /* pairs with claim */
    free(launch);
}
