/*
 * Algorithms for ranks that share memory. All begin alike: post, meet; then data is pulled.
 */
#ifndef TUTTI_SHARED_H
#define TUTTI_SHARED_H

#include "comm/shm/flags.h"
#include "comm/base/comm.h"
#include "comm/base/op.h"
#include "comm/shm/peer.h"
#include "comm/shm/slots.h"

/* One rank: what is left of every kind. */
tutti_status tutti_solo(tutti_comm *comm, const tutti_op *op);
/* Tiny inputs travel in the post line. One meeting. */
tutti_status tutti_shared_line(tutti_comm *comm, const tutti_op *op);
/* Kinds that only move data, any size. */
tutti_status tutti_shared_move(tutti_comm *comm, const tutti_op *op);
/* all_reduce and reduce, any size: whoever has an output reduces all of it. For 2 ranks, and for short vectors. */
tutti_status tutti_shared_reduce_whole(tutti_comm *comm, const tutti_op *op);
/* all_reduce and reduce, any size: each rank reduces a slice. */
tutti_status tutti_shared_reduce_sliced(tutti_comm *comm, const tutti_op *op);
/* all_reduce, after a meeting in which all have posted that they lend input and output. */
tutti_status tutti_shared_reduce_push(tutti_comm *comm, const tutti_op *op);
/* reduce_scatter and its v-variant, any size. */
tutti_status tutti_shared_reduce_scatter(tutti_comm *comm, const tutti_op *op);

/* ----------------------------------------------------------------------------- meeting, and lending buffers */

/* Meets the ranks whose data this one needs: all, or in a rooted kind perhaps the root, or nobody. */
tutti_status tutti_shared_meet(tutti_comm *comm, const tutti_op *op);
/* Are this rank's segments of op to be read where they are? Yes where every other rank can, and it pays. */
bool tutti_shared_lends_segments(const tutti_comm *comm, const tutti_op *op);
/* An address that `rank` posted, as mapped here; NULL: outside of its heap. */
const char *tutti_shared_at(const tutti_comm *comm, int rank, uint64_t address, size_t bytes);
/* The table of `rank`; valid after the meeting, where that rank posted slots. */
const tutti_count_entry *tutti_shared_table_of(const tutti_comm *comm, const tutti_op *op, int rank);
/* Records that an address of `rank` was outside of its heap, and gives the error. */
tutti_status tutti_shared_outside(int rank);
/* What reductions post. */
uint32_t tutti_shared_flags(tutti_comm *comm, const tutti_op *op);
/* Have all ranks posted that they lend input and output? */
bool tutti_shared_all_lend(const tutti_comm *comm, const tutti_op *op);
/* Does any overwrite its input? */
bool tutti_shared_any_in_place(const tutti_comm *comm, const tutti_op *op);
static inline bool tutti_shared_posted(const tutti_comm *comm, const tutti_op *op, int rank, uint32_t flag) {
    return (tutti_post_of(comm, op, rank)->flags & flag) != 0;
}
/* Ends a call: says that this rank is done and, if it lends its own buffers, waits until nobody reads them. */
tutti_status tutti_shared_finish(tutti_comm *comm, const tutti_op *op, bool lends);

/* ---------------------------------------------------------------------------------------------- staging */

/* A call's pieces in the ring. `stride` is the same on all ranks. */
typedef struct tutti_staging {
    tutti_comm *comm;
    const tutti_op *op;
    size_t stride;
    uint64_t depth; /* slots in the ring */
    uint32_t first; /* own */
} tutti_staging;

/* Bytes of a piece, and of a slot that holds `share` pieces, for segments of `bytes`. */
size_t tutti_staging_piece(const tutti_comm *comm, size_t bytes, size_t share);
/* The communicator's slots must have been acquired. Own slot 0 may be written afterwards. */
tutti_status tutti_staging_begin(tutti_comm *comm, const tutti_op *op, size_t stride, tutti_staging *staging_out);
/* Waits until the own slot of `round` >= 1 may be written: all readers have gone `steps_a_round` * (round - depth + 1) + 1
 * steps. */
tutti_status tutti_staging_await(const tutti_staging *staging, uint64_t round, uint64_t steps_a_round);
char *tutti_staging_own(const tutti_staging *staging, uint64_t round);
/* The slot of another rank, as mapped here. */
const char *tutti_staging_of(const tutti_staging *staging, int rank, uint64_t round);
/* `rounds` slots have been used. */
void tutti_staging_end(const tutti_staging *staging, uint64_t rounds);

/* ----------------------------------------------------------------------------------------------- output */

/* Does an output of that size (all of this rank's) go past the caches? It would not stay in them, and an ordinary store
 * first reads the line that it overwrites. Not for what the call has just read (in place). */
bool tutti_shared_streams(size_t output_bytes);
/* memcpy to an output. */
void tutti_shared_copy_out(void *dst, const void *src, size_t bytes, bool streams);
/* dst = reduction of comm->views[0..nranks), count elements, factors from the posts. */
void tutti_shared_reduce_views(tutti_comm *comm, const tutti_op *op, void *dst, size_t count);
/* The same into several buffers, past the caches. */
void tutti_shared_stream_views(tutti_comm *comm, const tutti_op *op, void *const *dsts, int ndsts, size_t count);

#endif
