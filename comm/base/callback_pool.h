/*
 * The threads that run callbacks. A callback may wait for other operations, even for those whose callbacks are
 * queued here; so a thread is added whenever all are inside callbacks. Idle ones end after a second.
 */
#ifndef TUTTI_CALLBACK_POOL_H
#define TUTTI_CALLBACK_POOL_H

#include "comm/base/queue.h"

/* Runs the work's callback on the pool, with the work's status. */
void tutti_callback_pool_run(tutti_work *work);

#endif
