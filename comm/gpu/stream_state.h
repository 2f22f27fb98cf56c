/*
 * What the files stream*.c share: the calls of a communicator that are under way in streams.
 *
 *   track      a collective: the marks before and behind it, the user's work; ended by tutti_stream_look
 *   message    a send or receive: pinned memory, the host message in it, a mark; messages.c
 *
 * Lock order: the watcher's list, then a communicator's tracks, then works. gpu->order is taken before all of them, and never
 * while one is held.
 */
#ifndef TUTTI_STREAM_STATE_H
#define TUTTI_STREAM_STATE_H

#include <sys/queue.h>

#include "comm/gpu/stream.h"

typedef struct tutti_inflight {
    TAILQ_ENTRY(tutti_inflight) link;
    const tutti_stream_engine *engine;
    tutti_op op;           /* for what is told: without buffers */
    tutti_stream_event *begun;     /* the stream has reached the call; not put where the engine minds deadlines itself */
    tutti_stream_event *done;      /* it has passed it */
    bool has_begun, reported;
    int64_t timeout_ms;
    tutti_deadline deadline, stall; /* once it has begun */
    int64_t ended_ns;               /* when a rank that it may need was first seen to be gone; 0: none */
    int64_t late_ns;                /* when its deadline was first seen to have passed; 0: it has not */
    tutti_work *work;               /* the user's; NULL */
} tutti_inflight;

struct tutti_stream_message;
TAILQ_HEAD(tutti_inflight_list, tutti_inflight);
TAILQ_HEAD(tutti_stream_message_list, tutti_stream_message);

struct tutti_stream_tracks {
    pthread_mutex_t lock; /* of all that follows */
    bool captured;        /* calls are in graphs, and may be under way at any time */
    int64_t dead_ns;      /* then: when a rank was first seen to be dead; 0: none */
    struct tutti_inflight_list under_way, spare;
    struct tutti_stream_message_list messages;
    bool aborted, closed;
};

/* ---------------------------------------------------------------------------------------------- stream.c */

/* Makes the communicator's GPU the calling thread's; leave gives back the one before. */
tutti_status tutti_stream_enter(const tutti_stream_comm *gpu, int *before_out);
void tutti_stream_leave(const tutti_stream_comm *gpu, int before);
/* comm->gpu, made if there is none; TUTTI_ERR_ARGUMENT if that is another GPU. */
tutti_status tutti_stream_gpu(tutti_comm *comm, int index, tutti_stream_comm **gpu_out);
/* A work of the user's, part of `whole` if that is not NULL. */
tutti_status tutti_stream_work(tutti_comm *comm, tutti_work *whole, tutti_work **work_out);
/* TUTTI_ERR_UNSUPPORTED, if the stream is being captured into a graph. */
tutti_status tutti_stream_refuse_capture(const tutti_stream_comm *gpu, tutti_stream stream, const char *name);

/* ----------------------------------------------------------------------------------------- inflight.c */

/* A track with its marks, not yet in the list. */
tutti_status tutti_inflight_take(tutti_stream_comm *gpu, tutti_inflight **track_out);
void tutti_inflight_add(tutti_stream_comm *gpu, tutti_inflight *track);
/* A call goes into a graph. Nobody is told when that is launched: from now on the watcher looks for deaths as long as the
 * communicator lives. */
void tutti_inflight_capture(tutti_stream_comm *gpu);
/* It was not enqueued after all. */
void tutti_inflight_drop(tutti_stream_comm *gpu, tutti_inflight *track);
/* What the watcher does for a communicator: ends what is done, and what has failed. False: nothing is left to look after. */
bool tutti_stream_look(tutti_stream_comm *gpu);
/* Is anything under way that is known of? Else there is no hurry. */
bool tutti_stream_is_busy(tutti_stream_comm *gpu);
/* Wakes the watcher for it: something is under way. */
void tutti_stream_watch(tutti_stream_comm *gpu);

/* ------------------------------------------------------------------------------------------ health.c */

/* What is told of the call, for reports and errors. Gives `text` back. */
const char *tutti_inflight_describe(const tutti_inflight *track, char *text, size_t capacity);
/* Another rank says that the communicator is broken: ranks of other hosts are told in turn, since it may not reach them. */
tutti_status tutti_stream_check_broken(tutti_comm *comm);
/* Is all well with the calls under way; with those in graphs? What is not breaks the communicator. Under the tracks' lock. */
tutti_status tutti_stream_check(tutti_stream_comm *gpu);
tutti_status tutti_stream_check_graphs(tutti_stream_comm *gpu);

/* --------------------------------------------------------------------------------------- messages.c */

/* Takes messages further; under the tracks' lock. */
void tutti_stream_messages_advance(tutti_stream_comm *gpu);
/* The communicator is broken: streams go on, works end. Under the tracks' lock. */
void tutti_stream_messages_fail(tutti_stream_comm *gpu);
/* Gives back what is left of them. */
void tutti_stream_messages_free(tutti_stream_comm *gpu);

#endif
