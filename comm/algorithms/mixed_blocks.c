/*
 * Mixed placements: kinds with a block for each rank, which go through every rank's scratch. See mixed.h.
 *
 *   scratch of a round     | GPU 0: rank 0, rank 2, rank 3 | GPU 1: rank 1, rank 4 | ...    a piece of each rank's block
 *
 * A round takes as many elements of every block, the last ones of the blocks that are longer. Where a rank's own memory is
 * input and output at once, a round reads there what no earlier round has written.
 */
#include "bootstrap/base/common.h"
#include "comm/algorithms/mixed.h"

#define GRANULE 256 /* bytes: pieces begin where a kernel reads best, but for a block's end */

/* One call, and its current round. Elements but where bytes are said. */
typedef struct blocks {
    tutti_comm *comm;
    tutti_mixed *m;
    const tutti_stream_call *call;
    const tutti_op *op;
    const size_t *counts; /* by rank: of its block; NULL: op->count */
    size_t item_bytes;
    size_t most; /* of a block in a round */
    size_t at;   /* where the round begins in every block */
} blocks;

static blocks begin(tutti_comm *comm, const tutti_stream_call *call, const size_t *counts) {
    tutti_mixed *m = comm->gpu->engine_state;
    size_t item_bytes = tutti_type_bytes(call->op->type);
    size_t piece_bytes = m->scratch_bytes / (size_t)comm->nranks / GRANULE * GRANULE;
    return (blocks){.comm = comm,
                    .m = m,
                    .call = call,
                    .op = call->op,
                    .counts = counts,
                    .item_bytes = item_bytes,
                    .most = piece_bytes / item_bytes};
}

static size_t block_count(const blocks *b, int rank) {
    return b->counts != NULL ? b->counts[rank] : b->op->count;
}

static size_t longest(const blocks *b) {
    size_t most = 0;
    for (int rank = 0; rank < b->comm->nranks; rank++) most = tutti_max_size(most, block_count(b, rank));
    return most;
}

/* Of a rank's block, in this round. */
static size_t piece_count(const blocks *b, int rank) {
    size_t count = block_count(b, rank);
    return count > b->at ? tutti_min_size(b->most, count - b->at) : 0;
}

static void lay_out_round(const blocks *b) {
    size_t bytes = 0;
    for (int i = 0; i <= b->comm->nranks; i++) {
        b->m->places[i] = bytes;
        if (i < b->comm->nranks) bytes += piece_count(b, b->m->order[i]) * b->item_bytes;
    }
}

static char *place_of_gpu(const blocks *b, int gpu) {
    return b->m->scratch + b->m->places[b->m->first[gpu]];
}

static size_t count_of_gpu(const blocks *b, int gpu) {
    return (b->m->places[b->m->first[gpu + 1]] - b->m->places[b->m->first[gpu]]) / b->item_bytes;
}

static size_t count_of_all(const blocks *b) {
    return b->m->places[b->comm->nranks] / b->item_bytes;
}

/* Between all blocks of the caller's and this rank's scratch. */
static tutti_status copy_blocks(const blocks *b, bool into_scratch) {
    tutti_mixed *m = b->m;
    int count = 0;
    for (int i = 0; i < b->comm->nranks; i++) {
        int rank = m->order[i];
        size_t bytes = m->places[i + 1] - m->places[i];
        if (bytes == 0) continue;
        tutti_span block = into_scratch ? tutti_op_input(b->comm, b->op, rank) : tutti_op_output(b->comm, b->op, rank);
        char *user = (char *)(uintptr_t)block.data + b->at * b->item_bytes;
        m->srcs[count] = into_scratch ? user : m->scratch + m->places[i];
        m->dsts[count] = into_scratch ? m->scratch + m->places[i] : user;
        m->src_counts[count++] = bytes;
    }
    if (count == 0) return TUTTI_OK;
    return b->comm->gpu->device->copy_many(m->dsts, m->srcs, m->src_counts, count, b->call->stream);
}

/* Where the pieces of this GPU's ranks lie in the scratch: on its leader, sources or destinations of a step within. */
static void list_own_gpu(const blocks *b) {
    tutti_mixed *m = b->m;
    for (int i = 0; i < m->local->nranks; i++) {
        int place = m->first[m->gpu] + i;
        m->srcs[i] = m->dsts[i] = m->scratch + m->places[place];
        m->src_counts[i] = m->dst_counts[i] = piece_count(b, m->order[place]);
    }
}

static void list_gpus(const blocks *b) {
    tutti_mixed *m = b->m;
    for (int gpu = 0; gpu < m->ngpus; gpu++) {
        m->srcs[gpu] = m->dsts[gpu] = place_of_gpu(b, gpu);
        m->src_counts[gpu] = m->dst_counts[gpu] = count_of_gpu(b, gpu);
    }
}

/* ---------------------------------------------------------------------------------------------- all_gather */

/* All pieces of this GPU to its leader, those of all GPUs to all leaders, and all of it to all ranks. */
static tutti_status gather_round(const blocks *b) {
    tutti_mixed *m = b->m;
    int rank = b->comm->rank;
    list_own_gpu(b);
    const char *own = tutti_op_input(b->comm, b->op, rank).data;
    TUTTI_TRY(tutti_mixed_within(m, b->call,
                                 (tutti_op){.kind = TUTTI_KIND_GATHER_V,
                                            .src = own != NULL ? own + b->at * b->item_bytes : NULL,
                                            .count = piece_count(b, rank),
                                            .dsts = m->dsts,
                                            .dst_counts = m->dst_counts}));
    list_gpus(b);
    TUTTI_TRY(tutti_mixed_between(m, b->call,
                                  (tutti_op){.kind = TUTTI_KIND_ALL_GATHER_V,
                                             .src = place_of_gpu(b, m->gpu),
                                             .count = count_of_gpu(b, m->gpu),
                                             .dsts = m->dsts,
                                             .dst_counts = m->dst_counts}));
    TUTTI_TRY(tutti_mixed_within(
        m, b->call,
        (tutti_op){.kind = TUTTI_KIND_BROADCAST, .src = m->scratch, .dst = m->scratch, .count = count_of_all(b)}));
    return copy_blocks(b, /* into scratch */ false);
}

tutti_status tutti_mixed_all_gather(tutti_comm *comm, const tutti_stream_call *call) {
    blocks b = begin(comm, call, call->op->dst_counts);
    do {
        lay_out_round(&b);
        TUTTI_TRY(gather_round(&b));
        b.at += b.most;
    } while (b.at < longest(&b));
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ reduce_scatter */

/* All ranks' inputs summed up on their leader, each GPU's part of the sums to its leader, and to each rank its own. */
static tutti_status reduce_round(const blocks *b) {
    tutti_mixed *m = b->m;
    const tutti_op *op = b->op;
    char *own = place_of_gpu(b, m->gpu);
    size_t own_count = count_of_gpu(b, m->gpu);
    TUTTI_TRY(copy_blocks(b, /* into scratch */ true));
    TUTTI_TRY(tutti_mixed_within(m, b->call,
                                 (tutti_op){.kind = TUTTI_KIND_REDUCE,
                                            .reduction = tutti_mixed_reduction_within(op),
                                            .src = m->scratch,
                                            .dst = m->scratch,
                                            .count = count_of_all(b)}));
    list_gpus(b);
    TUTTI_TRY(tutti_mixed_between(m, b->call,
                                  (tutti_op){.kind = TUTTI_KIND_REDUCE_SCATTER_V,
                                             .reduction = tutti_mixed_reduction_between(op),
                                             .srcs = m->srcs,
                                             .src_counts = m->src_counts,
                                             .dst = own,
                                             .count = own_count}));
    TUTTI_TRY(tutti_mixed_divide(b->comm, b->call, own, own_count));
    list_own_gpu(b);
    return tutti_mixed_within(m, b->call,
                              (tutti_op){.kind = TUTTI_KIND_SCATTER_V,
                                         .srcs = m->srcs,
                                         .src_counts = m->src_counts,
                                         .dst = op->dst != NULL ? (char *)op->dst + b->at * b->item_bytes : NULL,
                                         .count = piece_count(b, b->comm->rank)});
}

tutti_status tutti_mixed_reduce_scatter(tutti_comm *comm, const tutti_stream_call *call) {
    blocks b = begin(comm, call, call->op->src_counts);
    do {
        lay_out_round(&b);
        TUTTI_TRY(reduce_round(&b));
        b.at += b.most;
    } while (b.at < longest(&b));
    return TUTTI_OK;
}
