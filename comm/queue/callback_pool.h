/*
 * The threads that run callbacks. A callback may wait for other operations, even for those whose callbacks are
 * queued here, so a thread is added whenever all threads are inside callbacks. An idle thread exits after a second.
 */
#ifndef TUTTI_CALLBACK_POOL_H
#define TUTTI_CALLBACK_POOL_H

#include "comm/queue/queue.h"

/* Runs the work's callback on the pool and passes the work's status to it. */
void tutti_callback_pool_run(tutti_work *work);

#endif
