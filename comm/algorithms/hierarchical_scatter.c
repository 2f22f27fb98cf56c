/*
 * reduce_scatter over several hosts.
 *
 *   hosts with as many ranks each:
 *     1 for each host: local reduce_scatter of the segments of its ranks: rank l has this host's sum for rank l there
 *     2 reduce_scatter on rail l
 *   else segment by segment to the rank that gets it: hosts that differ are rare.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/algorithms/hierarchical.h"

static size_t longest_segment(const tutti_comm *comm, const tutti_op *op) {
    size_t longest = 0;
    for (int rank = 0; rank < comm->nranks; rank++)
        longest = tutti_max_size(longest, tutti_op_input(comm, op, rank).bytes);
    return longest;
}

/* This host's sums of the segments of another's ranks: ours in `sum`. */
static tutti_status reduce_for_host(tutti_comm *comm, const tutti_op *op, const tutti_host *host, char *sum) {
    tutti_hosts *hosts = comm->hosts;
    size_t item_bytes = tutti_type_bytes(op->type);
    for (int i = 0; i < host->nranks; i++) {
        tutti_span segment = tutti_op_input(comm, op, host->ranks[i]);
        hosts->srcs[i] = segment.data;
        hosts->counts[i] = segment.bytes / item_bytes;
    }
    return tutti_hierarchical_local(comm, op,
                                    (tutti_op){.kind = TUTTI_KIND_REDUCE_SCATTER_V,
                                               .reduction = tutti_hierarchical_within(op),
                                               .srcs = hosts->srcs,
                                               .src_counts = hosts->counts,
                                               .dst = sum,
                                               .count = hosts->counts[hosts->local->rank]});
}

static tutti_rail_vector vector_of(const tutti_comm *comm, const tutti_op *op) {
    return (tutti_rail_vector){.dst = (void *)(uintptr_t)tutti_op_output(comm, op, 0).data,
                               .type = op->type,
                               .reduction = tutti_hierarchical_between(op),
                               .divisor = op->reduction == TUTTI_AVG ? comm->nranks : 1};
}

/* Counts of the rail's segments. */
static void count_rail(const tutti_comm *comm, const tutti_op *op, size_t *counts) {
    const tutti_hosts *hosts = comm->hosts;
    for (int host = 0; host < hosts->nhosts; host++)
        counts[host] = tutti_op_input(comm, op, hosts->rail[host]).bytes / tutti_type_bytes(op->type);
}

static tutti_status scatter_flat(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->hosts;
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_REDUCE_SCATTER, longest_segment(comm, op), 0, &setup, NULL));
    for (int host = 0; host < hosts->nhosts; host++)
        hosts->srcs[host] = tutti_op_input(comm, op, hosts->rail[host]).data;
    count_rail(comm, op, hosts->counts);
    tutti_rail_vector vector = vector_of(comm, op);
    return tutti_rail_reduce_scatter(&rail, &setup, hosts->srcs, hosts->counts, &vector);
}

static tutti_status scatter_on_rails(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->hosts;
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    size_t longest = tutti_align_up(longest_segment(comm, op), TUTTI_CACHE_LINE);
    char *sums;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_REDUCE_SCATTER, longest, (size_t)hosts->nhosts * longest,
                                       &setup, &sums));
    for (int host = 0; host < hosts->nhosts; host++)
        TUTTI_TRY(reduce_for_host(comm, op, &hosts->all[host], sums + (size_t)host * longest));
    for (int host = 0; host < hosts->nhosts; host++) hosts->srcs[host] = sums + (size_t)host * longest;
    count_rail(comm, op, hosts->counts);
    tutti_rail_vector vector = vector_of(comm, op);
    return tutti_rail_reduce_scatter(&rail, &setup, hosts->srcs, hosts->counts, &vector);
}

/* One segment: reduced on the delegate of its host, then handed to its rank. */
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
    const tutti_hosts *hosts = comm->hosts;
    if (comm->nranks == hosts->nhosts && op->reduction != TUTTI_PREMUL_SUM) return scatter_flat(comm, op);
    if (hosts->uniform) return scatter_on_rails(comm, op);
    for (int rank = 0; rank < comm->nranks; rank++) TUTTI_TRY(reduce_segment(comm, op, rank));
    return TUTTI_OK;
}
