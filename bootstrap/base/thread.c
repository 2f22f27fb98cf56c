/*
 * Starting threads. See thread.h.
 */
#include "bootstrap/base/thread.h"

#include <signal.h>

int tutti_thread_start(const char *name, void *(*body)(void *), void *argument, pthread_t *thread_out) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return error;
    pthread_setname_np(thread, name);
    if (thread_out != NULL) *thread_out = thread;
    else pthread_detach(thread);
    return 0;
}
