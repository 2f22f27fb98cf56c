/*
 * Forks. See fork.h.
 */
#include "comm/base/fork.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "comm/base/comm.h"

bool tutti_has_forked;

static int *sockets; /* under TUTTI_LOCK_SOCKETS */
static size_t nsockets, sockets_capacity;

static void take_locks(void) {
    for (int kind = 0; kind < TUTTI_LOCK_KINDS; kind++)
        if (tutti_locks[kind].at_fork == TUTTI_AT_FORK_HELD) tutti_lock((tutti_lock_kind)kind);
}

static void release_locks(void) {
    for (int kind = 0; kind < TUTTI_LOCK_KINDS; kind++)
        if (tutti_locks[kind].at_fork == TUTTI_AT_FORK_HELD) tutti_unlock((tutti_lock_kind)kind);
}

static void after_in_child(void) {
    tutti_has_forked = true;
    for (size_t i = 0; i < nsockets; i++) close(sockets[i]);
    nsockets = 0;
    release_locks();
}

static void watch(void) {
    pthread_atfork(take_locks, release_locks, after_in_child);
}

void tutti_fork_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
}

void tutti_fork_closes(int socket) {
    tutti_lock(TUTTI_LOCK_SOCKETS);
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
    tutti_unlock(TUTTI_LOCK_SOCKETS);
}

void tutti_fork_forget(int socket) {
    tutti_lock(TUTTI_LOCK_SOCKETS);
    for (size_t i = 0; i < nsockets; i++) {
        if (sockets[i] != socket) continue;
        sockets[i] = sockets[--nsockets];
        break;
    }
    tutti_unlock(TUTTI_LOCK_SOCKETS);
}
