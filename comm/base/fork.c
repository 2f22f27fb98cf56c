/*
 * Forks. See fork.h.
 */
#include "comm/base/fork.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/base/comm.h"

bool tutti_has_forked;

static pthread_mutex_t sockets_lock = PTHREAD_MUTEX_INITIALIZER; /* also held during a fork */
static int *sockets;
static size_t nsockets, sockets_capacity;

static void before_fork(void) {
    pthread_mutex_lock(&sockets_lock);
}

static void after_in_parent(void) {
    pthread_mutex_unlock(&sockets_lock);
}

static void after_in_child(void) {
    tutti_has_forked = true;
    for (size_t i = 0; i < nsockets; i++) close(sockets[i]);
    nsockets = 0;
    pthread_mutex_unlock(&sockets_lock);
}

static void watch(void) {
    pthread_atfork(before_fork, after_in_parent, after_in_child);
}

void tutti_fork_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
}

void tutti_fork_closes(int socket) {
    pthread_mutex_lock(&sockets_lock);
    if (nsockets == sockets_capacity) {
        size_t capacity = sockets_capacity == 0 ? 16 : 2 * sockets_capacity;
        int *more = realloc(sockets, capacity * sizeof *more);
        if (more != NULL) {
            sockets = more;
            sockets_capacity = capacity;
        }
    }
    /* Without room a child keeps the socket open, which only delays the peer's notice of our end. */
    if (nsockets < sockets_capacity) sockets[nsockets++] = socket;
    pthread_mutex_unlock(&sockets_lock);
}

void tutti_fork_forget(int socket) {
    pthread_mutex_lock(&sockets_lock);
    for (size_t i = 0; i < nsockets; i++) {
        if (sockets[i] != socket) continue;
        sockets[i] = sockets[--nsockets];
        break;
    }
    pthread_mutex_unlock(&sockets_lock);
}
