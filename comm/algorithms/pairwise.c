/*
 * all_to_all by pairs: in each round every rank exchanges blocks with one partner, and everybody has another one, as in a
 * tournament. So each link is used by one pair at a time, and blocks may change places: who exchanges in place keeps a copy of
 * a piece of what he sends.
 *
 * Rounds: ranks r and p meet in round (r + p) mod m, m = n or, for an even n, n-1; the rank that would meet itself has a
 * free round, or meets rank n-1.
 *
 * Blocks move in pieces on all ranks, since the other side may be in place: transfers must be of equal size on both.
 */
#include <string.h>

#include "comm/algorithms/rail_call.h"

size_t tutti_pairwise_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)n;
    return tutti_rail_room(tutti_min_size(bytes, piece_bytes));
}

/* Whom `rank` meets in a round; itself: nobody. */
static int partner_in(int n, int round, int rank) {
    int m = n % 2 == 0 ? n - 1 : n;
    if (n % 2 == 0 && rank == n - 1) return (int)((long)round * (n / 2) % m); /* whose double is `round` */
    int partner = ((round - rank) % m + m) % m;
    return partner == rank && n % 2 == 0 ? n - 1 : partner;
}

/* Piece by piece; through `copy` where what is sent lies where something else is to come. */
static tutti_status swap(const tutti_rail_call *call, int peer, char *copy) {
    tutti_rail_block sent = call->sends[peer], received = call->receives[peer];
    size_t npieces = tutti_rail_pieces(tutti_max_size(sent.bytes, received.bytes), call->piece_bytes);
    for (size_t k = 0; k < npieces; k++) {
        tutti_rail_piece out = tutti_rail_piece_of(sent.bytes, call->piece_bytes, k);
        tutti_rail_piece in = tutti_rail_piece_of(received.bytes, call->piece_bytes, k);
        char *src = tutti_rail_at(sent.data, out.start), *dst = tutti_rail_at(received.data, in.start);
        if (sent.data == received.data && out.bytes > 0) src = memcpy(copy, src, out.bytes);
        tutti_link_part parts[2] = {{.rank = peer, .sends = true, .data = src, .bytes = out.bytes},
                                    {.rank = peer, .data = dst, .bytes = in.bytes}};
        TUTTI_TRY(tutti_rail_move(call, parts, 2, NULL));
    }
    return TUTTI_OK;
}

tutti_status tutti_pairwise_all_to_all(tutti_rail_call *call) {
    int n = call->rail->n, me = call->rail->me, rounds = n % 2 == 0 ? n - 1 : n;
    char *copy = tutti_rail_take(call, tutti_min_size(call->bytes, call->piece_bytes));
    for (int round = 0; round < rounds; round++) {
        int peer = partner_in(n, round, me);
        if (peer != me) TUTTI_TRY(swap(call, peer, copy));
    }
    return TUTTI_OK;
}
