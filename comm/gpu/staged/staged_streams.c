/*
 * Which streams the ranks of this process use for staged calls. In one stream, who calls first puts his wait for the call's result
 * before the copy of who calls next, without which there is no result: neither could ever go on. The second of them is told.
 *
 * Ranks of one process find each other in a list; each leaves its last calls there. A stream is one only together with its GPU:
 * every GPU has a default stream of the same handle. A call whose results are there holds up no stream, whoever has its handle now.
 */
#include <pthread.h>

#include "comm/gpu/staged/staged.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_staged *first; /* under the lock, like the list's links and the calls in it */

void tutti_staged_streams_enter(tutti_staged *staged) {
    pthread_mutex_lock(&lock);
    staged->next = first;
    first = staged;
    pthread_mutex_unlock(&lock);
}

void tutti_staged_streams_leave(const tutti_staged *staged) {
    pthread_mutex_lock(&lock);
    tutti_staged **link = &first;
    while (*link != NULL && *link != staged) link = &(*link)->next;
    if (*link != NULL) *link = staged->next;
    pthread_mutex_unlock(&lock);
}

/* Does the stream wait there for that call, or one behind it? */
static bool is_held_up(const tutti_staged *other, uint64_t number, tutti_stream stream) {
    uint64_t done = atomic_load_explicit(other->done, memory_order_relaxed);
    for (int i = 0; i < TUTTI_STAGED_CALLS; i++) {
        const tutti_staged_call *call = &other->calls[i];
        if (call->number >= number && call->stream == stream && call->end > done) return true;
    }
    return false;
}

/* Are they ranks of one communicator, on one GPU? */
static bool belong_together(const tutti_comm *a, const tutti_comm *b) {
    return a->id == b->id && a->gpu->index == b->gpu->index;
}

/* The rank that holds the stream up; -1: none. Under the lock. */
static int find(const tutti_staged *staged, uint64_t number, tutti_stream stream) {
    for (const tutti_staged *other = first; other != NULL; other = other->next)
        if (other != staged && belong_together(staged->comm, other->comm) && is_held_up(other, number, stream))
            return other->comm->rank;
    return -1;
}

tutti_status tutti_staged_streams_note(tutti_staged *staged, const tutti_stream_call *call) {
    const tutti_comm *comm = staged->comm;
    if ((uintptr_t)call->stream == TUTTI_STREAM_OF_THREAD) return TUTTI_OK; /* another one in each thread */
    pthread_mutex_lock(&lock);
    int other = find(staged, call->number, call->stream);
    staged->calls[call->number % TUTTI_STAGED_CALLS] =
        (tutti_staged_call){.number = call->number, .stream = call->stream, .end = staged->tickets};
    pthread_mutex_unlock(&lock);
    return other < 0 ? TUTTI_OK : tutti_stream_shared(comm, call->op, other, comm->rank);
}
