/*
 * Kinds that only move data, over several hosts.
 *
 * all_gather: a block goes to one rank of each other host (rank j of a host to rank j modulo the number of ranks there),
 * straight to its place in that rank's output, and from there in shared memory to the ranks beside it.
 *
 * all_to_all, gather, scatter: every byte has one receiver. What stays on the host goes through shared memory, the rest
 * from its owner to its receiver.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/algorithms/hierarchical.h"

/* All ranks, with links to those of other hosts. */
static tutti_rail everyone(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = {.comm = comm, .op = op, .n = comm->nranks, .me = comm->rank, .ranks = comm->hosts->everyone};
    return rail;
}

/* ------------------------------------------------------------------------------------------- all_gather */

/* The rank of `host` that takes the block of a rank that is `local` on its own. */
static int taker(const tutti_hosts *hosts, int host, int local) {
    return hosts->all[host].ranks[local % hosts->all[host].nranks];
}

/* Sends the own block to one rank of each other host, and takes others' blocks for this one. */
static tutti_status exchange_blocks(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->hosts;
    tutti_link_part *parts = hosts->parts;
    int nparts = 0;
    tutti_span own = tutti_op_input(comm, op, comm->rank);
    for (int host = 0; host < hosts->nhosts; host++) {
        if (host == hosts->host) continue;
        parts[nparts++] = (tutti_link_part){.rank = taker(hosts, host, hosts->local->rank),
                                            .sends = true,
                                            .data = (void *)(uintptr_t)own.data, /* only read */
                                            .bytes = own.bytes};
        for (int i = 0; i < hosts->all[host].nranks; i++) {
            if (i % hosts->local->nranks != hosts->local->rank) continue;
            int rank = hosts->all[host].ranks[i];
            tutti_span output = tutti_op_output(comm, op, rank);
            parts[nparts++] =
                (tutti_link_part){.rank = rank, .data = (void *)(uintptr_t)output.data, .bytes = output.bytes};
        }
    }
    tutti_rail all = everyone(comm, op);
    return tutti_link_move(&all, parts, nparts);
}

/* Gives round on this host: the blocks of `count` ranks of some host from `first` on, which ranks 0, 1, ... here have. */
static tutti_status hand_round(tutti_comm *comm, const tutti_op *op, const int *ranks, int count) {
    tutti_hosts *hosts = comm->hosts;
    const tutti_comm *local = hosts->local;
    size_t item_bytes = tutti_type_bytes(op->type);
    for (int i = 0; i < local->nranks; i++) {
        tutti_span output = {.data = NULL, .bytes = 0};
        if (i < count) output = tutti_op_output(comm, op, ranks[i]);
        hosts->dsts[i] = (void *)(uintptr_t)output.data;
        hosts->counts[i] = output.bytes / item_bytes;
    }
    bool own_host = ranks == hosts->all[hosts->host].ranks;
    return tutti_hierarchical_local(
        comm, op,
        (tutti_op){.kind = TUTTI_KIND_ALL_GATHER_V,
                   .src = own_host ? tutti_op_input(comm, op, comm->rank).data : hosts->dsts[local->rank],
                   .count = hosts->counts[local->rank],
                   .dsts = hosts->dsts,
                   .dst_counts = hosts->counts});
}

tutti_status tutti_hierarchical_all_gather(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->hosts;
    int nlocal = hosts->local->nranks;
    TUTTI_TRY(exchange_blocks(comm, op));
    for (int host = 0; host < hosts->nhosts; host++) {
        const tutti_host *one = &hosts->all[host];
        for (int first = 0; first < one->nranks; first += nlocal) {
            int count = one->nranks - first < nlocal ? one->nranks - first : nlocal;
            TUTTI_TRY(hand_round(comm, op, one->ranks + first, count));
        }
    }
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- personal */

/* Does this rank have something for the other one, or get something from it? */
static bool sends_to(const tutti_comm *comm, const tutti_op *op, int other) {
    return tutti_op_has_input(op, comm->rank) && (!tutti_op_has_sink(op) || other == op->root);
}

static bool receives_from(const tutti_comm *comm, const tutti_op *op, int other) {
    return tutti_op_has_output(op, comm->rank) && (!tutti_op_has_source(op) || other == op->root);
}

static tutti_status move_far(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->hosts;
    int nparts = 0;
    for (int i = 1; i < comm->nranks; i++) {
        int to = (comm->rank + i) % comm->nranks, from = (comm->rank + comm->nranks - i) % comm->nranks;
        if (hosts->host_of[to] != hosts->host && sends_to(comm, op, to)) {
            tutti_span input = tutti_op_input(comm, op, to);
            hosts->parts[nparts++] = (tutti_link_part){
                .rank = to, .sends = true, .data = (void *)(uintptr_t)input.data, .bytes = input.bytes};
        }
        if (hosts->host_of[from] != hosts->host && receives_from(comm, op, from)) {
            tutti_span output = tutti_op_output(comm, op, from);
            hosts->parts[nparts++] =
                (tutti_link_part){.rank = from, .data = (void *)(uintptr_t)output.data, .bytes = output.bytes};
        }
    }
    tutti_rail all = everyone(comm, op);
    return nparts > 0 ? tutti_link_move(&all, hosts->parts, nparts) : TUTTI_OK;
}

/* The same kind among this host's ranks, as the v-variant, with the entries of those. */
static tutti_status move_near(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->hosts;
    const tutti_host *host = &hosts->all[hosts->host];
    const tutti_comm *local = hosts->local;
    size_t item_bytes = tutti_type_bytes(op->type);
    size_t *src_counts = hosts->counts, *dst_counts = hosts->counts + local->nranks;
    for (int i = 0; i < host->nranks; i++) {
        tutti_span input = {0}, output = {0};
        if (sends_to(comm, op, host->ranks[i])) input = tutti_op_input(comm, op, host->ranks[i]);
        if (receives_from(comm, op, host->ranks[i])) output = tutti_op_output(comm, op, host->ranks[i]);
        hosts->srcs[i] = input.data;
        hosts->dsts[i] = (void *)(uintptr_t)output.data;
        src_counts[i] = input.bytes / item_bytes;
        dst_counts[i] = output.bytes / item_bytes;
    }
    return tutti_hierarchical_local(comm, op,
                                    (tutti_op){.kind = TUTTI_KIND_ALL_TO_ALL_V,
                                               .srcs = hosts->srcs,
                                               .src_counts = src_counts,
                                               .dsts = hosts->dsts,
                                               .dst_counts = dst_counts});
}

/* In place, what comes would overwrite what has not been sent: a copy is sent. */
static tutti_status set_aside(tutti_comm *comm, const tutti_op *op, tutti_op *apart_out) {
    size_t bytes = op->count * tutti_type_bytes(op->type) * (size_t)comm->nranks;
    char *copy;
    *apart_out = *op;
    if (op->kind != TUTTI_KIND_ALL_TO_ALL || op->src != op->dst || bytes == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_hosts_scratch(comm, bytes, &copy));
    apart_out->src = memcpy(copy, op->src, bytes);
    return TUTTI_OK;
}

tutti_status tutti_hierarchical_personal(tutti_comm *comm, const tutti_op *op) {
    tutti_op apart;
    TUTTI_TRY(set_aside(comm, op, &apart));
    TUTTI_TRY(move_far(comm, &apart));
    return move_near(comm, &apart);
}
