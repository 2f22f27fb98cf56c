/*
 * The library's own threads: one table of all that it may start (thread.c), and the number of each kind that lives.
 * They block all signals; signals are delivered to the program's threads.
 *
 * A new kind of thread is a value below and a row of the table.
 */
#ifndef TUTTI_THREAD_H
#define TUTTI_THREAD_H

#include <pthread.h>

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

/* The threads of the kind that this process has now. A forked child has none of its parent's. */
int tutti_thread_count(tutti_thread_kind kind);

#endif
