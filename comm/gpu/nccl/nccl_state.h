/*
 * Shared by the files nccl*.c: the NCCL communicator of a communicator, and how calls on it are made.
 *
 * Invariant: `handle` is used only under `lock`; after `aborted` is set there is no handle. NCCL communicators are
 * non-blocking, so calls on them hold the lock for long only where CUDA blocks them; an abort that cannot take the
 * lock waits for it on its own thread.
 */
#ifndef TUTTI_NCCL_STATE_H
#define TUTTI_NCCL_STATE_H

#include <pthread.h>

#include "comm/gpu/nccl/nccl_library.h"
#include "comm/gpu/stream.h"

/* For this long, a "remote error" of NCCL may turn out to be the death of a rank, which is then reported instead. */
#define TUTTI_NCCL_DOUBT_NS (500 * TUTTI_NS_PER_MS)

#define TUTTI_NCCL_LINGER_NS (2 * TUTTI_NS_PER_S) /* for remaining work when a communicator ends */

/* The end of an NCCL communicator, on a separate thread; freed by the last of its two holders. */
typedef struct tutti_nccl_ending {
    const tutti_nccl *nccl;
    const tutti_device *device;
    int index;
    tutti_nccl_comm handle; /* NULL: only memory is to be freed */
    bool peaceful;          /* data in flight to peers is delivered first; otherwise an abort */
    void *memory[2];        /* GPU memory, or NULL */
    atomic_bool done;
    atomic_int holders;
} tutti_nccl_ending;

typedef struct tutti_nccl_state {
    tutti_comm *comm;
    const tutti_nccl *nccl;
    pthread_mutex_t lock;
    tutti_nccl_comm handle; /* under lock; NULL: not created yet, or aborted */
    bool aborted;           /* under lock */
    bool has_aborter;       /* a thread waits for the lock to abort; joined by close */
    pthread_t aborter;
    const char *failed;              /* under lock: name of the call that failed, or NULL */
    tutti_nccl_ending *ending;       /* under lock: the abort in progress, or NULL */
    int64_t remote_error_ns;         /* when the watcher first saw a remote error; 0: never */
    bool rank_order;                 /* floats are summed in rank order: TUTTI_DETERMINISTIC=1 */
    void *token;                     /* a byte of GPU memory, for barriers */
    void *scratch;                   /* GPU memory, allocated at first need; NULL before; used in stream order */
    size_t scratch_bytes;            /* equal on all ranks */
    tutti_event_handle scratch_free; /* recorded after the last use of scratch */
    tutti_event_handle joint;        /* joins two streams; used right after it is recorded */
    tutti_stream aside;              /* replaces a stream that only its own thread can name; NULL: not created */
    struct tutti_nccl_hold *holds;   /* registered memory; under the lock of nccl_memory.c */
    struct tutti_nccl_state *next;   /* list of nccl_memory.c; under its lock */
} tutti_nccl_state;

/* ----------------------------------------------------------------------------------------- nccl_ending.c */

/* Runs the ending on a new thread; without a thread, on this one. */
void tutti_nccl_ending_run(tutti_nccl_ending *ending);
/* Takes the handle from the state. With the lock held. NULL: out of memory; the handle is then left as it is. */
tutti_nccl_ending *tutti_nccl_ending_take(tutti_nccl_state *state);
/* Begins the abort as state->ending, unless there is no handle any more. With the lock held. */
void tutti_nccl_ending_abort(tutti_nccl_state *state);
/* Waits for the ending until end_ns: a program that exits now should not cut off data that peers still receive. */
void tutti_nccl_ending_wait(const tutti_nccl_ending *ending, int64_t end_ns);
/* For each of the two holders. */
void tutti_nccl_ending_release(tutti_nccl_ending *ending);
/* Ends an unused handle. */
void tutti_nccl_discard(const tutti_nccl *nccl, const tutti_device *device, int index, tutti_nccl_comm handle);

/* ------------------------------------------------------------------------------------------ nccl_batch.c */

/* Calls between begin and finish, which NCCL executes as one group. */
typedef struct tutti_nccl_batch {
    tutti_nccl_state *state;
    const tutti_op *op;
    int64_t timeout_ms;
    tutti_nccl_comm handle; /* for the calls, like the stream */
    tutti_stream stream;
    tutti_nccl_result result; /* the first failure */
    const char *failed;       /* name of the call that failed */
} tutti_nccl_batch;

/* Takes the lock and starts a group. */
tutti_status tutti_nccl_begin(tutti_nccl_state *state, const tutti_stream_call *call, tutti_nccl_batch *batch_out);
/* Records the result of a call. */
void tutti_nccl_note(tutti_nccl_batch *batch, tutti_nccl_result result, const char *name);
/* Add a transfer to the group, unless it has 0 bytes. */
void tutti_nccl_send(tutti_nccl_batch *batch, const void *memory, size_t bytes, int peer);
void tutti_nccl_recv(tutti_nccl_batch *batch, const void *memory, size_t bytes, int peer);
/* Ends the group, releases the lock, and waits until the calls are in the stream: work enqueued later comes after them.
 * After an error no call gets into the stream any more: once it has passed what is in it, the memory may be freed. */
tutti_status tutti_nccl_finish(tutti_nccl_batch *batch);

/* What a wait is for, for its errors. */
typedef struct tutti_nccl_reason {
    const tutti_op *op;
    int64_t timeout_ms;
    const char *name; /* name of the NCCL call, or of the op */
} tutti_nccl_reason;

/* Waits until NCCL has completed what its last call began; checks for broken, dead and departed ranks meanwhile. */
tutti_status tutti_nccl_wait(tutti_nccl_state *state, const tutti_nccl_reason *reason);
/* Turns an NCCL result into an error; if a rank has died, the error names that rank instead. */
tutti_status tutti_nccl_failure(tutti_nccl_state *state, const tutti_op *op, tutti_nccl_result result,
                                const char *name);

/* Takes the scratch for this call. Fails in a stream that is being captured. */
tutti_status tutti_nccl_scratch_take(tutti_nccl_state *state, const tutti_stream_call *call);
/* Returns the scratch: the work enqueued in the stream so far is all that uses it. */
tutti_status tutti_nccl_scratch_give(tutti_nccl_state *state, const tutti_stream_call *call);

/* ----------------------------------------------------------------------------------------------- calls */

tutti_status tutti_nccl_enqueue(tutti_comm *comm, const tutti_stream_call *call);
tutti_status tutti_nccl_reduce(tutti_nccl_state *state, const tutti_stream_call *call);

/* ---------------------------------------------------------------------------------------- nccl_memory.c */

/* Start and stop registering memory of tutti_nccl_allocator with this communicator. */
void tutti_nccl_memory_enter(tutti_nccl_state *state);
void tutti_nccl_memory_leave(tutti_nccl_state *state);
/* Registers the block that contains `memory`, if it was allocated here. Never fails: without it NCCL is only slower. */
void tutti_nccl_memory_use(tutti_nccl_state *state, const void *memory);

#endif
