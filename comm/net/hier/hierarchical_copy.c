/*
 * Kinds that only move data, over several hosts.
 *
 * all_gather: if all hosts have the same number of ranks, a rail gathers the blocks of its ranks straight into
 * their places in the outputs, and these are then copied in shared memory to the other ranks of the host; long
 * blocks go in pieces (hierarchical_pieces.c). If hosts differ, a block is sent to one rank of each other host
 * (rank j of a host to rank j modulo the number of ranks there).
 *
 * all_to_all, gather, scatter: every byte has one receiver. With one rank per host these are calls on the rail.
 * Otherwise data that stays on the host goes through shared memory, and the rest straight from its owner to its
 * receiver; small blocks are packed together.
 */
#include <string.h>

#include "comm/net/hier/hierarchical.h"

#define COPIES 6 /* of all blocks; read and written in a cache */

/* All ranks, with links to those of other hosts. */
static tutti_rail everyone(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = {.comm = comm, .op = op, .n = comm->nranks, .me = comm->rank, .ranks = comm->net.hosts->everyone};
    return rail;
}

/* ------------------------------------------------------------------------------------------- all_gather */

/* The rank of `host` that receives the block of a rank whose rank on its own host is `local`. */
static int taker(const tutti_hosts *hosts, int host, int local) {
    return hosts->all[host].ranks[local % hosts->all[host].nranks];
}

/* Sends this rank's block to one rank of each other host, and receives other ranks' blocks for this host. */
static tutti_status exchange_blocks(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->net.hosts;
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

/* The part of each block that rounds_of gathers. rounds_of describes an all_gather in shared memory of the blocks
 * of `count` ranks of one host, which are held by ranks 0, 1, ... of this host. */
typedef struct window {
    size_t start, bytes;
} window;

static tutti_span cut(tutti_span block, window w) {
    size_t start = tutti_min_size(w.start, block.bytes);
    return (tutti_span){.data = start > 0 ? block.data + start : block.data,
                        .bytes = tutti_min_size(w.bytes, block.bytes - start)};
}

static tutti_op rounds_of(tutti_comm *comm, const tutti_op *op, const int *ranks, int count, window w) {
    tutti_hosts *hosts = comm->net.hosts;
    const tutti_comm *local = hosts->local;
    size_t item_bytes = tutti_type_bytes(op->type);
    for (int i = 0; i < local->nranks; i++) {
        tutti_span output = {.data = NULL, .bytes = 0};
        if (i < count) output = cut(tutti_op_output(comm, op, ranks[i]), w);
        hosts->dsts[i] = (void *)(uintptr_t)output.data;
        hosts->counts[i] = output.bytes / item_bytes;
    }
    bool own_host = ranks == hosts->all[hosts->host].ranks;
    return (tutti_op){.kind = TUTTI_KIND_ALL_GATHER_V,
                      .src = own_host ? cut(tutti_op_input(comm, op, comm->rank), w).data : hosts->dsts[local->rank],
                      .count = hosts->counts[local->rank],
                      .dsts = hosts->dsts,
                      .dst_counts = hosts->counts};
}

static tutti_status gather_uneven(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    int nlocal = hosts->local->nranks;
    TUTTI_TRY(exchange_blocks(comm, op));
    for (int host = 0; host < hosts->nhosts; host++) {
        const tutti_host *one = &hosts->all[host];
        for (int first = 0; first < one->nranks; first += nlocal) {
            int count = one->nranks - first < nlocal ? one->nranks - first : nlocal;
            tutti_op part = rounds_of(comm, op, one->ranks + first, count, (window){.bytes = SIZE_MAX});
            TUTTI_TRY(tutti_hierarchical_local(comm, op, part));
        }
    }
    return TUTTI_OK;
}

/* Blocks on rails, in pieces. */
typedef struct gathered {
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t piece_bytes; /* of a block */
    tutti_rail_block *blocks;
} gathered;

static window window_of(const gathered *g, size_t k) {
    return (window){.start = k * g->piece_bytes, .bytes = g->piece_bytes};
}

static tutti_status gather_piece(tutti_pieces *pieces, size_t k) {
    const gathered *g = pieces->context;
    for (int host = 0; host < g->rail.n; host++) {
        tutti_span block = tutti_op_output(pieces->comm, pieces->op, g->rail.ranks[host]);
        if (host == g->rail.me) block = tutti_op_input(pieces->comm, pieces->op, pieces->comm->rank);
        block = cut(block, window_of(g, k));
        g->blocks[host] = (tutti_rail_block){.data = (void *)(uintptr_t)block.data, .bytes = block.bytes};
    }
    return tutti_rail_all_gather(&g->rail, &g->setup, g->blocks);
}

static tutti_status hand_round(tutti_pieces *pieces, size_t k) {
    const tutti_hosts *hosts = pieces->comm->net.hosts;
    window w = window_of(pieces->context, k);
    for (int host = 0; host < hosts->nhosts; host++) {
        const tutti_host *one = &hosts->all[host];
        TUTTI_TRY(tutti_pieces_start(pieces, rounds_of(pieces->comm, pieces->op, one->ranks, one->nranks, w)));
    }
    return TUTTI_OK;
}

static void copy_own(tutti_comm *comm, const tutti_op *op) {
    tutti_span from = tutti_op_input(comm, op, comm->rank), to = tutti_op_output(comm, op, comm->rank);
    if (to.data != from.data && to.bytes > 0) memcpy((void *)(uintptr_t)to.data, from.data, to.bytes);
}

static tutti_status gather_on_rails(tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    size_t longest = 0, all_bytes = 0;
    bool flat = comm->nranks == hosts->nhosts;
    for (int rank = 0; rank < comm->nranks; rank++) {
        size_t bytes = tutti_op_output(comm, op, rank).bytes;
        longest = tutti_max_size(longest, bytes);
        all_bytes += bytes;
    }
    gathered g = {.rail = tutti_hierarchical_rail(comm, op)};
    g.piece_bytes =
        tutti_hierarchical_piece_bytes(comm, TUTTI_KIND_ALL_GATHER, hosts->local->nranks, longest, all_bytes);
    char *blocks;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_GATHER, tutti_min_size(g.piece_bytes, longest),
                                       (size_t)hosts->nhosts * sizeof *g.blocks, &g.setup, &blocks));
    g.blocks = (tutti_rail_block *)(void *)blocks;
    if (flat) copy_own(comm, op);
    tutti_pieces pieces = {.comm = comm,
                           .op = op,
                           .context = &g,
                           .npieces = tutti_hierarchical_pieces(longest, g.piece_bytes),
                           .across = gather_piece,
                           .after = flat ? NULL : hand_round};
    return tutti_pieces_run(&pieces);
}

tutti_status tutti_hierarchical_all_gather(tutti_comm *comm, const tutti_op *op) {
    return comm->net.hosts->uniform ? gather_on_rails(comm, op) : gather_uneven(comm, op);
}

/* ------------------------------------------------------------------------- all_to_all of small blocks
 * On H hosts with L ranks each, a rank sends H-1 messages of L blocks instead of (H-1) L messages of one.
 *
 *   1 on the host: rank l receives from each other rank of its host the blocks for ranks l of all hosts
 *   2 on rail l: rank l of a host receives, from each other host, the blocks of all its ranks
 *
 * Every block passes through shared memory once more, and is packed and unpacked: used if this costs less than the
 * messages that are saved.
 */

/* Returns whether packing and unpacking `bytes` is cheaper than that many messages. */
static bool pays(const tutti_comm *comm, int messages, size_t bytes) {
    const tutti_cost *cost = &comm->net.hosts->table->cost;
    return cost->message_us * messages > tutti_cost_of_reducing(cost, COPIES * (double)bytes);
}

/* Equal on all ranks, like is_rooted. */
static bool is_exchanged(const tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    int nlocal = hosts->local->nranks;
    if (op->kind != TUTTI_KIND_ALL_TO_ALL || !hosts->uniform || nlocal == 1 || op->count == 0) return false;
    return pays(comm, (nlocal - 1) * (hosts->nhosts - 1),
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
    const tutti_hosts *hosts = x->comm->net.hosts;
    for (size_t local = 0; local < x->nlocal; local++)
        for (size_t host = 0; host < x->nhosts; host++)
            memcpy(by_local(x, x->out, local, host), tutti_op_input(x->comm, x->op, hosts->all[host].ranks[local]).data,
                   x->block_bytes);
    return tutti_hierarchical_local(
        x->comm, x->op,
        (tutti_op){.kind = TUTTI_KIND_ALL_TO_ALL, .src = x->out, .dst = x->in, .count = x->op->count * x->nhosts});
}

static tutti_status exchange_on_rail(const exchange *x, const tutti_rail_setup *setup, tutti_rail_block *blocks) {
    const tutti_hosts *hosts = x->comm->net.hosts;
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

static tutti_status exchange_small(tutti_comm *comm, const tutti_op *op) {
    exchange x = {.comm = comm,
                  .op = op,
                  .block_bytes = op->count * tutti_type_bytes(op->type),
                  .nlocal = (size_t)comm->net.hosts->local->nranks,
                  .nhosts = (size_t)comm->net.hosts->nhosts};
    size_t all_bytes = tutti_align_up((size_t)comm->nranks * x.block_bytes, TUTTI_CACHE_LINE);
    size_t list_bytes = 2 * x.nhosts * sizeof(tutti_rail_block);
    tutti_rail_setup setup;
    TUTTI_TRY(tutti_hierarchical_setup(comm, TUTTI_KIND_ALL_TO_ALL, x.nlocal * x.block_bytes,
                                       2 * all_bytes + list_bytes, &setup, &x.out));
    x.in = x.out + all_bytes;
    TUTTI_TRY(exchange_on_host(&x));
    return exchange_on_rail(&x, &setup, (tutti_rail_block *)(void *)(x.in + all_bytes));
}

/* ------------------------------------------------------------------- gather and scatter of small blocks
 * Through one rank of each host, its leader: the root for its own host, else the first rank.
 *
 *   gather    on each host to the leader, which packs the blocks; on the rail of the leaders to the root, which
 *             unpacks them
 *   scatter   the reverse
 *
 * A host's blocks cross the network in one message, and only one rank of the host waits for the network, the others
 * in shared memory. The v-kinds are not handled this way: only the root knows all their sizes.
 */

typedef struct rooted {
    tutti_comm *comm;
    const tutti_op *op;
    tutti_rail rail;
    tutti_rail_setup setup;
    size_t block_bytes;
    char *packed;         /* blocks: on the root all, in the order of the hosts; on other leaders those of the host */
    tutti_rail_block own; /* this host's blocks */
    tutti_rail_block *blocks; /* root: the blocks of all hosts */
} rooted;

static bool is_rooted(const tutti_comm *comm, const tutti_op *op) {
    const tutti_hosts *hosts = comm->net.hosts;
    if ((op->kind != TUTTI_KIND_GATHER && op->kind != TUTTI_KIND_SCATTER) || op->count == 0) return false;
    int remote = comm->nranks - hosts->all[hosts->host_of[op->root]].nranks;
    return pays(comm, remote - (hosts->nhosts - 1), op->count * tutti_type_bytes(op->type) * (size_t)comm->nranks);
}

static bool is_leader(const rooted *x) {
    return x->rail.ranks[x->rail.me] == x->comm->rank;
}

static bool is_root(const rooted *x) {
    return x->comm->rank == x->op->root;
}

static tutti_status lay_out(rooted *x) {
    tutti_hosts *hosts = x->comm->net.hosts;
    size_t nblocks = (size_t)(is_root(x) ? x->comm->nranks : is_leader(x) ? hosts->local->nranks : 0);
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
    const tutti_hosts *hosts = x->comm->net.hosts;
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
                     .root = x->comm->net.hosts->local_of[x->rail.ranks[x->rail.me]],
                     .src = tutti_op_input(x->comm, x->op, x->comm->rank).data,
                     .dst = x->own.data,
                     .count = x->op->count};
    TUTTI_TRY(tutti_hierarchical_local(x->comm, x->op, part));
    if (is_leader(x)) TUTTI_TRY(tutti_rail_gather(&x->rail, &x->setup, root, x->own, x->blocks));
    copy_all(x, /* unpacks */ true);
    return TUTTI_OK;
}

static tutti_status scatter(rooted *x, int root) {
    copy_all(x, /* unpacks */ false);
    if (is_leader(x)) TUTTI_TRY(tutti_rail_scatter(&x->rail, &x->setup, root, x->own, x->blocks));
    tutti_op part = {.kind = TUTTI_KIND_SCATTER,
                     .root = x->comm->net.hosts->local_of[x->rail.ranks[x->rail.me]],
                     .src = x->own.data,
                     .dst = (void *)(uintptr_t)tutti_op_output(x->comm, x->op, x->comm->rank).data,
                     .count = x->op->count};
    return tutti_hierarchical_local(x->comm, x->op, part);
}

static tutti_status run_rooted(tutti_comm *comm, const tutti_op *op) {
    rooted x = {.comm = comm,
                .op = op,
                .rail = tutti_hierarchical_leaders(comm, op, op->root),
                .block_bytes = op->count * tutti_type_bytes(op->type)};
    TUTTI_TRY(lay_out(&x));
    int root = comm->net.hosts->host_of[op->root];
    return op->kind == TUTTI_KIND_GATHER ? gather(&x, root) : scatter(&x, root);
}

/* --------------------------------------------------------------------------------------------- personal */

/* Whether this rank sends a block to the other rank, or receives one from it. */
static bool sends_to(const tutti_comm *comm, const tutti_op *op, int other) {
    return tutti_op_has_input(op, comm->rank) && (!tutti_op_has_sink(op) || other == op->root);
}

static bool receives_from(const tutti_comm *comm, const tutti_op *op, int other) {
    return tutti_op_has_output(op, comm->rank) && (!tutti_op_has_source(op) || other == op->root);
}

/* The block that this rank sends to the other rank, or receives from it; 0 bytes if there is none. */
static tutti_rail_block outgoing(const tutti_comm *comm, const tutti_op *op, int other) {
    tutti_span span = sends_to(comm, op, other) ? tutti_op_input(comm, op, other) : (tutti_span){0};
    return (tutti_rail_block){.data = (void *)(uintptr_t)span.data, .bytes = span.bytes}; /* only read */
}

static tutti_rail_block incoming(const tutti_comm *comm, const tutti_op *op, int other) {
    tutti_span span = receives_from(comm, op, other) ? tutti_op_output(comm, op, other) : (tutti_span){0};
    return (tutti_rail_block){.data = (void *)(uintptr_t)span.data, .bytes = span.bytes};
}

static tutti_status move_far(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->net.hosts;
    int nparts = 0;
    for (int i = 1; i < comm->nranks; i++) {
        int to = (comm->rank + i) % comm->nranks, from = (comm->rank + comm->nranks - i) % comm->nranks;
        if (hosts->host_of[to] != hosts->host && sends_to(comm, op, to)) {
            tutti_rail_block sent = outgoing(comm, op, to);
            hosts->parts[nparts++] =
                (tutti_link_part){.rank = to, .sends = true, .data = sent.data, .bytes = sent.bytes};
        }
        if (hosts->host_of[from] != hosts->host && receives_from(comm, op, from)) {
            tutti_rail_block received = incoming(comm, op, from);
            hosts->parts[nparts++] = (tutti_link_part){.rank = from, .data = received.data, .bytes = received.bytes};
        }
    }
    tutti_rail all = everyone(comm, op);
    return nparts > 0 ? tutti_link_move(&all, hosts->parts, nparts) : TUTTI_OK;
}

/* The same kind among this host's ranks, as all_to_all_v with the entries of these ranks. */
static tutti_status move_near(tutti_comm *comm, const tutti_op *op) {
    tutti_hosts *hosts = comm->net.hosts;
    const tutti_host *host = &hosts->all[hosts->host];
    const tutti_comm *local = hosts->local;
    size_t item_bytes = tutti_type_bytes(op->type);
    size_t *src_counts = hosts->counts, *dst_counts = hosts->counts + local->nranks;
    for (int i = 0; i < host->nranks; i++) {
        tutti_rail_block input = outgoing(comm, op, host->ranks[i]), output = incoming(comm, op, host->ranks[i]);
        hosts->srcs[i] = input.data;
        hosts->dsts[i] = output.data;
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

/* In place, arriving data would overwrite data still to be sent, so a copy is sent. */
static tutti_status set_aside(tutti_comm *comm, const tutti_op *op, tutti_op *apart_out) {
    size_t bytes = op->count * tutti_type_bytes(op->type) * (size_t)comm->nranks;
    char *copy;
    *apart_out = *op;
    if (op->kind != TUTTI_KIND_ALL_TO_ALL || op->src != op->dst || bytes == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_hosts_scratch(comm, bytes, &copy));
    apart_out->src = memcpy(copy, op->src, bytes);
    return TUTTI_OK;
}

/* One rank per host: its blocks for and from the others, in the form that calls on a rail take. */
static tutti_status move_flat(tutti_comm *comm, const tutti_op *op) {
    tutti_rail rail = tutti_hierarchical_rail(comm, op);
    tutti_rail_setup setup;
    size_t n = (size_t)comm->nranks, longest = 0;
    tutti_rail_block *sends, *receives;
    for (int rank = 0; rank < comm->nranks; rank++) {
        longest = tutti_max_size(longest, outgoing(comm, op, rank).bytes);
        longest = tutti_max_size(longest, incoming(comm, op, rank).bytes);
    }
    bool uniform = op->kind == TUTTI_KIND_ALL_TO_ALL;
    tutti_kind kind = tutti_op_has_sink(op)     ? TUTTI_KIND_GATHER
                      : tutti_op_has_source(op) ? TUTTI_KIND_SCATTER
                                                : TUTTI_KIND_ALL_TO_ALL;
    char *blocks;
    TUTTI_TRY(tutti_hierarchical_setup(comm, kind, longest, 2 * n * sizeof *sends, &setup, &blocks));
    sends = (tutti_rail_block *)(void *)blocks;
    receives = sends + n;
    for (int host = 0; host < rail.n; host++) {
        sends[host] = outgoing(comm, op, rail.ranks[host]);
        receives[host] = incoming(comm, op, rail.ranks[host]);
    }
    if (kind == TUTTI_KIND_ALL_TO_ALL) return tutti_rail_all_to_all(&rail, &setup, sends, receives, uniform);
    int root = comm->net.hosts->host_of[op->root];
    if (kind == TUTTI_KIND_GATHER) return tutti_rail_gather(&rail, &setup, root, sends[root], receives);
    return tutti_rail_scatter(&rail, &setup, root, receives[root], sends);
}

tutti_status tutti_hierarchical_personal(tutti_comm *comm, const tutti_op *op) {
    if (comm->nranks == comm->net.hosts->nhosts) return move_flat(comm, op);
    if (is_exchanged(comm, op)) return exchange_small(comm, op);
    if (is_rooted(comm, op)) return run_rooted(comm, op);
    tutti_op apart;
    TUTTI_TRY(set_aside(comm, op, &apart));
    TUTTI_TRY(move_far(comm, &apart));
    return move_near(comm, &apart);
}
