/*
 * all_reduce, reduce and reduce_scatter of any size, sums in rank order.
 *
 * all_reduce, chunk c of the vector (a chunk is what one `in` slot holds); S(r) is rank r's slice of the chunk:
 *
 *   1. copy the chunk, all but S(me), into in[c % 2]; say 2c+1
 *   2. when all have said 2c+1: S(me) of the result = x0 + x1 + ... in rank order, read from all ranks' in[c % 2]
 *      (my own from my buffer), into out[c % 2] and my dst; say 2c+2
 *   3. for each other rank q, when it has said 2c+2: copy S(q) of the result from its out[c % 2] to my dst
 *
 * Steps 1 and 3 vanish for buffers that the others can read where they are; when all ranks' inputs and outputs are
 * such, the whole vector is one chunk: two meetings, whatever its size. reduce: only the root does step 3.
 * in[c % 2] is written again for chunk c + 2, after all said 2(c+1)+1, hence have read it; out[c % 2] likewise.
 *
 * reduce_scatter is steps 1 and 2 with the segments of a split input in place of slices.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/algorithms/shared.h"
#include "comm/slice.h"

typedef struct reduction {
    tutti_comm *comm;
    const tutti_op *op;
    size_t item_bytes;
    bool src_lent, dst_lent; /* my buffers */
    bool all_lent;           /* everybody's: one chunk */
} reduction;

static tutti_status lent_outside(int rank) {
    return tutti_fail(TUTTI_ERR_DATA, "rank %d posted an address outside of its heap", rank);
}

static uint32_t flags_of(const reduction *x, int rank) {
    return tutti_post_of(x->comm, x->op, rank)->flags;
}

static tutti_status post_and_meet(reduction *x, const void *dst) {
    const uint32_t both = TUTTI_POST_SRC_DIRECT | TUTTI_POST_DST_DIRECT;
    tutti_post *post = tutti_post_own(x->comm, x->op);
    post->src = (uint64_t)(uintptr_t)x->op->src;
    post->dst = (uint64_t)(uintptr_t)dst;
    post->slots = (uint64_t)(uintptr_t)x->comm->slots->memory;
    post->rounds = 0;
    post->flags = (x->src_lent ? TUTTI_POST_SRC_DIRECT : 0) | (x->dst_lent ? TUTTI_POST_DST_DIRECT : 0);
    tutti_post_publish(x->comm, x->op);
    TUTTI_TRY(tutti_meet(x->comm, x->op));
    x->all_lent = true;
    for (int rank = 0; rank < x->comm->nranks; rank++) x->all_lent = x->all_lent && (flags_of(x, rank) & both) == both;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------ all_reduce, reduce */

typedef struct chunk {
    uint64_t index;
    size_t start, count; /* elements */
} chunk;

static tutti_slice slice(const reduction *x, const chunk *c, int rank) {
    return tutti_slice_of(c->count, x->item_bytes, x->comm->nranks, rank);
}

/* Step 1: all but my own slice. */
static void stage_chunk(const reduction *x, const chunk *c) {
    char *slot = tutti_slots_in(x->comm->slots, c->index);
    const char *src = (const char *)x->op->src + c->start * x->item_bytes;
    tutti_slice own = slice(x, c, x->comm->rank);
    size_t before = own.start * x->item_bytes, after = (own.start + own.count) * x->item_bytes;
    if (before > 0) memcpy(slot, src, before);
    if (after < c->count * x->item_bytes) memcpy(slot + after, src + after, c->count * x->item_bytes - after);
}

/* Step 2. */
static tutti_status reduce_slice(const reduction *x, const chunk *c) {
    tutti_comm *comm = x->comm;
    tutti_slice own = slice(x, c, comm->rank);
    size_t in_chunk = own.start * x->item_bytes, offset = c->start * x->item_bytes + in_chunk;
    size_t bytes = own.count * x->item_bytes;
    for (int rank = 0; rank < comm->nranks && bytes > 0; rank++) {
        if (rank == comm->rank) {
            comm->views[rank] = (const char *)x->op->src + offset;
        } else if ((flags_of(x, rank) & TUTTI_POST_SRC_DIRECT) != 0) {
            comm->views[rank] = tutti_shared_at(comm, rank, tutti_post_of(comm, x->op, rank)->src + offset, bytes);
            if (comm->views[rank] == NULL) return lent_outside(rank);
        } else {
            tutti_slots slots = tutti_shared_slots_of(comm, x->op, rank);
            comm->views[rank] = tutti_slots_in(&slots, c->index) + in_chunk;
        }
    }
    if (bytes == 0) return TUTTI_OK;
    bool has_output = tutti_op_has_output(x->op, comm->rank);
    bool shows = !x->dst_lent && (x->op->kind == TUTTI_KIND_ALL_REDUCE || comm->rank != x->op->root);
    char *shown = tutti_slots_out(comm->slots, c->index) + in_chunk;
    char *result = has_output ? (char *)x->op->dst + offset : shown;
    tutti_shared_reduce_views(comm, x->op, result, own.count);
    if (shows && result != shown) memcpy(shown, result, bytes);
    return TUTTI_OK;
}

/* Step 3. */
static tutti_status pull_slice(const reduction *x, const chunk *c, int rank) {
    tutti_comm *comm = x->comm;
    tutti_slice theirs = slice(x, c, rank);
    size_t in_chunk = theirs.start * x->item_bytes, offset = c->start * x->item_bytes + in_chunk;
    size_t bytes = theirs.count * x->item_bytes;
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_step_wait(comm, x->op, rank, 2 * c->index + 2));
    const char *result;
    if ((flags_of(x, rank) & TUTTI_POST_DST_DIRECT) != 0) {
        result = tutti_shared_at(comm, rank, tutti_post_of(comm, x->op, rank)->dst + offset, bytes);
        if (result == NULL) return lent_outside(rank);
    } else {
        tutti_slots slots = tutti_shared_slots_of(comm, x->op, rank);
        result = tutti_slots_out(&slots, c->index) + in_chunk;
    }
    memcpy((char *)x->op->dst + offset, result, bytes);
    return TUTTI_OK;
}

static tutti_status reduce_chunk(const reduction *x, const chunk *c) {
    tutti_comm *comm = x->comm;
    if (!x->all_lent) {
        if (!x->src_lent) stage_chunk(x, c);
        tutti_step_publish(comm, x->op, 2 * c->index + 1);
        TUTTI_TRY(tutti_step_wait_all(comm, x->op, 2 * c->index + 1));
    }
    TUTTI_TRY(reduce_slice(x, c));
    tutti_step_publish(comm, x->op, 2 * c->index + 2);
    for (int i = 1; i < comm->nranks && tutti_op_has_output(x->op, comm->rank); i++)
        TUTTI_TRY(pull_slice(x, c, (comm->rank + i) % comm->nranks));
    return TUTTI_OK;
}

static tutti_status reduce_vector(reduction *x) {
    const tutti_op *op = x->op;
    size_t bytes = op->count * x->item_bytes;
    x->src_lent = tutti_shared_lends(x->comm, op->src, bytes);
    x->dst_lent = op->kind == TUTTI_KIND_ALL_REDUCE && tutti_shared_lends(x->comm, op->dst, bytes);
    TUTTI_TRY(post_and_meet(x, op->dst));
    size_t most = x->all_lent ? op->count : x->comm->slots->in_bytes / x->item_bytes;
    chunk c = {.index = 0};
    for (; c.start < op->count; c.start += most, c.index++) {
        c.count = tutti_min_size(most, op->count - c.start);
        TUTTI_TRY(reduce_chunk(x, &c));
    }
    return tutti_shared_finish(x->comm, op, x->src_lent || x->dst_lent);
}

tutti_status tutti_shared_reduce(tutti_comm *comm, const tutti_op *op) {
    reduction x = {.comm = comm, .op = op, .item_bytes = tutti_type_bytes(op->type)};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = reduce_vector(&x);
    tutti_slots_release(comm);
    return status;
}

/* ---------------------------------------------------------------------------------------- reduce_scatter */

static bool lends_segments(const reduction *x) {
    for (int reader = 0; reader < x->comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(x->comm, x->op, reader);
        if (segment.bytes > 0 && !tutti_shared_lends(x->comm, segment.data, segment.bytes)) return false;
    }
    return true;
}

static void stage_segments(const reduction *x, uint64_t round, size_t piece_bytes) {
    char *slot = tutti_slots_in(x->comm->slots, round);
    size_t start = round * piece_bytes;
    for (int reader = 0; reader < x->comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(x->comm, x->op, reader);
        if (reader != x->comm->rank && segment.bytes > start)
            memcpy(slot + (size_t)reader * piece_bytes, segment.data + start,
                   tutti_min_size(piece_bytes, segment.bytes - start));
    }
}

/* Where the piece of `rank`'s input that is meant for me lies. */
static const char *piece_of(const reduction *x, int rank, uint64_t round, size_t piece_bytes, size_t bytes) {
    tutti_comm *comm = x->comm;
    size_t start = round * piece_bytes;
    tutti_span own = tutti_op_input(comm, x->op, comm->rank);
    if (rank == comm->rank) return own.data + start;
    const tutti_post *post = tutti_post_of(comm, x->op, rank);
    tutti_slots slots = tutti_shared_slots_of(comm, x->op, rank);
    if ((post->flags & TUTTI_POST_SRC_DIRECT) == 0)
        return tutti_slots_in(&slots, round) + (size_t)comm->rank * piece_bytes;
    uint64_t segment = x->op->kind == TUTTI_KIND_REDUCE_SCATTER
                           ? post->src + (size_t)comm->rank * own.bytes
                           : tutti_slots_table(&slots, x->op->sequence)[comm->rank].address;
    return tutti_shared_at(comm, rank, segment + start, bytes);
}

static tutti_status reduce_piece(const reduction *x, uint64_t round, size_t piece_bytes) {
    tutti_comm *comm = x->comm;
    tutti_span output = tutti_op_output(comm, x->op, comm->rank);
    size_t start = round * piece_bytes;
    if (output.bytes <= start) return TUTTI_OK;
    size_t bytes = tutti_min_size(piece_bytes, output.bytes - start);
    for (int rank = 0; rank < comm->nranks; rank++) {
        comm->views[rank] = piece_of(x, rank, round, piece_bytes, bytes);
        if (comm->views[rank] == NULL) return lent_outside(rank);
    }
    tutti_shared_reduce_views(comm, x->op, (char *)output.data + start, bytes / x->item_bytes);
    return TUTTI_OK;
}

static tutti_status reduce_segments(reduction *x) {
    tutti_comm *comm = x->comm;
    size_t largest = 0;
    tutti_segment *table = tutti_slots_table(comm->slots, x->op->sequence);
    for (int reader = 0; reader < comm->nranks; reader++) {
        tutti_span segment = tutti_op_input(comm, x->op, reader);
        largest = tutti_max_size(largest, segment.bytes);
        table[reader] = (tutti_segment){.address = (uint64_t)(uintptr_t)segment.data};
    }
    x->src_lent = lends_segments(x);
    x->dst_lent = true; /* nobody reads it */
    TUTTI_TRY(post_and_meet(x, x->op->dst));
    size_t piece_bytes = comm->slots->in_bytes / (size_t)comm->nranks / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    if (x->all_lent) piece_bytes = tutti_max_size(largest, 1);
    uint64_t rounds = (largest + piece_bytes - 1) / piece_bytes;
    for (uint64_t round = 0; round < rounds; round++) {
        if (!x->all_lent) {
            if (round >= 2) TUTTI_TRY(tutti_step_wait_all(comm, x->op, round));
            if (!x->src_lent) stage_segments(x, round, piece_bytes);
            tutti_step_publish(comm, x->op, round + 1);
            TUTTI_TRY(tutti_step_wait_all(comm, x->op, round + 1));
        }
        TUTTI_TRY(reduce_piece(x, round, piece_bytes));
    }
    return tutti_shared_finish(comm, x->op, x->src_lent);
}

tutti_status tutti_shared_reduce_scatter(tutti_comm *comm, const tutti_op *op) {
    reduction x = {.comm = comm, .op = op, .item_bytes = tutti_type_bytes(op->type)};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = reduce_segments(&x);
    tutti_slots_release(comm);
    return status;
}
