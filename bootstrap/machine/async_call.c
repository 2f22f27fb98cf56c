/*
 * Threads for calls without a time limit, and name resolution by them. See async_call.h.
 */
#include "bootstrap/machine/async_call.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"
#include "bootstrap/machine/module.h"

void tutti_async_call_init(tutti_async_call *call, void (*run)(tutti_async_call *call),
                           void (*destroy)(tutti_async_call *call)) {
    pthread_mutex_init(&call->lock, NULL);
    tutti_cond_init(&call->completed);
    call->references = 1;
    call->done = false;
    call->run = run;
    call->destroy = destroy;
}

static void drop_reference(tutti_async_call *call) {
    tutti_lock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    bool last = --call->references == 0;
    tutti_unlock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    if (!last) return;
    pthread_cond_destroy(&call->completed);
    pthread_mutex_destroy(&call->lock);
    call->destroy(call);
}

static void *call_thread(void *argument) {
    tutti_async_call *call = argument;
    call->run(call);
    tutti_lock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    call->done = true;
    pthread_cond_signal(&call->completed);
    tutti_unlock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    drop_reference(call);
    return NULL;
}

int tutti_async_call_start(tutti_async_call *call) {
    call->references++;
    int error = tutti_thread_start(TUTTI_THREAD_LOOKUP, call_thread, call, NULL);
    if (error != 0) call->references--;
    return error;
}

bool tutti_async_call_wait(tutti_async_call *call, int64_t wait_ms) {
    const int64_t until_ns = tutti_now_ns() + wait_ms * TUTTI_NS_PER_MS;
    tutti_lock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    while (!call->done && tutti_cond_wait_until(&call->completed, &call->lock, until_ns)) {}
    bool done = call->done;
    tutti_unlock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    return done;
}

void tutti_async_call_release(tutti_async_call *call) {
    tutti_lock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    bool runs = call->references > 1 && !call->done;
    tutti_unlock_in(TUTTI_LOCK_ASYNC_CALL, &call->lock);
    if (runs) tutti_module_pin_library(); /* the thread returns to this library's code */
    drop_reference(call);
}

/* ------------------------------------------------------------------------------------------------------ lookups */

struct tutti_lookup {
    tutti_async_call call; /* must be first */
    bool known;            /* resolved at once, without a thread */
    int problem;           /* result of getaddrinfo */
    struct addrinfo *found;
    char host[256], service[16];
};

static void destroy(tutti_async_call *call) {
    tutti_lookup *lookup = (tutti_lookup *)call;
    if (lookup->found != NULL) freeaddrinfo(lookup->found);
    free(lookup);
}

static void ask(tutti_async_call *call) {
    tutti_lookup *lookup = (tutti_lookup *)call;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    lookup->problem = getaddrinfo(lookup->host, lookup->service, &hints, &lookup->found);
    if (lookup->problem != 0) lookup->found = NULL;
}

/* Resolves names that need no name server. NULL means the loopback addresses: a bare container has no /etc/hosts. */
static bool is_known(tutti_lookup *lookup) {
    const char *name = strcmp(lookup->host, "localhost") == 0 ? NULL : lookup->host;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    return getaddrinfo(name, lookup->service, &hints, &lookup->found) == 0;
}

tutti_status tutti_lookup_start(const char *host, int port, tutti_lookup **lookup_out) {
    tutti_lookup *lookup;
    if (strlen(host) >= sizeof lookup->host)
        return tutti_fail(TUTTI_ERR_CONFIG, "the host name '%.40s...' is too long", host);
    TUTTI_TRY(tutti_calloc(1, sizeof *lookup, &lookup));
    tutti_async_call_init(&lookup->call, ask, destroy);
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    snprintf(lookup->service, sizeof lookup->service, "%d", port);
    lookup->known = is_known(lookup);
    int error = lookup->known ? 0 : tutti_async_call_start(&lookup->call);
    if (error != 0) {
        tutti_async_call_release(&lookup->call);
        return tutti_fail_errno(error, "cannot start a thread to look up '%s'", host);
    }
    *lookup_out = lookup;
    return TUTTI_OK;
}

tutti_status tutti_lookup_look(tutti_lookup *lookup, int64_t wait_ms, const struct addrinfo **found_out) {
    if (!lookup->known && !tutti_async_call_wait(&lookup->call, wait_ms)) return TUTTI_NOT_YET;
    if (lookup->problem != 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "the host name '%s' is unknown (%s)", lookup->host,
                          gai_strerror(lookup->problem));
    *found_out = lookup->found;
    return TUTTI_OK;
}

void tutti_lookup_end(tutti_lookup *lookup) {
    if (lookup != NULL) tutti_async_call_release(&lookup->call);
}
