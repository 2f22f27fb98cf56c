/*
 * Data is only moved, and all ranks send to all others at once: one step, and each byte takes the shortest way.
 * With many ranks and long blocks, a ring or pairs load the network more evenly: here all senders of a rank send to
 * it at the same time.
 *
 * all_to_all moves in pieces on all ranks, since it may be in place on some of them: transfers must have equal
 * sizes on both sides.
 *
 * broadcast of long vectors: the root sends each rank a slice, and all ranks send their slices to all others (van
 * de Geijn): two steps in which no rank sends more than the vector.
 */
#include <string.h>

#include "comm/base/slice.h"
#include "comm/net/coll/rail_call.h"

size_t tutti_direct_all_to_all_scratch(int n, size_t bytes, size_t piece_bytes) {
    size_t copies = (size_t)(n - 1) * tutti_rail_room(tutti_min_size(bytes, piece_bytes)); /* used in place */
    return tutti_direct_move_scratch(n, bytes, piece_bytes) + copies;
}

size_t tutti_direct_move_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)bytes, (void)piece_bytes;
    return tutti_rail_room(2 * (size_t)n * sizeof(tutti_link_part));
}

static void add(tutti_link_part *parts, int *nparts, int rank, bool sends, tutti_rail_block block) {
    parts[(*nparts)++] = (tutti_link_part){.rank = rank, .sends = sends, .data = block.data, .bytes = block.bytes};
}

/* ------------------------------------------------------------------------------- all_gather, gather, scatter */

/* The block that this rank sends to `rank`, and the one that it receives from it: 0 bytes if there is none. */
static tutti_rail_block sent_to(const tutti_rail_call *call, int rank) {
    switch (call->kind) {
    case TUTTI_KIND_ALL_GATHER: return call->receives[call->rail->me];
    case TUTTI_KIND_GATHER: return rank == call->root ? call->own : (tutti_rail_block){0};
    default: return call->rail->me == call->root ? call->sends[rank] : (tutti_rail_block){0};
    }
}

static tutti_rail_block received_from(const tutti_rail_call *call, int rank) {
    switch (call->kind) {
    case TUTTI_KIND_ALL_GATHER: return call->receives[rank];
    case TUTTI_KIND_GATHER: return call->rail->me == call->root ? call->receives[rank] : (tutti_rail_block){0};
    default: return rank == call->root ? call->own : (tutti_rail_block){0};
    }
}

tutti_status tutti_direct_move(tutti_rail_call *call) {
    int n = call->rail->n, me = call->rail->me, nparts = 0;
    tutti_link_part *parts = tutti_rail_take(call, 2 * (size_t)n * sizeof *parts);
    for (int i = 1; i < n; i++) {
        int to = tutti_rail_next(call, me, i), from = tutti_rail_next(call, me, -i);
        add(parts, &nparts, to, true, sent_to(call, to));
        add(parts, &nparts, from, false, received_from(call, from));
    }
    return tutti_rail_move(call, parts, nparts, NULL);
}

/* ---------------------------------------------------------------------------------------------------- all_to_all */

static tutti_rail_block piece_of(tutti_rail_block block, size_t piece_bytes, size_t k) {
    tutti_rail_piece piece = tutti_rail_piece_of(block.bytes, piece_bytes, k);
    return (tutti_rail_block){.data = tutti_rail_at(block.data, piece.start), .bytes = piece.bytes};
}

/* Moves piece k of all blocks. In place, arriving data would overwrite data still to be sent: `copies` holds that. */
static tutti_status move_pieces(const tutti_rail_call *call, tutti_link_part *parts, char *copies, size_t k) {
    int n = call->rail->n, me = call->rail->me, nparts = 0;
    size_t room = tutti_rail_room(tutti_min_size(call->bytes, call->piece_bytes));
    for (int i = 1; i < n; i++) {
        int to = tutti_rail_next(call, me, i), from = tutti_rail_next(call, me, -i);
        tutti_rail_block out = piece_of(call->sends[to], call->piece_bytes, k);
        if (out.bytes > 0 && call->sends[to].data == call->receives[to].data)
            out.data = memcpy(copies + (size_t)(i - 1) * room, out.data, out.bytes);
        add(parts, &nparts, to, true, out);
        add(parts, &nparts, from, false, piece_of(call->receives[from], call->piece_bytes, k));
    }
    return tutti_rail_move(call, parts, nparts, NULL);
}

tutti_status tutti_direct_all_to_all(tutti_rail_call *call) {
    size_t n = (size_t)call->rail->n;
    tutti_link_part *parts = tutti_rail_take(call, 2 * n * sizeof *parts);
    char *copies = tutti_rail_take(call, (n - 1) * tutti_rail_room(tutti_min_size(call->bytes, call->piece_bytes)));
    size_t npieces = tutti_rail_pieces(call->bytes, call->piece_bytes);
    for (size_t k = 0; k < npieces; k++) TUTTI_TRY(move_pieces(call, parts, copies, k));
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------------- broadcast */

static tutti_rail_block slice_of(const tutti_rail_call *call, int rank) {
    tutti_rail_block whole = call->receives[0];
    tutti_slice slice = tutti_slice_of(whole.bytes, 1, call->rail->n, rank);
    return (tutti_rail_block){.data = tutti_rail_at(whole.data, slice.start), .bytes = slice.count};
}

tutti_status tutti_direct_broadcast(tutti_rail_call *call) {
    int n = call->rail->n, me = call->rail->me, root = call->root, nparts = 0;
    tutti_link_part *parts = tutti_rail_take(call, 2 * (size_t)n * sizeof *parts);
    for (int rank = 0; rank < n && me == root; rank++)
        if (rank != root) add(parts, &nparts, rank, true, slice_of(call, rank));
    if (me != root) add(parts, &nparts, root, false, slice_of(call, me));
    TUTTI_TRY(tutti_rail_move(call, parts, nparts, NULL));
    nparts = 0;
    for (int i = 1; i < n; i++) {
        int to = tutti_rail_next(call, me, i), from = tutti_rail_next(call, me, -i);
        if (to != root) add(parts, &nparts, to, true, slice_of(call, me));
        if (me != root) add(parts, &nparts, from, false, slice_of(call, from));
    }
    return tutti_rail_move(call, parts, nparts, NULL);
}
