/*
 * Threads for calls without a time limit. See async_call.h.
 */
#include "bootstrap/machine/async_call.h"

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
