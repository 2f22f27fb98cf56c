/*
 * Algorithms for ranks that share memory. All start with post and meet; then data is pulled.
 */
#ifndef TUTTI_SHARED_H
#define TUTTI_SHARED_H

#include "comm/base/comm.h"
#include "comm/base/op.h"
#include "comm/shm/flags.h"
#include "comm/shm/peer.h"
#include "comm/shm/slots.h"

/* One rank: the local part of every kind. */
tutti_status tutti_single(tutti_comm *comm, const tutti_op *op);
/* Tiny inputs travel in the post itself. One meeting. */
tutti_status tutti_shared_inline(tutti_comm *comm, const tutti_op *op);
/* all_reduce and reduce_scatter of short vectors, where the communicator counts arrivals. One meeting. */
tutti_status tutti_shared_combine(tutti_comm *comm, const tutti_op *op);
/* Kinds that only move data, any size. */
tutti_status tutti_shared_copy(tutti_comm *comm, const tutti_op *op);
/* all_reduce and reduce, any size: each rank with an output reduces the whole vector. For 2 ranks, or short vectors. */
tutti_status tutti_shared_one_shot(tutti_comm *comm, const tutti_op *op);
/* all_reduce and reduce, any size: each rank reduces a slice. */
tutti_status tutti_shared_two_shot(tutti_comm *comm, const tutti_op *op);
/* all_reduce, after a meeting in which all ranks have posted that they lend input and output. */
tutti_status tutti_shared_reduce_push(tutti_comm *comm, const tutti_op *op);
/* reduce_scatter and its v-variant, any size. */
tutti_status tutti_shared_reduce_scatter(tutti_comm *comm, const tutti_op *op);

/* ----------------------------------------------------------------------------- meeting, and lending buffers */

/* Meets the ranks whose data this one needs: all ranks, or in a rooted kind only the root, or none. */
tutti_status tutti_shared_meet(tutti_comm *comm, const tutti_op *op);
/* True if peers read this rank's segments of op in place: every other rank can read them, and it pays off. */
bool tutti_shared_lends_segments(const tutti_comm *comm, const tutti_op *op);
/* Returns the address that `rank` posted, as mapped here. Fails if it is outside of that rank's heap. */
tutti_status tutti_shared_at(const tutti_comm *comm, int rank, uint64_t address, size_t bytes, const void **here_out);
/* The table of `rank`; valid after the meeting, if that rank posted slots. */
const tutti_count_entry *tutti_shared_table_of(const tutti_comm *comm, const tutti_op *op, int rank);
/* The flags that reductions post. */
uint32_t tutti_shared_flags(tutti_comm *comm, const tutti_op *op);
/* True if all ranks have posted that they lend input and output. */
bool tutti_shared_all_lend(const tutti_comm *comm, const tutti_op *op);
static inline bool tutti_shared_posted(const tutti_comm *comm, const tutti_op *op, int rank, uint32_t flag) {
    return (tutti_post_of(comm, op, rank)->flags & flag) != 0;
}
/* Ends a call: publishes that this rank is done and, if it lends its own buffers, waits until no rank reads them. */
tutti_status tutti_shared_finish(tutti_comm *comm, const tutti_op *op, bool lends);

/* ---------------------------------------------------------------------------------------------- staging */

/* A call's pieces in the ring. `stride` is the same on all ranks.
 *
 * A rank may stage the next round's piece before it reads this round's pieces of its peers. So a rank that is a little
 * later than others does not stop them: with 2 ranks on 2 cores, 1 to 4 MiB take 0.87 to 1 of the time. That needs
 * three slots, since peers may still read the piece of the round before.
 *
 * A rank that has staged the piece of round k publishes at least k + 1 (for round 0, the post says that). Before it
 * reads the pieces of round k, it publishes at most k + 1 + ahead; it then has read those of round k - 1. */
typedef struct tutti_staging {
    tutti_comm *comm;
    const tutti_op *op;
    size_t stride;
    uint64_t depth; /* slots in the ring */
    uint32_t first; /* first own slot */
    uint64_t ahead; /* number of pieces that a rank may stage before those that it reads: 0 or 1 */
} tutti_staging;

/* Bytes of a piece, if a slot holds `share` pieces, for segments of `bytes`. */
size_t tutti_staging_piece(const tutti_comm *comm, size_t bytes, size_t share);
/* The communicator's slots must have been acquired. After the call, own slot 0 may be written. */
tutti_status tutti_staging_begin(tutti_comm *comm, const tutti_op *op, size_t stride, tutti_staging *staging_out);
/* Waits until the own slot of `round` >= 1 may be written: all readers have published `steps_a_round` * (round - depth
 * + 1 + ahead) + 1. */
tutti_status tutti_staging_await(const tutti_staging *staging, uint64_t round, uint64_t steps_a_round);
/* Fills the own post with the call's buffers and slots and these values, and publishes it. */
void tutti_staging_post(const tutti_staging *staging, uint64_t rounds, uint32_t flags);
char *tutti_staging_own(const tutti_staging *staging, uint64_t round);
/* A slot of another rank, as mapped here. */
const char *tutti_staging_of(const tutti_staging *staging, int rank, uint64_t round);
/* Records that `rounds` slots have been used. */
void tutti_staging_end(const tutti_staging *staging, uint64_t rounds);

/* ----------------------------------------------------------------------------------------------- output */

/* True if an output of that size (of each rank in total) is written past the caches. It would not stay in them, and an
 * ordinary store first reads the line that it overwrites. Not used for data that the call has just read (in place). */
bool tutti_shared_streams(const tutti_comm *comm, size_t output_bytes);
/* memcpy to an output; past the caches if `streams`. */
void tutti_shared_copy_out(void *dst, const void *src, size_t bytes, bool streams);
/* dst = reduction of count elements of comm->views[0..nranks), with factors from the posts. */
void tutti_shared_reduce_views(tutti_comm *comm, const tutti_op *op, void *dst, size_t count);
/* The same with several outputs, past the caches. */
void tutti_shared_stream_views(tutti_comm *comm, const tutti_op *op, void *const *dsts, int ndsts, size_t count);

#endif
