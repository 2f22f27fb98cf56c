/*
 * The locks of bootstrap/, comm/ and kernels/device.c: one table (lock.c) of all that a process has, in the one order
 * in which a thread may take them, with what each protects and what becomes of it in a fork.
 *
 * A lock of the process is its row and is taken with tutti_lock. A lock in a struct, of which there are many, has a row
 * for its place in the order and is taken with tutti_lock_in. A thread takes a lock only while those that it holds are
 * of earlier rows. Builds with TUTTI_CHECK_LOCKS (debug and sanitizers) abort a thread that does otherwise; other
 * builds do no more than lock the mutex.
 *
 * A new lock is a value below, where its place is, and a row of the table.
 */
#ifndef TUTTI_LOCK_H
#define TUTTI_LOCK_H

#include <pthread.h>

#include "bootstrap/base/common.h"

typedef enum tutti_lock_kind {
    TUTTI_LOCK_RENDEZVOUS,
    TUTTI_LOCK_OWN_STORE,
    TUTTI_LOCK_GPU_MAKING,
    TUTTI_LOCK_STREAM_ORDER,
    TUTTI_LOCK_WATCHDOG,
    TUTTI_LOCK_INFLIGHT,
    TUTTI_LOCK_NCCL_MEMORY,
    TUTTI_LOCK_NCCL,
    TUTTI_LOCK_NCCL_LIBRARY,
    TUTTI_LOCK_STAGED,
    TUTTI_LOCK_SAME_GPU,
    TUTTI_LOCK_QUEUE,
    TUTTI_LOCK_P2P,
    TUTTI_LOCK_WORK,
    TUTTI_LOCK_CALLBACKS,
    TUTTI_LOCK_LISTENER,
    TUTTI_LOCK_PROXIES,
    TUTTI_LOCK_HEARTBEAT,
    TUTTI_LOCK_RETIRED,
    TUTTI_LOCK_PEERS,
    TUTTI_LOCK_SEGMENTS,
    TUTTI_LOCK_SLOTS,
    TUTTI_LOCK_HEAP,
    TUTTI_LOCK_REGISTRY,
    TUTTI_LOCK_DEVICE_MEMORY,
    TUTTI_LOCK_PINNED,
    TUTTI_LOCK_EVENTS,
    TUTTI_LOCK_ERROR_POLL,
    TUTTI_LOCK_VERBS,
    TUTTI_LOCK_UCX,
    TUTTI_LOCK_TLS,
    TUTTI_LOCK_KEYS,
    TUTTI_LOCK_DEVICE,
    TUTTI_LOCK_ASYNC_CALL,
    TUTTI_LOCK_SOCKETS,
    TUTTI_LOCK_INTERFACES,
    TUTTI_LOCK_WORLD,
    TUTTI_LOCK_SETTINGS,
    TUTTI_LOCK_KINDS
} tutti_lock_kind;

typedef enum tutti_at_fork {
    TUTTI_AT_FORK_UNUSED, /* a child's calls fail with TUTTI_ERR_FORKED before they take it */
    TUTTI_AT_FORK_HELD,   /* the forking thread holds it meanwhile, so that a child finds it free; comm/base/fork.c */
    TUTTI_AT_FORK_LEFT,   /* it may be held for long, or while a library forks: a child must not need it */
    TUTTI_AT_FORK_STRUCT  /* as the struct that it is in */
} tutti_at_fork;

typedef struct tutti_lock_row {
    pthread_mutex_t mutex; /* unused if the lock is in a struct */
    const char *name;
    const char *file; /* the one whose state it protects */
    tutti_at_fork at_fork;
    const char *protects;
} TUTTI_ALIGNED_LINE tutti_lock_row;

extern tutti_lock_row tutti_locks[TUTTI_LOCK_KINDS];

/* The check of the order. `waits`: the thread blocks until it has the lock. */
void tutti_lock_taken(tutti_lock_kind kind, bool waits);
void tutti_lock_dropped(tutti_lock_kind kind);

static inline void tutti_lock_in(tutti_lock_kind kind, pthread_mutex_t *mutex) {
#ifdef TUTTI_CHECK_LOCKS
    tutti_lock_taken(kind, true);
#else
    (void)kind;
#endif
    pthread_mutex_lock(mutex);
}

/* Returns false if another thread holds the lock. */
static inline bool tutti_try_lock_in(tutti_lock_kind kind, pthread_mutex_t *mutex) {
    if (pthread_mutex_trylock(mutex) != 0) return false;
#ifdef TUTTI_CHECK_LOCKS
    tutti_lock_taken(kind, false);
#else
    (void)kind;
#endif
    return true;
}

static inline void tutti_unlock_in(tutti_lock_kind kind, pthread_mutex_t *mutex) {
#ifdef TUTTI_CHECK_LOCKS
    tutti_lock_dropped(kind);
#else
    (void)kind;
#endif
    pthread_mutex_unlock(mutex);
}

/* Conditions whose waits end by CLOCK_MONOTONIC. */
void tutti_cond_init(pthread_cond_t *condition);
/* May return early, as pthread_cond_wait; false: the time has passed. */
bool tutti_cond_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until_ns);

/* For waits on conditions. */
static inline pthread_mutex_t *tutti_lock_mutex(tutti_lock_kind kind) {
    return &tutti_locks[kind].mutex;
}

static inline void tutti_lock(tutti_lock_kind kind) {
    tutti_lock_in(kind, tutti_lock_mutex(kind));
}

static inline bool tutti_try_lock(tutti_lock_kind kind) {
    return tutti_try_lock_in(kind, tutti_lock_mutex(kind));
}

static inline void tutti_unlock(tutti_lock_kind kind) {
    tutti_unlock_in(kind, tutti_lock_mutex(kind));
}

#endif
