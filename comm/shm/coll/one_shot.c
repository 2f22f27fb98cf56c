/*
 * all_reduce and reduce where every rank that has an output reduces the whole vector: one meeting, and one step per
 * chunk. For 2 ranks, where it moves as many bytes between them as reducing half each would, and for vectors so short
 * that a second step costs more than reducing them n times.
 *
 *   1. copy chunk 0 into the first slot; post, meet
 *   2. chunk c > 0: wait until the slot is free; copy chunk c into it; publish c + 1
 *   3. each chunk: when the others have published c + 1: my dst = x0 + x1 + ... in rank order, from their slots and
 *      my src
 *
 * Step 2 of the next chunk may come before step 3 (shared.h says why).
 *
 * A source that the other ranks can read is not copied, unless its owner overwrites it (in place) while they still read
 * it. If all ranks lend input and output, slices are faster (push.c). This is known only after the meeting, so a rank
 * that overwrites an input that it could lend stages nothing before the meeting.
 */
#include "comm/shm/coll/shared.h"

/* A line that is in its reader's cache is expensive to write: for short vectors, more than reducing them twice. */
#define LEAST_SLICED_BYTES ((size_t)96 << 10)

typedef struct whole {
    tutti_comm *comm;
    const tutti_op *op;
    tutti_staging staging;
    size_t item_bytes, chunk_bytes, bytes;
    uint64_t rounds, staged; /* staged: chunks in slots, so far */
    bool stages, lends;
    bool late;    /* stages, if at all, after the meeting */
    bool streams; /* my output is large */
} whole;

static size_t bytes_of(const whole *w, uint64_t round) {
    return tutti_min_size(w->chunk_bytes, w->bytes - round * w->chunk_bytes);
}

static void stage(const whole *w, uint64_t round) {
    tutti_slots_write(w->comm, tutti_staging_own(&w->staging, round), (const char *)w->op->src + round * w->chunk_bytes,
                      bytes_of(w, round));
}

static tutti_status begin(whole *w) {
    tutti_comm *comm = w->comm;
    const tutti_op *op = w->op;
    bool read = !tutti_op_has_sink(op) || comm->rank != op->root;
    bool overwrites = op->kind == TUTTI_KIND_ALL_REDUCE && op->src == op->dst;
    w->item_bytes = tutti_type_bytes(op->type);
    w->bytes = op->count * w->item_bytes;
    w->chunk_bytes = tutti_staging_piece(comm, w->bytes, 1);
    w->rounds = (w->bytes + w->chunk_bytes - 1) / w->chunk_bytes;
    uint32_t flags = tutti_shared_flags(comm, op);
    bool src_lent = (flags & TUTTI_POST_SRC_DIRECT) != 0;
    w->lends = read && src_lent && !overwrites;
    w->stages = read && !w->lends && w->bytes > 0;
    w->late = w->stages && src_lent;
    w->streams = op->src != op->dst && tutti_shared_streams(comm, w->bytes);
    TUTTI_TRY(tutti_staging_begin(comm, op, w->chunk_bytes, &w->staging));
    if (w->stages && !w->late) stage(w, w->staged++);
    tutti_staging_post(&w->staging, w->rounds, flags | (w->late ? 0 : TUTTI_POST_STAGED));
    return tutti_shared_meet(comm, op);
}

/* True if any rank overwrites its input. */
static bool any_in_place(const tutti_comm *comm, const tutti_op *op) {
    bool in_place = false;
    for (int rank = 0; rank < comm->nranks; rank++)
        in_place = in_place || tutti_shared_posted(comm, op, rank, TUTTI_POST_IN_PLACE);
    return in_place;
}

/* True if all ranks lend input and output, and a rank overwrites its input or the vector is long. */
static bool is_for_slices(const whole *w) {
    if (w->op->kind != TUTTI_KIND_ALL_REDUCE || !tutti_shared_all_lend(w->comm, w->op)) return false;
    return w->bytes >= LEAST_SLICED_BYTES || any_in_place(w->comm, w->op);
}

static bool is_direct(const whole *w, int rank) {
    return (tutti_post_of(w->comm, w->op, rank)->flags & (TUTTI_POST_SRC_DIRECT | TUTTI_POST_IN_PLACE)) ==
           TUTTI_POST_SRC_DIRECT;
}

/* Step 2 of the chunks before `end`. */
static tutti_status stage_until(whole *w, uint64_t end) {
    while (w->staged < end && w->staged < w->rounds) {
        if (w->staged > 0) TUTTI_TRY(tutti_staging_await(&w->staging, w->staged, 1));
        stage(w, w->staged++);
        tutti_progress_publish(w->comm, w->op, w->staged);
    }
    return TUTTI_OK;
}

static bool is_staged(const whole *w, int rank, uint64_t round) {
    if (round == 0 && tutti_shared_posted(w->comm, w->op, rank, TUTTI_POST_STAGED)) return true;
    return tutti_flag_reached(&w->comm->members[rank].page->step, tutti_progress_at(w->op->sequence, round + 1));
}

/* True if this rank stages the next chunk before it reduces this one. The inputs of this one have left the core's own
 * cache then. That does not matter if they come from the last-level cache or the ranks' cores are distant, nor if this
 * rank would wait. (32 MiB in place between 2 near ranks, otherwise, take 1.1 times as long.) */
static bool goes_ahead(const whole *w, uint64_t round) {
    if (!tutti_op_has_output(w->op, w->comm->rank)) return false;
    if (!tutti_shared_streams(w->comm, w->bytes) || w->comm->shm.store_policy.streams) return true;
    for (int rank = 0; rank < w->comm->nranks; rank++)
        if (rank != w->comm->rank && !is_direct(w, rank) && !is_staged(w, rank, round)) return true;
    return false;
}

static tutti_status stage_round(whole *w, uint64_t round) {
    uint64_t ahead = w->staging.ahead;
    if (w->stages) {
        TUTTI_TRY(stage_until(w, round + 1));
        if (round + 1 < w->rounds && goes_ahead(w, round)) TUTTI_TRY(stage_until(w, round + 1 + ahead));
    } else if (w->rounds > 1) {
        tutti_progress_publish(w->comm, w->op, round + 1 + ahead);
    }
    return TUTTI_OK;
}

/* Step 3. */
static tutti_status reduce_chunk(const whole *w, uint64_t round) {
    tutti_comm *comm = w->comm;
    size_t start = round * w->chunk_bytes, bytes = bytes_of(w, round);
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank) {
            comm->shm.views[rank] = (const char *)w->op->src + start;
        } else if (is_direct(w, rank)) {
            uint64_t address = tutti_post_of(comm, w->op, rank)->src + start;
            TUTTI_TRY(tutti_shared_at(comm, rank, address, bytes, &comm->shm.views[rank]));
        } else {
            if (!is_staged(w, rank, round)) TUTTI_TRY(tutti_step_wait(comm, w->op, rank, round + 1));
            comm->shm.views[rank] = tutti_staging_of(&w->staging, rank, round);
        }
    }
    void *dst = (char *)w->op->dst + start;
    if (w->streams) tutti_shared_stream_views(comm, w->op, &dst, 1, bytes / w->item_bytes);
    else tutti_shared_reduce_views(comm, w->op, dst, bytes / w->item_bytes);
    return TUTTI_OK;
}

static tutti_status run(whole *w) {
    tutti_comm *comm = w->comm;
    TUTTI_TRY(begin(w));
    if (is_for_slices(w)) return tutti_shared_reduce_push(comm, w->op);
    for (uint64_t round = 0; round < w->rounds; round++) {
        TUTTI_TRY(stage_round(w, round));
        if (tutti_op_has_output(w->op, comm->rank)) TUTTI_TRY(reduce_chunk(w, round));
    }
    if (w->stages) tutti_staging_end(&w->staging, w->rounds);
    return tutti_shared_finish(comm, w->op, w->lends);
}

tutti_status tutti_shared_one_shot(tutti_comm *comm, const tutti_op *op) {
    whole w = {.comm = comm, .op = op};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = run(&w);
    tutti_slots_release(comm);
    return status;
}
