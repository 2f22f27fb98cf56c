/*
 * reduce_scatter and its v-variant, any size, sums in rank order. Each rank stages the segments for the other
 * ranks, one piece of each at a time, and reduces the pieces for itself. Slots and rounds are those of copy.c; a
 * buffer that the other ranks can read is not staged.
 */
#include <string.h>

#include "comm/shm/coll/shared.h"

typedef struct scatter {
    tutti_comm *comm;
    const tutti_op *op;
    tutti_staging staging;
    size_t item_bytes, piece_bytes;
    uint64_t rounds;
    bool lends;
    bool streams; /* my output is large */
} scatter;

static void stage(const scatter *x, uint64_t round) {
    char *slot = tutti_staging_own(&x->staging, round);
    size_t start = round * x->piece_bytes;
    for (int reader = 0; reader < x->comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(x->comm, x->op, reader);
        if (reader != x->comm->rank && segment.bytes > start)
            tutti_slots_write(x->comm, slot + (size_t)reader * x->piece_bytes, segment.data + start,
                              tutti_min_size(x->piece_bytes, segment.bytes - start));
    }
}

/* Fills the table, and returns the largest segment, which is equal on all ranks, since the counts are. */
static size_t largest_segment(const scatter *x) {
    size_t largest = 0;
    tutti_count_entry *table = tutti_slots_table(x->comm->shm.slots, x->op->sequence);
    for (int reader = 0; reader < x->comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(x->comm, x->op, reader);
        largest = tutti_max_size(largest, segment.bytes);
        table[reader] = (tutti_count_entry){.address = (uint64_t)(uintptr_t)segment.data};
    }
    return largest;
}

static tutti_status begin(scatter *x) {
    tutti_comm *comm = x->comm;
    size_t n = (size_t)comm->nranks, largest = largest_segment(x);
    x->piece_bytes = tutti_staging_piece(comm, largest, n);
    x->rounds = (largest + x->piece_bytes - 1) / x->piece_bytes;
    x->lends = tutti_shared_lends_segments(comm, x->op);
    tutti_span output = tutti_op_output(comm, x->op, comm->rank);
    /* Each rank reads n times its output, so the shared cache is full sooner: at half of the outputs (from trials). */
    x->streams =
        output.data != tutti_op_input(comm, x->op, comm->rank).data && tutti_shared_streams(comm, 2 * output.bytes);
    TUTTI_TRY(tutti_staging_begin(comm, x->op, n * x->piece_bytes, &x->staging));
    if (!x->lends) stage(x, 0);
    tutti_staging_post(&x->staging, x->rounds, x->lends ? TUTTI_POST_SRC_DIRECT : 0);
    return tutti_meet(comm, x->op);
}

/* Finds the piece of `rank`'s input for this rank, and waits until it is there. */
static tutti_status find_piece(const scatter *x, int rank, uint64_t round, size_t bytes) {
    tutti_comm *comm = x->comm;
    size_t start = round * x->piece_bytes;
    tutti_span own = tutti_op_input(comm, x->op, comm->rank);
    if (rank == comm->rank) {
        comm->shm.views[rank] = own.data + start;
    } else if (tutti_shared_posted(comm, x->op, rank, TUTTI_POST_SRC_DIRECT)) {
        uint64_t segment = x->op->kind == TUTTI_KIND_REDUCE_SCATTER
                               ? tutti_post_of(comm, x->op, rank)->src + (size_t)comm->rank * own.bytes
                               : tutti_shared_table_of(comm, x->op, rank)[comm->rank].address;
        TUTTI_TRY(tutti_shared_at(comm, rank, segment + start, bytes, &comm->shm.views[rank]));
    } else {
        if (round > 0) TUTTI_TRY(tutti_step_wait(comm, x->op, rank, round + 1));
        comm->shm.views[rank] = tutti_staging_of(&x->staging, rank, round) + (size_t)comm->rank * x->piece_bytes;
    }
    return TUTTI_OK;
}

static tutti_status reduce_piece(const scatter *x, uint64_t round) {
    tutti_span output = tutti_op_output(x->comm, x->op, x->comm->rank);
    size_t start = round * x->piece_bytes;
    if (output.bytes <= start) return TUTTI_OK;
    size_t bytes = tutti_min_size(x->piece_bytes, output.bytes - start);
    for (int rank = 0; rank < x->comm->nranks; rank++) TUTTI_TRY(find_piece(x, rank, round, bytes));
    void *dst = (char *)output.data + start;
    if (x->streams) tutti_shared_stream_views(x->comm, x->op, &dst, 1, bytes / x->item_bytes);
    else tutti_shared_reduce_views(x->comm, x->op, dst, bytes / x->item_bytes);
    return TUTTI_OK;
}

static tutti_status run(scatter *x) {
    TUTTI_TRY(begin(x));
    for (uint64_t round = 0; round < x->rounds; round++) {
        uint64_t next = round + x->staging.ahead;
        if (next > 0 && next < x->rounds && !x->lends) {
            TUTTI_TRY(tutti_staging_await(&x->staging, next, 1));
            stage(x, next);
        }
        if (x->rounds > 1) tutti_progress_publish(x->comm, x->op, next + 1);
        TUTTI_TRY(reduce_piece(x, round));
    }
    if (!x->lends) tutti_staging_end(&x->staging, x->rounds);
    return tutti_shared_finish(x->comm, x->op, x->lends);
}

tutti_status tutti_shared_reduce_scatter(tutti_comm *comm, const tutti_op *op) {
    scatter x = {.comm = comm, .op = op, .item_bytes = tutti_type_bytes(op->type)};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = run(&x);
    tutti_slots_release(comm);
    return status;
}
