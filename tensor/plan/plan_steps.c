/*
 * Chooses the steps of a plan. See plan.h.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/settings.h"
#include "tensor/plan/plan.h"

enum { SCRATCH_ALIGNMENT = 256 };

/* ------------------------------------------------------------------------------------------------- TUTTI_PLAN */

tutti_status tutti_plan_read_wish(tutti_plan_wish *wish_out) {
    tutti_plan_wish wish = {0};
    const struct {
        const char *word;
        bool *set;
    } words[] = {
        {"all_reduce", &wish.all_reduce}, {"reduce_scatter", &wish.reduce_scatter},
        {"pieces", &wish.no_collective},  {"all_to_all", &wish.all_to_all},
        {"messages", &wish.messages},     {"reads", &wish.reads},
        {"shares", &wish.shares},
    };
    for (const char *next = tutti_setting_text(TUTTI_SETTING_PLAN); *next != '\0';) {
        size_t length = strcspn(next, ","), i = 0;
        while (i < TUTTI_COUNT_OF(words) &&
               (strlen(words[i].word) != length || strncmp(words[i].word, next, length) != 0))
            i++;
        if (i == TUTTI_COUNT_OF(words))
            return tutti_fail(
                TUTTI_ERR_CONFIG,
                "TUTTI_PLAN=%.80s: '%.*s' is not a valid word; expected all_reduce, reduce_scatter, pieces, "
                "all_to_all, messages, reads or shares",
                tutti_setting_text(TUTTI_SETTING_PLAN), (int)tutti_min_size(length, 40), next);
        *words[i].set = wish.any = true;
        next += length + (next[length] == ',');
    }
    *wish_out = wish;
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- stages and steps */

tutti_plan_step *tutti_plan_add_step(tutti_plan *plan, tutti_step_kind kind) {
    tutti_plan_step *steps = realloc(plan->steps, (size_t)(plan->nsteps + 1) * sizeof *steps);
    if (steps == NULL) {
        (void)tutti_fail(TUTTI_ERR_MEMORY, "no memory for the steps of a plan");
        return NULL;
    }
    plan->steps = steps;
    tutti_plan_step *step = &steps[plan->nsteps++];
    *step = (tutti_plan_step){.kind = kind};
    return step;
}

size_t tutti_plan_take_scratch(tutti_plan *plan, size_t bytes) {
    size_t offset = plan->scratch_bytes;
    plan->scratch_bytes += tutti_align_up(bytes, SCRATCH_ALIGNMENT);
    return offset;
}

bool tutti_messages_are_even(const tutti_plan_message *messages, int count, size_t element_bytes, bool of_source) {
    size_t start = 0;
    for (int i = 0; i < count; i++) {
        const tutti_plan_message *m = &messages[i];
        if (m->bytes == 0 || m->bytes != messages[0].bytes || m->direct != messages[0].direct) return false;
        size_t at = m->scratch_offset;
        if (m->direct) {
            const tutti_block *block = &m->parts[0].blocks.items[0];
            at = (size_t)(of_source ? block->src_first : block->dst_first) * element_bytes;
        }
        if (i == 0) start = at;
        if (at != start + (size_t)i * m->bytes) return false;
    }
    return count > 0;
}

tutti_status tutti_route_add_stage(tutti_plan *plan, tutti_route *route, tutti_tiling *tiling) {
    (void)plan;
    tutti_stage *stage = &route->stages[route->nstages++];
    *stage = (tutti_stage){.tiling = *tiling};
    int me = tiling->placement->me;
    if (me < 0) return TUTTI_OK;
    tutti_region region;
    tutti_tiling_region(tiling, me, &region);
    stage->bytes = (size_t)tutti_region_elements(&region) * route->element_bytes;
    return TUTTI_OK;
}

static tutti_status add_copy(tutti_plan *plan, tutti_route *route, const tutti_tiling *tiling) {
    tutti_tiling copy;
    TUTTI_TRY(tutti_tiling_copy(tiling, &copy));
    return tutti_route_add_stage(plan, route, &copy);
}

/* --------------------------------------------------------------------------------------------- partial targets */

static bool keeps_at_0(tutti_reduction reduction) {
    return reduction == TUTTI_SUM || reduction == TUTTI_PROD || reduction == TUTTI_BXOR;
}

/* The reduction whose identity this rank of the target holds: that of the innermost axis on which its coordinate is
 * not 0. -1: it holds the value. */
static int filler_of(const tutti_kept_layout *dst, int index) {
    int coordinates[TUTTI_MOST_AXES], filler = -1;
    tutti_placement_locate(dst->view.placement, index, coordinates);
    for (int axis = 0; axis < dst->view.placement->naxes; axis++)
        if (dst->sbp[axis].kind == TUTTI_SBP_PARTIAL && keeps_at_0(dst->sbp[axis].reduction) && coordinates[axis] != 0)
            filler = dst->sbp[axis].reduction;
    return filler;
}

tutti_status tutti_route_list_wants(tutti_route *route) {
    const tutti_placement *placement = route->dst->view.placement;
    bool all = true;
    TUTTI_TRY(tutti_calloc((size_t)placement->nranks, sizeof *route->wants, &route->wants));
    for (int i = 0; i < placement->nranks; i++) {
        route->wants[i] = filler_of(route->dst, i) < 0;
        all = all && route->wants[i];
    }
    if (placement->me >= 0) route->filler = filler_of(route->dst, placement->me);
    if (!all) return TUTTI_OK;
    free(route->wants);
    route->wants = NULL;
    return TUTTI_OK;
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
    if (tutti_transfer_piece(&transfer, from, dst->me, TUTTI_PIECE_LOCAL, 0, &common) == TUTTI_OK)
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

/* Each of the ranks that are to hold one box gets a share of it, and they gather the shares: the tiling of the
 * shares. */
tutti_status tutti_tiling_shares(const tutti_tiling *target, tutti_tiling *shares_out, bool *done_out) {
    unsigned axes = 0;
    for (int axis = 0; axis < target->placement->naxes; axis++)
        if (target->placement->sizes[axis] > 1 && !tutti_tiling_is_split(target, axis)) axes |= 1u << axis;
    *done_out = false;
    return axes != 0 ? tutti_tiling_cut_evenly(target, axes, shares_out, done_out) : TUTTI_OK;
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

/* ------------------------------------------------------------------------------------------- what works run */

static bool are_direct(const tutti_plan_message *messages, int count) {
    for (int i = 0; i < count; i++)
        if (messages[i].bytes > 0 && !messages[i].direct) return false;
    return true;
}

int tutti_plan_talks(const tutti_plan *plan) {
    int steps = 0;
    for (int i = 0; i < plan->nsteps; i++) steps += plan->steps[i].kind != TUTTI_STEP_LOCAL;
    return steps;
}

bool tutti_plan_is_one_collective(const tutti_plan *plan) {
    const tutti_plan_step *step = plan->steps;
    for (size_t i = 0; i < plan->npairs; i++)
        if (plan->routes[i].filler >= 0) return false;
    if (plan->nsteps != 1 || step->reads || !are_direct(step->sends, step->nsends)) return false;
    return step->kind == TUTTI_STEP_ALL_REDUCE || step->kind == TUTTI_STEP_REDUCE_SCATTER ||
           (step->kind == TUTTI_STEP_ALL_GATHER && are_direct(step->recvs, step->nrecvs));
}
