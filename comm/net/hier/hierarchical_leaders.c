/*
 * Collectives over several hosts in which one rank per host, its delegate, takes part between hosts: the root of a
 * rooted kind for its own host, else the first rank.
 *
 *   broadcast    a rail of the delegates, local broadcast
 *   reduce       local reduce, a rail of the delegates
 *   all_reduce   local reduce, a rail of the delegates, local broadcast: short vectors, and hosts with different
 *                numbers of ranks
 *
 * Long vectors go in pieces (hierarchical_pieces.c).
 */
#include "bootstrap/base/status.h"
#include "comm/net/hier/hierarchical.h"

typedef struct delegated {
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t piece_count;
    char *dst;  /* the result; NULL: this rank gets none */
    char *sums; /* two pieces; delegates without a result */
} delegated;

static bool is_delegate(const delegated *d) {
    return d->rail.ranks[d->rail.me] == d->rail.comm->rank;
}

static int local_delegate(const delegated *d) {
    return d->rail.comm->net.hosts->local_of[d->rail.ranks[d->rail.me]];
}

static size_t count_of(const tutti_pieces *pieces, size_t k) {
    const delegated *d = pieces->context;
    return tutti_min_size(d->piece_count, pieces->op->count - k * d->piece_count);
}

static size_t offset_of(const tutti_pieces *pieces, size_t k) {
    const delegated *d = pieces->context;
    return k * d->piece_count * tutti_type_bytes(pieces->op->type);
}

/* Where piece k of the data that crosses the network, or of the result, is on this rank; NULL: this rank has
 * neither. */
static char *place_of(const tutti_pieces *pieces, size_t k) {
    const delegated *d = pieces->context;
    if (d->dst != NULL) return d->dst + offset_of(pieces, k);
    return d->sums != NULL ? d->sums + (k % 2) * d->piece_count * tutti_type_bytes(pieces->op->type) : NULL;
}

/* ------------------------------------------------------------------------------------------------ parts */

/* Reduces this host's inputs to the delegate. */
static tutti_status reduce_locally(tutti_pieces *pieces, size_t k) {
    return tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                                 .reduction = tutti_hierarchical_within(pieces->op),
                                                 .root = local_delegate(pieces->context),
                                                 .src = (const char *)pieces->op->src + offset_of(pieces, k),
                                                 .dst = place_of(pieces, k),
                                                 .count = count_of(pieces, k)});
}

/* Broadcasts the delegate's data on its host. */
static tutti_status broadcast_locally(tutti_pieces *pieces, size_t k) {
    return tutti_pieces_start(pieces, (tutti_op){.kind = TUTTI_KIND_BROADCAST,
                                                 .root = local_delegate(pieces->context),
                                                 .src = place_of(pieces, k),
                                                 .dst = place_of(pieces, k),
                                                 .count = count_of(pieces, k)});
}

static tutti_status cross(tutti_pieces *pieces, size_t k) {
    const delegated *d = pieces->context;
    const tutti_op *op = pieces->op;
    char *place = place_of(pieces, k);
    size_t count = count_of(pieces, k);
    int root = op->kind == TUTTI_KIND_ALL_REDUCE ? 0 : pieces->comm->net.hosts->host_of[op->root];
    if (op->kind == TUTTI_KIND_BROADCAST)
        return tutti_rail_broadcast(&d->rail, &d->setup, root, place, count * tutti_type_bytes(op->type));
    tutti_rail_vector vector = tutti_hierarchical_vector(pieces->comm, op, place, place, count);
    if (op->kind == TUTTI_KIND_ALL_REDUCE) return tutti_rail_all_reduce(&d->rail, &d->setup, &vector);
    return tutti_rail_reduce(&d->rail, &d->setup, root, &vector);
}

/* ------------------------------------------------------------------------------------------------ calls */

static tutti_status run(tutti_comm *comm, const tutti_op *op, int root) {
    size_t item_bytes = tutti_type_bytes(op->type), bytes = op->count * item_bytes;
    size_t piece_bytes = tutti_hierarchical_piece_bytes(comm, op->kind, /* nrails */ 1, bytes, bytes);
    size_t npieces = tutti_hierarchical_pieces(bytes, piece_bytes);
    delegated d = {.rail = tutti_hierarchical_delegates(comm, op, root), .piece_count = piece_bytes / item_bytes};
    bool reduces = op->kind != TUTTI_KIND_BROADCAST, has_dst = !reduces || tutti_op_has_output(op, comm->rank);
    bool delegate = is_delegate(&d);
    char *sums;
    TUTTI_TRY(tutti_hierarchical_setup(comm, op->kind, tutti_min_size(piece_bytes, bytes),
                                       delegate && !has_dst ? tutti_min_size(npieces, 2) * piece_bytes : 0, &d.setup,
                                       &sums));
    if (has_dst) d.dst = op->dst;
    else if (delegate) d.sums = sums;
    tutti_pieces pieces = {.comm = comm,
                           .op = op,
                           .context = &d,
                           .npieces = npieces,
                           .before = reduces ? reduce_locally : NULL,
                           .across = delegate ? cross : NULL,
                           .after = op->kind != TUTTI_KIND_REDUCE ? broadcast_locally : NULL};
    return tutti_pieces_run(&pieces);
}

tutti_status tutti_hierarchical_broadcast(tutti_comm *comm, const tutti_op *op) {
    return run(comm, op, op->root);
}

tutti_status tutti_hierarchical_reduce(tutti_comm *comm, const tutti_op *op) {
    return run(comm, op, op->root);
}

tutti_status tutti_hierarchical_all_reduce_delegated(tutti_comm *comm, const tutti_op *op) {
    return run(comm, op, 0);
}
