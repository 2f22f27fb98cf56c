/*
 * The list of watched processes, and the heartbeat thread of this process. See heartbeat.h.
 *
 * There is one thread per process, as long as a process is watched. Only that thread uses the sockets
 * (heartbeat_wire.c); the list is protected by the lock.
 */
#include "comm/health/heartbeat.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/base/thread.h"
#include "comm/base/comm.h"
#include "comm/health/heartbeat_proxy.h"
#include "comm/health/heartbeat_state.h"

#define BEAT_MS 500
/* the longest wait for a goodbye: a process may end right after it has destroyed a communicator */
#define PARTING_S  2
#define MOST_BEATS 64 /* connections polled in one round; if there are more, they take turns */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t parted; /* signaled when goodbyes have been sent */
    tutti_heartbeat *heartbeats;
    bool runs;
    bool parting;     /* goodbyes are being sent */
    _Atomic int bell; /* eventfd; -1: the thread has never run */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .parted = PTHREAD_COND_INITIALIZER, .bell = -1};

/* ----------------------------------------------------------------------------------------------- thread */

/* The last deaths are sent before the goodbye: one of them may be the reason for the end of the communicator. */
static void free_heartbeat(tutti_heartbeat *b) {
    tutti_heartbeat_end(b);
    tutti_peer_release(b->peer);
    free(b);
}

/* Removes unwatched heartbeats from the list and returns them. */
static tutti_heartbeat *take_unwatched(void) {
    tutti_heartbeat *taken = NULL;
    for (tutti_heartbeat **link = &watch.heartbeats; *link != NULL;) {
        tutti_heartbeat *b = *link;
        if (tutti_heartbeat_state_of(b) != TUTTI_HEARTBEAT_GOODBYE) {
            link = &b->next;
            continue;
        }
        *link = b->next;
        b->next = taken;
        taken = b;
    }
    return taken;
}

static void go_round(int64_t *last_ns) {
    int64_t now_ns = tutti_now_ns();
    bool due = now_ns - *last_ns >= BEAT_MS * TUTTI_NS_PER_MS;
    if (due) *last_ns = now_ns;
    tutti_heartbeat_note_deaths();
    pthread_mutex_lock(&watch.lock);
    tutti_heartbeat *first = watch.heartbeats; /* other threads only add, in front of it */
    pthread_mutex_unlock(&watch.lock);
    for (tutti_heartbeat *b = first; b != NULL; b = b->next) {
        tutti_heartbeat_go_on(b, due);
        if (b->over || b->connection.socket < 0)
            atomic_store(&b->said, (int)tutti_heartbeat_state_of(b)); /* there is no connection to send it over */
    }
    pthread_mutex_lock(&watch.lock);
    pthread_cond_broadcast(&watch.parted);
    pthread_mutex_unlock(&watch.lock);
}

/* Waits until data arrives or the next heartbeat is due. */
static void wait_for_next(void) {
    struct pollfd polled[1 + MOST_BEATS] = {{.fd = watch.bell, .events = POLLIN}};
    nfds_t count = 1;
    bool connecting = false;
    pthread_mutex_lock(&watch.lock);
    for (const tutti_heartbeat *b = watch.heartbeats; b != NULL; b = b->next) {
        connecting = connecting || (b->connection.socket < 0 && !b->over);
        if (b->connection.socket >= 0 && !b->over && count < TUTTI_COUNT_OF(polled))
            polled[count++] = (struct pollfd){.fd = b->connection.socket, .events = POLLIN};
    }
    pthread_mutex_unlock(&watch.lock);
    poll(polled, count, connecting ? BEAT_MS / 10 : BEAT_MS);
    uint64_t rung;
    if (polled[0].revents != 0 && read(watch.bell, &rung, sizeof rung) < 0) return; /* only drains it */
}

static void *heartbeat_thread(void *argument) {
    (void)argument;
    int64_t last_ns = 0;
    pthread_mutex_lock(&watch.lock);
    for (;;) {
        tutti_heartbeat *unwatched = take_unwatched();
        bool last = watch.heartbeats == NULL;
        watch.parting = unwatched != NULL;
        pthread_mutex_unlock(&watch.lock);
        for (tutti_heartbeat *next; unwatched != NULL; unwatched = next) {
            next = unwatched->next;
            free_heartbeat(unwatched);
        }
        pthread_mutex_lock(&watch.lock);
        watch.parting = false;
        pthread_cond_broadcast(&watch.parted);
        last = last && watch.heartbeats == NULL; /* unless one was just added */
        if (last) watch.runs = false;
        pthread_mutex_unlock(&watch.lock);
        if (last) return NULL;
        go_round(&last_ns);
        tutti_heartbeat_proxy_release_now();
        wait_for_next();
        pthread_mutex_lock(&watch.lock);
    }
}

static void ring(void) {
    uint64_t one = 1;
    if (watch.bell < 0) return;
    if (write(watch.bell, &one, sizeof one) < 0) return; /* full: it is already ringing */
}

/* Lock held. */
static tutti_status start_thread(void) {
    if (watch.runs) return TUTTI_OK;
    if (watch.bell < 0) watch.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (watch.bell < 0) return tutti_fail_errno(errno, "cannot create an eventfd for heartbeats");
    int error = tutti_thread_start("tutti-heartbeat", heartbeat_thread, NULL, NULL);
    if (error != 0) return tutti_fail_errno(error, "cannot start the heartbeat thread");
    watch.runs = true;
    return TUTTI_OK;
}

static tutti_heartbeat *find(const tutti_peer *remote) {
    tutti_heartbeat *b = watch.heartbeats;
    while (b != NULL && b->peer != remote) b = b->next;
    return b;
}

/* True if the other side does not yet know our current state. Lock held. */
static bool is_unsaid(const tutti_peer *remote) {
    const tutti_heartbeat *b = find(remote);
    return b != NULL && atomic_load(&b->said) != (int)tutti_heartbeat_state_of(b);
}

static tutti_status add(tutti_peer *remote) {
    tutti_heartbeat *b;
    TUTTI_TRY(tutti_calloc(1, sizeof *b, &b));
    *b = (tutti_heartbeat){.peer = remote, .connection.socket = -1, .next = watch.heartbeats, .watchers = 1};
    b->connect = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS));
    tutti_peer_retain(remote);
    watch.heartbeats = b;
    return TUTTI_OK;
}

tutti_status tutti_heartbeat_watch(tutti_peer *remote) {
    pthread_mutex_lock(&watch.lock);
    tutti_heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_add(&b->watchers, 1);
    tutti_status status = b != NULL ? TUTTI_OK : add(remote);
    if (status == TUTTI_OK) status = start_thread();
    pthread_mutex_unlock(&watch.lock);
    ring();
    return status;
}

/* Changes the counts, and returns once the other side knows the resulting state. */
static void change(tutti_peer *remote, int watchers, int watchers_left) {
    struct timespec until;
    if (tutti_forked()) return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PARTING_S;
    pthread_mutex_lock(&watch.lock);
    tutti_heartbeat *b = find(remote);
    if (b != NULL) {
        atomic_fetch_add(&b->watchers, watchers);
        atomic_fetch_add(&b->watchers_left, watchers_left);
    }
    bool last = b != NULL && tutti_heartbeat_state_of(b) == TUTTI_HEARTBEAT_GOODBYE;
    ring();
    while (b != NULL && watch.runs && (last ? find(remote) == b || watch.parting : is_unsaid(remote)) &&
           pthread_cond_timedwait(&watch.parted, &watch.lock, &until) == 0) {}
    pthread_mutex_unlock(&watch.lock);
}

void tutti_heartbeat_unwatch(tutti_peer *remote) {
    change(remote, -1, 0);
}

void tutti_heartbeat_leave(tutti_peer *remote) {
    change(remote, -1, 1);
}

void tutti_heartbeat_unwatch_left(tutti_peer *remote) {
    change(remote, 0, -1);
}

void tutti_heartbeat_drop_left(tutti_peer *remote) {
    pthread_mutex_lock(&watch.lock);
    tutti_heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_sub(&b->watchers_left, 1);
    pthread_mutex_unlock(&watch.lock);
}

void tutti_heartbeat_now(void) {
    ring();
}
