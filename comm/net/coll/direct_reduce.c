/*
 * Reductions in which all ranks send to all others at once; a rank that has all inputs adds them in the order of
 * the rail.
 *
 *   whole    each rank receives the others' whole vectors and adds all of it. One step. For short vectors, and for two
 *            ranks, where it moves no more than slices do.
 *   sliced   rank i receives the others' slice i, adds it, and sends the result to all (all_reduce), to the root
 *            (reduce), or keeps it (reduce_scatter). 2 (n-1)/n of the vector leave each rank, as with a ring, in
 *            two steps instead of 2 (n-1).
 *
 * Both work in pieces, so that inputs are in a cache when they are added; piece k-1 is added while piece k moves:
 *
 *   step k:  inputs of piece k move  |  piece k-1 is added;  then its results move (sliced)
 *
 * In place: an input is sent before the result overwrites it, since the results of a piece move one step after its
 * inputs.
 */
#include "comm/net/coll/rail_call.h"

typedef struct direct {
    tutti_rail_call *call;
    int n, me;
    size_t piece_bytes; /* per sender */
    size_t npieces;
    bool adds, sends; /* whether this rank gets a result, and whether it sends inputs (whole) */
    tutti_link_part *parts;
    const void **views;
    char *inputs; /* [2][n - 1] pieces */
    char *result; /* one piece, for results that this rank does not keep */
    tutti_rail_adding adding;
} direct;

/* The inputs of one step add up to one piece. */
static size_t share_of_piece(int n, size_t piece_bytes) {
    size_t share = piece_bytes / (size_t)(n > 1 ? n - 1 : 1) / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
    return tutti_max_size(share, TUTTI_CACHE_LINE);
}

size_t tutti_direct_reduce_scratch(int n, size_t bytes, size_t piece_bytes) {
    size_t ranks = (size_t)n, share = tutti_min_size(share_of_piece(n, piece_bytes), tutti_rail_room(bytes));
    return tutti_rail_room(2 * ranks * sizeof(tutti_link_part)) + tutti_rail_room(ranks * sizeof(void *)) +
           tutti_rail_room(2 * (ranks - 1) * share) + tutti_rail_room(share);
}

/* `most_bytes`: the most that one rank sends to another. */
static direct begin(tutti_rail_call *call, size_t most_bytes) {
    size_t share = tutti_min_size(share_of_piece(call->rail->n, call->piece_bytes), tutti_rail_room(call->bytes));
    direct d = {.call = call, .n = call->rail->n, .me = call->rail->me, .piece_bytes = share};
    d.npieces = share > 0 ? tutti_rail_pieces(most_bytes, share) : 0;
    d.parts = tutti_rail_take(call, 2 * (size_t)d.n * sizeof *d.parts);
    d.views = tutti_rail_take(call, (size_t)d.n * sizeof *d.views);
    d.inputs = tutti_rail_take(call, 2 * (size_t)(d.n - 1) * share);
    d.result = tutti_rail_take(call, share);
    return d;
}

/* Where the input of `rank` for piece k is received. */
static char *input_of(const direct *d, int rank, size_t k) {
    size_t index = (size_t)(rank < d->me ? rank : rank - 1);
    return d->inputs + ((k % 2) * (size_t)(d->n - 1) + index) * d->piece_bytes;
}

/* Prepares the addition of the inputs received in step k; `own`: this rank's input. */
static void prepare(direct *d, size_t k, const void *own, char *dst, size_t bytes) {
    for (int rank = 0; rank < d->n; rank++) d->views[rank] = rank == d->me ? own : input_of(d, rank, k);
    d->adding =
        (tutti_rail_adding){.vector = &d->call->vector, .views = d->views, .nviews = d->n, .dst = dst, .left = bytes};
}

/* ------------------------------------------------------------------------------------------------------ whole */

static int list_whole(const direct *d, tutti_rail_piece piece, size_t k) {
    const tutti_rail_call *call = d->call;
    int nparts = 0;
    for (int i = 1; i < d->n; i++) {
        int to = tutti_rail_next(call, d->me, i), from = tutti_rail_next(call, d->me, -i);
        void *input = tutti_rail_at(call->vector.src, piece.start);
        if (call->kind == TUTTI_KIND_ALL_REDUCE || to == call->root)
            d->parts[nparts++] = (tutti_link_part){.rank = to, .sends = true, .data = input, .bytes = piece.bytes};
        if (d->adds)
            d->parts[nparts++] = (tutti_link_part){.rank = from, .data = input_of(d, from, k), .bytes = piece.bytes};
    }
    return nparts;
}

tutti_status tutti_direct_whole(tutti_rail_call *call) {
    size_t bytes = call->vector.count * tutti_type_bytes(call->vector.type);
    direct d = begin(call, bytes);
    d.adds = call->kind == TUTTI_KIND_ALL_REDUCE || d.me == call->root;
    const tutti_link_work adding = {.some = tutti_rail_add_some, .context = &d.adding};
    const tutti_link_work *work = NULL;
    for (size_t k = 0; k < d.npieces; k++) {
        tutti_rail_piece piece = tutti_rail_piece_of(bytes, d.piece_bytes, k);
        TUTTI_TRY(tutti_rail_move(call, d.parts, list_whole(&d, piece, k), work));
        if (!d.adds) continue;
        prepare(&d, k, tutti_rail_at(call->vector.src, piece.start), (char *)call->vector.dst + piece.start,
                piece.bytes);
        work = &adding;
    }
    return tutti_rail_move(call, NULL, 0, work);
}

/* ----------------------------------------------------------------------------------------------------- sliced */

/* This rank's input for `rank`, and where the result of `rank` goes, if this rank receives it. */
typedef struct segment {
    char *src, *dst;
    size_t bytes;
} segment;

static segment segment_of(const tutti_rail_call *call, int rank) {
    if (call->kind == TUTTI_KIND_REDUCE_SCATTER)
        return (segment){.src = (char *)call->srcs[rank],
                         .dst = call->vector.dst,
                         .bytes = call->counts[rank] * tutti_type_bytes(call->vector.type)};
    tutti_rail_piece slice = tutti_rail_slice(call, rank);
    bool has_output = call->kind == TUTTI_KIND_ALL_REDUCE || call->rail->me == call->root;
    return (segment){.src = tutti_rail_at(call->vector.src, slice.start),
                     .dst = has_output ? tutti_rail_at(call->vector.dst, slice.start) : NULL,
                     .bytes = slice.bytes};
}

static int list_inputs(const direct *d, size_t k) {
    int nparts = 0;
    segment own = segment_of(d->call, d->me);
    size_t own_bytes = tutti_rail_piece_of(own.bytes, d->piece_bytes, k).bytes;
    for (int i = 1; i < d->n; i++) {
        int to = tutti_rail_next(d->call, d->me, i), from = tutti_rail_next(d->call, d->me, -i);
        segment theirs = segment_of(d->call, to);
        tutti_rail_piece piece = tutti_rail_piece_of(theirs.bytes, d->piece_bytes, k);
        d->parts[nparts++] = (tutti_link_part){
            .rank = to, .sends = true, .data = tutti_rail_at(theirs.src, piece.start), .bytes = piece.bytes};
        d->parts[nparts++] = (tutti_link_part){.rank = from, .data = input_of(d, from, k), .bytes = own_bytes};
    }
    return nparts;
}

/* Where this rank's result of piece k is written. */
static char *result_of(const direct *d, size_t k) {
    segment own = segment_of(d->call, d->me);
    return own.dst != NULL ? own.dst + tutti_rail_piece_of(own.bytes, d->piece_bytes, k).start : d->result;
}

static int list_results(const direct *d, size_t k) {
    const tutti_rail_call *call = d->call;
    if (call->kind == TUTTI_KIND_REDUCE_SCATTER) return 0;
    bool to_all = call->kind == TUTTI_KIND_ALL_REDUCE;
    int nparts = 0;
    size_t own_bytes = tutti_rail_piece_of(segment_of(call, d->me).bytes, d->piece_bytes, k).bytes;
    for (int i = 1; i < d->n; i++) {
        int to = tutti_rail_next(call, d->me, i), from = tutti_rail_next(call, d->me, -i);
        if (to_all || to == call->root)
            d->parts[nparts++] =
                (tutti_link_part){.rank = to, .sends = true, .data = result_of(d, k), .bytes = own_bytes};
        if (!to_all && d->me != call->root) continue;
        segment theirs = segment_of(call, from);
        tutti_rail_piece piece = tutti_rail_piece_of(theirs.bytes, d->piece_bytes, k);
        d->parts[nparts++] =
            (tutti_link_part){.rank = from, .data = tutti_rail_at(theirs.dst, piece.start), .bytes = piece.bytes};
    }
    return nparts;
}

static size_t largest_segment(const tutti_rail_call *call) {
    size_t largest = 0;
    for (int rank = 0; rank < call->rail->n; rank++) largest = tutti_max_size(largest, segment_of(call, rank).bytes);
    return largest;
}

tutti_status tutti_direct_sliced(tutti_rail_call *call) {
    direct d = begin(call, largest_segment(call));
    segment own = segment_of(call, d.me);
    const tutti_link_work adding = {.some = tutti_rail_add_some, .context = &d.adding};
    for (size_t k = 0; k <= d.npieces; k++) {
        int nparts = k < d.npieces ? list_inputs(&d, k) : 0;
        TUTTI_TRY(tutti_rail_move(call, d.parts, nparts, k > 0 ? &adding : NULL));
        if (k > 0) TUTTI_TRY(tutti_rail_move(call, d.parts, list_results(&d, k - 1), NULL));
        tutti_rail_piece piece = tutti_rail_piece_of(own.bytes, d.piece_bytes, k);
        prepare(&d, k, tutti_rail_at(own.src, piece.start), result_of(&d, k), piece.bytes);
    }
    return TUTTI_OK;
}
