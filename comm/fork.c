/*
 * A forked child has none of its parent's threads and not its control memory: every call but destroy answers
 * "forked" there.
 */
#include <pthread.h>

#include "comm/comm.h"

bool tutti_has_forked;

static void note_fork(void) {
    tutti_has_forked = true;
}

static void watch(void) {
    pthread_atfork(NULL, NULL, note_fork);
}

void tutti_fork_watch(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
}
