/*
 * Mixed placements: kinds whose data lies in one piece, and the steps of all. See mixed.h.
 */
#include "comm/algorithms/mixed.h"

#include "bootstrap/base/common.h"
#include "comm/stream_part.h"

/* -------------------------------------------------------------------------------------------------- steps */

/* A rank that is alone on its GPU has what it would get. */
static bool is_done(const tutti_mixed *m, const tutti_op *op) {
    if (m->local->nranks > 1) return false;
    if (op->kind == TUTTI_KIND_BARRIER || op->kind == TUTTI_KIND_BROADCAST) return true;
    return op->kind == TUTTI_KIND_REDUCE && op->src == op->dst && op->reduction != TUTTI_PREMUL_SUM;
}

tutti_status tutti_mixed_within(tutti_mixed *m, const tutti_stream_call *call, tutti_op op) {
    return is_done(m, &op) ? TUTTI_OK : tutti_stream_part_enqueue(m->local, call, op);
}

tutti_status tutti_mixed_between(tutti_mixed *m, const tutti_stream_call *call, tutti_op op) {
    return tutti_mixed_leads(m) ? tutti_stream_part_enqueue(m->leaders, call, op) : TUTTI_OK;
}

tutti_reduction tutti_mixed_reduction_within(const tutti_op *op) {
    return op->reduction == TUTTI_AVG ? TUTTI_SUM : op->reduction;
}

tutti_reduction tutti_mixed_reduction_between(const tutti_op *op) {
    bool sums = op->reduction == TUTTI_AVG || op->reduction == TUTTI_PREMUL_SUM;
    return sums ? TUTTI_SUM : op->reduction;
}

tutti_status tutti_mixed_divide(const tutti_comm *comm, const tutti_stream_call *call, void *data, size_t count) {
    const tutti_mixed *m = comm->gpu->engine_state;
    const void *src = data;
    if (call->op->reduction != TUTTI_AVG || !tutti_mixed_leads(m) || count == 0) return TUTTI_OK;
    tutti_reduce_args args = {.srcs = &src,
                              .nsrcs = 1,
                              .count = count,
                              .type = call->op->type,
                              .reduction = TUTTI_AVG,
                              .divisor = comm->nranks};
    return comm->gpu->device->reduce(&args, &data, 1, call->stream);
}

/* -------------------------------------------------------------------------------------------------- kinds */

static tutti_status barrier(tutti_mixed *m, const tutti_stream_call *call) {
    TUTTI_TRY(tutti_mixed_within(m, call, (tutti_op){.kind = TUTTI_KIND_BARRIER}));
    TUTTI_TRY(tutti_mixed_between(m, call, (tutti_op){.kind = TUTTI_KIND_BARRIER}));
    return tutti_mixed_within(m, call, (tutti_op){.kind = TUTTI_KIND_BARRIER});
}

/* `data` of that rank of the part to all of it. */
static tutti_op spread(void *data, size_t count, int root) {
    return (tutti_op){.kind = TUTTI_KIND_BROADCAST, .src = data, .dst = data, .count = count, .root = root};
}

static tutti_status broadcast(tutti_mixed *m, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    int source = m->gpu_of[op->root];
    if (m->gpu == source) TUTTI_TRY(tutti_mixed_within(m, call, spread(op->dst, op->count, m->local_of[op->root])));
    TUTTI_TRY(tutti_mixed_between(m, call, spread(op->dst, op->count, source)));
    return m->gpu == source ? TUTTI_OK : tutti_mixed_within(m, call, spread(op->dst, op->count, 0));
}

/* The leader's result is where the whole one will be. */
static tutti_status all_reduce(tutti_comm *comm, tutti_mixed *m, const tutti_stream_call *call) {
    const tutti_op *op = call->op;
    TUTTI_TRY(tutti_mixed_within(m, call,
                                 (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                            .reduction = tutti_mixed_reduction_within(op),
                                            .src = op->src,
                                            .dst = op->dst,
                                            .count = op->count}));
    TUTTI_TRY(tutti_mixed_between(m, call,
                                  (tutti_op){.kind = TUTTI_KIND_ALL_REDUCE,
                                             .reduction = tutti_mixed_reduction_between(op),
                                             .src = op->dst,
                                             .dst = op->dst,
                                             .count = op->count}));
    TUTTI_TRY(tutti_mixed_divide(comm, call, op->dst, op->count));
    return tutti_mixed_within(m, call, spread(op->dst, op->count, 0));
}

/* From the leader's scratch to one rank of its GPU. */
static tutti_status hand_over(tutti_mixed *m, const tutti_stream_call *call, void *dst, size_t count) {
    int target = m->local_of[call->op->root];
    for (int i = 0; i < m->local->nranks; i++) {
        m->srcs[i] = m->scratch;
        m->src_counts[i] = i == target ? count : 0;
    }
    return tutti_mixed_within(m, call,
                              (tutti_op){.kind = TUTTI_KIND_SCATTER_V,
                                         .srcs = m->srcs,
                                         .src_counts = m->src_counts,
                                         .dst = dst,
                                         .count = m->local->rank == target ? count : 0});
}

/* Leaders have no memory of the caller's for it: sums are made in their scratch, in rounds. */
static tutti_status reduce_round(tutti_comm *comm, tutti_mixed *m, const tutti_stream_call *call, size_t at,
                                 size_t count) {
    const tutti_op *op = call->op;
    size_t start_bytes = at * tutti_type_bytes(op->type);
    int target = m->gpu_of[op->root];
    TUTTI_TRY(tutti_mixed_within(m, call,
                                 (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                            .reduction = tutti_mixed_reduction_within(op),
                                            .src = (const char *)op->src + start_bytes,
                                            .dst = m->scratch,
                                            .count = count}));
    TUTTI_TRY(tutti_mixed_between(m, call,
                                  (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                             .reduction = tutti_mixed_reduction_between(op),
                                             .src = m->scratch,
                                             .dst = m->scratch,
                                             .count = count,
                                             .root = target}));
    if (m->gpu != target) return TUTTI_OK;
    TUTTI_TRY(tutti_mixed_divide(comm, call, m->scratch, count));
    bool is_root = comm->rank == op->root;
    return hand_over(m, call, is_root ? (char *)op->dst + start_bytes : NULL, count);
}

static tutti_status reduce(tutti_comm *comm, tutti_mixed *m, const tutti_stream_call *call) {
    size_t most = m->scratch_bytes / tutti_type_bytes(call->op->type), at = 0;
    do {
        size_t count = tutti_min_size(most, call->op->count - at);
        TUTTI_TRY(reduce_round(comm, m, call, at, count));
        at += count;
    } while (at < call->op->count);
    return TUTTI_OK;
}

tutti_status tutti_mixed_carry_out(tutti_comm *comm, const tutti_stream_call *call) {
    tutti_mixed *m = comm->gpu->engine_state;
    switch (call->op->kind) {
    case TUTTI_KIND_BARRIER: return barrier(m, call);
    case TUTTI_KIND_BROADCAST: return broadcast(m, call);
    case TUTTI_KIND_ALL_REDUCE: return all_reduce(comm, m, call);
    case TUTTI_KIND_REDUCE: return reduce(comm, m, call);
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_ALL_GATHER_V: return tutti_mixed_all_gather(comm, call);
    default: return tutti_mixed_reduce_scatter(comm, call);
    }
}
