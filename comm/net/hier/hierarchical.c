/*
 * Collectives over several hosts: entry, barrier, all_reduce. See hierarchical.h.
 *
 *   long vectors, hosts with equal numbers of ranks: slices, one for each rank of a host
 *     1 local reduce_scatter: rank l of each host has its host's sum of slice l
 *     2 all_reduce on rail l: the sum of slice l over all ranks
 *     3 local all_gather
 *   Very long vectors go in pieces (hierarchical_pieces.c), so that parts of different pieces overlap.
 *   Short vectors, and hosts with different numbers of ranks: hierarchical_leaders.c.
 */
#include "comm/net/hier/hierarchical.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/base/slice.h"
#include "comm/queue/queue.h"

/* Up to this many bytes per rank of a host, one delegate handles the whole vector: fewer, larger messages. */
#define MOST_DELEGATED_BYTES ((size_t)8 << 10)

static size_t most_delegated_bytes(const tutti_comm *comm) {
    size_t forced = (size_t)tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES);
    return (forced > 0 ? forced : MOST_DELEGATED_BYTES) * (size_t)comm->net.hosts->local->nranks;
}

static bool is_delegate(const tutti_rail *rail) {
    return rail->ranks[rail->me] == rail->comm->rank;
}

/* ------------------------------------------------------------------------------------------------- barrier */

/* The first local barrier ends when all ranks of this host have arrived, the last one when those of all hosts have. */
static tutti_status barrier(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, 0);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_BARRIER, 0, 0, &setup, NULL));
    TUTTI_TRY(tutti_hierarchical_local(comm, op, (tutti_op){.kind = TUTTI_KIND_BARRIER}));
    if (is_delegate(&rail)) TUTTI_TRY(tutti_rail_barrier(&rail, &setup));
    return tutti_hierarchical_local(comm, op, (tutti_op){.kind = TUTTI_KIND_BARRIER});
}

/* ----------------------------------------------------------------------------------------------- reducing */

/* A long vector, in pieces; a piece has a slice for each rank of a host. */
typedef struct sliced {
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t piece_count;
} sliced;

static tutti_slice slice_of_piece(const tutti_pieces *pieces, size_t k, int local_rank) {
    const tutti_op *op = pieces->op;
    size_t piece_count = ((const sliced *)pieces->context)->piece_count, start = k * piece_count;
    tutti_slice slice = tutti_slice_of(tutti_min_size(piece_count, op->count - start), tutti_type_bytes(op->type),
                                       pieces->comm->net.hosts->local->nranks, local_rank);
    slice.start += start;
    return slice;
}

/* Lists the slices of piece k; returns this rank's. */
static tutti_slice list_slices(const tutti_pieces *pieces, size_t k) {
    tutti_hosts *hosts = pieces->comm->net.hosts;
    const tutti_op *op = pieces->op;
    size_t item_bytes = tutti_type_bytes(op->type);
    for (int i = 0; i < hosts->local->nranks; i++) {
        tutti_slice slice = slice_of_piece(pieces, k, i);
        hosts->srcs[i] = (const char *)op->src + slice.start * item_bytes;
        hosts->dsts[i] = (char *)op->dst + slice.start * item_bytes;
        hosts->counts[i] = slice.count;
    }
    return slice_of_piece(pieces, k, hosts->local->rank);
}

static tutti_status reduce_slices(tutti_pieces *pieces, size_t k) {
    const tutti_hosts *hosts = pieces->comm->net.hosts;
    tutti_slice own = list_slices(pieces, k);
    return tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_REDUCE_SCATTER_V,
                                                 .reduction = tutti_hierarchical_within(pieces->op),
                                                 .srcs = hosts->srcs,
                                                 .src_counts = hosts->counts,
                                                 .dst = hosts->dsts[hosts->local->rank],
                                                 .count = own.count});
}

static tutti_status sum_slice(tutti_pieces *pieces, size_t k) {
    const sliced *s = pieces->context;
    tutti_slice own = slice_of_piece(pieces, k, pieces->comm->net.hosts->local->rank);
    char *data = (char *)pieces->op->dst + own.start * tutti_type_bytes(pieces->op->type);
    tutti_rail_vector vector = tutti_hierarchical_vector(pieces->comm, pieces->op, data, data, own.count);
    return tutti_rail_all_reduce(&s->rail, &s->setup, &vector);
}

static tutti_status hand_slices_round(tutti_pieces *pieces, size_t k) {
    const tutti_hosts *hosts = pieces->comm->net.hosts;
    tutti_slice own = list_slices(pieces, k);
    return tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_ALL_GATHER_V,
                                                 .src = hosts->dsts[hosts->local->rank],
                                                 .count = own.count,
                                                 .dsts = hosts->dsts,
                                                 .dst_counts = hosts->counts});
}

static tutti_status all_reduce_sliced(tutti_comm *comm, const tutti_op *op) {
    size_t nlocal = (size_t)comm->net.hosts->local->nranks, item_bytes = tutti_type_bytes(op->type);
    /* The first slices are the longest, and determine the choice: all rails choose alike. */
    size_t longest = tutti_slice_of(op->count, item_bytes, (int)nlocal, 0).count * item_bytes;
    size_t slice_bytes =
        tutti_hierarchical_piece_bytes(comm, TUTTI_KIND_ALL_REDUCE, (int)nlocal, longest, op->count * item_bytes);
    sliced s = {.rail = tutti_hierarchical_rail(comm, op), .piece_count = nlocal * slice_bytes / item_bytes};
    TUTTI_TRY(
        tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_REDUCE, tutti_min_size(slice_bytes, longest), 0, &s.setup, NULL));
    tutti_pieces pieces = {.comm = comm,
                           .op = op,
                           .context = &s,
                           .npieces = tutti_hierarchical_pieces(op->count, s.piece_count),
                           .before = reduce_slices,
                           .across = sum_slice,
                           .after = hand_slices_round};
    return tutti_pieces_run(&pieces);
}

/* One rank per host, and no premultiplication: no local part. */
static tutti_status all_reduce_flat(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_REDUCE, bytes, 0, &setup, NULL));
    tutti_rail_vector vector = tutti_hierarchical_vector(comm, op, op->src, op->dst, op->count);
    return tutti_rail_all_reduce(&rail, &setup, &vector);
}

static tutti_status all_reduce(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    if (comm->nranks == hosts->nhosts && op->reduction != TUTTI_PREMUL_SUM) return all_reduce_flat(comm, op);
    bool slices = hosts->uniform && bytes > most_delegated_bytes(comm);
    return slices ? all_reduce_sliced(comm, op) : tutti_hierarchical_all_reduce_delegated(comm, op);
}

/* -------------------------------------------------------------------------------------------------- entry */

static tutti_status fill_table(tutti_comm *comm, const tutti_cost *cost) {
    tutti_rail_rules rules = {.n = comm->net.hosts->nhosts,
                              .reorders = tutti_setting_int(TUTTI_SETTING_DETERMINISTIC) == 0,
                              .forced = tutti_setting_text(TUTTI_SETTING_ALGORITHM)};
    TUTTI_TRY(tutti_calloc(1, sizeof *comm->net.hosts->table, &comm->net.hosts->table));
    tutti_rail_table_fill(&rules, cost, comm->net.hosts->table);
    return TUTTI_OK;
}

tutti_status tutti_hierarchical_inherit(tutti_comm *comm, const tutti_comm *parent) {
    return parent->net.hosts->table != NULL ? fill_table(comm, &parent->net.hosts->table->cost) : TUTTI_OK;
}

/* Measures the costs of the network: the delegates agree on them, and broadcast them on their hosts. */
static tutti_status prepare(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, 0);
    tutti_cost cost = tutti_cost_ordinary;
    char *scratch;
    if (is_delegate(&rail)) {
        TUTTI_TRY(tutti_hosts_scratch(comm, TUTTI_COST_SCRATCH_BYTES, &scratch));
        TUTTI_TRY(tutti_cost_agree(&rail, scratch, &cost));
    }
    tutti_op tell = {.kind = TUTTI_KIND_BROADCAST,
                     .type = TUTTI_UINT8,
                     .src = &cost,
                     .dst = &cost,
                     .count = sizeof cost,
                     .timeout_ms = op->timeout_ms,
                     .part_of = op};
    TUTTI_TRY(tutti_queue_run(comm->net.hosts->local, &tell));
    return fill_table(comm, &cost);
}

tutti_status tutti_hierarchical(tutti_comm *comm, const tutti_op *op) {
    if (TUTTI_UNLIKELY(comm->net.hosts->table == NULL)) TUTTI_TRY(prepare(comm, op));
    if (TUTTI_UNLIKELY(op->between_hosts != NULL)) return op->between_hosts(comm, op);
    switch (op->kind) {
    case TUTTI_KIND_BARRIER: return barrier(comm, op);
    case TUTTI_KIND_BROADCAST: return tutti_hierarchical_broadcast(comm, op);
    case TUTTI_KIND_ALL_REDUCE: return all_reduce(comm, op);
    case TUTTI_KIND_REDUCE: return tutti_hierarchical_reduce(comm, op);
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_REDUCE_SCATTER_V: return tutti_hierarchical_reduce_scatter(comm, op);
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_ALL_GATHER_V: return tutti_hierarchical_all_gather(comm, op);
    default: return tutti_hierarchical_personal(comm, op);
    }
}
