/*
 * Communicators created from others, without a store: pages are published through the parent.
 *
 * split: one all_gather on the parent of (colour, key, page); the id is a hash of the parent's id, the number of
 * the split and the colour, so that every page has its id before it is published. create_group: only the members
 * communicate, over point to point; the first of the list gathers the entries and distributes them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/hash.h"
#include "comm/api/api.h"
#include "comm/gpu/stream.h"
#include "comm/net/hier/hierarchical.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"
#include "comm/queue/queue.h"
#include "comm/shm/flags.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"

/* The data that a rank publishes about itself. */
typedef struct split_entry {
    int64_t color, key;
    uint64_t page;  /* address in its process */
    uint64_t id;    /* id of the child communicator; create_group: chosen by the first member */
    int64_t status; /* split: of the rank's own preparation; after a failure it has no page */
} split_entry;

static void inherit(tutti_comm *comm, const tutti_comm *parent, const tutti_comm_options *options) {
    if (options == NULL || options->timeout_ms == 0) comm->timeout_ms = parent->timeout_ms;
    if (options == NULL || options->connect_timeout_ms == 0) comm->connect_timeout_ms = parent->connect_timeout_ms;
    if (parent->shm.segment != NULL) tutti_shm_segment_retain(parent->shm.segment);
    comm->shm.segment = parent->shm.segment;
    comm->host_ranks = parent->host_ranks;
    comm->host_cores = parent->host_cores;
}

static tutti_status take_member(tutti_comm *comm, int rank, const tutti_comm *parent, int parent_rank, uint64_t page) {
    tutti_peer *process = parent->members[parent_rank].process;
    tutti_member member = {.process = process, .page = tutti_peer_translate(process, page, sizeof(tutti_page))};
    if (member.page == NULL || page % TUTTI_CACHE_LINE != 0)
        return tutti_fail(TUTTI_ERR_DATA, "rank %d published a page outside of its heap", parent_rank);
    tutti_peer_retain(process);
    comm->members[rank] = member;
    return TUTTI_OK;
}

static int host_of(const tutti_comm *parent, int parent_rank) {
    return parent->net.hosts != NULL ? parent->net.hosts->host_of[parent_rank] : 0;
}

/* Lays the child communicator out over hosts if its members are on several hosts. */
static tutti_status lay_out(tutti_comm *comm, const tutti_comm *parent, const int *parent_ranks) {
    bool several = false;
    int *keys;
    for (int rank = 1; rank < comm->nranks; rank++)
        several = several || host_of(parent, parent_ranks[rank]) != host_of(parent, parent_ranks[0]);
    if (!several) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *keys, &keys));
    for (int rank = 0; rank < comm->nranks; rank++) keys[rank] = host_of(parent, parent_ranks[rank]);
    tutti_status status = tutti_hosts_create(comm, keys);
    free(keys);
    TUTTI_TRY(status);
    tutti_hosts *hosts = comm->net.hosts;
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *hosts->own_listeners, &hosts->own_listeners));
    for (int rank = 0; rank < comm->nranks; rank++)
        hosts->own_listeners[rank] = parent->net.hosts->listeners[parent_ranks[rank]];
    hosts->listeners = hosts->own_listeners;
    return tutti_hierarchical_inherit(comm, parent);
}

/* Makes the parent's ranks, in that order, the members of comm; entries[i] is the entry of the i-th. */
static tutti_status take_members(tutti_comm *comm, const tutti_comm *parent, const int *parent_ranks,
                                 const split_entry *entries) {
    TUTTI_TRY(lay_out(comm, parent, parent_ranks));
    for (int rank = 0; rank < comm->nranks; rank++) {
        int parent_rank = parent_ranks[rank];
        tutti_peer *process = parent->members[parent_rank].process;
        if (!process->remote) {
            TUTTI_TRY(take_member(comm, rank, parent, parent_rank, entries[rank].page));
        } else {
            tutti_peer_retain(process);
            tutti_hosts_enter_remote(comm, rank, process);
        }
        const int job_rank = parent->members[parent_rank].job_rank;
        comm->members[rank].job_rank = job_rank > 0 ? job_rank : 1 + parent_rank;
    }
    if (comm->net.hosts != NULL) tutti_hosts_fill_local(comm);
    return TUTTI_OK;
}

static tutti_status cancel_with(tutti_comm *comm, tutti_status status) {
    const tutti_error error = tutti_fail_save();
    tutti_create_cancel(comm);
    return tutti_fail_again(status, &error);
}

/* ------------------------------------------------------------------------------------------------- split */

typedef struct place {
    int64_t key;
    int parent_rank;
} place;

static int by_key(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->parent_rank - y->parent_rank;
}

/* Sorts the parent's ranks of this colour into their order in the child; returns their number. */
static int sort_members(const split_entry *entries, int nranks, int64_t color, place *places) {
    int count = 0;
    for (int rank = 0; rank < nranks; rank++)
        if (entries[rank].color == color) places[count++] = (place){.key = entries[rank].key, .parent_rank = rank};
    qsort(places, (size_t)count, sizeof *places, by_key);
    return count;
}

/* The child rank of a rank of the parent. */
static int find_rank(const split_entry *entries, int nranks, int parent_rank) {
    const place own = {.key = entries[parent_rank].key, .parent_rank = parent_rank};
    int before = 0;
    for (int rank = 0; rank < nranks; rank++)
        before += entries[rank].color == entries[parent_rank].color &&
                  by_key(&(place){.key = entries[rank].key, .parent_rank = rank}, &own) < 0;
    return before;
}

/* The failure of a rank of the same colour; if several have failed, each of them returns its own. */
static tutti_status check_entries(const tutti_comm *comm, const place *places, const split_entry *own) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (own[rank].status != TUTTI_OK)
            return tutti_fail(TUTTI_ERR_ABORTED,
                              "communicator \"%s\" was not created: rank %d failed with '%s'; see that rank's error",
                              comm->name, places[rank].parent_rank, tutti_status_name((tutti_status)own[rank].status));
    return TUTTI_OK;
}

static tutti_status join_split(tutti_comm *parent, tutti_comm *comm, const split_entry *entries) {
    size_t n = (size_t)parent->nranks;
    place *places;
    split_entry *own = NULL; /* entries of the child's ranks, in their order */
    int *parent_ranks = NULL;
    tutti_status status = TUTTI_OK;
    comm->rank = find_rank(entries, parent->nranks, parent->rank); /* first, since errors name it */
    TUTTI_TRY(tutti_calloc(n, sizeof *places, &places));
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *own, &own), done);
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *parent_ranks, &parent_ranks), done);
    /* comm was made for the parent's number of ranks, so all arrays are large enough. */
    comm->nranks = sort_members(entries, parent->nranks, entries[parent->rank].color, places);
    for (int rank = 0; rank < comm->nranks; rank++) {
        parent_ranks[rank] = places[rank].parent_rank;
        own[rank] = entries[places[rank].parent_rank];
    }
    TUTTI_TRY_GOTO(status, check_entries(comm, places, own), done);
    TUTTI_TRY_GOTO(status, take_members(comm, parent, parent_ranks, own), done);
    status = tutti_create_end(comm);
done:
    free(parent_ranks);
    free(own);
    free(places);
    return status;
}

/* All ranks of the parent take part, even those whose own part has failed; they then return that failure. */
static tutti_status split_streams(tutti_comm *parent, tutti_comm *child, int color, tutti_status so_far) {
    const tutti_error error = tutti_fail_save();
    tutti_status status = tutti_stream_split(parent, so_far == TUTTI_OK ? child : NULL, color);
    return so_far == TUTTI_OK ? status : tutti_fail_again(so_far, &error);
}

tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, const tutti_comm_options *options,
                              tutti_comm **comm_out) {
    if (comm == NULL || comm_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_split: NULL argument");
    if (color < 0 && color != TUTTI_COLOR_NONE)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_comm_split: color %d is invalid; it must be 0 or above, or TUTTI_COLOR_NONE", color);
    TUTTI_TRY(tutti_comm_check(comm));
    char name[64];
    tutti_comm *child = NULL;
    split_entry *entries, own = {.color = color, .key = key};
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *entries, &entries));
    uint64_t number = ++comm->splits;
    snprintf(name, sizeof name, "%.40s/%llu", comm->name, (unsigned long long)number);
    own.id = tutti_hash_add(tutti_hash_add(comm->id, number), (uint64_t)color) | 1;
    tutti_status begun = color >= 0 ? tutti_create_begin(0, comm->nranks, options, name, &child) : TUTTI_OK;
    own.status = begun;
    if (child != NULL) {
        inherit(child, comm, options);
        tutti_comm_identify(child, own.id);
        own.page = (uint64_t)(uintptr_t)child->page;
    }
    tutti_op gather = {.kind = TUTTI_KIND_ALL_GATHER,
                       .type = TUTTI_UINT8,
                       .src = &own,
                       .dst = entries,
                       .count = sizeof own,
                       .signature = tutti_hash_add(0, number) >> 1};
    tutti_status status = tutti_queue_run(comm, &gather);
    bool met = status == TUTTI_OK;
    if (!met) comm->splits--; /* the others, if comm is whole, have not counted it either */
    if (status == TUTTI_OK) status = begun;
    if (status == TUTTI_OK && child != NULL) status = join_split(comm, child, entries);
    free(entries);
    if (met) status = split_streams(comm, child, color, status);
    if (status != TUTTI_OK) return cancel_with(child, status);
    *comm_out = child;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- group */

static tutti_status wait_and_free(tutti_work *work, tutti_status started) {
    /* An interrupt breaks the communicator, which ends the message: it must not use memory that the caller frees. */
    tutti_status status = started == TUTTI_OK ? tutti_work_finish(work) : started;
    tutti_work_free(work);
    return status;
}

static tutti_status send_bytes(tutti_comm *comm, const void *data, size_t bytes, int peer, int64_t tag,
                               int64_t timeout_ms) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->op.timeout_ms = timeout_ms;
    return wait_and_free(work, tutti_p2p_send(comm, data, bytes, peer, tag, work));
}

static tutti_status receive_bytes(tutti_comm *comm, void *data, size_t bytes, int peer, int64_t tag,
                                  int64_t timeout_ms) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->op.timeout_ms = timeout_ms;
    return wait_and_free(work, tutti_p2p_recv(comm, data, bytes, 1, peer, tag, work));
}

/* Gives every member all members' entries, in the list's order. The first member knows which rank is missing, so
 * its deadline ends first: the others receive its reason. */
static tutti_status share_entries(tutti_comm *parent, const int *ranks, int nranks, int me, int64_t tag,
                                  int64_t timeout_ms, split_entry *entries) {
    size_t bytes = (size_t)nranks * sizeof *entries;
    if (me != 0) {
        TUTTI_TRY(send_bytes(parent, &entries[me], sizeof *entries, ranks[0], tag, timeout_ms));
        return receive_bytes(parent, entries, bytes, ranks[0], tag, timeout_ms + timeout_ms / 8 + 100);
    }
    for (int rank = 1; rank < nranks; rank++)
        TUTTI_TRY(receive_bytes(parent, &entries[rank], sizeof *entries, ranks[rank], tag, timeout_ms));
    for (int rank = 1; rank < nranks; rank++)
        TUTTI_TRY(send_bytes(parent, entries, bytes, ranks[rank], tag, timeout_ms));
    return TUTTI_OK;
}

static tutti_status join_group(tutti_comm *parent, tutti_comm *comm, const int *ranks, int64_t tag,
                               split_entry *entries) {
    entries[comm->rank].page = (uint64_t)(uintptr_t)comm->page;
    if (comm->rank == 0) {
        TUTTI_TRY(tutti_getrandom(&entries[0].id, sizeof entries[0].id));
        entries[0].id |= 1;
        tutti_comm_identify(comm, entries[0].id);
    }
    TUTTI_TRY(share_entries(parent, ranks, comm->nranks, comm->rank, tag, comm->connect_timeout_ms, entries));
    tutti_comm_identify(comm, entries[0].id);
    TUTTI_TRY(take_members(comm, parent, ranks, entries));
    return tutti_create_end(comm);
}

static tutti_status check_list(const tutti_comm *comm, const int *ranks, int nranks, int *me_out) {
    bool found = false;
    if (nranks < 1 || nranks > comm->nranks)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_comm_create_group: a list of %d ranks is invalid for a communicator of %d ranks",
                          nranks, comm->nranks);
    for (int i = 0; i < nranks; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->nranks)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "tutti_comm_create_group: rank %d is out of range for a communicator of %d ranks",
                              ranks[i], comm->nranks);
        for (int before = 0; before < i; before++)
            if (ranks[before] == ranks[i])
                return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_create_group: rank %d is listed twice", ranks[i]);
        if (ranks[i] == comm->rank) {
            *me_out = i;
            found = true;
        }
    }
    if (!found)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_create_group: rank %d makes the call but is not in the list",
                          comm->rank);
    return TUTTI_OK;
}

tutti_status tutti_comm_create_group(tutti_comm *comm, const int *ranks, int nranks, int64_t tag,
                                     const tutti_comm_options *options, tutti_comm **comm_out) {
    int me = 0;
    if (comm == NULL || ranks == NULL || comm_out == NULL || tag < 0 || tag > INT64_MAX / 2)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_comm_create_group: NULL argument, or a tag below 0 or above INT64_MAX / 2");
    TUTTI_TRY(tutti_comm_check(comm));
    TUTTI_TRY(check_list(comm, ranks, nranks, &me));
    char name[64];
    tutti_comm *child;
    split_entry *entries;
    snprintf(name, sizeof name, "%.32s/group %lld", comm->name, (long long)tag);
    TUTTI_TRY(tutti_create_begin(me, nranks, options, name, &child));
    inherit(child, comm, options);
    tutti_status status = tutti_calloc((size_t)nranks, sizeof *entries, &entries);
    if (status == TUTTI_OK) {
        status = join_group(comm, child, ranks, TUTTI_TAG_GROUP - tag, entries);
        free(entries);
    }
    if (status != TUTTI_OK) return cancel_with(child, status);
    *comm_out = child;
    return TUTTI_OK;
}
