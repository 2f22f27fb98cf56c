/*
 * What the files nccl*.c share: NCCL's communicator beside ours, and how calls are made on it.
 *
 *   nccl.c          the engine: is there NCCL on all ranks, health, abort, closing
 *   nccl_open.c     NCCL's communicators: made by all ranks, or split from the parent's
 *   nccl_batch.c    calls of NCCL as one group, and waiting until they are in the stream
 *   nccl_call.c     kinds that move
 *   nccl_reduce.c   kinds that reduce: which of them NCCL does as we promise
 *   nccl_ordered.c  and the others: NCCL moves, our kernel reduces in the order of ranks
 *   nccl_memory.c   memory of ncclMemAlloc, registered where it is used
 *
 * Invariant: `handle` is touched under `lock` only; who finds `aborted` there has none. NCCL's communicators are
 * non-blocking, so its calls hold the lock for long only where CUDA keeps them waiting; an abort that does not get it waits on a
 * thread of its own.
 */
#ifndef TUTTI_NCCL_STATE_H
#define TUTTI_NCCL_STATE_H

#include <pthread.h>

#include "comm/gpu/nccl/nccl_library.h"
#include "comm/gpu/stream.h"

/* So long a "remote error" of NCCL's may turn out to be a death, which is then told instead. */
#define TUTTI_NCCL_DOUBT_NS (500 * TUTTI_NS_PER_MS)

struct tutti_nccl_ending;

typedef struct tutti_nccl_state {
    tutti_comm *comm;
    const tutti_nccl *nccl;
    pthread_mutex_t lock;
    tutti_nccl_comm handle; /* under lock; NULL: not yet, or aborted */
    bool aborted;           /* under lock */
    bool has_aborter;       /* a thread that waits for the lock to abort; joined by close */
    pthread_t aborter;
    const char *failed;               /* under lock: the call that failed; NULL */
    struct tutti_nccl_ending *ending; /* under lock: the abort under way; NULL */
    int64_t remote_error_ns;          /* when the watcher first saw one; 0: none */
    bool rank_order;                 /* floats are summed in the order of ranks: TUTTI_DETERMINISTIC=1 */
    void *token;                     /* a byte of the GPU's, for barriers */
    void *scratch;                   /* of the GPU, made when first needed; NULL; used in stream order */
    size_t scratch_bytes;            /* equal on all ranks */
    tutti_event_handle scratch_free; /* recorded behind the last use */
    tutti_event_handle joint;        /* where streams meet, used at once */
    tutti_stream aside;              /* in place of a stream that only its own thread can name; NULL: not yet */
    struct tutti_nccl_hold *holds;   /* registered memory; under the lock of nccl_memory.c */
    struct tutti_nccl_state *next;   /* there */
} tutti_nccl_state;

/* ------------------------------------------------------------------------------------------- nccl_open.c */

/* Makes NCCL's communicators; every rank is inside. */
tutti_status tutti_nccl_connect(tutti_nccl_state *state);
/* tutti_stream_engine.split */
tutti_status tutti_nccl_split(tutti_comm *parent, tutti_comm *child, int color);
/* Ends a handle that nobody uses. */
void tutti_nccl_discard(const tutti_nccl *nccl, const tutti_device *device, int index, tutti_nccl_comm handle);

/* ------------------------------------------------------------------------------------------ nccl_batch.c */

/* Calls that NCCL takes as one, between begin and finish. */
typedef struct tutti_nccl_batch {
    tutti_nccl_state *state;
    const tutti_op *op;
    int64_t timeout_ms;
    tutti_nccl_comm handle;   /* for the calls */
    tutti_nccl_result result; /* the first that was not good */
    const char *failed;       /* that call's name */
} tutti_nccl_batch;

/* Takes the lock and opens a group. */
tutti_status tutti_nccl_begin(tutti_nccl_state *state, const tutti_stream_call *call, tutti_nccl_batch *batch_out);
/* Notes what a call has answered. */
void tutti_nccl_note(tutti_nccl_batch *batch, tutti_nccl_result result, const char *name);
/* Ends the group, gives the lock back, and waits until its calls are in the stream: what is enqueued from then on comes
 * after them. */
tutti_status tutti_nccl_finish(tutti_nccl_batch *batch);

/* What a wait is for, and what is told when it goes wrong. */
typedef struct tutti_nccl_reason {
    const tutti_op *op;
    int64_t timeout_ms;
    const char *name; /* of NCCL's call, or the op's */
} tutti_nccl_reason;

/* Until NCCL has done what its last call began: looks for broken, dead and departed ranks meanwhile. */
tutti_status tutti_nccl_wait(tutti_nccl_state *state, const tutti_nccl_reason *reason);
/* The error that NCCL's answer is; a rank that died is named instead. */
tutti_status tutti_nccl_failure(tutti_nccl_state *state, const tutti_op *op, tutti_nccl_result result,
                                const char *name);

/* The stream for calls of NCCL's that belong into `stream`, behind all that is in it. NCCL enqueues on a thread of its own, where
 * the handle of a thread's own default stream means another one: then it is a stream of ours. */
tutti_status tutti_nccl_step_aside(tutti_nccl_state *state, tutti_stream stream, tutti_stream *stream_out);
/* What comes into `stream` from now on is behind what is in the one that step_aside gave for it. */
tutti_status tutti_nccl_step_back(tutti_nccl_state *state, tutti_stream stream, tutti_stream aside);

/* --------------------------------------------------------------------------------------- scratch, nccl.c */

/* Makes the state's scratch this call's; not in a stream that is captured. */
tutti_status tutti_nccl_scratch_take(tutti_nccl_state *state, const tutti_stream_call *call);
/* What is enqueued so far in the stream is all that uses it. */
tutti_status tutti_nccl_scratch_give(tutti_nccl_state *state, const tutti_stream_call *call);

/* ----------------------------------------------------------------------------------------------- calls */

tutti_status tutti_nccl_enqueue(tutti_comm *comm, const tutti_stream_call *call);
tutti_status tutti_nccl_reduce(tutti_nccl_state *state, const tutti_stream_call *call);
tutti_status tutti_nccl_ordered(tutti_nccl_state *state, const tutti_stream_call *call);

/* ---------------------------------------------------------------------------------------- nccl_memory.c */

/* From now on memory of tutti_nccl_mem_alloc may be registered with this communicator; and no longer. */
void tutti_nccl_memory_enter(tutti_nccl_state *state);
void tutti_nccl_memory_leave(tutti_nccl_state *state);
/* If the bytes lie in such memory, it is registered now. Never fails: NCCL is then slower, that is all. */
void tutti_nccl_memory_use(tutti_nccl_state *state, const void *memory);

#endif
