/*
 * The calls on a rail: each fills a tutti_rail_call and runs the algorithm that the table selects. See rail.h.
 *
 * With one rank there is nothing to move. Calls of 0 bytes move nothing either, but kinds in which every rank needs
 * data of all others still synchronize, so that calls that differ are found.
 */
#include "comm/net/coll/rail.h"

#include <assert.h>

#include "comm/net/coll/rail_call.h"

static tutti_rail_call make_call(const tutti_rail *rail, const tutti_rail_setup *setup, tutti_kind kind, size_t bytes) {
    assert(setup->table->n == rail->n);
    return (tutti_rail_call){.rail = rail,
                             .kind = kind,
                             .bytes = bytes,
                             .piece_bytes = setup->table->piece_bytes,
                             .scratch = setup->scratch,
                             .scratch_bytes = setup->scratch_bytes};
}

/* Integers, bool, minimum and maximum give the same result in any order, and so does a sum of two. But sums and
 * means of small floats are rounded once, so they need an algorithm that has all inputs when it adds. */
static tutti_rail_order order_of(const tutti_rail *rail, const tutti_rail_vector *vector) {
    bool is_float = vector->type > TUTTI_BOOL;
    bool is_small = is_float && vector->type != TUTTI_FLOAT32 && vector->type != TUTTI_FLOAT64;
    if (!is_float || vector->reduction == TUTTI_MIN || vector->reduction == TUTTI_MAX) return TUTTI_RAIL_ANY_ORDER;
    if (is_small && (rail->n > 2 || vector->reduction == TUTTI_AVG)) return TUTTI_RAIL_ALL_TOGETHER;
    return rail->n > 2 ? TUTTI_RAIL_IN_PAIRS : TUTTI_RAIL_ANY_ORDER;
}

tutti_status tutti_rail_barrier(const tutti_rail *rail, const tutti_rail_setup *setup) {
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_BARRIER, 0);
    return tutti_rail_choose_and_run(setup->table, TUTTI_KIND_BARRIER, TUTTI_RAIL_ANY_ORDER, &call);
}

tutti_status tutti_rail_broadcast(const tutti_rail *rail, const tutti_rail_setup *setup, int root, void *buffer,
                                  size_t bytes) {
    if (rail->n == 1 || bytes == 0) return TUTTI_OK;
    const tutti_rail_block whole = {.data = buffer, .bytes = bytes};
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_BROADCAST, bytes);
    call.root = root;
    call.receives = &whole;
    return tutti_rail_choose_and_run(setup->table, call.kind, TUTTI_RAIL_ANY_ORDER, &call);
}

/* ------------------------------------------------------------------------------------------------------ reducing */

static tutti_status reduce_alone(const tutti_rail_vector *vector, const void *src, size_t bytes) {
    if (bytes > 0) tutti_rail_reduce_now(vector, vector->dst, &src, 1, bytes);
    return TUTTI_OK;
}

tutti_status tutti_rail_all_reduce(const tutti_rail *rail, const tutti_rail_setup *setup,
                                   const tutti_rail_vector *vector) {
    size_t bytes = vector->count * tutti_type_bytes(vector->type);
    if (rail->n == 1) return reduce_alone(vector, vector->src, bytes);
    if (bytes == 0) return tutti_rail_barrier(rail, setup);
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_ALL_REDUCE, bytes);
    call.vector = *vector;
    return tutti_rail_choose_and_run(setup->table, call.kind, order_of(rail, vector), &call);
}

tutti_status tutti_rail_reduce(const tutti_rail *rail, const tutti_rail_setup *setup, int root,
                               const tutti_rail_vector *vector) {
    size_t bytes = vector->count * tutti_type_bytes(vector->type);
    if (rail->n == 1) return reduce_alone(vector, vector->src, bytes);
    if (bytes == 0) return TUTTI_OK;
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_REDUCE, bytes);
    call.vector = *vector;
    call.root = root;
    return tutti_rail_choose_and_run(setup->table, call.kind, order_of(rail, vector), &call);
}

tutti_status tutti_rail_reduce_scatter(const tutti_rail *rail, const tutti_rail_setup *setup, const void *const *srcs,
                                       const size_t *counts, const tutti_rail_vector *vector) {
    size_t item_bytes = tutti_type_bytes(vector->type), most = 0;
    for (int rank = 0; rank < rail->n; rank++) most = tutti_max_size(most, counts[rank] * item_bytes);
    if (rail->n == 1) return reduce_alone(vector, srcs[0], most);
    if (most == 0) return tutti_rail_barrier(rail, setup);
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_REDUCE_SCATTER, most);
    call.vector = *vector;
    call.srcs = srcs;
    call.counts = counts;
    return tutti_rail_choose_and_run(setup->table, call.kind, order_of(rail, vector), &call);
}

/* -------------------------------------------------------------------------------------------------------- moving */

static size_t largest(const tutti_rail *rail, const tutti_rail_block *blocks, bool but_own) {
    size_t most = 0;
    for (int rank = 0; rank < rail->n; rank++)
        if (!but_own || rank != rail->me) most = tutti_max_size(most, blocks[rank].bytes);
    return most;
}

tutti_status tutti_rail_all_gather(const tutti_rail *rail, const tutti_rail_setup *setup,
                                   const tutti_rail_block *blocks) {
    size_t most = largest(rail, blocks, false);
    if (rail->n == 1) return TUTTI_OK;
    if (most == 0) return tutti_rail_barrier(rail, setup);
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_ALL_GATHER, most);
    call.receives = blocks;
    return tutti_rail_choose_and_run(setup->table, call.kind, TUTTI_RAIL_ANY_ORDER, &call);
}

tutti_status tutti_rail_all_to_all(const tutti_rail *rail, const tutti_rail_setup *setup, const tutti_rail_block *sends,
                                   const tutti_rail_block *receives, bool uniform) {
    tutti_rail_copy(receives[rail->me].data, sends[rail->me].data, sends[rail->me].bytes);
    if (rail->n == 1) return TUTTI_OK;
    size_t most = tutti_max_size(largest(rail, sends, true), largest(rail, receives, true));
    if (uniform && most == 0) return tutti_rail_barrier(rail, setup);
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_ALL_TO_ALL, most);
    call.sends = sends;
    call.receives = receives;
    tutti_kind row_kind = uniform ? TUTTI_KIND_ALL_TO_ALL : TUTTI_KIND_ALL_TO_ALL_V;
    return tutti_rail_choose_and_run(setup->table, row_kind, TUTTI_RAIL_ANY_ORDER, &call);
}

/* gather and scatter have one algorithm each: the sizes are known only to the two ends. */
tutti_status tutti_rail_gather(const tutti_rail *rail, const tutti_rail_setup *setup, int root, tutti_rail_block own,
                               const tutti_rail_block *blocks) {
    if (rail->me == root) tutti_rail_copy(blocks[root].data, own.data, own.bytes);
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_GATHER, 0);
    call.root = root;
    call.own = own;
    call.receives = blocks;
    return tutti_direct_move(&call);
}

tutti_status tutti_rail_scatter(const tutti_rail *rail, const tutti_rail_setup *setup, int root, tutti_rail_block own,
                                const tutti_rail_block *blocks) {
    if (rail->me == root) tutti_rail_copy(own.data, blocks[root].data, own.bytes);
    tutti_rail_call call = make_call(rail, setup, TUTTI_KIND_SCATTER, 0);
    call.root = root;
    call.own = own;
    call.sends = blocks;
    return tutti_direct_move(&call);
}
