/*
 * all_reduce in place, where everybody lends his buffer: each rank reduces its slice of the vector and writes the result
 * into everybody's buffer. Two meetings, whatever the size: the posts, and the end.
 *
 *        rank 0:  | S(0) | S(1) |      rank 0 reads S(0) of both, writes S(0) of both
 *        rank 1:  | S(0) | S(1) |      rank 1 reads S(1) of both, writes S(1) of both
 *
 * A line is fetched once, to be written (prefetchw): reading it first and writing it later would cost a second way to its
 * owner's cache. Nobody else touches S(r) than rank r.
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

/* `offset`: of a block in the vector, up to `end`. */
static void prefetch_block(const tutti_comm *comm, char *const *buffers, size_t offset, size_t end) {
    size_t stop = tutti_min_size(offset + BLOCK_BYTES, end);
    for (int rank = 0; rank < comm->nranks; rank++)
        for (size_t i = offset; i < stop && rank != comm->rank; i += TUTTI_CACHE_LINE)
            prefetch_to_write(buffers[rank] + i);
}

static void push_block(tutti_comm *comm, const tutti_op *op, char *const *buffers, size_t offset, size_t bytes) {
    for (int rank = 0; rank < comm->nranks; rank++) comm->views[rank] = buffers[rank] + offset;
    char *own = buffers[comm->rank] + offset;
    tutti_shared_reduce_views(comm, op, own, bytes / tutti_type_bytes(op->type));
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank) memcpy(buffers[rank] + offset, own, bytes);
}

tutti_status tutti_shared_reduce_push(tutti_comm *comm, const tutti_op *op) {
    size_t item_bytes = tutti_type_bytes(op->type);
    char **buffers = comm->buffers;
    for (int rank = 0; rank < comm->nranks; rank++) {
        uint64_t address = rank == comm->rank ? 0 : tutti_post_of(comm, op, rank)->dst;
        buffers[rank] = rank == comm->rank
                            ? op->dst
                            : (char *)(uintptr_t)tutti_shared_at(comm, rank, address, op->count * item_bytes);
        if (buffers[rank] == NULL) return tutti_shared_outside(rank);
    }
    tutti_slice own = tutti_slice_of(op->count, item_bytes, comm->nranks, comm->rank);
    size_t start = own.start * item_bytes, end = start + own.count * item_bytes;
    prefetch_block(comm, buffers, start, end);
    for (size_t offset = start; offset < end; offset += BLOCK_BYTES) {
        prefetch_block(comm, buffers, offset + BLOCK_BYTES, end);
        push_block(comm, op, buffers, offset, tutti_min_size(BLOCK_BYTES, end - offset));
        if (TUTTI_UNLIKELY(tutti_fault("push_stop"))) raise(SIGSTOP);
    }
    return tutti_shared_finish(comm, op, /* lends */ true);
}
