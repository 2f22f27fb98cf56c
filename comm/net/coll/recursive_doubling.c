/*
 * all_reduce and reduce by pairs of ranks: log2(n) steps instead of n-1, for many ranks.
 *
 *   doubling   in step k the partners at distance 2^k exchange whole vectors and add them: short vectors
 *   halving    (Rabenseifner) partners at distance 1, 2, 4, ... exchange halves, quarters, ... and add, until each rank
 *              has the sum of one slice; the way back collects: 2 (n-1)/n of the vector leave each rank
 *   tree       reduce: in step k one of the partners at distance 2^k sends its sum to the other, so that a binomial
 *              tree leads to the root
 *
 * If n is not a power of two, the first 2r ranks (r: n minus the largest power of two below n) form pairs: the odd ones
 * send their vector to the even ones, sit out, and receive the result. All add in the order of tutti_rail_pairs.
 *
 * Source: Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH (2005).
 */
#include "comm/base/slice.h"
#include "comm/net/coll/rail_call.h"

size_t tutti_doubling_scratch(int n, size_t bytes, size_t piece_bytes) {
    (void)n, (void)piece_bytes;
    return tutti_rail_room(bytes);
}

/* The ranks that take part in the steps are renumbered: 0 .. 2^k - 1. */
typedef struct team {
    tutti_rail_pairs pairs;
    int n;       /* members */
    int me;      /* -1: sits out */
    int partner; /* rank of the rail that sends or receives a whole vector; -1: none */
} team;

static team make_team(const tutti_rail *rail) {
    team t = {.pairs = tutti_rail_pair_up(rail->n), .partner = -1};
    t.n = t.pairs.members;
    if (rail->me >= 2 * t.pairs.extra) {
        t.me = rail->me - t.pairs.extra;
    } else {
        t.me = rail->me % 2 == 0 ? rail->me / 2 : -1;
        t.partner = rail->me ^ 1;
    }
    return t;
}

static int rank_of(const team *t, int member) {
    return tutti_rail_rank_of(t->pairs, member);
}

/* Before and after the steps, for ranks that sit out and their partners. acc gets the initial vector of a member. */
static tutti_status take_in(const tutti_rail_call *call, const team *t, void *acc) {
    const tutti_rail_vector *v = &call->vector;
    if (t->me < 0) return tutti_link_send(call->rail, t->partner, v->src, call->bytes);
    tutti_rail_copy(acc, v->src, call->bytes);
    if (t->partner < 0) return TUTTI_OK;
    return tutti_link_recv_reduce(call->rail, t->partner, acc, v->count, tutti_rail_fold_of(v));
}

static tutti_status give_out(const tutti_rail_call *call, const team *t) {
    if (t->partner < 0) return TUTTI_OK;
    if (t->me < 0) return tutti_link_recv(call->rail, t->partner, call->vector.dst, call->bytes);
    return tutti_link_send(call->rail, t->partner, call->vector.dst, call->bytes);
}

/* ------------------------------------------------------------------------------------------------------- doubling */

static tutti_status exchange_all(tutti_rail_call *call, const team *t, char *received) {
    tutti_rail_vector sum = call->vector;
    if (sum.reduction == TUTTI_AVG) sum.reduction = TUTTI_SUM;
    for (int distance = 1; distance < t->n; distance *= 2) {
        int peer = rank_of(t, t->me ^ distance);
        TUTTI_TRY(tutti_link_exchange(call->rail, peer, sum.dst, call->bytes, peer, received, call->bytes));
        bool is_lower = (t->me & distance) == 0;
        const void *views[2] = {is_lower ? sum.dst : received, is_lower ? received : sum.dst};
        tutti_rail_reduce_now(&sum, sum.dst, views, 2, call->bytes);
    }
    return TUTTI_OK;
}

tutti_status tutti_doubling_all_reduce(tutti_rail_call *call) {
    team t = make_team(call->rail);
    char *received = tutti_rail_take(call, call->bytes);
    TUTTI_TRY(take_in(call, &t, call->vector.dst));
    if (t.me >= 0) {
        TUTTI_TRY(exchange_all(call, &t, received));
        tutti_rail_divide(&call->vector, call->vector.dst, call->bytes);
    }
    return give_out(call, &t);
}

/* -------------------------------------------------------------------------------------------------------- halving */

/* Slices [first, first + count) of the team's n. */
static tutti_rail_block slices(const tutti_rail_call *call, const team *t, int first, int count) {
    size_t item_bytes = tutti_type_bytes(call->vector.type);
    tutti_slice from = tutti_slice_of(call->vector.count, item_bytes, t->n, first);
    tutti_slice to = tutti_slice_of(call->vector.count, item_bytes, t->n, first + count - 1);
    return (tutti_rail_block){.data = tutti_rail_at(call->vector.dst, from.start * item_bytes),
                              .bytes = (to.start + to.count - from.start) * item_bytes};
}

/* The first of the `count` slices that this rank keeps in runs of that length: the bits of `me`, lowest first. */
static int first_kept(const team *t, int count) {
    int first = 0;
    for (int distance = 1, half = t->n / 2; half >= count; distance *= 2, half /= 2)
        if ((t->me & distance) != 0) first += half;
    return first;
}

/* Neighbours exchange first, since sums are made of neighbours. */
static tutti_status halve(const tutti_rail_call *call, const team *t) {
    for (int distance = 1, count = t->n / 2; distance < t->n; distance *= 2, count /= 2) {
        int peer = rank_of(t, t->me ^ distance), first = first_kept(t, count);
        tutti_rail_block kept = slices(call, t, first, count), sent = slices(call, t, first ^ count, count);
        TUTTI_TRY(tutti_link_exchange_reduce(call->rail, peer, sent.data, sent.bytes, peer, kept.data,
                                             kept.bytes / tutti_type_bytes(call->vector.type),
                                             tutti_rail_fold_of(&call->vector)));
    }
    return TUTTI_OK;
}

static tutti_status collect(const tutti_rail_call *call, const team *t) {
    for (int distance = t->n / 2, count = 1; distance > 0; distance /= 2, count *= 2) {
        int peer = rank_of(t, t->me ^ distance), first = first_kept(t, count);
        tutti_rail_block kept = slices(call, t, first, count), other = slices(call, t, first ^ count, count);
        TUTTI_TRY(tutti_link_exchange(call->rail, peer, kept.data, kept.bytes, peer, other.data, other.bytes));
    }
    return TUTTI_OK;
}

tutti_status tutti_doubling_halving(tutti_rail_call *call) {
    team t = make_team(call->rail);
    TUTTI_TRY(take_in(call, &t, call->vector.dst));
    if (t.me >= 0) {
        TUTTI_TRY(halve(call, &t));
        tutti_rail_block own = slices(call, &t, first_kept(&t, 1), 1);
        tutti_rail_divide(&call->vector, own.data, own.bytes);
        TUTTI_TRY(collect(call, &t));
    }
    return give_out(call, &t);
}

/* ----------------------------------------------------------------------------------------------------------- tree */

/* Runs the tree among the members; `root` is the member that is the root or is paired with it. */
static tutti_status climb(const tutti_rail_call *call, const team *t, int root, char *acc) {
    for (int distance = 1; distance < t->n; distance *= 2) {
        int peer = rank_of(t, t->me ^ distance);
        if (((t->me ^ root) & distance) != 0) return tutti_link_send(call->rail, peer, acc, call->bytes);
        TUTTI_TRY(tutti_link_recv_reduce(call->rail, peer, acc, call->vector.count, tutti_rail_fold_of(&call->vector)));
    }
    tutti_rail_divide(&call->vector, acc, call->bytes);
    return TUTTI_OK;
}

tutti_status tutti_tree_reduce(tutti_rail_call *call) {
    team t = make_team(call->rail);
    bool is_root = call->rail->me == call->root, in_pair = call->root < 2 * t.pairs.extra;
    char *acc = tutti_rail_take(call, call->bytes);
    if (is_root) acc = call->vector.dst;
    TUTTI_TRY(take_in(call, &t, acc));
    if (t.me >= 0) TUTTI_TRY(climb(call, &t, in_pair ? call->root / 2 : call->root - t.pairs.extra, acc));
    if (!in_pair || call->root % 2 == 0) return TUTTI_OK;
    if (is_root) return tutti_link_recv(call->rail, t.partner, acc, call->bytes);
    return t.partner == call->root ? tutti_link_send(call->rail, call->root, acc, call->bytes) : TUTTI_OK;
}
