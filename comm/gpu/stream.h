/*
 * Collectives and messages on CUDA memory: enqueued in the caller's stream and executed in stream order.
 *
 *   calling thread     checks the call, chooses the engine (once), calls engine->enqueue between two marks   stream.c
 *   engine             carries out collectives in streams: single, nccl, same_gpu, staged                    engines.c
 *   watcher            one thread per process: checks marks, deadlines and deaths; completes works           inflight.c
 *
 * A call never waits for a peer, except between ranks on one GPU that are threads of one process (same_gpu.h), and in
 * the first collective on CUDA memory of a communicator: there the ranks exchange their capabilities, and the engine is
 * chosen and opened. All ranks choose the same engine because they
 * all read the same capabilities. Calls on one communicator are enqueued one at a time, in the order in which they
 * start.
 *
 * Invariant: once a communicator is broken, no stream waits for a peer: the engine's abort releases it. The
 * contents of the buffers are then undefined, and the works report the error. Neither the watcher nor an abort
 * waits in a CUDA call, which another thread of the program can block for as long as a stream waits (event.h).
 */
#ifndef TUTTI_STREAM_H
#define TUTTI_STREAM_H

#include "comm/base/comm.h"
#include "comm/base/op.h"
#include "comm/gpu/event.h"
#include "comm/queue/queue.h"
#include "kernels/device.h"

/* Capabilities of a rank, exchanged at the first collective on CUDA memory. Compared and read as raw bytes. */
typedef struct tutti_stream_caps {
    uint8_t device_id[TUTTI_DEVICE_ID_BYTES]; /* equal: same GPU, or same MIG instance */
    char pci[32];                             /* equal on one host: same GPU, whatever the MIG instance */
    uint8_t stream_waits, ipc;                /* tutti_device_facts */
    uint8_t nccl_seed;                        /* it has a communicator that its parent's NCCL split off */
    uint8_t unused;
    int32_t nccl_version;   /* from ncclGetVersion; 0: NCCL cannot be used here; filled in by the engine's fill_caps */
    char nccl_missing[256]; /* why NCCL cannot be used, for the log and TUTTI_ALGORITHM=nccl */
} tutti_stream_caps;

struct tutti_stream_engine;

/* What the engine of the parent communicator made for a child in a split; kept until the child's engine opens. */
typedef struct tutti_stream_seed {
    int index; /* the GPU that it is for */
    void (*drop)(struct tutti_stream_seed *seed);
} tutti_stream_seed;

/* CUDA state of a communicator: comm->cuda.streams; NULL until the first call on CUDA memory. */
typedef struct tutti_stream_comm {
    tutti_comm *comm;
    const tutti_device *device;               /* device function table */
    int index;                                /* the GPU of this communicator, on this rank */
    tutti_device_facts own;                   /* facts of that GPU */
    tutti_error_poll *fault;                  /* error poll of that GPU; NULL where marks are CUDA events */
    tutti_stream_caps *facts;                 /* capabilities of all nranks ranks; NULL before the first collective */
    const struct tutti_stream_engine *engine; /* the chosen engine; NULL before the first collective */
    void *engine_state;                       /* owned by the engine: set by its open, freed by its close */
    const struct tutti_stream_engine *staged; /* the staged engine, once it is open; protected by the lock of tracks */
    void *staged_state; /* state of the staged engine, which also serves calls that the chosen engine does not take */
    uint64_t number;    /* collectives enqueued; protected by order */
    uint64_t history;   /* hash of these collectives; protected by order */
    pthread_mutex_t order;                              /* held while a call is enqueued */
    struct tutti_stream_tracks *tracks;                 /* calls in flight; stream_state.h */
    bool watched;                                       /* in the watcher's list; protected by the watcher's lock */
    struct tutti_stream_comm *next_watched, *next_idle; /* links of the watcher's lists */
} tutti_stream_comm;

/* One collective on CUDA memory, as an engine gets it. */
typedef struct tutti_stream_call {
    /* Already checked: pointers are on the communicator's GPU, or NULL where counts are 0. Its arrays are valid until
     * enqueue returns. */
    const tutti_op *op;
    tutti_stream stream;
    uint64_t number; /* index among the collectives on CUDA memory of this communicator, from 1; equal on all ranks */
    int64_t timeout_ms;               /* timeout of the call, else of the communicator */
    tutti_work *work;                 /* the user's work, or NULL; engines may ignore it */
    bool captured;                    /* the stream is being captured into a CUDA graph: nothing runs now */
    tutti_stream_event *begun, *done; /* marks before and behind the call, if the engine puts them; else NULL */
    struct tutti_inflight *track;     /* for tutti_inflight_mind; NULL if the engine does not put marks */
} tutti_stream_call;

/* inflight.c: checks a call that its thread waits for on the host, with its mark `begun` put, as the watcher checks
 * those in streams. Returns the error that broke the communicator. Caller. */
tutti_status tutti_inflight_mind(tutti_stream_comm *gpu, struct tutti_inflight *track);

/*
 * An engine: carries out collectives on CUDA memory. All ranks of a communicator use the same engine for all of its
 * calls.
 *
 * "Caller": the thread of the public call. It holds comm->cuda.streams->order, and the communicator's GPU is its
 * current one. "Watcher": the watcher's thread, with any current GPU or none.
 */
typedef struct tutti_stream_engine {
    const char *name; /* for TUTTI_ALGORITHM, tutti-info and errors */
    const char *when; /* for tutti-info: "one rank" */

    /* Fills in what this engine needs to know about every rank, before the exchange. May load a library; must not
     * communicate with a peer; never fails. Caller. NULL: nothing to fill in. */
    void (*fill_caps)(const tutti_comm *comm, tutti_stream_caps *own);
    /* True if the engine can serve this communicator. Reads nranks, net.hosts, gpu->facts and other data that is equal
     * on all ranks, and so is the answer. If it cannot and reason_out is not NULL, writes the reason there. Caller. */
    bool (*fits)(const tutti_comm *comm, char *reason_out, size_t capacity);
    /* Called once, after the engine was chosen; collective over all ranks. May wait for peers (tutti_stream_gather;
     * at most comm->connect_timeout_ms) and allocate; loads and creates what the engine needs. A failure breaks the
     * communicator and is returned from the call; close is called then. If `yields` is set, TUTTI_ERR_UNSUPPORTED
     * is not a failure: all ranks return it together when the engine cannot serve after all, and the staged engine
     * takes its place. Caller. NULL: nothing to do. */
    tutti_status (*open)(tutti_comm *comm);
    /* True if the engine can carry out this call, judged by what is equal on all ranks (kind, type, reduction).
     * Otherwise the staged engine does. Caller. NULL: all calls. */
    bool (*takes)(const tutti_comm *comm, const tutti_op *op);
    /* Enqueues one collective in the stream: it runs after all earlier work of the stream, and later work sees its
     * result. Never waits for the stream, nor for a peer, except for threads of this process, for the sake of CUDA
     * (same_gpu.h). All ranks call it in the same order. On each rank, streams
     * may differ from call to call; the engine must then order calls that must not overlap (stream_wait_event). Any
     * error breaks the communicator unless `spares` returns true. Caller. */
    tutti_status (*enqueue)(tutti_comm *comm, const tutti_stream_call *call);
    /* True if the communicator stays usable after a call failed in a stream that is being captured, when nothing
     * has run. What happens to the capture is up to CUDA. Caller. NULL: it stays usable. */
    bool (*spares)(tutti_comm *comm);
    /* Collective, called when the communicator is split; its streams have passed all calls in flight. Gives the
     * child a seed (comm->cuda.seed) if it can. child NULL: this rank has no child. A failure breaks the parent.
     * Caller. NULL: nothing to do. */
    tutti_status (*split)(tutti_comm *parent, tutti_comm *child, int color);
    /* Returns TUTTI_OK, or an error that no call has reported (NCCL's asynchronous errors) with its text; this
     * breaks the communicator. Called about every millisecond while calls are in flight; must not block. Watcher.
     * NULL: nothing to check. */
    tutti_status (*health)(tutti_comm *comm);
    /* Called once when the communicator is broken: releases every stream that waits for a peer, now and later
     * (including a call that is enqueued at the same time). Only close is called after it. Must not wait for peers
     * or streams, so it makes no CUDA call on this thread. Watcher, or the thread that destroys the communicator.
     * NULL: its streams never wait for a peer. */
    void (*abort)(tutti_comm *comm);
    /* Called when the communicator is destroyed: frees engine_state, including a partly built one (after a failed
     * open). Does not wait for peers. If calls are in flight, abort was called before; streams may still work on
     * what it released, so memory that they use is returned only after their marks (tutti_pinned_return_after).
     * Runs on the destroying thread; GPU current. NULL: nothing to free. */
    void (*close)(tutti_comm *comm);

    bool yields;       /* see open */
    bool captures;     /* enqueue may be called for a stream that is being captured into a CUDA graph */
    bool minds_deaths; /* the engine detects dead and late ranks itself; otherwise the watcher does */
    bool puts_marks;   /* enqueue puts the marks of a call that is not captured, with its own writes of values */
} tutti_stream_engine;

/* Makes a mark for streams of the communicator's GPU, which must be current. */
tutti_status tutti_stream_event_make(const tutti_stream_comm *gpu, tutti_stream_event **mark_out);

/* True if two ranks use the same device (MIG instance of a GPU), or the same whole GPU in whichever MIG instances. */
bool tutti_stream_same_device(const tutti_comm *comm, int a, int b);
bool tutti_stream_same_gpu(const tutti_comm *comm, int a, int b);

/* The error for two ranks, threads of one process, that enqueued a call in the same stream. */
tutti_status tutti_stream_shared(const tutti_comm *comm, const tutti_op *op, int a, int b);

/* Gathers `bytes` (equal on all ranks) from `mine` of each rank into `all`, in rank order: an all_gather on host
 * memory, ordered with the communicator's other calls. Only inside open and split. */
tutti_status tutti_stream_gather(tutti_comm *comm, const void *mine, void *all, size_t bytes);

/* -------------------------------------------------------------------------------------- for the public calls */

/* True if the buffers of a call with these options may be CUDA memory. Checked first in every call. */
static inline bool tutti_stream_concerns(const tutti_options *options, int64_t coarse_now_ns) {
    tutti_memory said = options != NULL ? options->memory : TUTTI_MEMORY_ASK;
    return said == TUTTI_MEMORY_CUDA || (said == TUTTI_MEMORY_ASK && tutti_device_in_use_at(coarse_now_ns) != NULL);
}

/* Finds the GPU that holds the buffers, or TUTTI_PLACE_HOST. TUTTI_ERR_ARGUMENT: they are on several GPUs, or not
 * where the caller said. */
tutti_status tutti_pointer_place_op(const tutti_comm *comm, const tutti_op *op, tutti_memory said, int *index_out);
tutti_status tutti_pointer_place_message(const tutti_message *message, tutti_memory said, int *index_out);

/* Enqueues a checked call in the stream. work_out NULL: no work is made. `whole` (or NULL) is the group's work, of
 * which this call becomes a part. */
tutti_status tutti_stream_submit(tutti_comm *comm, const tutti_op *op, int index, tutti_stream stream,
                                 tutti_work *whole, tutti_work **work_out);
tutti_status tutti_stream_submit_message(tutti_comm *comm, const tutti_message *message, tutti_work *whole,
                                         tutti_work **work_out);

/* Called in tutti_comm_split on all ranks of the parent. child NULL: no child was made on this rank. */
tutti_status tutti_stream_split(tutti_comm *parent, tutti_comm *child, int color);

/* Called before the communicator is destroyed: fails calls in flight and releases streams. */
void tutti_stream_abandon(tutti_comm *comm);
/* Called when no thread runs its operations any more: returns what can be returned before the streams have passed. */
void tutti_stream_close(tutti_comm *comm);
/* Called with the last reference to comm. */
void tutti_stream_free(tutti_comm *comm);

/* A thread begins (1) or ends (-1) to wait for a work of these files: the watcher checks more often. 0: wakes it. */
void tutti_stream_attend(int change);

/* ------------------------------------------------------------------------------------------- engines.c */

extern const tutti_stream_engine tutti_engine_same_gpu, tutti_engine_nccl, tutti_engine_staged;

/* Bytes for the reason why an engine does not fit. */
#define TUTTI_ENGINES_REASON_BYTES 384

/* Lets every engine fill in its capabilities. */
void tutti_engines_fill_caps(const tutti_comm *comm, tutti_stream_caps *own);
/* Returns the first engine that fits, or the one that TUTTI_ALGORITHM names if it fits; the same on all ranks. */
const tutti_stream_engine *tutti_engines_choose(const tutti_comm *comm);
/* True if TUTTI_ALGORITHM=name names an engine. */
bool tutti_engines_have(const char *name);
const char *tutti_engines_names(void);
/* The rows of the table, for tutti-info; NULL after the last. */
const char *tutti_engines_row(int index, char *text, size_t capacity);

#endif
