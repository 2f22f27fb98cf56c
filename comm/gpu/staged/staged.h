/*
 * The staged engine: CUDA memory through pinned host memory, in pieces. Shared by the files staged*.c.
 *
 *   stream            D2H 0 | arrived=1 | D2H 1 | arrived=2 | D2H 2 | arrived=3 | wait done>=1 | H2D 0 | D2H 3 | ...
 *   worker thread              collective 0, done=1     collective 1, done=2     ...
 *
 * Piece k is in slot k % TUTTI_STAGED_SLOTS. A rank's slot holds what the rank reads and writes of the piece, laid
 * out as a collective on host memory needs it, in place where possible.
 */
#ifndef TUTTI_STAGED_H
#define TUTTI_STAGED_H

#include <stdatomic.h>

#include "comm/gpu/pinned.h"
#include "comm/gpu/stream.h"

#define TUTTI_STAGED_SLOTS 3
#define TUTTI_STAGED_CALLS 256 /* remembered calls; a waiting stream holds fewer */

typedef struct tutti_staged_call {
    uint64_t number; /* 0: none */
    tutti_stream stream;
    uint64_t end; /* ticket of its last piece */
} tutti_staged_call;

/* State of one rank in one communicator. */
typedef struct tutti_staged {
    const tutti_comm *comm;
    tutti_pinned *memory; /* the words, then the slots */
    char *slots;
    size_t slot_bytes;
    _Atomic uint64_t *arrived; /* written in streams: pieces that have arrived in their slots */
    _Atomic uint64_t *done;    /* written by the worker: pieces whose results are ready; pairs with the stream's wait */
    void *arrived_on_device, *done_on_device;
    uint64_t tickets;           /* pieces enqueued so far; calling thread only, like the fields up to behind */
    bool used;                  /* a call was made */
    bool torn;                  /* a call is partly enqueued, with no mark behind it */
    tutti_stream last_stream;   /* stream of the last call */
    tutti_event_handle last;    /* recorded behind the last call, for streams */
    tutti_stream_event *behind; /* mark behind the last call, for the host */
    tutti_staged_call calls[TUTTI_STAGED_CALLS]; /* the last calls; staged_streams.c, under its lock */
    struct tutti_staged *next;                   /* list of staged_streams.c */
} tutti_staged;

/* A contiguous range of the caller's memory, and the place of its pieces in a slot. */
typedef struct tutti_staged_part {
    char *on_gpu;
    size_t count;
    size_t slice; /* index of the slice, if slices are equal */
    size_t at;    /* if slices differ (v-kinds): bytes from the start of the slot */
} tutti_staged_part;

/* A call split into pieces: piece k is the elements [k * piece, (k + 1) * piece) of every part. */
typedef struct tutti_staged_job {
    tutti_staged *staged;
    tutti_op op; /* the whole call, for reports and errors */
    size_t piece, pieces;
    bool equal;              /* all parts have op.count elements: slices of a piece are as long as the piece */
    tutti_pinned *own_slots; /* memory for a single piece that is larger than a slot; or NULL */
    uint64_t ticket;         /* ticket of piece 0, minus 1 */
    int nins, nouts;
    tutti_staged_part *ins, *outs;
    const void **srcs; /* arrays of the running piece, for v-kinds */
    void **dsts;
    size_t *src_counts, *dst_counts;
} tutti_staged_job;

/* Makes a job for op; the job and all of its arrays are one malloc block. */
tutti_status tutti_staged_job_make(tutti_comm *comm, const tutti_op *op, size_t slot_bytes, tutti_staged_job **job_out);
/* Bytes of the largest slot that the job needs. */
size_t tutti_staged_job_bytes(const tutti_staged_job *job);
/* Elements of `part` in piece k. */
size_t tutti_staged_part_count(const tutti_staged_job *job, const tutti_staged_part *part, size_t k);
/* The place of these elements in their slot. */
char *tutti_staged_part_place(const tutti_staged_job *job, const tutti_staged_part *part, size_t k);
/* Piece k as a collective on host memory. */
tutti_op tutti_staged_piece(tutti_comm *comm, tutti_staged_job *job, size_t k);

/* staged_streams.c: enter and leave make the calls of this rank visible to the other ranks of this process; note
 * adds a call, to which the last tickets belong. TUTTI_ERR_ARGUMENT: the stream already waits for this call, for
 * another rank of this process. */
void tutti_staged_streams_enter(tutti_staged *staged);
void tutti_staged_streams_leave(const tutti_staged *staged);
tutti_status tutti_staged_streams_note(tutti_staged *staged, const tutti_stream_call *call);

#endif
