/*
 * Communicators whose first process has left before other processes of its host. See heartbeat_proxy.h.
 */
#include "comm/health/heartbeat_proxy.h"

#include <stdlib.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/status.h"
#include "comm/base/hooks.h"
#include "comm/health/heartbeat.h"
#include "comm/net/hosts.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"

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
    const tutti_hosts *hosts = comm->hosts;
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

static tutti_status make(const tutti_comm *comm, proxy **wards_out) {
    proxy *w;
    TUTTI_TRY(tutti_calloc(1, sizeof *w, &w));
    w->comm_id = comm->id;
    if (comm->segment != NULL) tutti_shm_segment_retain(comm->segment);
    w->segment = comm->segment;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->hosts->local->nranks, sizeof *w->members, &w->members), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->hosts->nhosts, sizeof(tutti_peer *), &w->remote), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->nranks, sizeof(tutti_peer *), &w->processes), fail);
    fill(comm, w);
    *wards_out = w;
    return TUTTI_OK;
fail:
    free_proxy(w);
    return status;
}

bool tutti_heartbeat_proxy_take(const tutti_comm *comm) {
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

void tutti_heartbeat_proxy_release(void) {
    release(tutti_heartbeat_unwatch_left);
}

void tutti_heartbeat_proxy_release_now(void) {
    release(tutti_heartbeat_drop_left);
}
