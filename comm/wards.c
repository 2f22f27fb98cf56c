/*
 * The communicators whose first process has left before others of its host. See wards.h.
 */
#include "comm/wards.h"

#include <pthread.h>
#include <stdlib.h>

#include "bootstrap/base/status.h"
#include "comm/beat.h"
#include "comm/hall.h"
#include "comm/hosts.h"
#include "comm/p2p.h"
#include "comm/peer.h"

/* Of one communicator. References are held to all of its processes, since only known ones are told of, and to the hall, where
 * pages may be. */
typedef struct wards {
    uint64_t comm_id;
    int nmembers, nfar, nprocesses;
    tutti_member *members; /* of this host, but this rank */
    tutti_peer **far;      /* the first processes of the other hosts: watched */
    tutti_peer **processes;
    tutti_hall *hall;
    struct wards *next;
} wards;

static pthread_mutex_t wards_lock = PTHREAD_MUTEX_INITIALIZER;
static wards *all_wards;

/* Has the rank left? Or has it died, and that has been told? */
static bool has_gone(const tutti_member *member, uint64_t comm_id) {
    return atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0 ||
           atomic_load_explicit(&member->page->comm_id, memory_order_acquire) != comm_id ||
           tutti_peer_death_is_told(member->process);
}

static bool have_gone(const wards *w) {
    for (int i = 0; i < w->nmembers; i++)
        if (!has_gone(&w->members[i], w->comm_id)) return false;
    return true;
}

static void free_wards(wards *w) {
    for (int i = 0; i < w->nprocesses; i++) tutti_peer_release(w->processes[i]);
    tutti_hall_release(w->hall);
    free(w->members);
    free(w->far);
    free(w->processes);
    free(w);
}

static void fill(const tutti_comm *comm, wards *w) {
    const tutti_hosts *hosts = comm->hosts;
    const tutti_comm *local = hosts->local;
    for (int i = 0; i < local->nranks; i++)
        if (i != local->rank) w->members[w->nmembers++] = local->members[i];
    for (int host = 0; host < hosts->nhosts; host++)
        if (host != hosts->host) w->far[w->nfar++] = comm->members[hosts->all[host].ranks[0]].process;
    for (int rank = 0; rank < comm->nranks; rank++) {
        w->processes[w->nprocesses++] = comm->members[rank].process;
        tutti_peer_retain(comm->members[rank].process);
    }
}

static tutti_status make(const tutti_comm *comm, wards **wards_out) {
    wards *w;
    TUTTI_TRY(tutti_calloc(1, sizeof *w, &w));
    w->comm_id = comm->id;
    if (comm->hall != NULL) tutti_hall_retain(comm->hall);
    w->hall = comm->hall;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->hosts->local->nranks, sizeof *w->members, &w->members), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->hosts->nhosts, sizeof(tutti_peer *), &w->far), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)comm->nranks, sizeof(tutti_peer *), &w->processes), fail);
    fill(comm, w);
    *wards_out = w;
    return TUTTI_OK;
fail:
    free_wards(w);
    return status;
}

bool tutti_wards_take(const tutti_comm *comm) {
    wards *w;
    if (make(comm, &w) != TUTTI_OK) return false;
    if (have_gone(w)) {
        free_wards(w);
        return false;
    }
    tutti_p2p_see_off(comm);
    for (int i = 0; i < w->nfar; i++) tutti_beat_leave(w->far[i]);
    pthread_mutex_lock(&wards_lock);
    w->next = all_wards;
    all_wards = w;
    pthread_mutex_unlock(&wards_lock);
    return true;
}

/* Takes those of whom all have gone off the list. */
static wards *take_gone(void) {
    wards *taken = NULL;
    pthread_mutex_lock(&wards_lock);
    for (wards **link = &all_wards; *link != NULL;) {
        wards *w = *link;
        if (!have_gone(w)) {
            link = &w->next;
            continue;
        }
        *link = w->next;
        w->next = taken;
        taken = w;
    }
    pthread_mutex_unlock(&wards_lock);
    return taken;
}

static void release(void (*unwatch)(tutti_peer *far)) {
    for (wards *w = take_gone(), *next; w != NULL; w = next) {
        next = w->next;
        for (int i = 0; i < w->nfar; i++) unwatch(w->far[i]);
        free_wards(w);
    }
}

void tutti_wards_release(void) {
    release(tutti_beat_unwatch_left);
}

void tutti_wards_release_now(void) {
    release(tutti_beat_drop_left);
}
