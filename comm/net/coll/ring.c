/*
 * Rings: each rank sends only to the next one and receives from the one before, so no two streams share a link.
 *
 *   all_gather       n-1 steps; in step s block me-s is sent on while block me-s-1 arrives
 *   reduce_scatter   n-1 steps; in step s the partial sum of segment me-s-1 is sent on while that of segment me-s-2
 *                    arrives and is added to this rank's own; so segment i starts at rank i+1 and ends, complete,
 *                    at rank i
 *   all_reduce       both: 2 (n-1)/n of the vector leave each rank
 *   broadcast        a chain that begins at the root: piece k-1 is sent on while piece k arrives
 *
 * The sum of segment i begins with rank i+1: for floats, this is another order than the rail's.
 *
 * Source: Patarasu, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
 */
#include <string.h>

#include "comm/net/coll/rail_call.h"

size_t tutti_ring_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)n, (void)piece_bytes;
    return 2 * tutti_rail_room(bytes); /* reduce_scatter: two partial sums; the others: nothing */
}

static int next(const tutti_rail_call *call) {
    return tutti_rail_next(call, call->rail->me, 1);
}

static int before(const tutti_rail_call *call) {
    return tutti_rail_next(call, call->rail->me, -1);
}

tutti_status tutti_ring_all_gather(tutti_rail_call *call) {
    const tutti_rail *rail = call->rail;
    for (int s = 0; s < rail->n - 1; s++) {
        int sent = tutti_rail_next(call, rail->me, -s), received = tutti_rail_next(call, rail->me, -s - 1);
        const tutti_rail_block *out = &call->receives[sent], *in = &call->receives[received];
        TUTTI_TRY(tutti_link_exchange(rail, next(call), out->data, out->bytes, before(call), in->data, in->bytes));
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ reduce_scatter */

/* One step: sends `sent` to the next rank; adds the partial sum of the rank before to acc, this rank's input. */
static tutti_status pass_sum(const tutti_rail_call *call, tutti_rail_block sent, tutti_rail_block acc) {
    size_t item_bytes = tutti_type_bytes(call->vector.type);
    return tutti_link_exchange_reduce(call->rail, next(call), sent.data, sent.bytes, before(call), acc.data,
                                      acc.bytes / item_bytes, tutti_rail_fold_of(&call->vector));
}

static tutti_rail_block segment_of(const tutti_rail_call *call, int rank) {
    return (tutti_rail_block){.data = (void *)call->srcs[rank],
                              .bytes = call->counts[rank] * tutti_type_bytes(call->vector.type)};
}

tutti_status tutti_ring_reduce_scatter(tutti_rail_call *call) {
    int n = call->rail->n, me = call->rail->me;
    char *sums[2] = {tutti_rail_take(call, call->bytes), tutti_rail_take(call, call->bytes)};
    tutti_rail_block sent = segment_of(call, tutti_rail_next(call, me, -1));
    for (int s = 0; s < n - 1; s++) {
        tutti_rail_block own = segment_of(call, tutti_rail_next(call, me, -s - 2));
        tutti_rail_block acc = {.data = s == n - 2 ? call->vector.dst : sums[s % 2], .bytes = own.bytes};
        tutti_rail_copy(acc.data, own.data, own.bytes);
        TUTTI_TRY(pass_sum(call, sent, acc));
        sent = acc;
    }
    tutti_rail_divide(&call->vector, call->vector.dst, sent.bytes);
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------------- all_reduce */

/* Slice `rank` of the result. */
static tutti_rail_block slice_of(const tutti_rail_call *call, int rank) {
    tutti_rail_piece slice = tutti_rail_slice(call, rank);
    return (tutti_rail_block){.data = tutti_rail_at(call->vector.dst, slice.start), .bytes = slice.bytes};
}

static tutti_rail_block begin_slice(const tutti_rail_call *call, int rank) {
    tutti_rail_block slice = slice_of(call, rank);
    const void *input = tutti_rail_at(call->vector.src, tutti_rail_slice(call, rank).start);
    tutti_rail_copy(slice.data, input, slice.bytes);
    return slice;
}

tutti_status tutti_ring_all_reduce(tutti_rail_call *call) {
    const tutti_rail *rail = call->rail;
    tutti_rail_block sent = begin_slice(call, before(call));
    for (int s = 0; s < rail->n - 1; s++) {
        tutti_rail_block acc = begin_slice(call, tutti_rail_next(call, rail->me, -s - 2));
        TUTTI_TRY(pass_sum(call, sent, acc));
        sent = acc;
    }
    tutti_rail_divide(&call->vector, sent.data, sent.bytes);
    for (int s = 0; s < rail->n - 1; s++) {
        tutti_rail_block in = slice_of(call, tutti_rail_next(call, rail->me, -s - 1));
        TUTTI_TRY(tutti_link_exchange(rail, next(call), sent.data, sent.bytes, before(call), in.data, in.bytes));
        sent = in;
    }
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------------- broadcast */

tutti_status tutti_ring_broadcast(tutti_rail_call *call) {
    tutti_rail_block whole = call->receives[0];
    bool is_first = call->rail->me == call->root, is_last = next(call) == call->root;
    size_t npieces = tutti_rail_pieces(whole.bytes, call->piece_bytes);
    for (size_t k = 0; k <= npieces; k++) {
        tutti_rail_piece in = {0}, out = {0};
        if (!is_first) in = tutti_rail_piece_of(whole.bytes, call->piece_bytes, k);
        if (!is_last && k > 0) out = tutti_rail_piece_of(whole.bytes, call->piece_bytes, k - 1);
        tutti_link_part parts[2] = {
            {.rank = before(call), .data = tutti_rail_at(whole.data, in.start), .bytes = in.bytes},
            {.rank = next(call), .sends = true, .data = tutti_rail_at(whole.data, out.start), .bytes = out.bytes},
        };
        TUTTI_TRY(tutti_rail_move(call, parts, 2, NULL));
    }
    return TUTTI_OK;
}
