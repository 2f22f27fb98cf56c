/*
 * Threads that the library starts for itself. They block all signals, which are for the program's own threads.
 */
#ifndef TUTTI_THREAD_H
#define TUTTI_THREAD_H

#include <pthread.h>

/* Starts body(argument). `name`: at most 15 characters, what debuggers and top show. The caller joins *thread_out; with
 * thread_out NULL the thread is detached. Returns 0, or an errno value. */
int tutti_thread_start(const char *name, void *(*body)(void *), void *argument, pthread_t *thread_out);

#endif
