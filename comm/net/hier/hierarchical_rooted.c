/*
 * gather and scatter of small blocks, through one rank of each host, its delegate: the root for its own host, else
 * the first rank.
 *
 *   gather    on each host to the delegate, which packs the blocks; on the rail of the delegates to the root, which
 *             unpacks them
 *   scatter   the reverse
 *
 * A host's blocks cross the network in one message, and only one rank of the host waits for the network, the others
 * in shared memory. The v-kinds are not handled this way: only the root knows all their sizes.
 */
#include <string.h>

#include "bootstrap/base/status.h"
#include "comm/net/hier/hierarchical.h"

typedef struct rooted {
    tutti_comm *comm;
    const tutti_op *op;
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t block_bytes;
    char *packed;         /* blocks: on the root all, in the order of the hosts; on other delegates those of the host */
    tutti_rail_block own; /* this host's blocks */
    tutti_rail_block *blocks; /* root: the blocks of all hosts */
} rooted;

bool tutti_hierarchical_is_rooted(const tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->hosts;
    if ((op->kind != TUTTI_KIND_GATHER && op->kind != TUTTI_KIND_SCATTER) || op->count == 0) return false;
    int remote = comm->nranks - hosts->all[hosts->host_of[op->root]].nranks;
    return tutti_hierarchical_pays(comm, remote - (hosts->nhosts - 1),
                                   op->count * tutti_type_bytes(op->type) * (size_t)comm->nranks);
}

static bool is_delegate(const rooted *x) {
    return x->rail.ranks[x->rail.me] == x->comm->rank;
}

static bool is_root(const rooted *x) {
    return x->comm->rank == x->op->root;
}

static tutti_status lay_out(rooted *x) {
    tutti_hosts *hosts = x->comm->hosts;
    size_t nblocks = (size_t)(is_root(x) ? x->comm->nranks : is_delegate(x) ? hosts->local->nranks : 0);
    size_t bytes = tutti_align_up(nblocks * x->block_bytes, TUTTI_CACHE_LINE);
    TUTTI_TRY(tutti_hierarchical_setup(x->comm, x->op->kind, x->block_bytes,
                                       bytes + (size_t)x->rail.n * sizeof *x->blocks, &x->setup, &x->packed));
    x->blocks = (tutti_rail_block *)(void *)(x->packed + bytes);
    char *next = x->packed;
    for (int host = 0; host < x->rail.n && is_root(x); host++) {
        x->blocks[host] = (tutti_rail_block){.data = next, .bytes = (size_t)hosts->all[host].nranks * x->block_bytes};
        next += x->blocks[host].bytes;
    }
    x->own = is_root(x) ? x->blocks[x->rail.me]
                        : (tutti_rail_block){.data = x->packed, .bytes = (size_t)hosts->local->nranks * x->block_bytes};
    return TUTTI_OK;
}

/* Copies between `packed` and the root's buffer. */
static void copy_all(const rooted *x, bool unpacks) {
    const tutti_hosts *hosts = x->comm->hosts;
    char *next = x->packed;
    for (int host = 0; host < x->rail.n && is_root(x); host++)
        for (int i = 0; i < hosts->all[host].nranks; i++, next += x->block_bytes) {
            int rank = hosts->all[host].ranks[i];
            if (unpacks) memcpy((void *)(uintptr_t)tutti_op_output(x->comm, x->op, rank).data, next, x->block_bytes);
            else memcpy(next, tutti_op_input(x->comm, x->op, rank).data, x->block_bytes);
        }
}

static tutti_status gather(rooted *x, int root) {
    tutti_op part = {.kind = TUTTI_KIND_GATHER,
                     .root = x->comm->hosts->local_of[x->rail.ranks[x->rail.me]],
                     .src = tutti_op_input(x->comm, x->op, x->comm->rank).data,
                     .dst = x->own.data,
                     .count = x->op->count};
    TUTTI_TRY(tutti_hierarchical_local(x->comm, x->op, part));
    if (is_delegate(x)) TUTTI_TRY(tutti_rail_gather(&x->rail, &x->setup, root, x->own, x->blocks, /* watch */ NULL));
    copy_all(x, /* unpacks */ true);
    return TUTTI_OK;
}

static tutti_status scatter(rooted *x, int root) {
    copy_all(x, /* unpacks */ false);
    if (is_delegate(x)) TUTTI_TRY(tutti_rail_scatter(&x->rail, &x->setup, root, x->own, x->blocks));
    tutti_op part = {.kind = TUTTI_KIND_SCATTER,
                     .root = x->comm->hosts->local_of[x->rail.ranks[x->rail.me]],
                     .src = x->own.data,
                     .dst = (void *)(uintptr_t)tutti_op_output(x->comm, x->op, x->comm->rank).data,
                     .count = x->op->count};
    return tutti_hierarchical_local(x->comm, x->op, part);
}

tutti_status tutti_hierarchical_rooted(tutti_comm *comm, const tutti_op *op) {
    rooted x = {.comm = comm,
                .op = op,
                .rail = tutti_hierarchical_delegates(comm, op, op->root),
                .block_bytes = op->count * tutti_type_bytes(op->type)};
    TUTTI_TRY(lay_out(&x));
    int root = comm->hosts->host_of[op->root];
    return op->kind == TUTTI_KIND_GATHER ? gather(&x, root) : scatter(&x, root);
}
