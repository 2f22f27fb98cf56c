/*
 * The watcher: one thread that watches all communicators of this process with calls in flight in streams.
 *
 * It checks about every millisecond; more often while a thread waits for a work or messages are in flight, less
 * often if there are only calls in graphs. It starts with the first such call and ends after one second without
 * any. It holds one reference to each communicator in its list.
 */
#include <stdatomic.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/stream_state.h"
#include "comm/p2p/p2p.h"

#define NAP_NS       TUTTI_NS_PER_MS
#define SHORT_NAP_NS (30 * TUTTI_NS_PER_US)
#define LONG_NAP_NS  (50 * TUTTI_NS_PER_MS)

static tutti_stream_comm *watched; /* the list; linked by gpu->next_watched */
static bool busy;                  /* calls were in flight at the last check */
static atomic_int attended;        /* threads that wait for works */

/* Checks all communicators of the list; removes those that need no watching and returns them, with their
 * references. */
static tutti_stream_comm *look_at_all(void) {
    tutti_stream_comm **link = &watched, *gpu, *idle = NULL;
    busy = false;
    while ((gpu = *link) != NULL) {
        if (tutti_stream_look(gpu)) {
            busy = busy || tutti_stream_is_busy(gpu);
            link = &gpu->next_watched;
            continue;
        }
        *link = gpu->next_watched;
        gpu->watched = false;
        gpu->next_idle = idle; /* not next_watched: it may be added again as soon as the lock is free */
        idle = gpu;
    }
    return idle;
}

static void release(tutti_stream_comm *idle) {
    while (idle != NULL) {
        tutti_stream_comm *next = idle->next_idle;
        tutti_comm_release(idle->comm);
        idle = next;
    }
}

static bool watch(int64_t *nap_ns_out) {
    for (tutti_stream_comm *idle; (idle = look_at_all()) != NULL;) {
        tutti_unlock(TUTTI_LOCK_WATCHDOG);
        release(idle); /* may free a communicator */
        tutti_lock(TUTTI_LOCK_WATCHDOG);
    }
    bool hurries = busy && (atomic_load_explicit(&attended, memory_order_relaxed) > 0 || tutti_p2p_pending());
    *nap_ns_out = hurries ? SHORT_NAP_NS : busy ? NAP_NS : watched != NULL ? LONG_NAP_NS : TUTTI_NS_PER_S;
    return watched != NULL;
}

static tutti_service watcher = {
    .thread = TUTTI_THREAD_CUDA_WATCH, .lock = TUTTI_LOCK_WATCHDOG, .round = watch, .most_threads = 1};

void tutti_stream_watch(tutti_stream_comm *gpu) {
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    bool sleeps = !busy; /* for long */
    if (!gpu->watched) {
        tutti_comm_retain(gpu->comm);
        gpu->watched = true;
        gpu->next_watched = watched;
        watched = gpu;
        sleeps = true;
    }
    if (sleeps) tutti_service_wake(&watcher);
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
}

void tutti_stream_attend(int change) {
    atomic_fetch_add_explicit(&attended, change, memory_order_relaxed);
    if (change < 0) return;
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    if (watched != NULL) tutti_service_wake(&watcher);
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
}
