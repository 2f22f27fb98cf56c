/*
 * The library's own threads. They block all signals; signals are delivered to the program's threads.
 */
#ifndef TUTTI_THREAD_H
#define TUTTI_THREAD_H

#include <pthread.h>

/* Starts body(argument). `name` has at most 15 characters and is shown by debuggers and top. The caller must join
 * *thread_out; if thread_out is NULL, the thread is detached. Returns 0 or an errno value. */
int tutti_thread_start(const char *name, void *(*body)(void *), void *argument, pthread_t *thread_out);

#endif
