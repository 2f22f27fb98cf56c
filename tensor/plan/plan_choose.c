/*
 * Chooses plans by their prices, and predicts the price of a conversion. See plan_price.c for the facts that are
 * equal on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "tensor/plan/plan.h"

enum { FEW = 64 };

/* ------------------------------------------------------------------------------------------------- choosing */

/* Predictions are rough: among plans that differ by less, the one with fewer steps is taken. The time that a step
 * waits for its ranks is not in its price. */
#define MUCH               2.0
#define MUCH_OF_MORE_STEPS 2.5

static bool is_better(const tutti_plan_price *a, const tutti_plan_price *than) {
    if (a->us * (a->steps > than->steps ? MUCH_OF_MORE_STEPS : MUCH) < than->us) return true;
    return a->us <= than->us && a->steps < than->steps;
}

static tutti_status try_wish(const tutti_pricing *pricing, const tutti_route *route, const tutti_plan_wish *wish,
                             tutti_choice *choice) {
    tutti_plan_price price;
    TUTTI_TRY(tutti_price_plan(pricing, route, wish, &price));
    if (price.received < choice->least.received) {
        choice->least = price;
        choice->least_wish = *wish;
    }
    if (is_better(&price, &choice->price)) {
        choice->price = price;
        choice->wish = *wish;
    }
    return TUTTI_OK;
}

/* Tries the other ways to continue once nothing is partial. Where an all_gather or a broadcast fits there is no
 * other way: pieces take equally many bytes and calls. Where few ranks exchange data, messages stay: an all_to_all
 * would make all ranks wait for all. */
static tutti_status try_moves(const tutti_pricing *pricing, const tutti_route *route, const tutti_plan_wish *wish,
                              const tutti_plan_price *price, tutti_choice *choice) {
    tutti_plan_wish other = *wish;
    if (!price->exchanges) return TUTTI_OK;
    other.messages = true;
    if (price->dense) TUTTI_TRY(try_wish(pricing, route, &other, choice));
    other = *wish;
    other.shares = true;
    return try_wish(pricing, route, &other, choice);
}

tutti_status tutti_price_choose(const tutti_pricing *pricing, const tutti_route *route, tutti_choice *choice_out) {
    tutti_choice choice;
    memset(&choice, 0, sizeof choice);
    TUTTI_TRY(tutti_price_plan(pricing, route, &choice.wish, &choice.price));
    choice.least = choice.price;
    tutti_plan_price first = choice.price;
    TUTTI_TRY(try_moves(pricing, route, &(tutti_plan_wish){0}, &first, &choice));
    for (int i = 0; i < 2 && tutti_layout_is_partial(route->src); i++) {
        tutti_plan_wish wish = {.all_reduce = i == 0, .reduce_scatter = i == 1};
        tutti_plan_price price;
        TUTTI_TRY(tutti_price_plan(pricing, route, &wish, &price));
        if (price.us == first.us && price.steps == first.steps) continue; /* the same plan as the first */
        TUTTI_TRY(try_wish(pricing, route, &wish, &choice));
        TUTTI_TRY(try_moves(pricing, route, &wish, &price, &choice));
    }
    *choice_out = choice;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------------- asking */

/* The ranks of both placements, in rising order. */
static int join_ranks(const tutti_placement *a, const tutti_placement *b, int *ranks) {
    int count = 0;
    const tutti_placement *both[2] = {a, b};
    for (int which = 0; which < (a == b ? 1 : 2); which++)
        for (int i = 0; i < both[which]->nranks; i++) {
            int rank = both[which]->ranks[i], at = count;
            while (at > 0 && ranks[at - 1] > rank) at--;
            if (at > 0 && ranks[at - 1] == rank) continue;
            memmove(ranks + at + 1, ranks + at, (size_t)(count - at) * sizeof *ranks);
            ranks[at] = rank;
            count++;
        }
    return count;
}

/* Costs that only some ranks have measured are not used, because other ranks may make the same call: so all ranks
 * choose the same layouts. GPUs have no ordinary costs. */
static tutti_status costs_for(const tutti_placement *placement, const int *ranks, int nranks,
                              const tutti_costs **costs_out) {
    const bool all = nranks == tutti_comm_size(placement->comm), on_gpu = placement->memory == TUTTI_MEMORY_CUDA;
    const tutti_costs *costs = all ? tutti_rank_groups_costs(placement->groups, ranks, nranks, on_gpu) : NULL;
    if (costs == NULL && on_gpu)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "tutti_layout_predict: costs in CUDA memory are known only for all ranks of a "
                          "communicator, after tutti_placement_measure");
    *costs_out = costs != NULL ? costs : &tutti_costs_ordinary;
    return TUTTI_OK;
}

/* Prices the plan that would be made; in CUDA memory its steps follow from the layouts. */
static tutti_status price_pair(const tutti_pricing *pricing, const tutti_route *route, const tutti_plan_wish *wish,
                               double *us_out) {
    tutti_choice choice;
    const bool chooses = !wish->any && !pricing->costs->on_gpu;
    TUTTI_TRY(chooses ? tutti_price_choose(pricing, route, &choice)
                      : tutti_price_plan(pricing, route, wish, &choice.price));
    *us_out = choice.price.us;
    return TUTTI_OK;
}

static tutti_status predict_pair(const tutti_kept_layout *src, const tutti_kept_layout *dst, double *us_out) {
    const tutti_placement *from = src->view.placement, *to = dst->view.placement;
    int few[2 * FEW], *ranks = few;
    tutti_route route = {.src = (tutti_kept_layout *)(uintptr_t)src,
                         .dst = (tutti_kept_layout *)(uintptr_t)dst,
                         .element_bytes = tutti_type_bytes(src->view.type)};
    tutti_known_price known = {.src = src->hash, .dst = dst->hash};
    tutti_plan_wish wish;
    tutti_pricing pricing = {0};
    bool is_known = false;
    TUTTI_TRY(tutti_plan_read_wish(&wish));
    *us_out = 0;
    if (tutti_layout_is_equal(src, dst)) return TUTTI_OK;
    if (from->nranks + to->nranks > 2 * FEW)
        TUTTI_TRY(tutti_calloc((size_t)(from->nranks + to->nranks), sizeof *ranks, &ranks));
    pricing.ranks = ranks;
    pricing.nranks = join_ranks(from, to, ranks);
    tutti_status status = costs_for(from, ranks, pricing.nranks, &pricing.costs);
    known.costs = pricing.costs;
    if (status == TUTTI_OK) is_known = !wish.any && tutti_rank_groups_find_price(from->groups, &known);
    if (status == TUTTI_OK && !is_known) status = tutti_route_list_wants(&route);
    if (status == TUTTI_OK && !is_known) status = price_pair(&pricing, &route, &wish, &known.us);
    free(route.wants);
    if (ranks != few) free(ranks);
    if (status != TUTTI_OK) return status;
    if (!is_known && !wish.any) tutti_rank_groups_keep_price(from->groups, &known);
    *us_out = known.us;
    return TUTTI_OK;
}

static tutti_status check_memory(const tutti_kept_layout *src, const tutti_kept_layout *dst) {
    if (src->view.placement->memory == dst->view.placement->memory) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                      "tutti_layout_predict: the cost of moving between host memory and CUDA memory is not measured");
}

tutti_status tutti_layout_predict(const tutti_layout *src, const tutti_layout *dst, double *microseconds_out) {
    tutti_kept_layout *from, *to = NULL;
    double us = 0;
    if (microseconds_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_layout_predict: NULL argument");
    TUTTI_TRY(tutti_layout_keep(src, &from));
    tutti_status status = tutti_layout_keep(dst, &to);
    if (status == TUTTI_OK) status = tutti_plan_check_pair(from, to, src->placement->comm);
    if (status == TUTTI_OK) status = check_memory(from, to);
    if (status == TUTTI_OK) status = predict_pair(from, to, &us);
    tutti_layout_release(to);
    tutti_layout_release(from);
    if (status == TUTTI_OK) *microseconds_out = us;
    return status;
}

tutti_status tutti_placement_measure(tutti_placement *placement, size_t bytes) {
    if (placement == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_placement_measure: NULL argument");
    if (placement->me < 0) return TUTTI_OK;
    tutti_comm *comm;
    int *ranks;
    TUTTI_TRY(tutti_calloc((size_t)placement->nranks, sizeof *ranks, &ranks));
    const int nranks = join_ranks(placement, placement, ranks);
    tutti_status status = tutti_rank_groups_get(placement->groups, ranks, nranks, &comm);
    if (status == TUTTI_OK) status = tutti_costs_measure(placement->groups, ranks, nranks, comm, placement->gpu, bytes);
    free(ranks);
    return status == TUTTI_OK ? TUTTI_OK : tutti_fail_context(status, "tutti_placement_measure");
}
