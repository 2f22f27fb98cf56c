/*
 * The layout of a communicator over hosts, and its communicator of this host's ranks. See hosts.h.
 */
#include "comm/net/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/net/link.h"
#include "comm/queue/queue.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"
#include "comm/shm/slots.h"

#define LEAST_SCRATCH_BYTES ((size_t)64 << 10)

/* ----------------------------------------------------------------------------------------------- layout */

/* Numbers the hosts in the order of their lowest rank. */
static void number_hosts(tutti_hosts *hosts, const int *host_keys, int nranks) {
    for (int rank = 0; rank < nranks; rank++) {
        int first = 0;
        while (host_keys[first] != host_keys[rank]) first++;
        hosts->host_of[rank] = first < rank ? hosts->host_of[first] : hosts->nhosts++;
    }
}

/* Lists each host's ranks, one host after the other. */
static void list_ranks(tutti_hosts *hosts, int nranks) {
    int *next = hosts->order;
    hosts->uniform = true;
    for (int host = 0; host < hosts->nhosts; host++) {
        tutti_host *one = &hosts->all[host];
        one->ranks = next;
        for (int rank = 0; rank < nranks; rank++) {
            if (hosts->host_of[rank] != host) continue;
            hosts->local_of[rank] = one->nranks++;
            *next++ = rank;
        }
        hosts->uniform = hosts->uniform && one->nranks == hosts->all[0].nranks;
    }
}

static tutti_status lay_out(tutti_hosts *hosts, const int *host_keys, int rank, int nranks) {
    size_t n = (size_t)nranks;
    TUTTI_TRY(tutti_calloc(n, sizeof *hosts->host_of, &hosts->host_of));
    TUTTI_TRY(tutti_calloc(n, sizeof *hosts->local_of, &hosts->local_of));
    TUTTI_TRY(tutti_calloc(n, sizeof *hosts->order, &hosts->order));
    TUTTI_TRY(tutti_calloc(n, sizeof *hosts->srcs, &hosts->srcs));
    TUTTI_TRY(tutti_calloc(n, sizeof *hosts->dsts, &hosts->dsts));
    TUTTI_TRY(tutti_calloc(2 * n, sizeof *hosts->counts, &hosts->counts));
    TUTTI_TRY(tutti_calloc(n, sizeof *hosts->everyone, &hosts->everyone));
    for (int i = 0; i < nranks; i++) hosts->everyone[i] = i;
    TUTTI_TRY(tutti_calloc(2 * n, sizeof *hosts->parts, &hosts->parts));
    number_hosts(hosts, host_keys, nranks);
    TUTTI_TRY(tutti_calloc((size_t)hosts->nhosts, sizeof *hosts->all, &hosts->all));
    TUTTI_TRY(tutti_calloc((size_t)hosts->nhosts, sizeof *hosts->rail, &hosts->rail));
    TUTTI_TRY(tutti_calloc((size_t)hosts->nhosts, sizeof *hosts->leaders, &hosts->leaders));
    list_ranks(hosts, nranks);
    hosts->host = hosts->host_of[rank];
    for (int host = 0; host < hosts->nhosts; host++)
        hosts->rail[host] = hosts->all[host].ranks[hosts->uniform ? hosts->local_of[rank] : 0];
    return TUTTI_OK;
}

tutti_status tutti_comm_get(const tutti_comm *comm, tutti_comm_details *details_out) {
    if (comm == NULL || details_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_get: NULL argument");
    const tutti_hosts *hosts = comm->net.hosts;
    if (hosts == NULL)
        *details_out =
            (tutti_comm_details){.local_rank = comm->rank, .local_size = comm->nranks, .host = 0, .hosts = 1};
    else
        *details_out = (tutti_comm_details){.local_rank = hosts->local_of[comm->rank],
                                            .local_size = hosts->all[hosts->host].nranks,
                                            .host = hosts->host,
                                            .hosts = hosts->nhosts};
    details_out->host_ranks = comm->host_ranks;
    details_out->host_cores = comm->host_cores;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ local */

static tutti_status make_local(tutti_comm *comm) {
    tutti_hosts *hosts = comm->net.hosts;
    const tutti_host *own = &hosts->all[hosts->host];
    tutti_comm *local;
    size_t n = (size_t)own->nranks;
    TUTTI_TRY(tutti_calloc(1, sizeof *local, &local));
    hosts->local = local;
    atomic_init(&local->references, 1);
    local->rank = hosts->local_of[comm->rank];
    local->nranks = own->nranks;
    local->outer = comm;
    local->shown_ranks = own->ranks;
    local->id = comm->id;
    memcpy(local->name, comm->name, sizeof local->name);
    local->timeout_ms = comm->timeout_ms;
    local->connect_timeout_ms = comm->connect_timeout_ms;
    local->run = comm->run;
    local->forced_row = comm->forced_row;
    TUTTI_TRY(tutti_calloc(n, sizeof *local->members, &local->members));
    TUTTI_TRY(tutti_calloc(n, sizeof *local->shm.views, &local->shm.views));
    TUTTI_TRY(tutti_calloc(n, sizeof *local->shm.factors, &local->shm.factors));
    TUTTI_TRY(tutti_calloc(n, sizeof *local->shm.buffers, &local->shm.buffers));
    TUTTI_TRY(tutti_queue_create(local));
    local->page = comm->page;
    return TUTTI_OK;
}

/* Incremented before other hosts can know of the communicator, decremented when this process needs it no more. */
static void count_membership(tutti_hosts *hosts, int change) {
    tutti_channel_directory *own = (tutti_channel_directory *)tutti_heap_base();
    atomic_fetch_add_explicit(&own->memberships, change, memory_order_release);
    hosts->counted = change > 0;
}

tutti_status tutti_hosts_create(tutti_comm *comm, const int *host_keys) {
    TUTTI_TRY(tutti_calloc(1, sizeof *comm->net.hosts, &comm->net.hosts));
    TUTTI_TRY(lay_out(comm->net.hosts, host_keys, comm->rank, comm->nranks));
    TUTTI_TRY(tutti_calloc(1, sizeof *comm->net.hosts->elsewhere, &comm->net.hosts->elsewhere));
    atomic_store_explicit(&comm->net.hosts->elsewhere->comm_id, comm->id, memory_order_relaxed);
    TUTTI_TRY(make_local(comm));
    count_membership(comm->net.hosts, 1);
    return TUTTI_OK;
}

void tutti_hosts_enter_remote(tutti_comm *comm, int rank, tutti_peer *process) {
    comm->members[rank] = (tutti_member){.process = process, .page = comm->net.hosts->elsewhere};
}

void tutti_hosts_adopt_local(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->net.hosts;
    for (int i = 0; i < hosts->local->nranks; i++) {
        tutti_member *member = &comm->members[hosts->all[hosts->host].ranks[i]];
        *member = hosts->local->members[i];
        tutti_peer_retain(member->process);
    }
}

void tutti_hosts_fill_local(tutti_comm *comm) {
    const tutti_hosts *hosts = comm->net.hosts;
    for (int i = 0; i < hosts->local->nranks; i++) {
        hosts->local->members[i] = comm->members[hosts->all[hosts->host].ranks[i]];
        tutti_peer_retain(hosts->local->members[i].process);
    }
}

/* ---------------------------------------------------------------------------------------------- leaving */

void tutti_hosts_uncount(tutti_comm *comm) {
    if (comm->net.hosts->counted) count_membership(comm->net.hosts, -1);
}

void tutti_hosts_leave(tutti_comm *comm) {
    tutti_hosts *hosts = comm->net.hosts;
    for (int rank = 0; rank < comm->nranks; rank++)
        if (comm->members[rank].process != NULL) tutti_peer_release(comm->members[rank].process);
    free(comm->members);
    comm->members = NULL;
    if (hosts->local == NULL || hosts->local->page == NULL) return; /* its creation failed half-way */
    tutti_queue_close(hosts->local);
    tutti_slots_delist(hosts->local);
    tutti_retire_comm(hosts->local);
    comm->page = NULL;
}

static void free_local(tutti_comm *local) {
    if (local == NULL) return;
    free(local->members);
    tutti_comm_release(local);
}

void tutti_hosts_free(tutti_hosts *hosts) {
    if (hosts == NULL) return;
    free_local(hosts->local);
    tutti_heap_free(hosts->scratch);
    free(hosts->elsewhere);
    free(hosts->host_of);
    free(hosts->local_of);
    free(hosts->order);
    free(hosts->own_listeners);
    free(hosts->all);
    free(hosts->rail);
    free(hosts->leaders);
    free(hosts->table);
    free(hosts->srcs);
    free(hosts->dsts);
    free(hosts->counts);
    free(hosts->everyone);
    free(hosts->parts);
    free(hosts);
}

tutti_status tutti_hosts_scratch(tutti_comm *comm, size_t bytes, char **memory_out) {
    tutti_hosts *hosts = comm->net.hosts;
    if (hosts->scratch_bytes < bytes) {
        size_t rounded = LEAST_SCRATCH_BYTES;
        while (rounded < bytes) rounded *= 2;
        tutti_heap_free(hosts->scratch);
        hosts->scratch = NULL;
        hosts->scratch_bytes = 0;
        void *memory;
        TUTTI_TRY(tutti_heap_alloc(TUTTI_HEAP_BLOCKS, rounded, &memory));
        hosts->scratch = memory;
        hosts->scratch_bytes = rounded;
    }
    *memory_out = hosts->scratch;
    return TUTTI_OK;
}
