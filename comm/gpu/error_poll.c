/*
 * Detects failed GPUs. Nothing in the streams of a failed GPU runs any more, so no mark shows the failure
 * (event.h); only CUDA calls return it. A separate thread makes such a call, because it may block, and the watcher
 * must not.
 *
 * The thread starts when calls are in flight, polls every 50 ms the GPUs that have calls in flight, and ends after
 * one second without any.
 *
 * Invariant: a failed GPU stays failed until the process ends, as in CUDA. The text is written before the status.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/status.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/event.h"

#define EVERY_NS INT64_C(50000000)
#define IDLE_NS  TUTTI_NS_PER_S

struct tutti_error_poll {
    tutti_error_poll *next;
    const tutti_device *device;
    int index;
    _Atomic int64_t expected_ns;       /* when calls were last in flight */
    _Atomic(tutti_event_handle) event; /* never recorded: the query reports on the GPU alone; NULL: not open */
    atomic_int status; /* written by the thread, release; pairs with the acquire in tutti_error_poll_status */
    char text[TUTTI_ERROR_TEXT_BYTES];
};

static struct {
    tutti_error_poll *first;
    atomic_bool alive; /* the thread runs; written under the lock */
} faults;

tutti_error_poll *tutti_error_poll_of(const tutti_device *device, int index) {
    tutti_lock(TUTTI_LOCK_ERROR_POLL);
    tutti_error_poll *fault = faults.first;
    while (fault != NULL && fault->index != index) fault = fault->next;
    if (fault == NULL && (fault = calloc(1, sizeof *fault)) != NULL) {
        fault->device = device;
        fault->index = index;
        fault->next = faults.first;
        faults.first = fault;
    }
    tutti_unlock(TUTTI_LOCK_ERROR_POLL);
    return fault;
}

/* The event is created here because the thread may poll while the process ends, when CUDA creates no events any
 * more. */
tutti_status tutti_error_poll_open(tutti_error_poll *fault) {
    tutti_event_handle event, none = NULL;
    if (atomic_load_explicit(&fault->event, memory_order_relaxed) != NULL) return TUTTI_OK;
    TUTTI_TRY(fault->device->event_create(&event));
    if (!atomic_compare_exchange_strong(&fault->event, &none, event)) fault->device->event_destroy(event);
    return TUTTI_OK;
}

tutti_status tutti_error_poll_status(const tutti_error_poll *fault) {
    tutti_status status = (tutti_status)atomic_load_explicit(&fault->status, memory_order_acquire);
    return status == TUTTI_OK ? TUTTI_OK : tutti_fail(status, "%s", fault->text);
}

/* -------------------------------------------------------------------------------------------- the thread */

static tutti_status ask_cuda(const tutti_error_poll *fault) {
    tutti_event_handle event = atomic_load_explicit(&fault->event, memory_order_acquire);
    if (event == NULL) return TUTTI_OK;
    TUTTI_TRY(fault->device->use(fault->index));
    return fault->device->event_query(event);
}

static void look(tutti_error_poll *fault) {
    if (atomic_load_explicit(&fault->status, memory_order_relaxed) != TUTTI_OK) return;
    tutti_status status = ask_cuda(fault);
    if (status == TUTTI_OK || status == TUTTI_NOT_YET) return;
    snprintf(fault->text, sizeof fault->text, "%s", tutti_last_error());
    atomic_store_explicit(&fault->status, (int)status, memory_order_release);
}

/* Returns the time since calls were last in flight on any GPU. The list only grows, at its head. */
static int64_t look_at_all(tutti_error_poll *first) {
    int64_t idle_ns = INT64_MAX;
    for (tutti_error_poll *fault = first; fault != NULL; fault = fault->next) {
        int64_t since_ns = tutti_now_ns() - atomic_load_explicit(&fault->expected_ns, memory_order_relaxed);
        if (since_ns < 2 * EVERY_NS) look(fault);
        if (since_ns < idle_ns) idle_ns = since_ns;
    }
    return idle_ns;
}

static void *ask(void *argument) {
    (void)argument;
    for (int64_t idle_ns = 0; idle_ns < IDLE_NS;) {
        nanosleep(&(struct timespec){.tv_nsec = EVERY_NS}, NULL);
        tutti_lock(TUTTI_LOCK_ERROR_POLL);
        tutti_error_poll *first = faults.first;
        tutti_unlock(TUTTI_LOCK_ERROR_POLL);
        idle_ns = look_at_all(first);
    }
    tutti_lock(TUTTI_LOCK_ERROR_POLL);
    atomic_store_explicit(&faults.alive, false, memory_order_relaxed); /* a later expect restarts it */
    tutti_unlock(TUTTI_LOCK_ERROR_POLL);
    return NULL;
}

static void start(void) {
    tutti_lock(TUTTI_LOCK_ERROR_POLL);
    if (!atomic_load_explicit(&faults.alive, memory_order_relaxed)) {
        bool alive = tutti_thread_start(TUTTI_THREAD_CUDA_POLL, ask, NULL, NULL) == 0; /* else the next call retries */
        atomic_store_explicit(&faults.alive, alive, memory_order_relaxed);
    }
    tutti_unlock(TUTTI_LOCK_ERROR_POLL);
}

void tutti_error_poll_expect(tutti_error_poll *fault) {
    atomic_store_explicit(&fault->expected_ns, tutti_now_ns(), memory_order_relaxed);
    if (!atomic_load_explicit(&faults.alive, memory_order_relaxed)) start();
}
