/*
 * all_reduce and reduce of any size where each rank reduces a slice, sums in rank order.
 *
 * Chunk c of the vector is what one slot holds; S(r) is rank r's slice of the chunk. A slot has the chunk's layout: the
 * owner's input for the other ranks, and the result in the place of its own slice.
 *
 *      slot of rank 1:  | x1 for S(0) | result of S(1) | x1 for S(2) | ...
 *
 *   1. copy the chunk, all but S(me), into the slot; publish 2c+1 (chunk 0: before the post, which implies it)
 *   2. when all have published 2c+1: S(me) of the result = x0 + x1 + ... in rank order, read from all ranks' slots (my
 *      own from my buffer), into my dst and my slot; publish 2c+2
 *   3. for each other rank q, when it has published 2c+2: copy S(q) of the result from its slot to my dst
 *
 * Step 1 of the next chunk comes before step 3 (shared.h says why). Step 1, and the copy into the slot in step 2, are
 * skipped for buffers that the other ranks can read in place; if all buffers are such, push.c does the rest. reduce:
 * only the root does step 3. The slot is reused for chunk c + depth after all ranks have published 2(c+2)+1 (2(c+1)+1
 * if step 1 does not come earlier), and hence have read it.
 */
#include "comm/base/slice.h"
#include "comm/shm/coll/shared.h"

/* The result is copied from dst to the slot in blocks that stay in the first-level cache. */
#define BLOCK_BYTES ((size_t)16 << 10)

typedef struct reduction {
    tutti_comm *comm;
    const tutti_op *op;
    tutti_staging staging;
    size_t item_bytes;
    size_t most;             /* elements of a chunk */
    bool src_lent, dst_lent; /* my buffers are lent */
    bool streams;            /* my output is large */
} reduction;

typedef struct chunk {
    uint64_t index;
    size_t start, count; /* elements */
} chunk;

static tutti_slice slice(const reduction *x, const chunk *c, int rank) {
    return tutti_slice_of(c->count, x->item_bytes, x->comm->nranks, rank);
}

/* Step 1: stages all but my own slice. */
static void stage(const reduction *x, const chunk *c) {
    char *slot = tutti_staging_own(&x->staging, c->index);
    const char *src = (const char *)x->op->src + c->start * x->item_bytes;
    tutti_slice own = slice(x, c, x->comm->rank);
    size_t before = own.start * x->item_bytes, after = (own.start + own.count) * x->item_bytes;
    if (before > 0) tutti_slots_write(x->comm, slot, src, before);
    if (after < c->count * x->item_bytes)
        tutti_slots_write(x->comm, slot + after, src + after, c->count * x->item_bytes - after);
}

static chunk chunk_at(const reduction *x, uint64_t index) {
    size_t start = (size_t)index * x->most;
    return (chunk){.index = index, .start = start, .count = tutti_min_size(x->most, x->op->count - start)};
}

/* Step 1 of chunk `index` >= 1, if there is one. */
static tutti_status prepare(const reduction *x, uint64_t index) {
    if ((size_t)index * x->most >= x->op->count) return TUTTI_OK;
    chunk c = chunk_at(x, index);
    TUTTI_TRY(tutti_staging_await(&x->staging, index, 2));
    if (!x->src_lent) stage(x, &c);
    tutti_progress_publish(x->comm, x->op, 2 * index + 1);
    return TUTTI_OK;
}

static tutti_status begin(reduction *x) {
    tutti_comm *comm = x->comm;
    const tutti_op *op = x->op;
    uint32_t flags = tutti_shared_flags(comm, op);
    x->src_lent = (flags & TUTTI_POST_SRC_DIRECT) != 0;
    x->dst_lent = (flags & TUTTI_POST_DST_DIRECT) != 0;
    TUTTI_TRY(tutti_staging_begin(comm, op, x->most * x->item_bytes, &x->staging));
    if (!x->src_lent && op->count > 0) {
        chunk first = chunk_at(x, 0);
        stage(x, &first);
    }
    tutti_staging_post(&x->staging, /* rounds */ 0, flags);
    return tutti_meet(comm, op);
}

/* Sets comm->views to all inputs for my slice: at `offset` in the vector, at `in_chunk` in the slice's chunk. */
static tutti_status find_inputs(const reduction *x, const chunk *c, size_t offset, size_t in_chunk, size_t bytes) {
    tutti_comm *comm = x->comm;
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank) {
            comm->shm.views[rank] = (const char *)x->op->src + offset;
        } else if (tutti_shared_posted(comm, x->op, rank, TUTTI_POST_SRC_DIRECT)) {
            uint64_t address = tutti_post_of(comm, x->op, rank)->src + offset;
            TUTTI_TRY(tutti_shared_at(comm, rank, address, bytes, &comm->shm.views[rank]));
        } else {
            comm->shm.views[rank] = tutti_staging_of(&x->staging, rank, c->index) + in_chunk;
        }
    }
    return TUTTI_OK;
}

/* Step 2. */
static tutti_status reduce_slice(const reduction *x, const chunk *c) {
    tutti_comm *comm = x->comm;
    tutti_slice own = slice(x, c, comm->rank);
    size_t in_chunk = own.start * x->item_bytes, offset = c->start * x->item_bytes + in_chunk;
    size_t bytes = own.count * x->item_bytes;
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(find_inputs(x, c, offset, in_chunk, bytes));
    bool has_output = tutti_op_has_output(x->op, comm->rank);
    bool shows = !x->dst_lent && (x->op->kind == TUTTI_KIND_ALL_REDUCE || !has_output);
    char *shown = shows ? tutti_staging_own(&x->staging, c->index) + in_chunk : NULL;
    size_t block = shows && has_output ? BLOCK_BYTES : bytes;
    for (size_t done = 0; done < bytes; done += block) {
        size_t part = tutti_min_size(block, bytes - done);
        char *result = has_output ? (char *)x->op->dst + offset + done : shown + done;
        tutti_shared_reduce_views(comm, x->op, result, part / x->item_bytes);
        if (shows && has_output) tutti_slots_write(comm, shown + done, result, part);
        for (int rank = 0; rank < comm->nranks; rank++)
            comm->shm.views[rank] = (const char *)comm->shm.views[rank] + part;
    }
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
    const void *result = tutti_staging_of(&x->staging, rank, c->index) + in_chunk;
    if (tutti_shared_posted(comm, x->op, rank, TUTTI_POST_DST_DIRECT))
        TUTTI_TRY(tutti_shared_at(comm, rank, tutti_post_of(comm, x->op, rank)->dst + offset, bytes, &result));
    tutti_shared_copy_out((char *)x->op->dst + offset, result, bytes, x->streams);
    return TUTTI_OK;
}

static tutti_status reduce_chunk(const reduction *x, const chunk *c) {
    tutti_comm *comm = x->comm;
    bool ahead = x->staging.ahead > 0;
    if (c->index > 0) {
        if (!ahead) TUTTI_TRY(prepare(x, c->index));
        TUTTI_TRY(tutti_progress_wait_all(comm, x->op, 2 * c->index + 1));
    }
    TUTTI_TRY(reduce_slice(x, c));
    tutti_progress_publish(comm, x->op, 2 * c->index + 2);
    if (ahead) TUTTI_TRY(prepare(x, c->index + 1));
    for (int i = 1; i < comm->nranks && tutti_op_has_output(x->op, comm->rank); i++)
        TUTTI_TRY(pull_slice(x, c, (comm->rank + i) % comm->nranks));
    return TUTTI_OK;
}

static tutti_status reduce_chunks(reduction *x) {
    uint64_t index = 0;
    x->streams = x->op->src != x->op->dst && tutti_shared_streams(x->comm, x->op->count * x->item_bytes);
    for (; (size_t)index * x->most < x->op->count; index++) {
        chunk c = chunk_at(x, index);
        TUTTI_TRY(reduce_chunk(x, &c));
    }
    tutti_staging_end(&x->staging, index);
    return tutti_shared_finish(x->comm, x->op, x->src_lent || x->dst_lent);
}

static tutti_status run(reduction *x) {
    x->most = tutti_staging_piece(x->comm, x->op->count * x->item_bytes, 1) / x->item_bytes;
    TUTTI_TRY(begin(x));
    bool pushes = x->op->kind == TUTTI_KIND_ALL_REDUCE && tutti_shared_all_lend(x->comm, x->op);
    return pushes ? tutti_shared_reduce_push(x->comm, x->op) : reduce_chunks(x);
}

tutti_status tutti_shared_two_shot(tutti_comm *comm, const tutti_op *op) {
    reduction x = {.comm = comm, .op = op, .item_bytes = tutti_type_bytes(op->type)};
    TUTTI_TRY(tutti_slots_acquire(comm, op));
    tutti_status status = run(&x);
    tutti_slots_release(comm);
    return status;
}
