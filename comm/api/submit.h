/*
 * The path from a checked call to its execution: at once, queued with a work, or recorded in a group.
 */
#ifndef TUTTI_SUBMIT_H
#define TUTTI_SUBMIT_H

#include "comm/base/comm.h"

/* A point-to-point call. */
typedef struct tutti_message {
    bool sends;
    const void *src;
    void *dst;
    size_t bytes, item_bytes;
    int peer;
    int64_t tag;
    int64_t timeout_ms; /* 0: the communicator's timeout */
    tutti_received *received;
    int gpu; /* GPU that holds the buffer; TUTTI_PLACE_HOST */
    void *stream;
} tutti_message;

/* options may be NULL. The op's arrays are copied if they must outlive the call. */
tutti_status tutti_submit_op(tutti_comm *comm, tutti_op *op, const tutti_options *options);
/* Queues the op, for the worker or for the first thread that waits for the work. */
tutti_status tutti_submit_queued(tutti_comm *comm, const tutti_op *op, tutti_work **work_out);
tutti_status tutti_submit_message(tutti_comm *comm, tutti_message *message, const tutti_options *options);

/* Returns true if this thread records a group on comm. */
bool tutti_group_is_open(const tutti_comm *comm);
/* gpu: the GPU that holds its buffers, used with `stream`, or TUTTI_PLACE_HOST (stream.h). */
tutti_status tutti_group_add_op(tutti_comm *comm, const tutti_op *op, int gpu, void *stream);
tutti_status tutti_group_add_message(tutti_comm *comm, const tutti_message *message);

/* Starts a message with a work of its own; the caller has one reference to it. It is a part of `whole` if that is
 * not NULL. */
tutti_status tutti_message_start(tutti_comm *comm, const tutti_message *message, tutti_work *whole,
                                 tutti_work **work_out);
/* Copies the arrays of work->op into the work. */
tutti_status tutti_op_own_arrays(const tutti_comm *comm, tutti_work *work);

#endif
