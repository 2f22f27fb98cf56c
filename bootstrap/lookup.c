/*
 * Looking names up by a thread of their own. See lookup.h.
 *
 * The thread and the caller share a lookup; it belongs to both, and goes with the last of them. A thread whose caller has left
 * returns when getaddrinfo does, so the library must not be unloaded before (it is pinned then).
 */
#include "bootstrap/lookup.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/status.h"
#include "bootstrap/module.h"

struct tutti_lookup {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    int references; /* the caller's and the thread's; guarded by the lock, like the rest */
    bool done;
    int problem; /* as getaddrinfo gave it */
    struct addrinfo *found;
    char host[256], service[16];
};

static void release(tutti_lookup *lookup) {
    pthread_mutex_lock(&lookup->lock);
    bool last = --lookup->references == 0;
    pthread_mutex_unlock(&lookup->lock);
    if (!last) return;
    if (lookup->found != NULL) freeaddrinfo(lookup->found);
    pthread_cond_destroy(&lookup->answered);
    pthread_mutex_destroy(&lookup->lock);
    free(lookup);
}

static void *ask(void *argument) {
    tutti_lookup *lookup = argument;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int problem = getaddrinfo(lookup->host, lookup->service, &hints, &found);
    pthread_mutex_lock(&lookup->lock);
    lookup->problem = problem;
    lookup->found = problem == 0 ? found : NULL;
    lookup->done = true;
    pthread_cond_signal(&lookup->answered);
    pthread_mutex_unlock(&lookup->lock);
    release(lookup);
    return NULL;
}

/* Where no name server is needed. Without a name: the loopback addresses (RFC 6761); a bare container has no /etc/hosts. */
static bool is_known(tutti_lookup *lookup) {
    const char *name = strcmp(lookup->host, "localhost") == 0 ? NULL : lookup->host;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    lookup->done = getaddrinfo(name, lookup->service, &hints, &lookup->found) == 0;
    return lookup->done;
}

static tutti_status start_thread(tutti_lookup *lookup) {
    pthread_t thread;
    sigset_t all, before; /* signals are for the program's threads */
    lookup->references++;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, ask, lookup);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        pthread_detach(thread);
        return TUTTI_OK;
    }
    lookup->references--;
    return tutti_fail_errno(error, "cannot start a thread to look up '%s'", lookup->host);
}

tutti_status tutti_lookup_start(const char *host, int port, tutti_lookup **lookup_out) {
    tutti_lookup *lookup;
    pthread_condattr_t monotonic;
    if (strlen(host) >= sizeof lookup->host)
        return tutti_fail(TUTTI_ERR_CONFIG, "the host name '%.40s...' is longer than any", host);
    TUTTI_TRY(tutti_calloc(1, sizeof *lookup, &lookup));
    pthread_mutex_init(&lookup->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&lookup->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    lookup->references = 1;
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    snprintf(lookup->service, sizeof lookup->service, "%d", port);
    tutti_status status = is_known(lookup) ? TUTTI_OK : start_thread(lookup);
    if (status == TUTTI_OK) *lookup_out = lookup;
    else release(lookup);
    return status;
}

static struct timespec in_ms(int64_t ms) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    int64_t ns = at.tv_nsec + ms * TUTTI_NS_PER_MS;
    return (struct timespec){.tv_sec = at.tv_sec + (time_t)(ns / TUTTI_NS_PER_S),
                             .tv_nsec = (long)(ns % TUTTI_NS_PER_S)};
}

tutti_status tutti_lookup_look(tutti_lookup *lookup, int64_t wait_ms, const struct addrinfo **found_out) {
    struct timespec until = in_ms(wait_ms);
    pthread_mutex_lock(&lookup->lock);
    while (!lookup->done && pthread_cond_timedwait(&lookup->answered, &lookup->lock, &until) != ETIMEDOUT) {}
    bool done = lookup->done;
    pthread_mutex_unlock(&lookup->lock);
    if (!done) return TUTTI_NOT_YET;
    if (lookup->problem != 0)
        return tutti_fail(TUTTI_ERR_CONFIG, "the name '%s' is not known (%s)", lookup->host,
                          gai_strerror(lookup->problem));
    *found_out = lookup->found;
    return TUTTI_OK;
}

void tutti_lookup_end(tutti_lookup *lookup) {
    if (lookup == NULL) return;
    pthread_mutex_lock(&lookup->lock);
    bool done = lookup->done;
    pthread_mutex_unlock(&lookup->lock);
    if (!done) tutti_module_pin_library(); /* the thread returns to its code */
    release(lookup);
}
