/*
 * Collectives over several hosts: entry, barrier, broadcast, and the kinds that reduce. See hierarchical.h. Long
 * vectors and segments go in pieces (hierarchical_pieces.c), so that parts of different pieces overlap.
 *
 *   leaders: one rank per host, the root of a rooted kind for its own host, else the first rank
 *     broadcast       a rail of the leaders, local broadcast
 *     reduce          local reduce, a rail of the leaders
 *     all_reduce      local reduce, a rail of the leaders, local broadcast: short vectors, and hosts with different
 *                     numbers of ranks
 *   all_reduce of long vectors, hosts with equal numbers of ranks: slices, one for each rank of a host
 *     1 local reduce_scatter: rank l of each host has its host's sum of slice l
 *     2 all_reduce on rail l: the sum of slice l over all ranks
 *     3 local all_gather
 *   reduce_scatter, hosts with equal numbers of ranks:
 *     1 for each host: local reduce_scatter of the segments of its ranks: rank l has this host's sum for rank l there
 *     2 reduce_scatter on rail l
 *   else segment by segment to the rank that receives it; hosts that differ are rare.
 */
#include "comm/net/hier/hierarchical.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/base/slice.h"
#include "comm/queue/queue.h"

/* Up to this many bytes per rank of a host, one leader handles the whole vector: fewer, larger messages. */
#define MOST_DELEGATED_BYTES ((size_t)8 << 10)

static size_t most_leaders_bytes(const tutti_comm *comm) {
    size_t forced = (size_t)tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES);
    return (forced > 0 ? forced : MOST_DELEGATED_BYTES) * (size_t)comm->net.hosts->local->nranks;
}

static bool is_leader(const tutti_rail *rail) {
    return rail->ranks[rail->me] == rail->comm->rank;
}

/* ------------------------------------------------------------------------------------------------- barrier */

/* The first local barrier ends when all ranks of this host have arrived, the last one when those of all hosts have. */
static tutti_status barrier(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_leaders(comm, op, 0);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_BARRIER, 0, 0, &setup, NULL));
    TUTTI_TRY(tutti_hierarchical_local(comm, op, (tutti_op){.kind = TUTTI_KIND_BARRIER}));
    if (is_leader(&rail)) TUTTI_TRY(tutti_rail_barrier(&rail, &setup));
    return tutti_hierarchical_local(comm, op, (tutti_op){.kind = TUTTI_KIND_BARRIER});
}

/* ------------------------------------------------------------------------------------------- by leaders */

/* The reduction within a host. */
static tutti_reduction within(const tutti_op *op) {
    return op->reduction == TUTTI_AVG ? TUTTI_SUM : op->reduction;
}

/* The reduction between hosts, once each host has its sum. */
static tutti_reduction between(const tutti_op *op) {
    return op->reduction == TUTTI_PREMUL_SUM ? TUTTI_SUM : op->reduction;
}

/* The vector of `count` elements of op for a call between hosts. */
static tutti_rail_vector vector_between(const tutti_comm *comm, const tutti_op *op, const void *src, void *dst,
                                        size_t count) {
    return (tutti_rail_vector){.src = src,
                               .dst = dst,
                               .count = count,
                               .type = op->type,
                               .reduction = between(op),
                               .divisor = op->reduction == TUTTI_AVG ? comm->nranks : 1};
}

typedef struct by_leaders {
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t piece_count;
    char *dst;  /* the result; NULL: this rank gets none */
    char *sums; /* two pieces; leaders without a result */
} by_leaders;

static int local_leader(const by_leaders *d) {
    return d->rail.comm->net.hosts->local_of[d->rail.ranks[d->rail.me]];
}

static size_t count_of(const tutti_pieces *pieces, size_t k) {
    const by_leaders *d = pieces->context;
    return tutti_min_size(d->piece_count, pieces->op->count - k * d->piece_count);
}

static size_t offset_of(const tutti_pieces *pieces, size_t k) {
    const by_leaders *d = pieces->context;
    return k * d->piece_count * tutti_type_bytes(pieces->op->type);
}

/* Where piece k of the data that crosses the network, or of the result, is on this rank; NULL: it has neither. */
static char *place_of(const tutti_pieces *pieces, size_t k) {
    const by_leaders *d = pieces->context;
    if (d->dst != NULL) return d->dst + offset_of(pieces, k);
    return d->sums != NULL ? d->sums + (k % 2) * d->piece_count * tutti_type_bytes(pieces->op->type) : NULL;
}

/* Reduces this host's inputs to the leader. */
static tutti_status reduce_locally(tutti_pieces *pieces, size_t k) {
    return tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                                 .reduction = within(pieces->op),
                                                 .root = local_leader(pieces->context),
                                                 .src = (const char *)pieces->op->src + offset_of(pieces, k),
                                                 .dst = place_of(pieces, k),
                                                 .count = count_of(pieces, k)});
}

/* Broadcasts the leader's data on its host. */
static tutti_status broadcast_locally(tutti_pieces *pieces, size_t k) {
    return tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_BROADCAST,
                                                 .root = local_leader(pieces->context),
                                                 .src = place_of(pieces, k),
                                                 .dst = place_of(pieces, k),
                                                 .count = count_of(pieces, k)});
}

static tutti_status cross(tutti_pieces *pieces, size_t k) {
    const by_leaders *d = pieces->context;
    const tutti_op *op = pieces->op;
    char *place = place_of(pieces, k);
    size_t count = count_of(pieces, k);
    int root = op->kind == TUTTI_KIND_ALL_REDUCE ? 0 : pieces->comm->net.hosts->host_of[op->root];
    if (op->kind == TUTTI_KIND_BROADCAST)
        return tutti_rail_broadcast(&d->rail, &d->setup, root, place, count * tutti_type_bytes(op->type));
    tutti_rail_vector vector = vector_between(pieces->comm, op, place, place, count);
    if (op->kind == TUTTI_KIND_ALL_REDUCE) return tutti_rail_all_reduce(&d->rail, &d->setup, &vector);
    return tutti_rail_reduce(&d->rail, &d->setup, root, &vector);
}

static tutti_status run_by_leaders(tutti_comm *comm, const tutti_op *op, int root) {
    size_t item_bytes = tutti_type_bytes(op->type), bytes = op->count * item_bytes;
    size_t piece_bytes = tutti_hierarchical_piece_bytes(comm, op->kind, /* nrails */ 1, bytes, bytes);
    size_t npieces = tutti_hierarchical_pieces(bytes, piece_bytes);
    by_leaders d = {.rail = tutti_hierarchical_leaders(comm, op, root), .piece_count = piece_bytes / item_bytes};
    bool reduces = op->kind != TUTTI_KIND_BROADCAST, has_dst = !reduces || tutti_op_has_output(op, comm->rank);
    bool leader = is_leader(&d.rail);
    char *sums;
    TUTTI_TRY(tutti_hierarchical_setup(comm, op->kind, tutti_min_size(piece_bytes, bytes),
                                       leader && !has_dst ? tutti_min_size(npieces, 2) * piece_bytes : 0, &d.setup,
                                       &sums));
    if (has_dst) d.dst = op->dst;
    else if (leader) d.sums = sums;
    tutti_pieces pieces = {.comm = comm,
                           .op = op,
                           .context = &d,
                           .npieces = npieces,
                           .before = reduces ? reduce_locally : NULL,
                           .across = leader ? cross : NULL,
                           .after = op->kind != TUTTI_KIND_REDUCE ? broadcast_locally : NULL};
    return tutti_pieces_run(&pieces);
}

/* --------------------------------------------------------------------------------------------- all_reduce */

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
                                                 .reduction = within(pieces->op),
                                                 .srcs = hosts->srcs,
                                                 .src_counts = hosts->counts,
                                                 .dst = hosts->dsts[hosts->local->rank],
                                                 .count = own.count});
}

static tutti_status sum_slice(tutti_pieces *pieces, size_t k) {
    const sliced *s = pieces->context;
    tutti_slice own = slice_of_piece(pieces, k, pieces->comm->net.hosts->local->rank);
    char *data = (char *)pieces->op->dst + own.start * tutti_type_bytes(pieces->op->type);
    tutti_rail_vector vector = vector_between(pieces->comm, pieces->op, data, data, own.count);
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
    tutti_rail_vector vector = vector_between(comm, op, op->src, op->dst, op->count);
    return tutti_rail_all_reduce(&rail, &setup, &vector);
}

static tutti_status all_reduce(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    if (comm->nranks == hosts->nhosts && op->reduction != TUTTI_PREMUL_SUM) return all_reduce_flat(comm, op);
    bool slices = hosts->uniform && bytes > most_leaders_bytes(comm);
    return slices ? all_reduce_sliced(comm, op) : run_by_leaders(comm, op, 0);
}

/* ----------------------------------------------------------------------------------------- reduce_scatter */

static size_t longest_segment(const tutti_comm *comm, const tutti_op *op) {
    size_t longest = 0;
    for (int rank = 0; rank < comm->nranks; rank++)
        longest = tutti_max_size(longest, tutti_op_input(comm, op, rank).bytes);
    return longest;
}

static tutti_rail_vector vector_of(const tutti_comm *comm, const tutti_op *op) {
    return (tutti_rail_vector){.dst = (void *)(uintptr_t)tutti_op_output(comm, op, 0).data,
                               .type = op->type,
                               .reduction = between(op),
                               .divisor = op->reduction == TUTTI_AVG ? comm->nranks : 1};
}

/* Element counts of the rail's segments. */
static void count_rail(const tutti_comm *comm, const tutti_op *op, size_t *counts) {
    const tutti_hosts *hosts = comm->net.hosts;
    for (int host = 0; host < hosts->nhosts; host++)
        counts[host] = tutti_op_input(comm, op, hosts->rail[host]).bytes / tutti_type_bytes(op->type);
}

static tutti_status scatter_flat(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->net.hosts;
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_REDUCE_SCATTER, longest_segment(comm, op), 0, &setup, NULL));
    for (int host = 0; host < hosts->nhosts; host++)
        hosts->srcs[host] = tutti_op_input(comm, op, hosts->rail[host]).data;
    count_rail(comm, op, hosts->counts);
    tutti_rail_vector vector = vector_of(comm, op);
    return tutti_rail_reduce_scatter(&rail, &setup, hosts->srcs, hosts->counts, &vector);
}

/* Long segments, in pieces. */
typedef struct scattered {
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t piece_bytes; /* of a segment */
    char *sums;         /* two pieces for each host */
} scattered;

static char *sum_of(const tutti_pieces *pieces, int host, size_t k) {
    const scattered *s = pieces->context;
    return s->sums + ((k % 2) * (size_t)pieces->comm->net.hosts->nhosts + (size_t)host) * s->piece_bytes;
}

/* Piece k of this rank's input for another rank. */
static tutti_span piece_for(const tutti_pieces *pieces, int rank, size_t k) {
    const scattered *s = pieces->context;
    tutti_span segment = tutti_op_input(pieces->comm, pieces->op, rank);
    size_t start = tutti_min_size(k * s->piece_bytes, segment.bytes);
    return (tutti_span){.data = segment.data + start, .bytes = tutti_min_size(s->piece_bytes, segment.bytes - start)};
}

/* Computes, for each host, this host's sums of the segments of its ranks. */
static tutti_status reduce_for_hosts(tutti_pieces *pieces, size_t k) {
    tutti_hosts *hosts = pieces->comm->net.hosts;
    size_t item_bytes = tutti_type_bytes(pieces->op->type);
    for (int host = 0; host < hosts->nhosts; host++) {
        for (int i = 0; i < hosts->all[host].nranks; i++) {
            tutti_span piece = piece_for(pieces, hosts->all[host].ranks[i], k);
            hosts->srcs[i] = piece.data;
            hosts->counts[i] = piece.bytes / item_bytes;
        }
        TUTTI_TRY(tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_REDUCE_SCATTER_V,
                                                        .reduction = within(pieces->op),
                                                        .srcs = hosts->srcs,
                                                        .src_counts = hosts->counts,
                                                        .dst = sum_of(pieces, host, k),
                                                        .count = hosts->counts[hosts->local->rank]}));
    }
    return TUTTI_OK;
}

static tutti_status scatter_sums(tutti_pieces *pieces, size_t k) {
    const scattered *s = pieces->context;
    int nhosts = s->rail.n;
    tutti_hosts *hosts = pieces->comm->net.hosts;
    size_t item_bytes = tutti_type_bytes(pieces->op->type);
    for (int host = 0; host < nhosts; host++) {
        hosts->srcs[host] = sum_of(pieces, host, k);
        hosts->counts[host] = piece_for(pieces, s->rail.ranks[host], k).bytes / item_bytes;
    }
    tutti_rail_vector vector = vector_of(pieces->comm, pieces->op);
    if (hosts->counts[s->rail.me] > 0) vector.dst = (char *)vector.dst + k * s->piece_bytes;
    return tutti_rail_reduce_scatter(&s->rail, &s->setup, hosts->srcs, hosts->counts, &vector);
}

static tutti_status scatter_on_rails(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->net.hosts;
    size_t longest = longest_segment(comm, op), nlocal = (size_t)hosts->local->nranks, nhosts = (size_t)hosts->nhosts;
    scattered s = {.rail = tutti_hierarchical_rail(comm, op)};
    s.piece_bytes = tutti_hierarchical_piece_bytes(comm, TUTTI_KIND_REDUCE_SCATTER, (int)nlocal, longest,
                                                   nhosts * nlocal * longest);
    size_t npieces = tutti_hierarchical_pieces(longest, s.piece_bytes);
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_REDUCE_SCATTER, tutti_min_size(s.piece_bytes, longest),
                                       tutti_min_size(npieces, 2) * nhosts * s.piece_bytes, &s.setup, &s.sums));
    tutti_pieces pieces = {
        .comm = comm, .op = op, .context = &s, .npieces = npieces, .before = reduce_for_hosts, .across = scatter_sums};
    return tutti_pieces_run(&pieces);
}

/* One segment: reduced on the leader of its host, then sent to its rank. */
static tutti_status reduce_segment(tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_span segment = tutti_op_input(comm, op, rank);
    tutti_op part = {.kind = TUTTI_KIND_REDUCE,
                     .type = op->type,
                     .reduction = op->reduction,
                     .root = rank,
                     .src = segment.data,
                     .dst = (void *)(uintptr_t)tutti_op_output(comm, op, 0).data,
                     .count = segment.bytes / tutti_type_bytes(op->type),
                     .factor = op->factor,
                     .timeout_ms = op->timeout_ms,
                     .signature = op->signature,
                     .sequence = op->sequence,
                     .part_of = op};
    return run_by_leaders(comm, &part, rank);
}

static tutti_status reduce_scatter(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    if (comm->nranks == hosts->nhosts && op->reduction != TUTTI_PREMUL_SUM) return scatter_flat(comm, op);
    if (hosts->uniform) return scatter_on_rails(comm, op);
    for (int rank = 0; rank < comm->nranks; rank++) TUTTI_TRY(reduce_segment(comm, op, rank));
    return TUTTI_OK;
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

/* Measures the costs of the network: the leaders agree on them, and broadcast them on their hosts. */
static tutti_status prepare(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_leaders(comm, op, 0);
    tutti_cost cost = tutti_cost_ordinary;
    char *scratch;
    if (is_leader(&rail)) {
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
    case TUTTI_KIND_BROADCAST:
    case TUTTI_KIND_REDUCE: return run_by_leaders(comm, op, op->root);
    case TUTTI_KIND_ALL_REDUCE: return all_reduce(comm, op);
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_REDUCE_SCATTER_V: return reduce_scatter(comm, op);
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_ALL_GATHER_V: return tutti_hierarchical_all_gather(comm, op);
    default: return tutti_hierarchical_personal(comm, op);
    }
}
