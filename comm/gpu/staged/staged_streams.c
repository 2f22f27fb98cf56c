/*
 * Which streams the ranks of this process use for staged calls. If two ranks use one stream, the first caller's
 * wait for the result is ahead of the second caller's copy, but the result needs that copy: a deadlock. The second
 * caller gets an error instead.
 *
 * Ranks of one process find each other in a list; each stores its last calls there. A stream is identified by its
 * handle and its GPU: the default stream of every GPU has the same handle. A call whose results are ready does not
 * block any stream, even if its handle was reused.
 */

#include "bootstrap/base/lock.h"
#include "comm/gpu/staged/staged.h"

static tutti_staged *first; /* under the lock, like the links of the list and the calls in it */

void tutti_staged_streams_enter(tutti_staged *staged) {
    tutti_lock(TUTTI_LOCK_STAGED);
    staged->next = first;
    first = staged;
    tutti_unlock(TUTTI_LOCK_STAGED);
}

void tutti_staged_streams_leave(const tutti_staged *staged) {
    tutti_lock(TUTTI_LOCK_STAGED);
    tutti_staged **link = &first;
    while (*link != NULL && *link != staged) link = &(*link)->next;
    if (*link != NULL) *link = staged->next;
    tutti_unlock(TUTTI_LOCK_STAGED);
}

/* True if the stream waits in `other` for that call, or a later one. */
static bool is_held_up(const tutti_staged *other, uint64_t number, tutti_stream stream) {
    uint64_t done = atomic_load_explicit(other->done, memory_order_relaxed);
    for (int i = 0; i < TUTTI_STAGED_CALLS; i++) {
        const tutti_staged_call *call = &other->calls[i];
        if (call->number >= number && call->stream == stream && call->end > done) return true;
    }
    return false;
}

/* True if they are ranks of one communicator, on one GPU. */
static bool belong_together(const tutti_comm *a, const tutti_comm *b) {
    return a->id == b->id && a->gpu->index == b->gpu->index;
}

/* Returns the rank that blocks the stream; -1: none. With the lock held. */
static int find(const tutti_staged *staged, uint64_t number, tutti_stream stream) {
    for (const tutti_staged *other = first; other != NULL; other = other->next)
        if (other != staged && belong_together(staged->comm, other->comm) && is_held_up(other, number, stream))
            return other->comm->rank;
    return -1;
}

tutti_status tutti_staged_streams_note(tutti_staged *staged, const tutti_stream_call *call) {
    const tutti_comm *comm = staged->comm;
    if ((uintptr_t)call->stream == TUTTI_STREAM_OF_THREAD) return TUTTI_OK; /* a different stream in each thread */
    tutti_lock(TUTTI_LOCK_STAGED);
    int other = find(staged, call->number, call->stream);
    staged->calls[call->number % TUTTI_STAGED_CALLS] =
        (tutti_staged_call){.number = call->number, .stream = call->stream, .end = staged->tickets};
    tutti_unlock(TUTTI_LOCK_STAGED);
    return other < 0 ? TUTTI_OK : tutti_stream_shared(comm, call->op, other, comm->rank);
}
