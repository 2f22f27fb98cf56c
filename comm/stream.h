/*
 * Collectives and messages on CUDA memory: enqueued in the caller's stream, done in stream order.
 *
 *   calling thread     check, choose the engine (once), engine->enqueue, record an event        stream.c
 *   an engine          carries out collectives in streams: solo, nccl, same_device, staged      algorithms/
 *   watcher            one thread per process: looks at events, deadlines, deaths; ends works   stream_watch.c
 *
 * A call never waits for a peer, but for the first collective on CUDA memory of a communicator, in which the ranks tell each
 * other what they have (facts), and the engine is chosen and opened: all ranks choose the same, since all read the same
 * facts. Calls on one communicator are enqueued one at a time, in the order of their start.
 *
 * Invariant: when a communicator breaks, no stream waits for a peer any more: the engine's abort releases it. What is in
 * the buffers then is anybody's guess, and the works say why.
 */
#ifndef TUTTI_STREAM_H
#define TUTTI_STREAM_H

#include "comm/comm.h"
#include "comm/submit.h"
#include "comm/worker.h"
#include "kernels/device.h"

/* What a rank tells the others of itself at the first collective on CUDA memory. Compared and read as it is. */
typedef struct tutti_stream_facts {
    uint8_t device_id[TUTTI_DEVICE_ID_BYTES]; /* equal: the same GPU, or the same MIG instance */
    uint8_t stream_waits, ipc;                /* tutti_device_facts */
    uint8_t unused[2];
    int32_t nccl_version;  /* as ncclGetVersion says; 0: NCCL cannot be used here; by the engine's tell */
    uint64_t stage_bytes;  /* TUTTI_CUDA_STAGE_BYTES */
    char nccl_missing[96]; /* why not, for the log and TUTTI_ALGORITHM=nccl */
} tutti_stream_facts;

struct tutti_stream_engine;
struct tutti_stream_call;

/* A communicator's part that deals with CUDA memory: comm->gpu; NULL until the first such call. */
typedef struct tutti_stream_comm {
    tutti_comm *comm;
    const tutti_device *device; /* the table */
    int index;                  /* the GPU of this communicator, on this rank */
    tutti_device_facts own;
    const tutti_stream_facts *facts;          /* nranks: what all told; NULL before the first collective */
    const struct tutti_stream_engine *engine; /* chosen; NULL before the first collective */
    void *engine_state;                       /* the engine's; set by its open, freed by its close */
    pthread_mutex_t order;                    /* held by the call that is being enqueued */
    struct tutti_stream_tracks *tracks;       /* what is under way; stream_state.h */
} tutti_stream_comm;

/* One collective on CUDA memory for an engine. */
typedef struct tutti_stream_call {
    const tutti_op
        *op; /* checked; pointers are of the communicator's GPU, or NULL where counts are 0; its arrays are valid
                           until enqueue returns */
    tutti_stream stream;
    uint64_t
        number; /* of this call among the collectives on CUDA memory of this communicator, from 1; equal on all ranks */
    int64_t timeout_ms; /* 0: none */
    tutti_work *work;   /* of the user, or NULL; an engine need not look at it */
} tutti_stream_call;

/*
 * A way to carry out collectives on CUDA memory. All ranks of a communicator use the same one, for all of its calls.
 *
 * "Caller": the thread of the public call, with comm->gpu->order held and the communicator's GPU as its current one.
 * "Watcher": the watcher's thread; it makes the communicator's GPU current before it calls.
 */
typedef struct tutti_stream_engine {
    const char *name; /* for TUTTI_ALGORITHM, tutti-info and errors */
    const char *when; /* for tutti-info: "one rank" */

    /* Fills in what this engine wants to be told by every rank, before the exchange: may load a library, may not talk to a
     * peer, never fails. Caller. NULL: nothing. */
    void (*tell)(const tutti_comm *comm, tutti_stream_facts *own);
    /* Can it serve this communicator? Reads nranks, comm->hosts, gpu->facts and what else is equal on all ranks: the answer
     * must be the same on all. When not and reason_out is not NULL: why, in a few words. Caller. */
    bool (*fits)(const tutti_comm *comm, char *reason_out, size_t capacity);
    /* Once, after it was chosen; collective: every rank is inside. May wait for peers (tutti_stream_gather; up to
     * comm->connect_timeout_ms), may allocate, loads and creates whatever it needs. A failure breaks the communicator and
     * is what the call answers; it cleans up after itself as far as close would. Caller. NULL: nothing to do. */
    tutti_status (*open)(tutti_comm *comm);
    /* Puts one collective into the stream: whatever precedes it in the stream is done before it, whatever follows sees its
     * result. Never waits for a peer nor for the stream. All ranks call in the same order; on any of them, streams may
     * differ from call to call, and then it is the engine that keeps calls apart that must not overlap (stream_wait_event).
     * Any error breaks the communicator. Caller. */
    tutti_status (*enqueue)(tutti_comm *comm, const tutti_stream_call *call);
    /* What has gone wrong without a call to tell it (NCCL's asynchronous errors): TUTTI_OK, or the error with its text, which
     * breaks the communicator. About every millisecond while calls are under way; may not block. Watcher. NULL: nothing. */
    tutti_status (*health)(tutti_comm *comm);
    /* The communicator is broken: releases every stream that waits for a peer, now and from now on (a call that was enqueued
     * at the same time, too). Once, after which only close is called. May not wait for peers nor streams. Watcher, or the
     * thread that destroys the communicator. NULL: its streams wait for nobody. */
    void (*abort)(tutti_comm *comm);
    /* The communicator is destroyed: frees engine_state, half-built ones as well (after a failed open). Waits for no peer. If
     * calls are under way, abort came first; streams may still be at work on what it released, so that memory which they use
     * goes back only after their events (tutti_pinned_return). The thread that destroys; GPU current. NULL: nothing. */
    void (*close)(tutti_comm *comm);

    bool captures; /* enqueue may be called for a stream that is being captured into a CUDA graph */
    bool
        minds_deaths; /* the engine itself finds dead and late ranks, and breaks the communicator; else the watcher does */
} tutti_stream_engine;

/* From each rank `bytes` (equal everywhere) at mine; into all, rank by rank. An all_gather on host memory, in line with the
 * communicator's other calls: only inside open. */
tutti_status tutti_stream_gather(tutti_comm *comm, const void *mine, void *all, size_t bytes);

#endif
