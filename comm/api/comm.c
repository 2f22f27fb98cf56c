/*
 * Creation, breaking and destruction of communicators. See comm.h for the terms.
 *
 * Creation: every rank has its page (created through a store: in the segment) before the other ranks learn of it.
 * Then all ranks map each other's pages, and a first meeting on them ends the creation, so that a communicator that
 * one rank has is one that all have. Destruction is local: the rank marks its page as departed, and the page waits
 * in retire.c until no rank reads it.
 */
#include "comm/base/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/launcher/world.h"
#include "comm/api/api.h"
#include "comm/base/cpus.h"
#include "comm/base/fork.h"
#include "comm/base/page.h"
#include "comm/gpu/stream.h"
#include "comm/health/heartbeat.h"
#include "comm/init/init.h"
#include "comm/net/hosts.h"
#include "comm/net/link.h"
#include "comm/net/route_log.h"
#include "comm/p2p/p2p.h"
#include "comm/queue/queue.h"
#include "comm/shm/flags.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"
#include "comm/shm/slots.h"

/* --------------------------------------------------------------------------------------- life of the struct */

void tutti_comm_free(tutti_comm *comm) {
    tutti_stream_free(comm);
    tutti_queue_destroy(comm);
    tutti_hosts_free(comm->net.hosts);
    tutti_shm_segment_release(comm->shm.segment);
    free(comm->shm.views);
    free(comm->shm.factors);
    free(comm->shm.buffers);
    free(comm);
}

static void leave_hosts(tutti_comm *comm) {
    tutti_hosts_uncount(comm);
    tutti_heartbeat_leave_hosts(comm);
    tutti_hosts_leave(comm);
}

/* Closes a communicator. Works on a broken one, on one whose creation failed half-way, and on a whole one. */
static void dismantle(tutti_comm *comm) {
    tutti_queue_close(comm);
    tutti_link_close_all(comm);
    if (comm->page != NULL) {
        if (comm->net.hosts == NULL) tutti_slots_delist(comm);
        tutti_p2p_close(comm);
        tutti_stream_close(comm);
        atomic_store_explicit(&comm->page->departed, 1, memory_order_release);
        tutti_comm_wake(comm);
        if (comm->net.hosts == NULL) tutti_retire_comm(comm);
        else leave_hosts(comm);
    }
    tutti_comm_release(comm);
}

tutti_status tutti_create_begin(int rank, int nranks, const tutti_comm_options *options, const char *name,
                                tutti_comm **comm_out) {
    tutti_comm *comm;
    void *page = NULL;
    tutti_fork_watch();
    tutti_comm_options taken;
    if (options != NULL) {
        TUTTI_TRY(tutti_struct_take("communicator options", "TUTTI_COMM_OPTIONS(...)", options, &taken, sizeof taken));
        options = &taken;
    }
    if (options != NULL && (options->timeout_ms < 0 || options->connect_timeout_ms < 0))
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "communicator options: timeout_ms is %lld and connect_timeout_ms %lld, both must be at least 0 (0: use "
            "the setting)",
            (long long)options->timeout_ms, (long long)options->connect_timeout_ms);
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    TUTTI_TRY(tutti_settings_check());
    TUTTI_TRY(tutti_calloc(1, sizeof *comm, &comm));
    atomic_init(&comm->references, 1);
    comm->rank = rank;
    comm->nranks = nranks;
    comm->timeout_ms =
        options != NULL && options->timeout_ms > 0 ? options->timeout_ms : tutti_setting_int(TUTTI_SETTING_TIMEOUT_MS);
    comm->connect_timeout_ms = options != NULL && options->connect_timeout_ms > 0
                                   ? options->connect_timeout_ms
                                   : tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS);
    snprintf(comm->name, sizeof comm->name, "%s", options != NULL && options->name != NULL ? options->name : name);
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)nranks, sizeof *comm->members, &comm->members), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)nranks, sizeof *comm->shm.views, &comm->shm.views), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)nranks, sizeof *comm->shm.factors, &comm->shm.factors), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc((size_t)nranks, sizeof *comm->shm.buffers, &comm->shm.buffers), fail);
    TUTTI_TRY_GOTO(status, tutti_select_forced(&comm->forced_row), fail);
    comm->run = tutti_select_and_run;
    TUTTI_TRY_GOTO(status, tutti_queue_create(comm), fail);
    TUTTI_TRY_GOTO(status, tutti_heap_alloc(TUTTI_HEAP_CONTROL, sizeof *comm->page, &page), fail);
    comm->page = page;
    tutti_page_prepare(comm->page);
    *comm_out = comm;
    return TUTTI_OK;
fail:
    free(comm->members);
    tutti_comm_release(comm);
    return status;
}

/* With fewer ranks, reading the posts of all takes less time than counting them. From trials on 2 cores. */
#define LEAST_COUNTED_RANKS 5

/* Fills in what a communicator of one host must know of its ranks. */
static void equip(tutti_comm *comm) {
    comm->one_process = true;
    for (int rank = 0; rank < comm->nranks; rank++)
        comm->one_process = comm->one_process && comm->members[rank].process->self;
    comm->spins = comm->host_cores >= comm->host_ranks;
    comm->counts = !comm->spins && comm->nranks >= LEAST_COUNTED_RANKS;
    comm->chunk_bytes = tutti_slots_chunk_bytes(comm->nranks);
    tutti_slots_enlist(comm);
}

tutti_status tutti_create_end(tutti_comm *comm) {
    if (comm->net.hosts == NULL) {
        equip(comm);
    } else {
        comm->net.hosts->local->host_ranks = comm->host_ranks;
        comm->net.hosts->local->host_cores = comm->host_cores;
        equip(comm->net.hosts->local);
        comm->spins = comm->net.hosts->local->spins;
    }
    TUTTI_TRY(tutti_p2p_open(comm));
    if (comm->net.hosts != NULL) TUTTI_TRY(tutti_heartbeat_watch_hosts(comm));
    tutti_op meeting = {.kind = TUTTI_KIND_BARRIER, .timeout_ms = comm->connect_timeout_ms};
    /* Only the first ranks of a host report early. */
    comm->reports_early = (comm->net.hosts != NULL ? comm->net.hosts->local : comm)->rank < 2;
    tutti_status status = tutti_queue_run(comm, &meeting);
    comm->reports_early = false;
    return status;
}

void tutti_create_cancel(tutti_comm *comm) {
    if (comm == NULL) return;
    tutti_fail_context(TUTTI_ERR_ABORTED, "the creation of communicator \"%s\" failed on rank %d", comm->name,
                       comm->rank);
    tutti_comm_break(comm, TUTTI_ERR_ABORTED);
    dismantle(comm);
}

/* ------------------------------------------------------------------------------------------------ creation */

static tutti_status meet_alone(tutti_comm *comm) {
    uint64_t id;
    tutti_peer *self;
    tutti_core_mask cores;
    TUTTI_TRY(tutti_getrandom(&id, sizeof id));
    TUTTI_TRY(tutti_peer_self(&self));
    tutti_comm_identify(comm, id | 1);
    tutti_peer_retain(self);
    comm->members[0] = (tutti_member){.process = self, .page = comm->page};
    tutti_cpus_allowed(&cores);
    comm->host_ranks = 1;
    comm->host_cores = tutti_cpus_count(&cores, tutti_cpus_most());
    return tutti_create_end(comm);
}

static tutti_status create(int rank, int nranks, const tutti_store *store, const char *prefix,
                           const tutti_comm_options *options, const char *name, tutti_comm **comm_out) {
    tutti_comm *comm = NULL;
    TUTTI_TRY(tutti_create_begin(rank, nranks, options, name, &comm));
    tutti_status status = nranks > 1 ? tutti_init_from_store(comm, store, prefix, tutti_create_end) : meet_alone(comm);
    if (status != TUTTI_OK) {
        const tutti_error error = tutti_fail_save();
        tutti_create_cancel(comm);
        return tutti_fail_again(status, &error);
    }
    tutti_route_log_hosts(comm);
    *comm_out = comm;
    return TUTTI_OK;
}

tutti_status tutti_comm_create(int rank, int nranks, const tutti_store *store, const char *prefix,
                               const tutti_comm_options *options, tutti_comm **comm_out) {
    if (comm_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_create: comm_out is NULL");
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_comm_create: rank %d is out of range for a communicator of %d ranks", rank, nranks);
    tutti_store taken;
    if (store != NULL) {
        TUTTI_TRY(tutti_struct_take("tutti_comm_create: store", "TUTTI_INITIALIZED(tutti_store, ...)", store, &taken,
                                    sizeof taken));
        store = &taken;
    }
    if (nranks > 1 && (store == NULL || store->set == NULL || store->get == NULL || store->add == NULL ||
                       store->check == NULL || prefix == NULL || strlen(prefix) > 256))
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_comm_create: more than one rank needs a store (set, get, add, check) and "
                          "a prefix of at most 256 characters");
    tutti_timing_begin();
    return create(rank, nranks, store, prefix, options, "comm", comm_out);
}

/* OneFlow's launcher does not say which ranks share a host. */
static void complete_world(const tutti_comm *comm, tutti_world world) {
    tutti_comm_details details;
    if (tutti_comm_get(comm, &details) != TUTTI_OK) return;
    world.local_rank = details.local_rank;
    world.local_size = details.local_size;
    world.node = details.host;
    world.nodes = details.hosts;
    tutti_world_complete(&world);
}

tutti_status tutti_comm_create_world(tutti_comm **comm_out) {
    tutti_world world;
    tutti_rendezvous *rendezvous = NULL;
    if (comm_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_create_world: comm_out is NULL");
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    tutti_timing_begin();
    TUTTI_TRY(tutti_world_get(&world));
    tutti_timing_over(TUTTI_TIMING_LAUNCHER);
    tutti_log_set_rank(world.size > 1 ? world.rank : -1);
    if (world.size == 1) return create(0, 1, NULL, NULL, NULL, "world", comm_out);
    TUTTI_TRY(tutti_rendezvous_open(&world, &rendezvous));
    tutti_timing_over(TUTTI_TIMING_STORE);
    tutti_status status = create(world.rank, world.size, tutti_rendezvous_store(rendezvous),
                                 tutti_rendezvous_prefix(rendezvous), NULL, "world", comm_out);
    if (status == TUTTI_OK) complete_world(*comm_out, world);
    else tutti_rendezvous_hurry(rendezvous);
    tutti_rendezvous_close(rendezvous);
    return status;
}

/* ------------------------------------------------------------------------------------------------ ending */

tutti_status tutti_comm_abort(tutti_comm *comm, const char *reason) {
    if (comm == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_abort: comm is NULL");
    if (tutti_forked()) return tutti_comm_check(comm);
    tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was aborted by rank %d (pid %d): %s", comm->name, comm->rank,
               (int)getpid(), reason != NULL ? reason : "no reason given");
    tutti_comm_give_up(comm, TUTTI_ERR_ABORTED);
    return TUTTI_OK;
}

tutti_status tutti_comm_error(tutti_comm *comm) {
    if (comm == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_comm_error: comm is NULL");
    return tutti_comm_check(comm);
}

tutti_status tutti_comm_destroy(tutti_comm *comm) {
    if (comm == NULL) return TUTTI_OK;
    if (tutti_forked()) return TUTTI_OK; /* its memory is the parent's, or not mapped here at all */
    if (tutti_task_comm == comm)
        return tutti_fail(
            TUTTI_ERR_ARGUMENT,
            "tutti_comm_destroy: communicator \"%s\" runs the calling function of tutti_submit; destroy it elsewhere",
            comm->name);
    atomic_store_explicit(&comm->destroyed, true, memory_order_release);
    tutti_stream_abandon(comm);
    if (tutti_queue_is_active(comm)) {
        tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was destroyed by rank %d while operations were in progress",
                   comm->name, comm->rank);
        tutti_comm_break(comm, TUTTI_ERR_ABORTED);
    }
    dismantle(comm);
    return TUTTI_OK;
}

int tutti_comm_rank(const tutti_comm *comm) {
    return comm != NULL ? comm->rank : -1;
}

int tutti_comm_size(const tutti_comm *comm) {
    return comm != NULL ? comm->nranks : -1;
}
