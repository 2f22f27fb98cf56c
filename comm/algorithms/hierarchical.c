/*
 * Collectives over several hosts: entry, barrier, broadcast, all_reduce, reduce. See hierarchical.h.
 *
 *   long vectors, hosts with as many ranks each: slices, one for each rank of a host
 *     1 local reduce_scatter: rank l of each host has its host's sum of slice l
 *     2 all_reduce on rail l: everyone's sum of slice l
 *     3 local all_gather
 *   else one rank speaks for its host: local reduce, a rail of the delegates, local broadcast
 */
#include "comm/algorithms/hierarchical.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/slice.h"
#include "comm/worker.h"

/* Up to so many bytes for each rank of a host one delegate takes all: fewer, fuller messages. */
#define MOST_DELEGATED_BYTES ((size_t)8 << 10)

/* ----------------------------------------------------------------------------------------------- common */

static uint64_t sign_part(const tutti_op *op, const tutti_op *part) {
    uint64_t x = op->signature ^ (uint64_t)(part->kind + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (x ^ x >> 29) >> 1;
}

tutti_status tutti_hierarchical_local(tutti_comm *comm, const tutti_op *op, tutti_op part) {
    part.type = op->type;
    part.factor = op->factor;
    part.timeout_ms = op->timeout_ms;
    part.part_of = op->part_of != NULL ? op->part_of : op;
    part.signature = sign_part(op, &part);
    return tutti_queue_run(comm->hosts->local, &part);
}

tutti_rail tutti_hierarchical_delegates(tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_hosts *hosts = comm->hosts;
    for (int host = 0; host < hosts->nhosts; host++) hosts->delegates[host] = hosts->all[host].ranks[0];
    hosts->delegates[hosts->host_of[rank]] = rank;
    return (tutti_rail){.comm = comm, .op = op, .n = hosts->nhosts, .me = hosts->host, .ranks = hosts->delegates};
}

tutti_rail tutti_hierarchical_rail(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->hosts;
    return (tutti_rail){.comm = comm, .op = op, .n = hosts->nhosts, .me = hosts->host, .ranks = hosts->rail};
}

static bool is_delegate(const tutti_rail *rail) {
    return rail->ranks[rail->me] == rail->comm->rank;
}

tutti_status tutti_hierarchical_setup(tutti_comm *comm, tutti_kind kind, size_t bytes, size_t own_bytes,
                                      tutti_rail_setup *setup_out, char **own_out) {
    size_t rail_bytes = tutti_align_up(tutti_rail_scratch_bytes(comm->hosts->table, kind, bytes), TUTTI_CACHE_LINE);
    char *memory;
    TUTTI_TRY(tutti_hosts_scratch(comm, rail_bytes + own_bytes, &memory));
    *setup_out = (tutti_rail_setup){.table = comm->hosts->table, .scratch = memory, .scratch_bytes = rail_bytes};
    if (own_out != NULL) *own_out = memory + rail_bytes;
    return TUTTI_OK;
}

tutti_reduction tutti_hierarchical_within(const tutti_op *op) {
    return op->reduction == TUTTI_AVG ? TUTTI_SUM : op->reduction;
}

tutti_reduction tutti_hierarchical_between(const tutti_op *op) {
    return op->reduction == TUTTI_PREMUL_SUM ? TUTTI_SUM : op->reduction;
}

/* -------------------------------------------------------------------------------------- barrier, broadcast */

/* The first one ends when all of this host have come, the last one when all of all hosts have. */
static tutti_status barrier(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, 0);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_BARRIER, 0, 0, &setup, NULL));
    TUTTI_TRY(tutti_hierarchical_local(comm, op, (tutti_op){.kind = TUTTI_KIND_BARRIER}));
    if (is_delegate(&rail)) TUTTI_TRY(tutti_rail_barrier(&rail, &setup));
    return tutti_hierarchical_local(comm, op, (tutti_op){.kind = TUTTI_KIND_BARRIER});
}

/* Hands what the delegate has in `buffer` to its host. */
static tutti_status broadcast_locally(tutti_comm *comm, const tutti_op *op, const tutti_rail *rail, void *buffer) {
    return tutti_hierarchical_local(comm, op,
                                    (tutti_op){.kind = TUTTI_KIND_BROADCAST,
                                               .root = comm->hosts->local_of[rail->ranks[rail->me]],
                                               .src = buffer,
                                               .dst = buffer,
                                               .count = op->count});
}

static tutti_status broadcast(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, op->root);
    tutti_rail_setup setup;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_BROADCAST, bytes, 0, &setup, NULL));
    if (is_delegate(&rail))
        TUTTI_TRY(tutti_rail_broadcast(&rail, &setup, comm->hosts->host_of[op->root], op->dst, bytes));
    return broadcast_locally(comm, op, &rail, op->dst);
}

/* ----------------------------------------------------------------------------------------------- reducing */

static tutti_rail_vector vector_of(const tutti_comm *comm, const tutti_op *op, const void *src, void *dst,
                                   size_t count) {
    return (tutti_rail_vector){.src = src,
                               .dst = dst,
                               .count = count,
                               .type = op->type,
                               .reduction = tutti_hierarchical_between(op),
                               .divisor = op->reduction == TUTTI_AVG ? comm->nranks : 1};
}

/* This host's sum, in dst of the delegate. */
static tutti_status reduce_locally(tutti_comm *comm, const tutti_op *op, const tutti_rail *rail, void *dst) {
    return tutti_hierarchical_local(comm, op,
                                    (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                               .reduction = tutti_hierarchical_within(op),
                                               .root = comm->hosts->local_of[rail->ranks[rail->me]],
                                               .src = op->src,
                                               .dst = dst,
                                               .count = op->count});
}

static tutti_status all_reduce_delegated(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, 0);
    tutti_rail_setup setup;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_REDUCE, bytes, 0, &setup, NULL));
    TUTTI_TRY(reduce_locally(comm, op, &rail, op->dst));
    tutti_rail_vector vector = vector_of(comm, op, op->dst, op->dst, op->count);
    if (is_delegate(&rail)) TUTTI_TRY(tutti_rail_all_reduce(&rail, &setup, &vector));
    return broadcast_locally(comm, op, &rail, op->dst);
}

static tutti_status all_reduce_sliced(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->hosts;
    int nlocal = hosts->local->nranks, own = hosts->local->rank;
    size_t item_bytes = tutti_type_bytes(op->type);
    for (int i = 0; i < nlocal; i++) {
        tutti_slice slice = tutti_slice_of(op->count, item_bytes, nlocal, i);
        hosts->srcs[i] = (const char *)op->src + slice.start * item_bytes;
        hosts->dsts[i] = (char *)op->dst + slice.start * item_bytes;
        hosts->counts[i] = slice.count;
    }
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    size_t longest = hosts->counts[0] * item_bytes; /* the first slices are the longest: all rails choose alike */
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_REDUCE, longest, 0, &setup, NULL));
    TUTTI_TRY(tutti_hierarchical_local(comm, op,
                                       (tutti_op){.kind = TUTTI_KIND_REDUCE_SCATTER_V,
                                                  .reduction = tutti_hierarchical_within(op),
                                                  .srcs = hosts->srcs,
                                                  .src_counts = hosts->counts,
                                                  .dst = hosts->dsts[own],
                                                  .count = hosts->counts[own]}));
    tutti_rail_vector vector = vector_of(comm, op, hosts->dsts[own], hosts->dsts[own], hosts->counts[own]);
    TUTTI_TRY(tutti_rail_all_reduce(&rail, &setup, &vector));
    return tutti_hierarchical_local(comm, op,
                                    (tutti_op){.kind = TUTTI_KIND_ALL_GATHER_V,
                                               .src = hosts->dsts[own],
                                               .count = hosts->counts[own],
                                               .dsts = hosts->dsts,
                                               .dst_counts = hosts->counts});
}

/* One rank on each host, and nothing to multiply: no local part. */
static tutti_status all_reduce_flat(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_REDUCE, bytes, 0, &setup, NULL));
    tutti_rail_vector vector = vector_of(comm, op, op->src, op->dst, op->count);
    return tutti_rail_all_reduce(&rail, &setup, &vector);
}

tutti_status tutti_hierarchical_all_reduce(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->hosts;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    if (comm->nranks == hosts->nhosts && op->reduction != TUTTI_PREMUL_SUM) return all_reduce_flat(comm, op);
    bool slices = hosts->uniform && bytes > MOST_DELEGATED_BYTES * (size_t)hosts->local->nranks;
    return slices ? all_reduce_sliced(comm, op) : all_reduce_delegated(comm, op);
}

tutti_status tutti_hierarchical_reduce(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, op->root);
    tutti_rail_setup setup;
    size_t bytes = op->count * tutti_type_bytes(op->type);
    bool delegate = is_delegate(&rail), root = comm->rank == op->root;
    char *sum;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_REDUCE, bytes, delegate && !root ? bytes : 0, &setup, &sum));
    void *dst = root ? op->dst : sum;
    TUTTI_TRY(reduce_locally(comm, op, &rail, delegate ? dst : NULL));
    if (!delegate) return TUTTI_OK;
    tutti_rail_vector vector = vector_of(comm, op, dst, dst, op->count);
    return tutti_rail_reduce(&rail, &setup, comm->hosts->host_of[op->root], &vector);
}

/* -------------------------------------------------------------------------------------------------- entry */

static tutti_status fill_table(tutti_comm *comm, const tutti_cost *cost) {
    tutti_rail_rules rules = {.n = comm->hosts->nhosts,
                              .reorders = tutti_setting_int(TUTTI_SETTING_DETERMINISTIC) == 0,
                              .forced = tutti_setting_text(TUTTI_SETTING_ALGORITHM)};
    TUTTI_TRY(tutti_calloc(1, sizeof *comm->hosts->table, &comm->hosts->table));
    tutti_rail_table_fill(&rules, cost, comm->hosts->table);
    return TUTTI_OK;
}

tutti_status tutti_hierarchical_inherit(tutti_comm *comm, const tutti_comm *parent) {
    return parent->hosts->table != NULL ? fill_table(comm, &parent->hosts->table->cost) : TUTTI_OK;
}

/* Measures the network, or reads what it costs: the delegates agree, and tell their hosts. */
static tutti_status prepare(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_delegates(comm, op, 0);
    tutti_cost cost = tutti_cost_ordinary;
    char *scratch;
    if (is_delegate(&rail)) {
        TUTTI_TRY(tutti_hosts_scratch(comm, TUTTI_COST_SCRATCH_BYTES, &scratch));
        TUTTI_TRY(tutti_cost_agree(&rail, tutti_setting_text(TUTTI_SETTING_COST_FILE), scratch, &cost));
    }
    tutti_op tell = {.kind = TUTTI_KIND_BROADCAST,
                     .type = TUTTI_UINT8,
                     .src = &cost,
                     .dst = &cost,
                     .count = sizeof cost,
                     .timeout_ms = op->timeout_ms,
                     .part_of = op};
    TUTTI_TRY(tutti_queue_run(comm->hosts->local, &tell));
    return fill_table(comm, &cost);
}

tutti_status tutti_hierarchical(tutti_comm *comm, const tutti_op *op) {
    if (TUTTI_UNLIKELY(comm->hosts->table == NULL)) TUTTI_TRY(prepare(comm, op));
    switch (op->kind) {
    case TUTTI_KIND_BARRIER: return barrier(comm, op);
    case TUTTI_KIND_BROADCAST: return broadcast(comm, op);
    case TUTTI_KIND_ALL_REDUCE: return tutti_hierarchical_all_reduce(comm, op);
    case TUTTI_KIND_REDUCE: return tutti_hierarchical_reduce(comm, op);
    case TUTTI_KIND_REDUCE_SCATTER:
    case TUTTI_KIND_REDUCE_SCATTER_V: return tutti_hierarchical_reduce_scatter(comm, op);
    case TUTTI_KIND_ALL_GATHER:
    case TUTTI_KIND_ALL_GATHER_V: return tutti_hierarchical_all_gather(comm, op);
    default: return tutti_hierarchical_personal(comm, op);
    }
}
