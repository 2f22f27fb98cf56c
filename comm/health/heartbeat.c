/*
 * The list of watched processes, the heartbeat thread of this process, and the communicators for which it watches. See
 * heartbeat.h.
 *
 * There is one thread per process, as long as a process is watched. Only that thread uses the connections; the list is
 * protected by the lock.
 */
#include "comm/health/heartbeat.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/thread.h"
#include "comm/base/fork.h"
#include "comm/base/hooks.h"
#include "comm/health/heartbeat_connection.h"
#include "comm/net/hosts.h"
#include "comm/shm/segment.h"

#define BEAT_MS 500
/* the longest wait for a goodbye: a process may end right after it has destroyed a communicator */
#define PARTING_MS 2000
#define MOST_BEATS 64 /* connections polled in one round; if there are more, they take turns */

static struct {
    pthread_cond_t parted; /* signaled when goodbyes have been sent */
    tutti_heartbeat *heartbeats;
    bool runs;
    bool parting;     /* goodbyes are being sent */
    _Atomic int bell; /* eventfd; -1: the thread has never run */
} watch = {.bell = -1};

/* --------------------------------------------------------------------------------------------- the list */

static void ring(void) {
    uint64_t one = 1;
    if (watch.bell < 0) return;
    if (write(watch.bell, &one, sizeof one) < 0) return; /* full: it is already ringing */
}

static tutti_heartbeat *find(const tutti_peer *remote) {
    tutti_heartbeat *b = watch.heartbeats;
    while (b != NULL && b->peer != remote) b = b->next;
    return b;
}

/* True if the other side does not yet know our current state. Lock held. */
static bool is_unsaid(const tutti_peer *remote) {
    const tutti_heartbeat *b = find(remote);
    return b != NULL && atomic_load(&b->said) != (int)tutti_heartbeat_state(b);
}

/* Changes the counts of communicators that this process is in and of those that it has left, and returns once the
 * other side knows the resulting state. */
static void change(tutti_peer *remote, int watchers, int watchers_left) {
    if (tutti_forked()) return;
    const int64_t until_ns = tutti_now_ns() + PARTING_MS * TUTTI_NS_PER_MS;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    tutti_heartbeat *b = find(remote);
    if (b != NULL) {
        atomic_fetch_add(&b->watchers, watchers);
        atomic_fetch_add(&b->watchers_left, watchers_left);
    }
    bool last = b != NULL && tutti_heartbeat_state(b) == TUTTI_HEARTBEAT_GOODBYE;
    ring();
    while (b != NULL && watch.runs && (last ? find(remote) == b || watch.parting : is_unsaid(remote)) &&
           tutti_cond_wait_until(&watch.parted, tutti_lock_mutex(TUTTI_LOCK_HEARTBEAT), until_ns)) {}
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

static void unwatch(tutti_peer *remote) {
    change(remote, -1, 0);
}

static void unwatch_left(tutti_peer *remote) {
    change(remote, 0, -1);
}

/* The same for the heartbeat thread itself, which cannot wait for its own goodbye. */
static void drop_left(tutti_peer *remote) {
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    tutti_heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_sub(&b->watchers_left, 1);
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

void tutti_heartbeat_now(void) {
    ring();
}

/* ---------------------------------------------------------------------------------------- on behalf of others */

/* State of one communicator. Holds references to all of its processes, since only the deaths of known processes are
 * reported, and to the segment, which may contain pages. */
typedef struct proxy {
    uint64_t comm_id;
    int nmembers, nfar, nprocesses;
    tutti_member *members; /* ranks of this host except this one */
    tutti_peer **remote;   /* the first processes of the other hosts; they are watched */
    tutti_peer **processes;
    tutti_shm_segment *segment;
    struct proxy *next;
} proxy;

static proxy *all_proxies;

/* True if the rank has left, or has died and its death has been published. */
static bool has_gone(const tutti_member *member, uint64_t comm_id) {
    return atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0 ||
           atomic_load_explicit(&member->page->comm_id, memory_order_acquire) != comm_id ||
           tutti_peer_death_is_published(member->process);
}

static bool have_gone(const proxy *w) {
    for (int i = 0; i < w->nmembers; i++)
        if (!has_gone(&w->members[i], w->comm_id)) return false;
    return true;
}

static void free_proxy(proxy *w) {
    for (int i = 0; i < w->nprocesses; i++) tutti_peer_release(w->processes[i]);
    tutti_shm_segment_release(w->segment);
    free(w->members);
    free(w->remote);
    free(w->processes);
    free(w);
}

static void fill(const tutti_comm *comm, proxy *w) {
    const tutti_hosts *hosts = comm->net.hosts;
    const tutti_comm *local = hosts->local;
    for (int i = 0; i < local->nranks; i++)
        if (i != local->rank) w->members[w->nmembers++] = local->members[i];
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) w->remote[w->nfar++] = comm->members[hosts->all[host].ranks[0]].process;
    for (int rank = 0; rank < comm->nranks; rank++) {
        w->processes[w->nprocesses++] = comm->members[rank].process;
        tutti_peer_retain(comm->members[rank].process);
    }
}

static tutti_status make(const tutti_comm *comm, proxy **proxy_out) {
    proxy *w;
    TUTTI_TRY(tutti_calloc(1, sizeof *w, &w));
    w->comm_id = comm->id;
    if (comm->shm.segment != NULL) tutti_shm_segment_retain(comm->shm.segment);
    w->segment = comm->shm.segment;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->net.hosts->local->nranks, sizeof *w->members, &w->members), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->net.hosts->nhosts, sizeof(tutti_peer *), &w->remote), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->nranks, sizeof(tutti_peer *), &w->processes), fail);
    fill(comm, w);
    *proxy_out = w;
    return TUTTI_OK;
fail:
    free_proxy(w);
    return status;
}

/* For a communicator that this process leaves and in which it watches the first processes of other hosts: takes over
 * the watching. Returns false if all processes of this host have left the communicator or an allocation fails; the
 * caller must then end the watching. */
static bool take_over(const tutti_comm *comm) {
    proxy *w;
    if (make(comm, &w) != TUTTI_OK) return false;
    if (have_gone(w)) {
        free_proxy(w);
        return false;
    }
    tutti_hooks.p2p_see_off(comm);
    for (int i = 0; i < w->nfar; i++) change(w->remote[i], -1, 1);
    tutti_lock(TUTTI_LOCK_PROXIES);
    w->next = all_proxies;
    all_proxies = w;
    tutti_unlock(TUTTI_LOCK_PROXIES);
    return true;
}

/* Removes the communicators that all processes of this host have left from the list and returns them. */
static proxy *take_gone(void) {
    proxy *taken = NULL;
    tutti_lock(TUTTI_LOCK_PROXIES);
    for (proxy **link = &all_proxies; *link != NULL;) {
        proxy *w = *link;
        if (!have_gone(w)) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        w->next = taken;
        taken = w;
    }
    tutti_unlock(TUTTI_LOCK_PROXIES);
    return taken;
}

/* Stops watching for communicators that all processes of this host have left. `end` is unwatch_left, or drop_left on
 * the heartbeat thread, after it has sent all deaths. */
static void release_gone(void (*end)(tutti_peer *remote)) {
    for (proxy *w = take_gone(), *next; w != NULL; w = next) {
        next = w->next;
        for (int i = 0; i < w->nfar; i++) end(w->remote[i]);
        free_proxy(w);
    }
}

/* ------------------------------------------------------------------------------------------- the thread */

/* Removes unwatched heartbeats from the list and returns them. */
static tutti_heartbeat *take_unwatched(void) {
    tutti_heartbeat *taken = NULL;
    for (tutti_heartbeat **link = &watch.heartbeats; *link != NULL;) {
        tutti_heartbeat *b = *link;
        if (tutti_heartbeat_state(b) != TUTTI_HEARTBEAT_GOODBYE) {
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
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    tutti_heartbeat *first = watch.heartbeats; /* other threads only add, in front of it */
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    for (tutti_heartbeat *b = first; b != NULL; b = b->next) {
        tutti_heartbeat_go_on(b, due);
        if (b->over || b->connection.socket < 0)
            atomic_store(&b->said, (int)tutti_heartbeat_state(b)); /* no connection can carry it */
    }
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    pthread_cond_broadcast(&watch.parted);
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
}

/* Waits until data arrives or the next heartbeat is due. */
static void wait_for_next(void) {
    struct pollfd polled[1 + MOST_BEATS] = {{.fd = watch.bell, .events = POLLIN}};
    nfds_t count = 1;
    bool connecting = false;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    for (const tutti_heartbeat *b = watch.heartbeats; b != NULL; b = b->next) {
        connecting = connecting || (b->connection.socket < 0 && !b->over);
        if (b->connection.socket >= 0 && !b->over && count < TUTTI_COUNT_OF(polled))
            polled[count++] = (struct pollfd){.fd = b->connection.socket, .events = POLLIN};
    }
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    poll(polled, count, connecting ? BEAT_MS / 10 : BEAT_MS);
    uint64_t rung;
    if (polled[0].revents != 0 && read(watch.bell, &rung, sizeof rung) < 0) return; /* only drains it */
}

static void *heartbeat_thread(void *argument) {
    (void)argument;
    int64_t last_ns = 0;
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    for (;;) {
        tutti_heartbeat *unwatched = take_unwatched();
        bool last = watch.heartbeats == NULL;
        watch.parting = unwatched != NULL;
        tutti_unlock(TUTTI_LOCK_HEARTBEAT);
        for (tutti_heartbeat *next; unwatched != NULL; unwatched = next) {
            next = unwatched->next;
            tutti_heartbeat_free(unwatched);
        }
        tutti_lock(TUTTI_LOCK_HEARTBEAT);
        watch.parting = false;
        pthread_cond_broadcast(&watch.parted);
        last = last && watch.heartbeats == NULL; /* unless one was just added */
        if (last) watch.runs = false;
        tutti_unlock(TUTTI_LOCK_HEARTBEAT);
        if (last) return NULL;
        go_round(&last_ns);
        release_gone(drop_left);
        wait_for_next();
        tutti_lock(TUTTI_LOCK_HEARTBEAT);
    }
}

/* Lock held. */
static tutti_status start_thread(void) {
    if (watch.runs) return TUTTI_OK;
    if (watch.bell < 0) {
        tutti_cond_init(&watch.parted);
        watch.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    if (watch.bell < 0) return tutti_fail_errno(errno, "cannot create an eventfd for heartbeats");
    int error = tutti_thread_start(TUTTI_THREAD_HEARTBEAT, heartbeat_thread, NULL, NULL);
    if (error != 0) return tutti_fail_errno(error, "cannot start the heartbeat thread");
    watch.runs = true;
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------- of a communicator */

/* Lock held. */
static tutti_status add(tutti_peer *remote) {
    tutti_heartbeat *b;
    TUTTI_TRY(tutti_heartbeat_make(remote, &b));
    b->next = watch.heartbeats;
    watch.heartbeats = b;
    return TUTTI_OK;
}

static tutti_status watch_first(tutti_peer *remote) {
    tutti_lock(TUTTI_LOCK_HEARTBEAT);
    tutti_heartbeat *b = find(remote);
    if (b != NULL) atomic_fetch_add(&b->watchers, 1);
    tutti_status status = b != NULL ? TUTTI_OK : add(remote);
    if (status == TUTTI_OK) status = start_thread();
    tutti_unlock(TUTTI_LOCK_HEARTBEAT);
    ring();
    return status;
}

/* The first process of another host. */
static tutti_peer *first_of(const tutti_comm *comm, int host) {
    return comm->members[comm->net.hosts->all[host].ranks[0]].process;
}

tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm) {
    tutti_hosts *hosts = comm->net.hosts;
    if (hosts->local->rank != 0) return TUTTI_OK;
    release_gone(unwatch_left); /* sends pending goodbyes first: later they would apply to this communicator */
    for (int host = 0; host < hosts->nhosts; host++) {
        if (host == hosts->host) continue;
        tutti_status status = watch_first(first_of(comm, host));
        if (status != TUTTI_OK) {
            for (int before = 0; before < host; before++)
                if (before != hosts->host) unwatch(first_of(comm, before));
            return status;
        }
    }
    hosts->watches = true;
    return TUTTI_OK;
}

void tutti_heartbeat_leave_hosts(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->net.hosts;
    if (!hosts->watches) release_gone(unwatch_left); /* possibly of another rank in this process */
    if (!hosts->watches || take_over(comm)) return;
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) unwatch(first_of(comm, host));
}

void tutti_heartbeat_read_deaths(const tutti_comm *comm) {
    tutti_heartbeat_read(comm->net.hosts->local->members[0].process);
}
