/*
 * reduce_scatter over several hosts.
 *
 *   hosts with equal numbers of ranks:
 *     1 for each host: local reduce_scatter of the segments of its ranks: rank l has this host's sum for rank l there
 *     2 reduce_scatter on rail l
 *     long segments go in pieces (hierarchical_pieces.c)
 *   else: segment by segment to the rank that receives it; hosts that differ are rare.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/net/hier/hierarchical.h"

static size_t longest_segment(const tutti_comm *comm, const tutti_op *op) {
    size_t longest = 0;
    for (int rank = 0; rank < comm->nranks; rank++)
        longest = tutti_max_size(longest, tutti_op_input(comm, op, rank).bytes);
    return longest;
}

static tutti_rail_vector vector_of(const tutti_comm *comm, const tutti_op *op) {
    return (tutti_rail_vector){.dst = (void *)(uintptr_t)tutti_op_output(comm, op, 0).data,
                               .type = op->type,
                               .reduction = tutti_hierarchical_between(op),
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
                                                        .reduction = tutti_hierarchical_within(pieces->op),
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

/* One segment: reduced on the delegate of its host, then sent to its rank. */
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
    return tutti_hierarchical_reduce(comm, &part);
}

tutti_status tutti_hierarchical_reduce_scatter(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    if (comm->nranks == hosts->nhosts && op->reduction != TUTTI_PREMUL_SUM) return scatter_flat(comm, op);
    if (hosts->uniform) return scatter_on_rails(comm, op);
    for (int rank = 0; rank < comm->nranks; rank++) TUTTI_TRY(reduce_segment(comm, op, rank));
    return TUTTI_OK;
}
