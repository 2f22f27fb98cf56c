/*
 * Flags between ranks of one host: publish, wait, meet. Every wait of the library on this host ends here.
 *
 * A waiter first spins (if every rank has a core, and the other one is not on ours; else see oversubscribed.h), then yields, then
 * sleeps on a futex. While it waits it serves point-to-point messages, looks for deaths and broken communicators, tells of stalls,
 * and minds its deadline.
 * No system call and no clock where the flag comes quickly.
 */
#ifndef TUTTI_FLAGS_H
#define TUTTI_FLAGS_H

#include "comm/base/comm.h"
#include "comm/base/cacheline.h"

/* Can a thread order the others' stores and loads (membarrier)? The same answer for as long as the process lives. */
bool tutti_can_membarrier(void);
/* Puts a barrier into all threads of all processes that use Tutti; false: the system has refused it. It takes microseconds;
 * in return the threads whose stores are looked at need no barrier of their own. */
bool tutti_membarrier(void);

/* Before the owner of a new page publishes anything. */
void tutti_page_prepare(tutti_page *page);
/* Orders what this thread has stored before what it reads next, as if all who publish had done the same; false: that is
 * not to be had here. */
bool tutti_page_order(tutti_page *page);
/* Wakes all who sleep on the page's flags, so that they look at its state. */
void tutti_page_wake(tutti_page *page);

/* Begins the waits of an operation. */
void tutti_wait_state_begin(tutti_comm *comm, const tutti_op *op);
/* Says what a wait is for; NULL: for the posts and steps of the communicator's ranks. */
typedef void (*tutti_awaited)(const tutti_comm *comm, char *text, size_t capacity);
/* Starts the clocks at the first call of an operation, then minds them: tells of a stall once; when the deadline has
 * passed, breaks the communicator. */
tutti_status tutti_wait_state_check(tutti_comm *comm, tutti_awaited awaited);

/* Waits until nobody reads the post that op will use: all have finished the call that used it before. Only loose calls
 * can have left someone that far behind. */
tutti_status tutti_post_claim(tutti_comm *comm, const tutti_op *op);
/* Fills the own post for op (but for payload and place) and publishes it. */
void tutti_post_publish(tutti_comm *comm, const tutti_op *op);
/* Who comes to op from now on finds that this rank has given up. (Another thread may have broken the communicator before
 * the post was there: tutti_comm_break spoils those that are.) */
void tutti_post_spoil(tutti_comm *comm, const tutti_op *op);
/* The own post of op, to fill payload and place in before it is published. */
static inline tutti_post *tutti_post_own(tutti_comm *comm, const tutti_op *op) {
    return &comm->page->posts[op->sequence % TUTTI_POSTS];
}
static inline const tutti_post *tutti_post_of(const tutti_comm *comm, const tutti_op *op, int rank) {
    return &comm->members[rank].page->posts[op->sequence % TUTTI_POSTS];
}
/* Takes the lines of the next post, with as much payload, back from those who read them last: while nobody waits. */
static inline void tutti_post_prefetch(const tutti_comm *comm, const tutti_op *op, size_t payload_bytes) {
    const tutti_post *next = &comm->page->posts[(op->sequence + 1) % TUTTI_POSTS];
    for (size_t at = 0; at < offsetof(tutti_post, payload) + payload_bytes; at += TUTTI_CACHE_LINE)
        tutti_prefetch_to_write((const char *)next + at);
}
/* Waits until every rank has posted op, and compares signatures. */
tutti_status tutti_meet(tutti_comm *comm, const tutti_op *op);
/* The same with one rank. */
tutti_status tutti_meet_rank(tutti_comm *comm, const tutti_op *op, int rank);
/* Waits until all ranks have finished call `sequence`, which this one has. */
tutti_status tutti_finished_wait(tutti_comm *comm, uint64_t sequence);

/* Says how far this rank is in op. */
void tutti_step_publish(tutti_comm *comm, const tutti_op *op, uint64_t progress);
/* Has the flag that value, or has it passed it? What its owner stored before can be read then. */
static inline bool tutti_flag_reached(_Atomic uint64_t *flag, uint64_t target) {
    return atomic_load_explicit(flag, memory_order_acquire) >= target;
}
/* Slow part of tutti_step_wait and tutti_meet: until *flag >= target. */
tutti_status tutti_flag_wait(tutti_comm *comm, int rank, _Atomic uint64_t *flag, uint64_t target);
/* Waits until `rank` is at least that far in op. */
static inline tutti_status tutti_step_wait(tutti_comm *comm, const tutti_op *op, int rank, uint64_t progress) {
    _Atomic uint64_t *flag = &comm->members[rank].page->step;
    uint64_t target = tutti_step_at(op->sequence, progress);
    if (TUTTI_LIKELY(atomic_load_explicit(flag, memory_order_acquire) >= target)) return TUTTI_OK;
    return tutti_flag_wait(comm, rank, flag, target);
}
/* The same for all ranks. */
tutti_status tutti_step_wait_all(tutti_comm *comm, const tutti_op *op, uint64_t progress);

/* A place to pause in any other wait loop of the library (point to point, works): counts rounds from 0, spins,
 * yields, then naps. */
typedef struct tutti_backoff {
    unsigned rounds;
    bool yields;
} tutti_backoff;
void tutti_backoff_pause(tutti_backoff *backoff);

/* This thread shares its core with one that computes (workers): its waits do not spin. */
void tutti_wait_state_yields(bool yields);

#endif
