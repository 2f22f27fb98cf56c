/*
 * Shared by the files that handle a communicator's calls in flight in streams.
 *
 *   in-flight call   a collective: the marks before and behind it, the user's work; completed by the watcher
 *   message          a send or receive: pinned memory, the host message in it, a mark; messages.c
 */
#ifndef TUTTI_STREAM_STATE_H
#define TUTTI_STREAM_STATE_H

#include <sys/queue.h>

#include "comm/gpu/stream.h"

typedef struct tutti_inflight {
    TAILQ_ENTRY(tutti_inflight) link;
    const tutti_stream_engine *engine;
    tutti_op op;               /* for reports and errors; without buffers */
    tutti_stream_event *begun; /* the stream has reached the call; not recorded if the engine checks deadlines itself */
    tutti_stream_event *done;  /* the stream has passed the call */
    bool has_begun, reported;
    int64_t timeout_ms;
    tutti_deadline deadline, stall; /* started when the call has begun */
    int64_t ended_ns;               /* when a rank that it may need was first found gone; 0: none */
    int64_t late_ns;                /* when its deadline was first found expired; 0: not yet */
    tutti_work *work;               /* the user's work, or NULL */
} tutti_inflight;

struct tutti_stream_message;
TAILQ_HEAD(tutti_inflight_list, tutti_inflight);
TAILQ_HEAD(tutti_stream_message_list, tutti_stream_message);

struct tutti_stream_tracks {
    pthread_mutex_t lock; /* protects all fields below */
    bool captured;        /* calls are in graphs, and may run at any time */
    int64_t dead_ns;      /* if captured: when a rank was first found dead; 0: none */
    struct tutti_inflight_list under_way, spare;
    struct tutti_stream_message_list messages;
    bool aborted, closed;
};

/* ----------------------------------------------------------------------------------------- stream_comm.c */

/* Makes the communicator's GPU current on the calling thread; leave restores the previous one. */
tutti_status tutti_stream_enter(const tutti_stream_comm *gpu, int *before_out);
void tutti_stream_leave(const tutti_stream_comm *gpu, int before);
/* Returns comm->cuda.streams, which is made at the first call. TUTTI_ERR_ARGUMENT if it belongs to another GPU. */
tutti_status tutti_stream_gpu(tutti_comm *comm, int index, tutti_stream_comm **gpu_out);
/* Creates a work for the user; it becomes a part of `whole` if that is not NULL. */
tutti_status tutti_stream_work(tutti_comm *comm, tutti_work *whole, tutti_work **work_out);
/* tutti_stream_gather that reports and errors describe as `shown`. */
tutti_status tutti_stream_gather_for(tutti_comm *comm, const tutti_op *shown, const void *mine, void *all,
                                     size_t bytes);

/* ----------------------------------------------------------------------------------------- inflight.c */

/* Takes an in-flight call with its marks; it is not yet in the list. */
tutti_status tutti_inflight_take(tutti_stream_comm *gpu, tutti_inflight **track_out);
void tutti_inflight_add(tutti_stream_comm *gpu, tutti_inflight *track);
/* A call is captured into a graph, whose launches are not reported: from now on the watcher checks for deaths. */
void tutti_inflight_capture(tutti_stream_comm *gpu);
/* Returns an in-flight call that was not enqueued. */
void tutti_inflight_drop(tutti_stream_comm *gpu, tutti_inflight *track);
/* Adds the communicator to the watcher's list and wakes the watcher. */
void tutti_stream_watch(tutti_stream_comm *gpu);
/* From now on the watcher skips the communicator, and need not wait for the engine. True: calls are in graphs. */
bool tutti_inflight_close(tutti_stream_comm *gpu);
/* Frees all in-flight calls of a closed communicator. */
void tutti_inflight_free(tutti_stream_comm *gpu);

/* --------------------------------------------------------------------------------------- messages.c */

/* Enqueues a message, with gpu->order held and the GPU current. A failure in the stream breaks the communicator. */
tutti_status tutti_stream_message_submit(tutti_stream_comm *gpu, const tutti_message *call, tutti_work *whole,
                                         tutti_work **work_out);
/* Advances messages. With the lock of tracks held. */
void tutti_stream_messages_advance(tutti_stream_comm *gpu);
/* The communicator is broken: releases streams and fails works. With the lock of tracks held. */
void tutti_stream_messages_fail(tutti_stream_comm *gpu);
/* Returns the memory of all remaining messages. */
void tutti_stream_messages_free(tutti_stream_comm *gpu);

#endif
