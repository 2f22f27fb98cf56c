/*
 * Flags between ranks of one host: publish, wait, meet. Every wait of the library on this host ends here.
 *
 * A waiter first spins (if every rank has a core and the awaited rank is on another core; otherwise see
 * flags.c), then yields, then sleeps on a futex. While it waits, it drives point-to-point messages, checks
 * for deaths and broken communicators, reports stalls, and checks its deadline. If the flag is set quickly, the
 * wait makes no system call and reads no clock.
 */
#ifndef TUTTI_FLAGS_H
#define TUTTI_FLAGS_H

#include "comm/base/cacheline.h"
#include "comm/base/comm.h"

/* Begins the waits of an operation. */
void tutti_wait_state_begin(tutti_comm *comm, const tutti_op *op);
/* Writes what a wait is for into text. NULL: the wait is for the posts and steps of the communicator's ranks. */
typedef void (*tutti_awaited)(const tutti_comm *comm, char *text, size_t capacity);
/* The first call of an operation starts the clocks. Later calls check them: a stall is reported once; after the
 * deadline the communicator is broken. */
tutti_status tutti_wait_state_check(tutti_comm *comm, tutti_awaited awaited);

/* Waits until no rank reads the post that op will use, i.e. until all ranks have finished the call that used it
 * before. Only loose calls can leave a rank that far behind. */
tutti_status tutti_post_claim(tutti_comm *comm, const tutti_op *op);
/* Fills the own post for op (except payload and place) and publishes it. */
void tutti_post_publish(tutti_comm *comm, const tutti_op *op);
/* Ranks that enter op from now on find that this rank has given up. (Another thread may have broken the
 * communicator before the post existed; tutti_comm_break spoils existing posts.) */
void tutti_post_spoil(tutti_comm *comm, const tutti_op *op);
/* The own post of op, for writing payload and place before it is published. */
static inline tutti_post *tutti_post_own(tutti_comm *comm, const tutti_op *op) {
    return &comm->page->posts[op->sequence % TUTTI_POSTS];
}
static inline const tutti_post *tutti_post_of(const tutti_comm *comm, const tutti_op *op, int rank) {
    return &comm->members[rank].page->posts[op->sequence % TUTTI_POSTS];
}
/* Where a payload of that size starts in a post's payload. */
static inline size_t tutti_post_payload_at(size_t bytes) {
    return bytes < TUTTI_POST_LONG_BYTES ? 0 : TUTTI_POST_SHORT_BYTES;
}
/* Fetches the lines of the next post, for a payload of that size, back from their last readers while no rank waits.
 * For a long payload it fetches the post's first line only: see TUTTI_MOST_FETCHED_BYTES. */
static inline void tutti_post_prefetch(const tutti_comm *comm, const tutti_op *op, size_t payload_bytes) {
    const tutti_post *next = &comm->page->posts[(op->sequence + 1) % TUTTI_POSTS];
    if (payload_bytes > TUTTI_MOST_FETCHED_BYTES) payload_bytes = 0;
    size_t end = offsetof(tutti_post, payload) + tutti_post_payload_at(payload_bytes) + payload_bytes;
    for (size_t at = 0; at < end; at += TUTTI_CACHE_LINE) tutti_prefetch_to_write((const char *)next + at);
}
/* Waits until every rank has posted op, and compares signatures. */
tutti_status tutti_meet(tutti_comm *comm, const tutti_op *op);
/* The same for one rank. */
tutti_status tutti_meet_rank(tutti_comm *comm, const tutti_op *op, int rank);

/* Work of op that is done once, by the ranks that run first after the meeting; for communicators that count arrivals.
 * Every rank begins with the number of pieces of that work. */
void tutti_claims_begin(tutti_comm *comm, const tutti_op *op, uint64_t count);
/* Claims one of the `count` pieces for this rank. False: all have been claimed. */
bool tutti_claims_next(tutti_comm *comm, const tutti_op *op, uint64_t count, uint64_t *piece_out);
/* This rank has done the piece that it claimed. */
void tutti_claims_done(tutti_comm *comm, const tutti_op *op);
/* Waits until all pieces are done. */
tutti_status tutti_claims_wait(tutti_comm *comm, const tutti_op *op);
/* Waits until all ranks have finished call `sequence`, which this rank has finished. */
tutti_status tutti_finished_wait(tutti_comm *comm, uint64_t sequence);

/* Publishes the progress of this rank in op. */
void tutti_progress_publish(tutti_comm *comm, const tutti_op *op, uint64_t progress);
/* True if the flag has reached that value. What its owner stored before is then visible. */
static inline bool tutti_flag_reached(_Atomic uint64_t *flag, uint64_t target) {
    return atomic_load_explicit(flag, memory_order_acquire) >= target;
}
/* Slow path of tutti_step_wait and tutti_meet: waits until *flag >= target. */
tutti_status tutti_flag_wait(tutti_comm *comm, int rank, _Atomic uint64_t *flag, uint64_t target);
/* Waits until `rank` has reached that progress in op. */
static inline tutti_status tutti_step_wait(tutti_comm *comm, const tutti_op *op, int rank, uint64_t progress) {
    _Atomic uint64_t *flag = &comm->members[rank].page->step;
    uint64_t target = tutti_progress_at(op->sequence, progress);
    if (TUTTI_LIKELY(atomic_load_explicit(flag, memory_order_acquire) >= target)) return TUTTI_OK;
    return tutti_flag_wait(comm, rank, flag, target);
}
/* The same for all ranks. */
tutti_status tutti_progress_wait_all(tutti_comm *comm, const tutti_op *op, uint64_t progress);

#endif
