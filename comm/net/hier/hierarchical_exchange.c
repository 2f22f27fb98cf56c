/*
 * all_to_all of small blocks on H hosts with L ranks each: a rank sends H-1 messages of L blocks instead of (H-1) L
 * messages of one.
 *
 *   1 on the host: rank l receives from each other rank of its host the blocks for ranks l of all hosts
 *   2 on rail l: rank l of a host receives, from each other host, the blocks of all its ranks
 *
 * Every block passes through shared memory once more, and is packed and unpacked: used if this costs less than the
 * messages that are saved.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/net/hier/hierarchical.h"

#define COPIES 6 /* of all blocks; read and written in a cache */

bool tutti_hierarchical_pays(const tutti_comm *comm, int messages, size_t bytes) {
    const tutti_cost *cost = &comm->hosts->table->cost;
    return cost->message_us * messages > tutti_cost_of_reducing(cost, COPIES * (double)bytes);
}

bool tutti_hierarchical_exchanges(const tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->hosts;
    int nlocal = hosts->local->nranks;
    if (op->kind != TUTTI_KIND_ALL_TO_ALL || !hosts->uniform || nlocal == 1 || op->count == 0) return false;
    return tutti_hierarchical_pays(comm, (nlocal - 1) * (hosts->nhosts - 1),
                                   op->count * tutti_type_bytes(op->type) * (size_t)comm->nranks);
}

/* Two buffers, each for all blocks. */
typedef struct exchange {
    tutti_comm *comm;
    const tutti_op *op;
    size_t block_bytes, nlocal, nhosts;
    char *out, *in;
} exchange;

/* Block [local][host], and [host][local]. */
static char *by_local(const exchange *x, char *blocks, size_t local, size_t host) {
    return blocks + (local * x->nhosts + host) * x->block_bytes;
}

static char *by_host(const exchange *x, char *blocks, size_t host, size_t local) {
    return blocks + (host * x->nlocal + local) * x->block_bytes;
}

static tutti_status exchange_on_host(const exchange *x) {
    const tutti_hosts *hosts = x->comm->hosts;
    for (size_t local = 0; local < x->nlocal; local++)
        for (size_t host = 0; host < x->nhosts; host++)
            memcpy(by_local(x, x->out, local, host), tutti_op_input(x->comm, x->op, hosts->all[host].ranks[local]).data,
                   x->block_bytes);
    return tutti_hierarchical_local(
        x->comm, x->op,
        (tutti_op){.kind = TUTTI_KIND_ALL_TO_ALL, .src = x->out, .dst = x->in, .count = x->op->count * x->nhosts});
}

static tutti_status exchange_on_rail(const exchange *x, const tutti_rail_setup *setup, tutti_rail_block *blocks) {
    const tutti_hosts *hosts = x->comm->hosts;
    tutti_rail rail = tutti_hierarchical_rail(x->comm, x->op);
    tutti_rail_block *sends = blocks, *receives = blocks + x->nhosts;
    for (size_t host = 0; host < x->nhosts; host++) {
        for (size_t local = 0; local < x->nlocal; local++)
            memcpy(by_host(x, x->out, host, local), by_local(x, x->in, local, host), x->block_bytes);
        sends[host] = (tutti_rail_block){.data = by_host(x, x->out, host, 0), .bytes = x->nlocal * x->block_bytes};
    }
    for (size_t host = 0; host < x->nhosts; host++)
        receives[host] = (tutti_rail_block){.data = by_host(x, x->in, host, 0), .bytes = x->nlocal * x->block_bytes};
    TUTTI_TRY(tutti_rail_all_to_all(&rail, setup, sends, receives, /* uniform */ true));
    for (size_t host = 0; host < x->nhosts; host++)
        for (size_t local = 0; local < x->nlocal; local++)
            memcpy((void *)(uintptr_t)tutti_op_output(x->comm, x->op, hosts->all[host].ranks[local]).data,
                   by_host(x, x->in, host, local), x->block_bytes);
    return TUTTI_OK;
}

tutti_status tutti_hierarchical_exchange(tutti_comm *comm, const tutti_op *op) {
    exchange x = {.comm = comm,
                  .op = op,
                  .block_bytes = op->count * tutti_type_bytes(op->type),
                  .nlocal = (size_t)comm->hosts->local->nranks,
                  .nhosts = (size_t)comm->hosts->nhosts};
    size_t all_bytes = tutti_align_up((size_t)comm->nranks * x.block_bytes, TUTTI_CACHE_LINE);
    size_t list_bytes = 2 * x.nhosts * sizeof(tutti_rail_block);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_TO_ALL, x.nlocal * x.block_bytes,
                                       2 * all_bytes + list_bytes, &setup, &x.out));
    x.in = x.out + all_bytes;
    TUTTI_TRY(exchange_on_host(&x));
    return exchange_on_rail(&x, &setup, (tutti_rail_block *)(void *)(x.in + all_bytes));
}
