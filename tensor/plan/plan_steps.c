/*
 * Chooses the steps of a plan. See plan.h.
 */
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "tensor/plan/plan.h"

static tutti_status add_copy(tutti_plan *plan, tutti_route *route, const tutti_tiling *tiling) {
    tutti_tiling copy;
    TUTTI_TRY(tutti_tiling_copy(tiling, &copy));
    return tutti_route_add_stage(plan, route, &copy);
}

/* ------------------------------------------------------------------------------------------------- the bound */

/* The bytes that this rank must receive with any plan: elements that it needs and does not have; for a sum all that
 * it needs. */
static uint64_t least_bytes(const tutti_route *route) {
    const tutti_placement *src = route->src->view.placement, *dst = route->dst->view.placement;
    int own = tutti_comm_rank(dst->comm), from = tutti_placement_find(src, own);
    if (dst->me < 0 || (route->wants != NULL && !route->wants[dst->me])) return 0;
    tutti_region need;
    tutti_tiling_region(&route->dst->tiling, dst->me, &need);
    uint64_t bytes = (uint64_t)tutti_region_elements(&need) * route->element_bytes;
    if (from < 0 || tutti_layout_is_partial(route->src)) return bytes;
    tutti_blocks common = {0};
    const tutti_transfer transfer = {
        .src = &route->src->tiling, .dst = &route->dst->tiling, .element_bytes = route->element_bytes};
    if (tutti_shards_list_pieces(&transfer, from, dst->me, TUTTI_PIECE_LOCAL, 0, &common) == TUTTI_OK)
        bytes -= common.bytes;
    tutti_blocks_free(&common);
    return bytes;
}

/* ------------------------------------------------------------------------------------------------- choices */

static bool is_reached(const tutti_route *route) {
    return route->nstages > 1 && tutti_tiling_is_equal(&route->stages[route->nstages - 1].tiling, &route->dst->tiling);
}

static tutti_status begin_route(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish) {
    tutti_route *route = &plan->routes[pair];
    bool equal = tutti_layout_is_equal(route->src, route->dst);
    if (!equal) plan->least_bytes += least_bytes(route);
    TUTTI_TRY(add_copy(plan, route, &route->src->tiling));
    return equal ? TUTTI_OK : tutti_plan_reduce(plan, pair, wish);
}

/* Exchanges from the last stage of each pair to its target. */
static tutti_status exchange_all(tutti_plan *plan, const tutti_plan_wish *wish) {
    int *from;
    TUTTI_TRY(tutti_calloc(2 * plan->npairs, sizeof *from, &from));
    int *to = from + plan->npairs;
    bool needed = false;
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < plan->npairs && status == TUTTI_OK; i++) {
        tutti_route *route = &plan->routes[i];
        from[i] = to[i] = route->nstages - 1;
        if (is_reached(route)) continue;
        needed = true;
        to[i]++;
        status = add_copy(plan, route, &route->dst->tiling);
    }
    if (status == TUTTI_OK && needed) status = tutti_plan_exchange(plan, from, to, wish);
    free(from);
    return status;
}

static tutti_status choose_one(tutti_plan *plan, const tutti_plan_wish *wish) {
    tutti_route *route = &plan->routes[0];
    tutti_tiling shares;
    bool done = is_reached(route);
    if (!done && !wish->no_collective) TUTTI_TRY(tutti_plan_gather(plan, 0, wish, &done));
    if (done) return TUTTI_OK;
    if (wish->shares && route->wants == NULL && !tutti_layout_is_equal(route->src, route->dst)) {
        bool made;
        TUTTI_TRY(tutti_tiling_shares(&route->dst->tiling, &shares, &made));
        if (made) {
            int from = route->nstages - 1, to = route->nstages;
            TUTTI_TRY(tutti_route_add_stage(plan, route, &shares));
            TUTTI_TRY(tutti_plan_exchange(plan, &from, &to, wish));
            return tutti_plan_gather(plan, 0, wish, &done);
        }
    }
    return exchange_all(plan, wish);
}

/* Predicts the time of all pairs together: their exchange is one call. */
static tutti_status predict_all(tutti_plan *plan, tutti_pricing *pricing, const tutti_plan_wish *wish) {
    double all = 0;
    bool exchanges = false;
    for (size_t i = 0; i < plan->npairs; i++) all += tutti_price_touched(&plan->routes[i]);
    for (size_t i = 0; i < plan->npairs; i++) {
        const tutti_route *route = &plan->routes[i];
        tutti_plan_price price;
        pricing->touched_more = all - tutti_price_touched(route);
        TUTTI_TRY(tutti_price_plan(pricing, route, wish, &price));
        plan->predicted_us += price.us;
        if (price.exchanges && exchanges) plan->predicted_us -= price.call_us;
        exchanges = exchanges || price.exchanges;
    }
    return TUTTI_OK;
}

/* Predicts the time in CUDA memory, where the ranks have measured it: the prediction does not affect the choice. */
static tutti_status predict_on_gpu(tutti_plan *plan, tutti_pricing *pricing, const tutti_plan_wish *wish) {
    pricing->costs = tutti_rank_groups_costs(plan->groups, plan->ranks, plan->nranks, /* on_gpu */ true);
    return plan->place == TUTTI_PLAN_CUDA && pricing->costs != NULL ? predict_all(plan, pricing, wish) : TUTTI_OK;
}

/* Chooses by TUTTI_PLAN, or, in host memory, the fastest by the ranks' measurements. */
static tutti_status choose_wish(tutti_plan *plan, tutti_plan_wish *wish_out) {
    tutti_pricing pricing = {
        .costs = tutti_costs_of(plan->groups, plan->ranks, plan->nranks), .ranks = plan->ranks, .nranks = plan->nranks};
    tutti_plan_wish wish;
    TUTTI_TRY(tutti_plan_read_wish(&wish));
    *wish_out = wish;
    if (plan->place != TUTTI_PLAN_HOST) return predict_on_gpu(plan, &pricing, &wish);
    if (plan->npairs > 1 || wish.any) return predict_all(plan, &pricing, &wish);
    TUTTI_TRY(tutti_price_choose(&pricing, &plan->routes[0], &plan->choice));
    plan->predicted_us = plan->choice.price.us;
    *wish_out = plan->choice.wish;
    return TUTTI_OK;
}

tutti_status tutti_plan_choose(tutti_plan *plan) {
    tutti_plan_wish wish;
    for (size_t i = 0; i < plan->npairs; i++) {
        tutti_route *route = &plan->routes[i];
        route->filler = -1;
        if (!tutti_layout_is_equal(route->src, route->dst)) TUTTI_TRY(tutti_route_list_wants(route));
    }
    TUTTI_TRY(choose_wish(plan, &wish));
    for (size_t i = 0; i < plan->npairs; i++) TUTTI_TRY(begin_route(plan, i, &wish));
    TUTTI_TRY(plan->npairs == 1 ? choose_one(plan, &wish) : exchange_all(plan, &wish));
    for (size_t i = 0; i < plan->npairs; i++) {
        tutti_route *route = &plan->routes[i];
        for (int stage = 1; stage < route->nstages - 1; stage++)
            route->stages[stage].scratch_offset = tutti_plan_take_scratch(plan, route->stages[stage].bytes);
        if (plan->place != TUTTI_PLAN_STAGED) continue;
        if (route->src->view.placement->gpu >= 0)
            route->src_mirror = tutti_plan_take_scratch(plan, route->stages[0].bytes);
        if (route->dst->view.placement->gpu >= 0)
            route->dst_mirror = tutti_plan_take_scratch(plan, route->stages[route->nstages - 1].bytes);
    }
    return TUTTI_OK;
}
