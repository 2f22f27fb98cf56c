/*
 * broadcast by a binomial tree, for short vectors: log2(n) steps, rounded up. Ranks are numbered from the root on;
 * the parent of v is v without its lowest set bit, and each child of v is v plus one lower bit.
 *
 *        0
 *      / | \
 *     4  2  1        children with the longest branches first
 *    /|  |
 *   6 5  3
 *   |
 *   7
 */
#include "comm/net/coll/rail_call.h"

static int number_of(const tutti_rail_call *call) {
    return tutti_rail_next(call, call->rail->me, -call->root);
}

static int rank_of(const tutti_rail_call *call, int number) {
    return tutti_rail_next(call, number, call->root);
}

/* The bit that leads to the parent; for the root, a bit beyond all numbers. */
static int bit_of(const tutti_rail_call *call) {
    int bit = 1;
    while (bit < call->rail->n && (number_of(call) & bit) == 0) bit *= 2;
    return bit;
}

tutti_status tutti_tree_broadcast(tutti_rail_call *call) {
    const tutti_rail *rail = call->rail;
    tutti_rail_block whole = call->receives[0];
    int number = number_of(call), bit = bit_of(call);
    if (number > 0) TUTTI_TRY(tutti_link_recv(rail, rank_of(call, number - bit), whole.data, whole.bytes));
    for (int step = bit / 2; step > 0; step /= 2)
        if (number + step < rail->n)
            TUTTI_TRY(tutti_link_send(rail, rank_of(call, number + step), whole.data, whole.bytes));
    return TUTTI_OK;
}
