/*
 * The watcher: one thread that watches all communicators of this process with calls in flight in streams.
 *
 * It checks about every millisecond; more often while a thread waits for a work or messages are in flight, less
 * often if there are only calls in graphs. It starts with the first such call and ends after one second without
 * any. It holds one reference to each communicator in its list.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/stream_state.h"
#include "comm/p2p/p2p.h"

#define NAP_NS       INT64_C(1000000)
#define SHORT_NAP_NS INT64_C(30000)
#define LONG_NAP_NS  INT64_C(50000000)
#define IDLE_NS      TUTTI_NS_PER_S

static struct {
    pthread_cond_t wake;
    bool ready; /* wake is initialized */
    bool alive;
    bool woken;               /* since the last check */
    bool busy;                /* calls were in flight at the last check */
    tutti_stream_comm *first; /* the list; linked by gpu->next_watched */
} watcher;

static atomic_int attended; /* threads that wait for works */

/* With the lock held. Returns early if woken. */
static void nap(int64_t most_ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + most_ns;
    until.tv_sec += (time_t)(ns / TUTTI_NS_PER_S);
    until.tv_nsec = (long)(ns % TUTTI_NS_PER_S);
    int result = 0;
    while (!watcher.woken && result == 0)
        result = pthread_cond_timedwait(&watcher.wake, tutti_lock_mutex(TUTTI_LOCK_WATCHDOG), &until);
    watcher.woken = false;
}

/* Checks all communicators of the list; removes those that need no watching and returns them, with their
 * references. */
static tutti_stream_comm *look_at_all(void) {
    tutti_stream_comm **link = &watcher.first, *gpu, *idle = NULL;
    watcher.busy = false;
    while ((gpu = *link) != NULL) {
        if (tutti_stream_look(gpu)) {
            watcher.busy = watcher.busy || tutti_stream_is_busy(gpu);
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

static void *watch(void *argument) {
    (void)argument;
    int64_t idle_since_ns = 0;
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    for (;;) {
        tutti_stream_comm *idle = look_at_all();
        if (watcher.first != NULL) idle_since_ns = 0;
        else if (idle_since_ns == 0) idle_since_ns = tutti_now_ns();
        else if (tutti_now_ns() - idle_since_ns >= IDLE_NS) break; /* idle is NULL: the list was empty before */
        if (idle != NULL) {
            tutti_unlock(TUTTI_LOCK_WATCHDOG);
            release(idle); /* may free a communicator */
            tutti_lock(TUTTI_LOCK_WATCHDOG);
            continue;
        }
        bool hurries =
            watcher.busy && (atomic_load_explicit(&attended, memory_order_relaxed) > 0 || tutti_p2p_pending());
        nap(hurries ? SHORT_NAP_NS : watcher.busy ? NAP_NS : watcher.first != NULL ? LONG_NAP_NS : IDLE_NS);
    }
    watcher.alive = false;
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
    return NULL;
}

/* With the lock held. */
static void start(void) {
    if (!watcher.ready) {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&watcher.wake, &attributes);
        pthread_condattr_destroy(&attributes);
        watcher.ready = true;
    }
    watcher.alive =
        tutti_thread_start(TUTTI_THREAD_CUDA_WATCH, watch, NULL, NULL) == 0; /* else the next call retries */
}

void tutti_stream_watch(tutti_stream_comm *gpu) {
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    if (!gpu->watched) {
        tutti_comm_retain(gpu->comm);
        gpu->watched = true;
        gpu->next_watched = watcher.first;
        watcher.first = gpu;
        watcher.woken = true;
    }
    watcher.woken |= !watcher.busy; /* it is in a long sleep */
    if (!watcher.alive) start();
    else if (watcher.woken) pthread_cond_signal(&watcher.wake);
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
}

void tutti_stream_attend(int change) {
    atomic_fetch_add_explicit(&attended, change, memory_order_relaxed);
    if (change < 0) return;
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    watcher.woken = true;
    if (watcher.alive) pthread_cond_signal(&watcher.wake);
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
}
