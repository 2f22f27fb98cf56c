/*
 * A blocking call into somebody else's code that has no time limit (getaddrinfo, libpmix), made by a thread, so that its caller
 * waits within a deadline and may give up.
 *
 * The struct is the first member of the caller's own, which holds arguments and results. Thread and caller own it together; the
 * last of them destroys it. A thread whose caller has given up returns when its call does, so the library is pinned then.
 *
 * Invariant: from start until the call has completed the thread alone uses arguments and results; afterwards the caller alone.
 */
#ifndef TUTTI_BOOTSTRAP_ASYNC_CALL_H
#define TUTTI_BOOTSTRAP_ASYNC_CALL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tutti_async_call tutti_async_call;
struct tutti_async_call {
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t completed;
    int references; /* the caller's, and while it runs the thread's */
    bool done;
    void (*run)(tutti_async_call *call);     /* on the thread: makes the call, and writes its results */
    void (*destroy)(tutti_async_call *call); /* frees results and the caller's struct */
};

/* With one reference, the caller's. */
void tutti_async_call_init(tutti_async_call *call, void (*run)(tutti_async_call *call),
                           void (*destroy)(tutti_async_call *call));
/* Starts the thread. 0, or errno: there is none. */
int tutti_async_call_start(tutti_async_call *call);
/* Waits up to wait_ms; true once the call has completed. */
bool tutti_async_call_wait(tutti_async_call *call, int64_t wait_ms);
/* Ends the caller's use; does not wait. What the thread still gets is dropped. */
void tutti_async_call_release(tutti_async_call *call);

#endif
