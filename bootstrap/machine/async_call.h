/*
 * A blocking call into foreign code without a time limit (getaddrinfo, libpmix). A thread makes the call, so that
 * the caller can wait within a deadline and give up.
 *
 * The struct is the first member of the caller's own struct, which holds arguments and results. Thread and caller
 * share ownership; the last one to release it destroys it. If the caller gives up, the thread returns when its call
 * does; therefore the library is pinned in memory.
 *
 * Invariant: from the start until the call has completed, only the thread accesses arguments and results;
 * afterwards only the caller.
 */
#ifndef TUTTI_BOOTSTRAP_ASYNC_CALL_H
#define TUTTI_BOOTSTRAP_ASYNC_CALL_H

#include <netdb.h>
#include <pthread.h>

#include "bootstrap/base/common.h"

typedef struct tutti_async_call tutti_async_call;
struct tutti_async_call {
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t completed;
    int references; /* held by the caller and, while it runs, by the thread */
    bool done;
    void (*run)(tutti_async_call *call);     /* runs on the thread: makes the call and writes its results */
    void (*destroy)(tutti_async_call *call); /* frees results and the caller's struct */
};

/* Initializes the call with one reference, held by the caller. */
void tutti_async_call_init(tutti_async_call *call, void (*run)(tutti_async_call *call),
                           void (*destroy)(tutti_async_call *call));
/* Starts the thread. Returns 0, or an errno value when no thread could be started. */
int tutti_async_call_start(tutti_async_call *call);
/* Waits up to wait_ms; returns true once the call has completed. */
bool tutti_async_call_wait(tutti_async_call *call, int64_t wait_ms);
/* Drops the caller's reference without waiting. Later results of the thread are discarded. */
void tutti_async_call_release(tutti_async_call *call);

/* --------------------------------------------------------------------------------------------------- lookups
 * Name resolution without the waits of getaddrinfo, which takes up to a minute when the name servers do not answer and
 * cannot be interrupted.
 */

typedef struct tutti_lookup tutti_lookup;

/* Starts to resolve the name, for TCP on that port. Addresses and "localhost" are resolved at once. */
tutti_status tutti_lookup_start(const char *host, int port, tutti_lookup **lookup_out);
/* Waits up to wait_ms for the answer. Returns TUTTI_NOT_YET when there is no answer yet; call it again later. Fails
 * with TUTTI_ERR_CONFIG when the name is unknown. The result is valid until tutti_lookup_end. */
tutti_status tutti_lookup_look(tutti_lookup *lookup, int64_t wait_ms, const struct addrinfo **found_out);
/* Ends the lookup and returns at once; a later answer is discarded. NULL is allowed. */
void tutti_lookup_end(tutti_lookup *lookup);

#endif
