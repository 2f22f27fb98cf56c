/*
 * Binomial trees, for short vectors: log2(n) steps, rounded up. Ranks are numbered from the root on; the parent of v is v
 * without its lowest bit, and its children have one bit more below that.
 *
 *        0
 *      / | \
 *     4  2  1        broadcast: children with the longest branches first
 *    /|  |           reduce: the other way round; a rank adds its children to its own as they come
 *   6 5  3
 *   |
 *   7
 *
 * all_reduce: to rank 0 and back. The order of sums is not the rail's.
 */
#include "comm/algorithms/rail_call.h"

size_t tutti_tree_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)n, (void)piece_bytes;
    return tutti_rail_room(bytes);
}

static int number_of(const tutti_rail_call *call) {
    return tutti_rail_next(call, call->rail->me, -call->root);
}

static int rank_of(const tutti_rail_call *call, int number) {
    return tutti_rail_next(call, number, call->root);
}

/* The bit that leads to the parent; for the root one that is too large. */
static int bit_of(const tutti_rail_call *call) {
    int bit = 1;
    while (bit < call->rail->n && (number_of(call) & bit) == 0) bit *= 2;
    return bit;
}

static tutti_status spread(const tutti_rail_call *call, void *data, size_t bytes) {
    const tutti_rail *rail = call->rail;
    int number = number_of(call), bit = bit_of(call);
    if (number > 0) TUTTI_TRY(tutti_link_recv(rail, rank_of(call, number - bit), data, bytes));
    for (int step = bit / 2; step > 0; step /= 2)
        if (number + step < rail->n) TUTTI_TRY(tutti_link_send(rail, rank_of(call, number + step), data, bytes));
    return TUTTI_OK;
}

/* The sums of the children, and this rank's input, come together in acc; at the root it is the result. */
static tutti_status gather_sum(const tutti_rail_call *call, char *acc) {
    const tutti_rail *rail = call->rail;
    const tutti_rail_vector *v = &call->vector;
    int number = number_of(call), bit = bit_of(call);
    bool is_leaf = bit == 1 || number + 1 >= rail->n;
    if (!is_leaf) tutti_rail_copy(acc, v->src, call->bytes);
    for (int step = 1; step < bit && number + step < rail->n; step *= 2)
        TUTTI_TRY(tutti_link_recv_reduce(rail, rank_of(call, number + step), acc, v->count, tutti_rail_fold_of(v)));
    if (number == 0) {
        tutti_rail_divide(v, acc, call->bytes);
        return TUTTI_OK;
    }
    return tutti_link_send(rail, rank_of(call, number - bit), is_leaf ? v->src : acc, call->bytes);
}

tutti_status tutti_tree_broadcast(tutti_rail_call *call) {
    return spread(call, call->receives[0].data, call->receives[0].bytes);
}

tutti_status tutti_tree_reduce(tutti_rail_call *call) {
    char *scratch = tutti_rail_take(call, call->bytes);
    return gather_sum(call, call->rail->me == call->root ? call->vector.dst : scratch);
}

tutti_status tutti_tree_all_reduce(tutti_rail_call *call) {
    TUTTI_TRY(gather_sum(call, call->vector.dst));
    return spread(call, call->vector.dst, call->bytes);
}
