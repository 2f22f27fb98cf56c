/*
 * Collectives and messages on CUDA memory: enqueued in the caller's stream, done in stream order.
 *
 *   calling thread     check, choose the engine (once), engine->enqueue between two marks       stream.c
 *   an engine          carries out collectives in streams: solo, nccl, same_device, staged      algorithms/
 *   watcher            one thread per process: looks at marks, deadlines, deaths; ends works    watchdog.c
 *
 * A call never waits for a peer, but for the first collective on CUDA memory of a communicator, in which the ranks tell each
 * other what they have (facts), and the engine is chosen and opened: all ranks choose the same, since all read the same
 * facts. Calls on one communicator are enqueued one at a time, in the order of their start.
 *
 * Invariant: when a communicator breaks, no stream waits for a peer any more: the engine's abort releases it. What is in
 * the buffers then is anybody's guess, and the works say why. Neither the watcher nor an abort waits in a call of CUDA's, which a
 * thread of the program's may keep out as long as a stream waits (event.h).
 */
#ifndef TUTTI_STREAM_H
#define TUTTI_STREAM_H

#include "comm/base/comm.h"
#include "comm/gpu/event.h"
#include "comm/api/submit.h"
#include "comm/base/queue.h"
#include "kernels/device.h"

/* What a rank tells the others of itself at the first collective on CUDA memory. Compared and read as it is. */
typedef struct tutti_stream_caps {
    uint8_t device_id[TUTTI_DEVICE_ID_BYTES]; /* equal: the same GPU, or the same MIG instance */
    char pci[32];                             /* equal on one host: the same GPU, whatever the MIG instance */
    uint8_t stream_waits, ipc;                /* tutti_device_facts */
    uint8_t nccl_seed;                        /* it has what its parent's NCCL made for it */
    uint8_t unused;
    int32_t nccl_version;   /* as ncclGetVersion says; 0: NCCL cannot be used here; by the engine's tell */
    char nccl_missing[256]; /* why not, for the log and TUTTI_ALGORITHM=nccl */
} tutti_stream_caps;

struct tutti_stream_engine;

/* What a communicator was given by the engine of the one that it was split from, until its own engine opens. */
typedef struct tutti_stream_seed {
    const struct tutti_stream_engine *engine; /* whose it is */
    int index;                                /* of the GPU that it is for */
    void (*drop)(struct tutti_stream_seed *seed);
} tutti_stream_seed;

/* A communicator's part that deals with CUDA memory: comm->gpu; NULL until the first such call. */
typedef struct tutti_stream_comm {
    tutti_comm *comm;
    const tutti_device *device;               /* the table */
    int index;                                /* the GPU of this communicator, on this rank */
    tutti_device_facts own;                   /* of that GPU */
    tutti_error_poll *fault;                /* of that GPU; NULL where marks are events */
    tutti_stream_caps *facts;                /* nranks: what all told; NULL before the first collective */
    const struct tutti_stream_engine *engine; /* chosen; NULL before the first collective */
    void *engine_state;                       /* the engine's; set by its open, freed by its close */
    bool staged;                              /* the staged engine is open; under the tracks' lock */
    void *staged_state;                 /* of the staged engine, which also serves what the chosen one does not take */
    uint64_t number;                    /* collectives enqueued; under order */
    uint64_t history;                   /* hash of them; under order */
    pthread_mutex_t order;              /* held by the call that is being enqueued */
    struct tutti_stream_tracks *tracks; /* what is under way; stream_state.h */
    bool watched;                       /* in the watcher's list; under its lock */
    struct tutti_stream_comm *next_watched, *next_idle; /* the watcher's lists */
} tutti_stream_comm;

/* One collective on CUDA memory for an engine. */
typedef struct tutti_stream_call {
    /* Checked; pointers are of the communicator's GPU, or NULL where counts are 0. Its arrays are valid until enqueue
     * returns. */
    const tutti_op *op;
    tutti_stream stream;
    uint64_t number;    /* among the collectives on CUDA memory of this communicator, from 1; equal on all ranks */
    int64_t timeout_ms; /* of the call, else of the communicator */
    tutti_work *work;   /* the user's, or NULL; an engine need not look at it */
    bool captured;      /* the stream is being captured into a CUDA graph: nothing runs now */
} tutti_stream_call;

/*
 * A way to carry out collectives on CUDA memory. All ranks of a communicator use the same one, for all of its calls.
 *
 * "Caller": the thread of the public call, with comm->gpu->order held and the communicator's GPU as its current one.
 * "Watcher": the watcher's thread, on any GPU or none.
 */
typedef struct tutti_stream_engine {
    const char *name; /* for TUTTI_ALGORITHM, tutti-info and errors */
    const char *when; /* for tutti-info: "one rank" */

    /* Fills in what this engine wants to be told by every rank, before the exchange: may load a library, may not talk to a
     * peer, never fails. Caller. NULL: nothing. */
    void (*tell)(const tutti_comm *comm, tutti_stream_caps *own);
    /* Can it serve this communicator? Reads nranks, comm->hosts, gpu->facts and what else is equal on all ranks: the answer
     * must be the same on all. When not and reason_out is not NULL: why, in a few words. Caller. */
    bool (*fits)(const tutti_comm *comm, char *reason_out, size_t capacity);
    /* Once, after it was chosen; collective: every rank is inside. May wait for peers (tutti_stream_gather; up to
     * comm->connect_timeout_ms), may allocate, loads and creates whatever it needs. A failure breaks the communicator and
     * is what the call answers; close is called then. Where the engine yields, TUTTI_ERR_UNSUPPORTED is no failure, but the
     * answer on all ranks alike that it cannot serve after all: the staged engine takes its place. Caller. NULL: nothing to
     * do. */
    tutti_status (*open)(tutti_comm *comm);
    /* Can it carry out this call (kind, type, reduction: what is equal on all ranks)? Else the staged engine does. Caller.
     * NULL: all calls. */
    bool (*takes)(const tutti_comm *comm, const tutti_op *op);
    /* Puts one collective into the stream: whatever precedes it in the stream is done before it, whatever follows sees its
     * result. Never waits for a peer nor for the stream. All ranks call in the same order; on any of them, streams may
     * differ from call to call, and then it is the engine that keeps calls apart that must not overlap (stream_wait_event).
     * Any error breaks the communicator, but where `spares` says otherwise. Caller. */
    tutti_status (*enqueue)(tutti_comm *comm, const tutti_stream_call *call);
    /* A call was refused in a stream that is being captured, so that nothing has run: can the communicator go on? What became
     * of the capture is CUDA's to say. Caller. NULL: yes. */
    bool (*spares)(tutti_comm *comm);
    /* The communicator is being split; every rank is inside, as in open, and its streams have passed what was under way.
     * Gives the child a seed (comm->seed), if it can. child NULL: this rank has none. A failure breaks the parent. Caller.
     * NULL: nothing. */
    tutti_status (*split)(tutti_comm *parent, tutti_comm *child, int color);
    /* What has gone wrong without a call to tell it (NCCL's asynchronous errors): TUTTI_OK, or the error with its text, which
     * breaks the communicator. About every millisecond while calls are under way; may not block. Watcher. NULL: nothing. */
    tutti_status (*health)(tutti_comm *comm);
    /* The communicator is broken: releases every stream that waits for a peer, now and from now on (a call that was enqueued
     * at the same time, too). Once, after which only close is called. May not wait for peers nor streams, so makes no call of
     * CUDA's on this thread. Watcher, or the thread that destroys the communicator. NULL: its streams wait for nobody. */
    void (*abort)(tutti_comm *comm);
    /* The communicator is destroyed: frees engine_state, half-built ones as well (after a failed open). Waits for no peer. If
     * calls are under way, abort came first; streams may still be at work on what it released, so that memory which they use
     * goes back only after their marks (tutti_pinned_return_after). The thread that destroys; GPU current. NULL: nothing. */
    void (*close)(tutti_comm *comm);

    bool yields;   /* see open */
    bool captures; /* enqueue may be called for a stream that is being captured into a CUDA graph */
    bool
        minds_deaths; /* the engine itself finds dead and late ranks, and breaks the communicator; else the watcher does */
} tutti_stream_engine;

/* A mark for streams of the communicator's GPU, which is the current one. */
tutti_status tutti_stream_event_make(const tutti_stream_comm *gpu, tutti_stream_event **mark_out);

/* Do two ranks share a GPU: one MIG instance of it; or the whole of it, in whichever instances? */
bool tutti_stream_same_device(const tutti_comm *comm, int a, int b);
bool tutti_stream_same_gpu(const tutti_comm *comm, int a, int b);

/* The error of two ranks, threads of one process, that have put a call into the same stream. */
tutti_status tutti_stream_shared(const tutti_comm *comm, const tutti_op *op, int a, int b);

/* From each rank `bytes` (equal everywhere) at mine; into all, rank by rank. An all_gather on host memory, in line with the
 * communicator's other calls: only inside open and split. */
tutti_status tutti_stream_gather(tutti_comm *comm, const void *mine, void *all, size_t bytes);

/* ---------------------------------------------------------------------------------- for those who take calls */

#define TUTTI_PLACE_HOST (-1)

/* Can the buffers of a call with these options be CUDA memory? The first question of every call. */
static inline bool tutti_stream_concerns(const tutti_options *options, int64_t coarse_now_ns) {
    tutti_memory said = options != NULL ? options->memory : TUTTI_MEMORY_ASK;
    return said == TUTTI_MEMORY_CUDA || (said == TUTTI_MEMORY_ASK && tutti_device_in_use_at(coarse_now_ns) != NULL);
}

/* On which GPU the buffers of op are, or TUTTI_PLACE_HOST. TUTTI_ERR_ARGUMENT: on several, or not where the caller said. */
tutti_status tutti_pointer_place_op(const tutti_comm *comm, const tutti_op *op, tutti_memory said, int *index_out);
tutti_status tutti_pointer_place_message(const tutti_message *message, tutti_memory said, int *index_out);

/* Enqueues a checked call in the stream. work_out NULL: nobody waits for it. `whole`, of a group, is told of its end; NULL. */
tutti_status tutti_stream_submit(tutti_comm *comm, const tutti_op *op, int index, tutti_stream stream,
                                 tutti_work *whole, tutti_work **work_out);
tutti_status tutti_stream_submit_message(tutti_comm *comm, const tutti_message *message, tutti_work *whole,
                                         tutti_work **work_out);

/* In tutti_comm_split, on all ranks of the parent. child NULL: none was made here. */
tutti_status tutti_stream_split(tutti_comm *parent, tutti_comm *child, int color);

/* The communicator is about to be destroyed: what is under way fails, streams are released. */
void tutti_stream_abandon(tutti_comm *comm);
/* Nobody runs its operations any more: gives back what can be given back before the streams have passed. */
void tutti_stream_close(tutti_comm *comm);
/* With the last reference to comm. */
void tutti_stream_free(tutti_comm *comm);

/* A thread begins (1) or ends (-1) waiting for a work of this file: the watcher looks more often. */
void tutti_stream_attend(int change);

#endif
