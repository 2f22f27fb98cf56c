/*
 * all_reduce where everybody lends input and output: each rank reduces its slice of the vector and writes the result into
 * everybody's output. Two meetings, whatever the size: the posts, and the end.
 *
 *        rank 0:  | S(0) | S(1) |      rank 0 reads S(0) of both inputs, writes S(0) of both outputs
 *        rank 1:  | S(0) | S(1) |      rank 1 reads S(1) of both inputs, writes S(1) of both outputs
 *
 * Input and output may be one. A line is fetched once, to be written (prefetchw): reading it first and writing it later
 * would cost a second way to its owner's cache. Large outputs, where nobody's is his input, go past the caches. Nobody else
 * touches S(r) than rank r.
 *
 * It is the only algorithm that writes into peers' memory: see settle.h for what that takes when it fails.
 */
#include <signal.h>
#include <string.h>

#include "bootstrap/base/fault.h"
#include "comm/algorithms/shared.h"
#include "comm/slice.h"

/* One of each rank stays in the first-level cache. */
#define BLOCK_BYTES ((size_t)8 << 10)

static inline void prefetch_to_write(const char *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*line)); /* the builtin would emit a read */
#else
    __builtin_prefetch(line, /* write */ 1, /* locality */ 3);
#endif
}

static bool is_in_place(const tutti_comm *comm, const tutti_op *op, int rank) {
    return tutti_shared_posted(comm, op, rank, TUTTI_POST_IN_PLACE);
}

/* The block at `start` of what is left in the others' outputs: `bytes`. */
static void prefetch_block(const tutti_comm *comm, const tutti_op *op, size_t start, size_t bytes) {
    size_t stop = tutti_min_size(start + BLOCK_BYTES, bytes);
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank || !is_in_place(comm, op, rank)) continue;
        for (size_t i = start; i < stop; i += TUTTI_CACHE_LINE) prefetch_to_write(comm->buffers[rank] + i);
    }
}

static void push_block(tutti_comm *comm, const tutti_op *op, size_t bytes) {
    char *own = comm->buffers[comm->rank];
    tutti_shared_reduce_views(comm, op, own, bytes / tutti_type_bytes(op->type));
    for (int rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank) continue;
        if (is_in_place(comm, op, rank)) memcpy(comm->buffers[rank], own, bytes);
        else tutti_slots_write(comm, comm->buffers[rank], own, bytes);
    }
}

/* Through the caches. */
static void push(tutti_comm *comm, const tutti_op *op, size_t bytes) {
    prefetch_block(comm, op, 0, bytes);
    for (size_t done = 0; done < bytes; done += BLOCK_BYTES) {
        prefetch_block(comm, op, BLOCK_BYTES, bytes - done);
        push_block(comm, op, tutti_min_size(BLOCK_BYTES, bytes - done));
        for (int rank = 0; rank < comm->nranks; rank++) {
            comm->views[rank] = (const char *)comm->views[rank] + BLOCK_BYTES;
            comm->buffers[rank] += BLOCK_BYTES;
        }
        if (TUTTI_UNLIKELY(tutti_fault("push_stop"))) raise(SIGSTOP);
    }
}

/* Sets comm->views to all ranks' inputs from `offset` on, comm->buffers to their outputs. */
static tutti_status find_buffers(tutti_comm *comm, const tutti_op *op, size_t offset, size_t bytes) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_post *post = tutti_post_of(comm, op, rank);
        bool own = rank == comm->rank;
        const char *src = own ? op->src : tutti_shared_at(comm, rank, post->src + offset, bytes);
        const char *dst = own ? op->dst : tutti_shared_at(comm, rank, post->dst + offset, bytes);
        if (src == NULL || dst == NULL) return tutti_shared_outside(rank);
        comm->views[rank] = own ? src + offset : src;
        comm->buffers[rank] = (char *)(uintptr_t)(own ? dst + offset : dst);
    }
    return TUTTI_OK;
}

tutti_status tutti_shared_reduce_push(tutti_comm *comm, const tutti_op *op) {
    size_t item_bytes = tutti_type_bytes(op->type);
    tutti_slice own = tutti_slice_of(op->count, item_bytes, comm->nranks, comm->rank);
    TUTTI_TRY(find_buffers(comm, op, own.start * item_bytes, own.count * item_bytes));
    if (tutti_shared_streams(op->count * item_bytes) && !tutti_shared_any_in_place(comm, op))
        tutti_shared_stream_views(comm, op, (void *const *)comm->buffers, comm->nranks, own.count);
    else push(comm, op, own.count * item_bytes);
    return tutti_shared_finish(comm, op, /* lends */ true);
}
