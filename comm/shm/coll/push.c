/*
 * all_reduce where all ranks lend input and output: each rank reduces its slice of the vector and writes the result
 * into the outputs of all ranks. Two meetings, whatever the size: the posts, and the end.
 *
 *        rank 0:  | S(0) | S(1) |      rank 0 reads S(0) of both inputs, writes S(0) of both outputs
 *        rank 1:  | S(0) | S(1) |      rank 1 reads S(1) of both inputs, writes S(1) of both outputs
 *
 * In place, a line is fetched once, for writing (prefetchw): fetching it for reading first and for writing later would
 * cost a second trip to its owner's cache. Large outputs that are not in place are written past the caches. Only rank r
 * accesses S(r).
 *
 * This is the only algorithm that writes into peers' memory: see quiesce.h for what that requires after a failure.
 */
#include <signal.h>
#include <string.h>

#include "comm/base/cacheline.h"
#include "comm/base/slice.h"
#include "comm/shm/coll/shared.h"

/* One block of each rank fits into the first-level cache. */
#define BLOCK_BYTES ((size_t)8 << 10)

/* `offset`: start of a block in my slice, which ends at `end`. */
static void prefetch_block(const tutti_comm *comm, size_t offset, size_t end) {
    size_t stop = tutti_min_size(offset + BLOCK_BYTES, end);
    for (int rank = 0; rank < comm->nranks; rank++)
        for (size_t i = offset; i < stop && rank != comm->rank; i += TUTTI_CACHE_LINE)
            tutti_prefetch_to_write(comm->shm.buffers[rank] + i);
}

/* All ranks overwrite their inputs: comm->views are comm->buffers plus `offset`. */
static void push_block_in_place(tutti_comm *comm, const tutti_op *op, size_t offset, size_t bytes) {
    for (int rank = 0; rank < comm->nranks; rank++) comm->shm.views[rank] = comm->shm.buffers[rank] + offset;
    char *own = comm->shm.buffers[comm->rank] + offset;
    tutti_shared_reduce_views(comm, op, own, bytes / tutti_type_bytes(op->type));
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank) memcpy(comm->shm.buffers[rank] + offset, own, bytes);
}

static void push_in_place(tutti_comm *comm, const tutti_op *op, size_t end) {
    prefetch_block(comm, 0, end);
    for (size_t offset = 0; offset < end; offset += BLOCK_BYTES) {
        prefetch_block(comm, offset + BLOCK_BYTES, end);
        push_block_in_place(comm, op, offset, tutti_min_size(BLOCK_BYTES, end - offset));
        if (TUTTI_UNLIKELY(tutti_fault("push_stop"))) raise(SIGSTOP);
    }
}

/* Not in place: the old lines of the outputs may be in their owners' caches, which makes them expensive to write. */
static void push_apart(tutti_comm *comm, const tutti_op *op, size_t end) {
    for (size_t offset = 0; offset < end; offset += BLOCK_BYTES) {
        size_t bytes = tutti_min_size(BLOCK_BYTES, end - offset);
        char *own = comm->shm.buffers[comm->rank] + offset;
        tutti_shared_reduce_views(comm, op, own, bytes / tutti_type_bytes(op->type));
        for (int rank = 0; rank < comm->nranks; rank++) {
            if (rank != comm->rank) tutti_slots_write(comm, comm->shm.buffers[rank] + offset, own, bytes);
            comm->shm.views[rank] = (const char *)comm->shm.views[rank] + bytes;
        }
        if (TUTTI_UNLIKELY(tutti_fault("push_stop"))) raise(SIGSTOP);
    }
}

static bool is_in_place(const tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (comm->shm.views[rank] != comm->shm.buffers[rank]) return false;
    return true;
}

/* Sets comm->views to the inputs of all ranks, from `offset` on, and comm->buffers to their outputs. */
static tutti_status find_buffers(tutti_comm *comm, const tutti_op *op, size_t offset, size_t bytes) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_post *post = tutti_post_of(comm, op, rank);
        const void *src = (const char *)op->src + offset, *dst = (const char *)op->dst + offset;
        if (rank != comm->rank) {
            TUTTI_TRY(tutti_shared_at(comm, rank, post->src + offset, bytes, &src));
            TUTTI_TRY(tutti_shared_at(comm, rank, post->dst + offset, bytes, &dst));
        }
        comm->shm.views[rank] = src;
        comm->shm.buffers[rank] = (char *)(uintptr_t)dst;
    }
    return TUTTI_OK;
}

tutti_status tutti_shared_reduce_push(tutti_comm *comm, const tutti_op *op) {
    size_t item_bytes = tutti_type_bytes(op->type);
    tutti_slice own = tutti_slice_of(op->count, item_bytes, comm->nranks, comm->rank);
    TUTTI_TRY(find_buffers(comm, op, own.start * item_bytes, own.count * item_bytes));
    if (is_in_place(comm)) push_in_place(comm, op, own.count * item_bytes);
    else if (tutti_shared_streams(comm, op->count * item_bytes))
        tutti_shared_stream_views(comm, op, (void *const *)comm->shm.buffers, comm->nranks, own.count);
    else push_apart(comm, op, own.count * item_bytes);
    return tutti_shared_finish(comm, op, /* lends */ true);
}
