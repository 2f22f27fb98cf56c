/*
 * all_reduce and reduce_scatter of short vectors where ranks share cores. Each core must run each of its ranks once
 * before a call can end. So each element of the result is computed once, not by every rank (inline.c, one_shot.c), and
 * after one meeting: a second one (two_shot.c) would be another turn of every rank.
 *
 *   1. put the input into the post, or a longer one into a slot; post, meet
 *   2. while there are unclaimed pieces of the vector, claim one: piece of the result = x0 + x1 + ... in rank order,
 *      into the post or slot of one rank, the keeper, in the place of its input
 *   3. when all pieces are done, copy the result from the keeper
 *
 * Step 2 is done by the rank that arrives last, and by the ranks that run on the other cores at that time. An output
 * may be its input: no rank writes its output before all inputs have been read. As in one_shot.c, an input in memory
 * that the other ranks can read is not copied if the call is in place, and push.c does the rest if all are such.
 */
#include "comm/shm/coll/shared.h"
#include "comm/shm/heap.h"

/* Input bytes of all ranks in a piece; less is not worth claiming. */
#define PIECE_BYTES ((size_t)128 << 10)

typedef struct combination {
    tutti_comm *comm;
    const tutti_op *op;
    size_t bytes, piece_bytes; /* of an input */
    uint64_t pieces;
    int keeper;     /* rank whose post or slot gets the result */
    bool is_inline; /* inputs are in the posts */
    tutti_staging staging;
} combination;

/* Where the input of `rank` lies for the other ranks, and the result if it is the keeper. */
static char *place_of(const combination *c, int rank) {
    if (!c->is_inline) return (char *)tutti_staging_of(&c->staging, rank, 0);
    return (char *)tutti_post_of(c->comm, c->op, rank)->payload + tutti_post_payload_at(c->bytes);
}

static tutti_status begin(combination *c) {
    tutti_comm *comm = c->comm;
    if (c->is_inline) {
        if (c->bytes > 0) tutti_copy_lines(place_of(c, comm->rank), c->op->src, c->bytes);
        tutti_post_publish(comm, c->op);
        return tutti_meet(comm, c->op);
    }
    TUTTI_TRY(tutti_staging_begin(comm, c->op, tutti_align_up(c->bytes, TUTTI_CACHE_LINE), &c->staging));
    uint32_t flags = tutti_shared_flags(comm, c->op);
    if ((flags & TUTTI_POST_SRC_DIRECT) == 0)
        tutti_slots_write(comm, tutti_staging_own(&c->staging, 0), c->op->src, c->bytes);
    tutti_staging_post(&c->staging, 1, flags);
    return tutti_meet(comm, c->op);
}

static tutti_status combine_piece(const combination *c, uint64_t piece) {
    tutti_comm *comm = c->comm;
    size_t start = (size_t)piece * c->piece_bytes, bytes = tutti_min_size(c->piece_bytes, c->bytes - start);
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (!c->is_inline && tutti_shared_posted(comm, c->op, rank, TUTTI_POST_SRC_DIRECT)) {
            uint64_t address = tutti_post_of(comm, c->op, rank)->src + start;
            TUTTI_TRY(tutti_shared_at(comm, rank, address, bytes, &comm->shm.views[rank]));
        } else {
            comm->shm.views[rank] = place_of(c, rank) + start;
        }
    }
    tutti_shared_reduce_views(comm, c->op, place_of(c, c->keeper) + start, bytes / tutti_type_bytes(c->op->type));
    return TUTTI_OK;
}

static tutti_status run(combination *c) {
    tutti_comm *comm = c->comm;
    const tutti_op *op = c->op;
    uint64_t piece;
    TUTTI_TRY(begin(c));
    if (!c->is_inline && tutti_shared_all_lend(comm, op)) return tutti_shared_reduce_push(comm, op);
    tutti_claims_begin(comm, op, c->pieces);
    while (tutti_claims_next(comm, op, c->pieces, &piece)) {
        TUTTI_TRY(combine_piece(c, piece));
        tutti_claims_done(comm, op);
    }
    TUTTI_TRY(tutti_claims_wait(comm, op));
    size_t bytes = op->count * tutti_type_bytes(op->type);
    size_t start = tutti_op_is_split(op) ? (size_t)comm->rank * bytes : 0;
    if (bytes > 0) tutti_copy_lines(op->dst, place_of(c, c->keeper) + start, bytes);
    if (!c->is_inline) tutti_staging_end(&c->staging, 1);
    return tutti_shared_finish(comm, op, /* lends */ false);
}

tutti_status tutti_shared_combine(tutti_comm *comm, const tutti_op *op) {
    combination c = {.comm = comm, .op = op, .bytes = tutti_op_input_bytes(comm, op)};
    size_t piece_bytes = PIECE_BYTES / (size_t)comm->nranks;
    c.piece_bytes = tutti_align_up(tutti_max_size(piece_bytes, 1), TUTTI_CACHE_LINE);
    c.pieces = (c.bytes + c.piece_bytes - 1) / c.piece_bytes;
    c.keeper = (int)(op->sequence % (uint64_t)comm->nranks);
    c.is_inline = c.bytes <= TUTTI_POST_INLINE_BYTES;
    if (c.is_inline) return run(&c);
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = run(&c);
    tutti_slots_release(comm);
    return status;
}
