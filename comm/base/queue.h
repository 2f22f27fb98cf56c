/*
 * Who runs what. Each communicator has one queue of collectives, carried out in the order of their start, by one
 * thread at a time: a blocking call on an idle communicator runs on its caller's thread; an asynchronous one is
 * queued, and run by the worker thread, or by whoever waits for it if he comes first (waking a thread costs 8 to
 * 20 us). The worker starts with the first queued call and ends after a second without any. Callbacks never run on
 * it but on a pool. Functions of tutti_submit (task.c) run on the worker only; what they call on its communicator runs at
 * once, within their turn.
 *
 * Lock order: queue lock, then work lock; neither is held while an operation runs or a callback is called.
 */
#ifndef TUTTI_QUEUE_H
#define TUTTI_QUEUE_H

#include "comm/base/comm.h"

struct tutti_work {
    atomic_int references; /* the user's handle, the queue's or point to point's, a waiter's */
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
    atomic_bool hurried;      /* someone who does not wait relies on its end */
    atomic_int parts;         /* of a group: parts that have not ended; the last one ends the work */
    struct tutti_work *whole; /* of a part: the group's work, told when this ends */
    tutti_callback callback;  /* under lock */
    void *callback_context;
    pthread_mutex_t lock;                    /* guards callback against the end */
    tutti_op op;                             /* what the queue runs */
    tutti_status (*run)(tutti_work *work);   /* what the worker thread, and nobody else, runs instead; NULL */
    tutti_status (*function)(void *context); /* of a task (task.c), which `run` calls; NULL */
    void (*release)(void *context);          /* gives its context back at the end; NULL */
    void *context;
    bool streamed;           /* the watcher of streams ends it; stream.h */
    void *stream;            /* recorded in a group: where it is to run */
    int gpu;                 /* recorded in a group: on which GPU; TUTTI_PLACE_HOST */
    void *arrays;            /* malloc'd copies of op's arrays, or NULL */
    struct tutti_work *next; /* in the queue */
};

/* A work that has not ended, with one reference. */
tutti_status tutti_work_create(tutti_comm *comm, tutti_work **work_out);
void tutti_work_retain(tutti_work *work);
/* Ends the work: status, and for failures this thread's error text. Once only. Wakes waiters, starts the callback. */
void tutti_work_end(tutti_work *work, tutti_status status);
/* Waits, driving point to point and running queued operations meanwhile. */
tutti_status tutti_work_wait_until_done(tutti_work *work, tutti_deadline *deadline);
/* The same for a blocking call, whose buffers must be free when it returns: an interrupt breaks the communicator, and so
 * ends the work. Gives its status. */
tutti_status tutti_work_finish(tutti_work *work);

tutti_status tutti_queue_create(tutti_comm *comm);
/* Is an operation running or queued? */
bool tutti_queue_is_active(tutti_comm *comm);
/* Fails what is queued, waits for the running operation and the worker to leave. */
void tutti_queue_close(tutti_comm *comm);
void tutti_queue_destroy(tutti_comm *comm);
/* Keeps all operations away until leave; false: one is running. */
bool tutti_queue_try_enter(tutti_comm *comm);
void tutti_queue_leave(tutti_comm *comm);
/* Runs op now, after all that is queued; returns when it is done. */
tutti_status tutti_queue_run(tutti_comm *comm, tutti_op *op);
/* Queues work->op for the worker or whoever waits first; takes a reference. */
tutti_status tutti_queue_push(tutti_comm *comm, tutti_work *work);
/* Runs the oldest queued operation on this thread, if there is one and nobody is running any. False: there was not. */
bool tutti_queue_run_next(tutti_comm *comm);
/* Does no operation wait to be run? */
bool tutti_queue_is_empty(const tutti_comm *comm);
/* The operation itself, for a work's `run`: numbers it, carries it out, breaks the communicator when it fails. */
tutti_status tutti_queue_carry_out(tutti_comm *comm, tutti_op *op);
/* The same when it could not even begin. */
tutti_status tutti_queue_give_up(tutti_comm *comm, tutti_status status);
/* The communicator whose task this thread runs; NULL: it runs none. */
extern TUTTI_THREAD_LOCAL tutti_comm *tutti_task_comm;
/* Waits, some milliseconds at most, for whoever runs an operation that has no more to do than to leave. */
void tutti_queue_settle(tutti_comm *comm);
/* The worker takes it as soon as it can. */
void tutti_queue_hurry(tutti_work *work);
/* Makes sure that someone drives point to point while this process does something else. */
void tutti_queue_serve_p2p(tutti_comm *comm);
/* The same at the end of a blocking message, if bytes for another host are left that the system has not taken yet. */
void tutti_queue_serve_rest(tutti_comm *comm);

#endif
