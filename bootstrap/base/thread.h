/*
 * The library's own threads: one table of all that it may start (thread.c), and the number of each kind that lives.
 * They block all signals; signals are delivered to the program's threads.
 *
 * A new kind of thread is a value below and a row of the table. A thread that waits for work again and again is a
 * service, which starts it when there is work and ends it later.
 */
#ifndef TUTTI_THREAD_H
#define TUTTI_THREAD_H

#include <pthread.h>

#include "bootstrap/base/lock.h"

typedef enum tutti_thread_kind {
    TUTTI_THREAD_QUEUE,
    TUTTI_THREAD_CALLBACK,
    TUTTI_THREAD_LISTENER,
    TUTTI_THREAD_CONNECT,
    TUTTI_THREAD_HEARTBEAT,
    TUTTI_THREAD_CUDA_WATCH,
    TUTTI_THREAD_CUDA_POLL,
    TUTTI_THREAD_NCCL_END,
    TUTTI_THREAD_NCCL_STOP,
    TUTTI_THREAD_GPU_FREE,
    TUTTI_THREAD_LOOKUP,
    TUTTI_THREAD_STORE,
    TUTTI_THREAD_NODES,
    TUTTI_THREAD_KINDS
} tutti_thread_kind;

typedef struct tutti_thread_row {
    const char *name; /* at most 15 characters; shown by ps, top and debuggers */
    const char *lasts;
    const char *does;
} tutti_thread_row;

extern const tutti_thread_row tutti_threads[TUTTI_THREAD_KINDS];

/* Starts body(argument). Join *thread_out; if thread_out is NULL, the thread is detached. 0 or an errno value. */
int tutti_thread_start(tutti_thread_kind kind, void *(*body)(void *), void *argument, pthread_t *thread_out);

/* A service of the process: threads of one kind that run rounds as long as there is work. They start when woken and
 * end after a second without work. */
typedef struct tutti_service {
    tutti_thread_kind thread;
    tutti_lock_kind lock; /* protects the work and the members below */
    /* With the lock held, which it may release meanwhile. Returns whether there was work, and how long the thread may
     * sleep until the next round if it is not woken. */
    bool (*round)(int64_t *nap_ns_out);
    int most_threads;
    int threads, idle; /* those that live, and those of them that sleep */
    int wakes;         /* not yet taken by a thread; at most `most_threads` */
    bool ready;        /* `wake` is initialized */
    pthread_cond_t wake;
} tutti_service;

/* Makes a thread run a round now, one more thread if all are busy. The caller holds the lock. False: a thread could not
 * be started; the next call tries again. */
bool tutti_service_wake(tutti_service *service);

/* The threads of the kind that this process has now. A forked child has none of its parent's. */
int tutti_thread_count(tutti_thread_kind kind);

#endif
