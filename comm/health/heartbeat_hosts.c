/*
 * The heartbeats of a communicator, and those that go on after this process has left it. See heartbeat_hosts.h.
 */
#include "comm/health/heartbeat_hosts.h"

#include <pthread.h>
#include <stdlib.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/status.h"
#include "comm/base/hooks.h"
#include "comm/health/heartbeat.h"
#include "comm/net/hosts.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"

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
    for (int i = 0; i < w->nfar; i++) tutti_heartbeat_leave(w->remote[i]);
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

static void release(void (*unwatch)(tutti_peer *remote)) {
    for (proxy *w = take_gone(), *next; w != NULL; w = next) {
        next = w->next;
        for (int i = 0; i < w->nfar; i++) unwatch(w->remote[i]);
        free_proxy(w);
    }
}

/* Stops watching for communicators that all processes of this host have left. Any thread but the heartbeat thread
 * may call it: it waits until goodbye has been said. */
static void release_gone(void) {
    release(tutti_heartbeat_unwatch_left);
}

void tutti_heartbeat_hosts_release(void) {
    release(tutti_heartbeat_drop_left);
}

/* ---------------------------------------------------------------------------------------- of a communicator */

/* The first process of another host. */
static tutti_peer *first_of(const tutti_comm *comm, int host) {
    return comm->members[comm->net.hosts->all[host].ranks[0]].process;
}

tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm) {
    tutti_hosts *hosts = comm->net.hosts;
    if (hosts->local->rank != 0) return TUTTI_OK;
    release_gone(); /* sends pending goodbyes first: later they would apply to this communicator */
    for (int host = 0; host < hosts->nhosts; host++) {
        if (host == hosts->host) continue;
        tutti_status status = tutti_heartbeat_watch(first_of(comm, host));
        if (status != TUTTI_OK) {
            for (int before = 0; before < host; before++)
                if (before != hosts->host) tutti_heartbeat_unwatch(first_of(comm, before));
            return status;
        }
    }
    hosts->watches = true;
    return TUTTI_OK;
}

void tutti_heartbeat_leave_hosts(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->net.hosts;
    if (!hosts->watches) release_gone(); /* possibly of another rank in this process */
    if (!hosts->watches || take_over(comm)) return;
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) tutti_heartbeat_unwatch(first_of(comm, host));
}

void tutti_heartbeat_read_deaths(const tutti_comm *comm) {
    tutti_heartbeat_read(comm->net.hosts->local->members[0].process);
}
