/*
 * The parts of calls over several hosts, and long calls in pieces, so that shared memory and the network work at the
 * same time:
 *
 *   this host, before:   0    1    2    3
 *   the network:              0    1    2    3
 *   this host, after:              0    1    2    3
 *
 * The calling thread drives the network. Parts on this host are queued on its communicator, in the same order on
 * all of its ranks (before 0, 1, after 0, before 2, after 1, ...), and run by that communicator's worker, or by the
 * calling thread when it has to wait for them. A piece is as short as possible without slowing down the network.
 *
 * Invariant: when the call returns, with or without success, no part of it is under way.
 */
#include "bootstrap/base/hash.h"
#include "bootstrap/base/settings.h"
#include "comm/net/hier/hierarchical.h"
#include "comm/queue/queue.h"

/* ------------------------------------------------------------------------------------------------ parts */

static uint64_t sign_part(const tutti_op *op, const tutti_op *part) {
    return tutti_hash_add(op->signature, (uint64_t)part->kind + 1) >> 1;
}

/* Fills the remaining fields of a part of op, which runs on this host's communicator. */
static void describe(const tutti_op *op, tutti_op *part) {
    part->type = op->type;
    part->factor = op->factor;
    part->timeout_ms = op->timeout_ms;
    part->part_of = op->part_of != NULL ? op->part_of : op;
    part->signature = sign_part(op, part);
}

tutti_status tutti_hierarchical_local(tutti_comm *comm, const tutti_op *op, tutti_op part) {
    describe(op, &part);
    return tutti_queue_run(comm->net.hosts->local, &part);
}

tutti_rail tutti_hierarchical_leaders(tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_hosts *hosts = comm->net.hosts;
    for (int host = 0; host < hosts->nhosts; host++) hosts->leaders[host] = hosts->all[host].ranks[0];
    hosts->leaders[hosts->host_of[rank]] = rank;
    return (tutti_rail){.comm = comm, .op = op, .n = hosts->nhosts, .me = hosts->host, .ranks = hosts->leaders};
}

tutti_rail tutti_hierarchical_rail(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    return (tutti_rail){.comm = comm, .op = op, .n = hosts->nhosts, .me = hosts->host, .ranks = hosts->rail};
}

tutti_status tutti_hierarchical_setup(tutti_comm *comm, tutti_kind kind, size_t bytes, size_t own_bytes,
                                      tutti_rail_setup *setup_out, char **own_out) {
    size_t rail_bytes = tutti_align_up(tutti_rail_scratch_bytes(comm->net.hosts->table, kind, bytes), TUTTI_CACHE_LINE);
    char *memory;
    TUTTI_TRY(tutti_hosts_scratch(comm, rail_bytes + own_bytes, &memory));
    *setup_out = (tutti_rail_setup){.table = comm->net.hosts->table, .scratch = memory, .scratch_bytes = rail_bytes};
    if (own_out != NULL) *own_out = memory + rail_bytes;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- in pieces */

/* The time on the network may grow by this factor compared to one piece. */
#define MOST_SLOWDOWN 1.05

/* Shared memory takes as long as adding this many times the bytes of a host: they are read from memory, at about a
 * sixth of the speed of additions in a cache, and pass through it twice. */
#define LOCAL_PASSES 12

/* Ranks that share cores do nothing while they wait for each other, which happens for each piece. Pieces are only
 * faster if the wait for the network is long. */
static bool waits_for_network(const tutti_cost *cost, double network_us, size_t host_bytes) {
    double local_us = tutti_cost_of_reducing(cost, LOCAL_PASSES * (double)host_bytes);
    return cost->cores >= 1 || network_us * cost->cores > 2 * local_us;
}

size_t tutti_hierarchical_piece_bytes(const tutti_comm *comm, tutti_kind kind, int nrails, size_t bytes,
                                      size_t host_bytes) {
    const tutti_rail_table *table = comm->net.hosts->table;
    size_t forced = (size_t)tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES), piece_bytes = table->piece_bytes;
    size_t whole_bytes = tutti_align_up(bytes, TUTTI_CACHE_LINE);
    if (comm->nranks == comm->net.hosts->nhosts) return whole_bytes; /* no part in shared memory */
    if (forced > 0) return tutti_align_up(forced, TUTTI_CACHE_LINE);
    if (bytes <= piece_bytes) return whole_bytes;
    double whole_us = tutti_rail_predict(table, kind, bytes);
    if (!waits_for_network(&table->cost, nrails * whole_us, host_bytes)) return whole_bytes;
    for (; piece_bytes < bytes; piece_bytes *= 2) {
        double pieces = (double)bytes / (double)piece_bytes;
        if (pieces * tutti_rail_predict(table, kind, piece_bytes) <= MOST_SLOWDOWN * whole_us) break;
    }
    return piece_bytes;
}

static tutti_status finish(tutti_work **work) {
    if (*work == NULL) return TUTTI_OK;
    tutti_status status = tutti_work_finish(*work);
    tutti_work_free(*work);
    *work = NULL;
    return status;
}

tutti_status tutti_pieces_start(tutti_pieces *pieces, tutti_op part) {
    if (!pieces->overlaps) return tutti_hierarchical_local(pieces->comm, pieces->op, part);
    describe(pieces->op, &part);
    tutti_work *work;
    TUTTI_TRY(tutti_queue_submit(pieces->comm->net.hosts->local, &part, &work));
    tutti_work_free(pieces->last); /* parts end in the order in which they were started */
    pieces->last = work;
    return TUTTI_OK;
}

static tutti_status start_before(tutti_pieces *pieces, size_t k) {
    return pieces->before != NULL && k < pieces->npieces ? pieces->before(pieces, k) : TUTTI_OK;
}

/* Moves piece k over the network; meanwhile piece k + 1 is prepared. */
static tutti_status run_piece(tutti_pieces *pieces, size_t k, tutti_work **ready) {
    bool is_last = k + 1 == pieces->npieces;
    pieces->overlaps = pieces->across != NULL && !is_last;
    TUTTI_TRY(start_before(pieces, k + 1));
    *ready = pieces->last;
    if (*ready != NULL) tutti_work_retain(*ready);
    if (pieces->across != NULL) TUTTI_TRY(pieces->across(pieces, k));
    if (pieces->after != NULL) TUTTI_TRY(pieces->after(pieces, k));
    return finish(ready);
}

static tutti_status run(tutti_pieces *pieces) {
    tutti_work *ready = NULL;
    tutti_status status = start_before(pieces, 0);
    for (size_t k = 0; k < pieces->npieces && status == TUTTI_OK; k++) status = run_piece(pieces, k, &ready);
    tutti_work_free(ready);
    return status;
}

tutti_status tutti_pieces_run(tutti_pieces *pieces) {
    /* The communicator's worker runs at the same time. */
    if (pieces->across != NULL && pieces->npieces > 1) pieces->comm->wait_state.yields = true;
    tutti_status status = run(pieces);
    /* Queued parts wait for ranks that may not come any more. */
    if (status != TUTTI_OK) status = tutti_comm_break(pieces->comm, status);
    tutti_status ended = finish(&pieces->last);
    return status != TUTTI_OK ? status : ended;
}
