/*
 * The queue of collectives. Each communicator has one. Its collectives run in the order of their start, on one
 * thread at a time. A blocking call on an idle communicator runs on the caller's thread. An asynchronous call is
 * queued, and runs on the worker thread, or on a thread that waits for it if that thread comes first (waking a
 * thread costs 8 to 20 us). The worker starts with the first queued call and exits after a second without any.
 * Callbacks never run on the worker but on a pool. Functions passed to tutti_submit (task.c) run on the worker
 * only; calls that they make on its communicator run at once, within their turn.
 *
 * Neither the lock of a queue nor that of a work is held while an operation or a callback runs.
 */
#ifndef TUTTI_QUEUE_H
#define TUTTI_QUEUE_H

#include "comm/base/comm.h"

struct tutti_work {
    atomic_int references; /* held by the user's handle, the queue or point to point, and each waiter */
    atomic_uint done;      /* 0, then 1; futex word */
    atomic_uint sleepers;  /* waiters asleep on done */
    tutti_comm *comm;      /* one reference: its memory outlives tutti_comm_destroy */
    tutti_status status;   /* written before done (release) */
    char *error;           /* malloc'd text or NULL */
    int source;
    int64_t tag;
    size_t count;
    uint64_t sequence;
    int64_t created_ns, start_ns, end_ns;
    atomic_bool hurried;      /* something other than a waiter depends on its end */
    atomic_int parts;         /* of a group: parts that have not ended; the last part ends the work */
    struct tutti_work *whole; /* of a part: the group's work, updated when this part ends */
    tutti_callback callback;  /* under lock */
    void *callback_context;
    pthread_mutex_t lock;                    /* orders setting the callback with the end of the work */
    tutti_op op;                             /* the operation that the queue runs */
    tutti_status (*run)(tutti_work *work);   /* if set, runs instead, on the worker thread only */
    tutti_status (*function)(void *context); /* of a task (task.c): called by `run`; else NULL */
    void (*release)(void *context);          /* frees the context at the end; NULL: none */
    void *context;
    bool streamed;           /* ended by the stream watcher; stream.h */
    void *stream;            /* recorded in a group: the stream to run on */
    int gpu;                 /* recorded in a group: the GPU, or TUTTI_PLACE_HOST */
    void *arrays;            /* malloc'd copies of op's arrays, or NULL */
    struct tutti_work *next; /* in the queue */
};

/* work.c. Creates a work that has not ended, with one reference. */
tutti_status tutti_work_create(tutti_comm *comm, tutti_work **work_out);
void tutti_work_retain(tutti_work *work);
/* Copies the arrays of work->op into the work. */
tutti_status tutti_work_own_arrays(const tutti_comm *comm, tutti_work *work);
/* Ends the work with a status and, for failures, this thread's error text. Must be called once. Wakes waiters and
 * starts the callback. */
void tutti_work_end(tutti_work *work, tutti_status status);
/* Runs the work's callback on a thread of the callback pool and passes the work's status to it. */
void tutti_work_call_back(tutti_work *work);

/* queue.c */
tutti_status tutti_queue_create(tutti_comm *comm);
/* True if an operation is running or queued. */
bool tutti_queue_is_active(tutti_comm *comm);
/* Fails all queued operations, then waits for the running operation and for the worker's exit. */
void tutti_queue_close(tutti_comm *comm);
void tutti_queue_destroy(tutti_comm *comm);
/* Blocks all operations until tutti_queue_leave; false: an operation is running. */
bool tutti_queue_try_enter(tutti_comm *comm);
void tutti_queue_leave(tutti_comm *comm);
/* Runs op after all queued operations; returns when it is done. */
tutti_status tutti_queue_run(tutti_comm *comm, tutti_op *op);
/* Queues work->op for the worker or the first waiter; takes a reference. */
tutti_status tutti_queue_push(tutti_comm *comm, tutti_work *work);
/* The same with a new work, which gets a copy of op and of its arrays. */
tutti_status tutti_queue_submit(tutti_comm *comm, const tutti_op *op, tutti_work **work_out);
/* Runs the operation for a work's `run`: assigns its number, executes it, and breaks the communicator if it fails. */
tutti_status tutti_queue_carry_out(tutti_comm *comm, tutti_op *op);
/* The communicator whose task this thread runs; NULL: none. */
extern TUTTI_THREAD_LOCAL tutti_comm *tutti_task_comm;
/* Waits up to some milliseconds for a thread that has completed its operation and only has to leave. */
void tutti_queue_settle(tutti_comm *comm);
/* Makes sure that a thread drives point to point while this process does something else. */
void tutti_queue_serve_p2p(tutti_comm *comm);
/* The same at the end of a blocking message, if bytes for another host remain that the system has not accepted yet. */
void tutti_queue_serve_rest(tutti_comm *comm);
/* Waits, and meanwhile drives point to point and runs queued operations. For a blocking call, whose buffers must be
 * free when it returns: an interrupt breaks the communicator, which ends the work. Returns the status of the work. */
tutti_status tutti_work_finish(tutti_work *work);

#endif
