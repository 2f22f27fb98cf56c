/*
 * The staged engine: CUDA memory through pinned host memory, in pieces. What the files staged*.c share.
 *
 *   stream            D2H 0 | arrived=1 | D2H 1 | arrived=2 | D2H 2 | arrived=3 | wait done>=1 | H2D 0 | D2H 3 | ...
 *   worker thread              collective 0, done=1     collective 1, done=2     ...
 *
 * Piece k lies in slot k % TUTTI_STAGED_SLOTS. A rank's slot holds what it reads and writes of the piece, as a collective of
 * the host wants it, in place where there is a way to.
 */
#ifndef TUTTI_STAGED_H
#define TUTTI_STAGED_H

#include <stdatomic.h>

#include "comm/gpu/pinned.h"
#include "comm/gpu/stream.h"

#define TUTTI_STAGED_SLOTS 3
#define TUTTI_STAGED_CALLS 256 /* that are remembered; a stream that waits holds fewer */

typedef struct tutti_staged_call {
    uint64_t number; /* 0: none */
    tutti_stream stream;
    uint64_t end; /* ticket of its last piece */
} tutti_staged_call;

/* One rank's, for one communicator. */
typedef struct tutti_staged {
    const tutti_comm *comm;
    tutti_pinned *memory; /* the words, then the slots */
    char *slots;
    size_t slot_bytes;
    _Atomic uint64_t *arrived; /* written in streams: pieces that are in their slots */
    _Atomic uint64_t *done;    /* written by the worker: pieces whose results are there; pairs with the stream's wait */
    void *arrived_on_device, *done_on_device;
    uint64_t tickets;                            /* pieces enqueued so far; the calling thread's, like the rest */
    bool used;                                   /* there was a call */
    bool torn;                                   /* one is in a stream in part, with no mark behind it */
    tutti_stream last_stream;                    /* where the last call is */
    tutti_event_handle last;                     /* behind it, for streams */
    tutti_stream_event *behind;                          /* and for the host */
    tutti_staged_call calls[TUTTI_STAGED_CALLS]; /* the last ones; staged_streams.c, under its lock */
    struct tutti_staged *next;                   /* there */
} tutti_staged;

/* A run of elements of the caller's memory, and where its pieces lie in a slot. */
typedef struct tutti_staged_part {
    char *on_gpu;
    size_t count;
    size_t slice; /* of equal slices: which one */
    size_t at;    /* of slices that differ (v-kinds): bytes from the slot's start */
} tutti_staged_part;

/* A call cut into pieces: piece k is elements [k * piece, (k + 1) * piece) of every part. */
typedef struct tutti_staged_job {
    tutti_staged *staged;
    tutti_op op; /* the whole; what is told of it */
    size_t piece, pieces;
    bool equal;              /* all parts have op.count elements: slices of a piece are as long as the piece */
    tutti_pinned *own_slots; /* one piece that is larger than the slots; NULL */
    uint64_t ticket;         /* of piece 0, less 1 */
    int nins, nouts;
    tutti_staged_part *ins, *outs;
    const void **srcs; /* of the running piece's v-kind */
    void **dsts;
    size_t *src_counts, *dst_counts;
} tutti_staged_job;

/* A job for op, with all of its arrays in one block of malloc. */
tutti_status tutti_staged_job_make(tutti_comm *comm, const tutti_op *op, size_t slot_bytes, tutti_staged_job **job_out);
/* Bytes of the largest slot that it needs. */
size_t tutti_staged_job_bytes(const tutti_staged_job *job);
/* Elements of `part` in piece k. */
size_t tutti_staged_part_count(const tutti_staged_job *job, const tutti_staged_part *part, size_t k);
/* Where they lie in their slot. */
char *tutti_staged_part_place(const tutti_staged_job *job, const tutti_staged_part *part, size_t k);
/* Piece k as a collective of the host. */
tutti_op tutti_staged_piece(tutti_comm *comm, tutti_staged_job *job, size_t k);

/* staged_streams.c: from when on the ranks of this process see its calls, until when, and a call, to which the last tickets belong;
 * TUTTI_ERR_ARGUMENT: the stream waits for it already, for another rank of this process. */
void tutti_staged_streams_enter(tutti_staged *staged);
void tutti_staged_streams_leave(const tutti_staged *staged);
tutti_status tutti_staged_streams_note(tutti_staged *staged, const tutti_stream_call *call);

#endif
