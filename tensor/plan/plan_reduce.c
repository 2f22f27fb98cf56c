/*
 * Reduces partial axes.
 *
 * Neighbouring partial axes of one reduction are one reduction over their ranks; these runs are reduced from the
 * last to the first, by all_reduce, or, the first run, by reduce_scatter: each rank of a group gets a part of the
 * box that all of them have. Where the target cuts that box among the same ranks, these parts are the target's
 * boxes, and nothing is left to exchange.
 */
#include "tensor/plan/plan.h"

#include "bootstrap/base/common.h"

/* Axes of one rank are left out. */
int tutti_plan_reduce_list_runs(const tutti_kept_layout *layout, tutti_partial_run runs[TUTTI_MOST_AXES]) {
    const tutti_placement *placement = layout->view.placement;
    int nruns = 0;
    for (int axis = 0; axis < placement->naxes; axis++) {
        if (layout->sbp[axis].kind != TUTTI_SBP_PARTIAL || placement->sizes[axis] == 1) continue;
        if (nruns == 0 || runs[nruns - 1].reduction != layout->sbp[axis].reduction)
            runs[nruns++] = (tutti_partial_run){.nranks = 1, .reduction = layout->sbp[axis].reduction};
        runs[nruns - 1].axes |= 1u << axis;
        runs[nruns - 1].nranks *= placement->sizes[axis];
    }
    return nruns;
}

/* ------------------------------------------------------------------------------------------------ the cut */

/* True when the target is the same tiling, except that the axes of the run cut it further. */
static bool is_target_cut(const tutti_tiling *now, const tutti_tiling *target, unsigned axes) {
    unsigned used = 0;
    if (!tutti_placement_is_alike(now->placement, target->placement) || now->ndims != target->ndims) return false;
    for (int d = 0; d < now->ndims; d++) {
        if (now->shape[d] != target->shape[d] || now->nsplits[d] > target->nsplits[d]) return false;
        for (int i = 0; i < target->nsplits[d]; i++) {
            if (i < now->nsplits[d] && now->axes[d][i] != target->axes[d][i]) return false;
            if (i >= now->nsplits[d]) used |= 1u << target->axes[d][i];
        }
        int finer = target->nparts[d] / now->nparts[d];
        for (int part = 1; part < now->nparts[d]; part++)
            if (now->offsets[d][part] != target->offsets[d][part * finer]) return false;
    }
    return used == axes;
}

/* all_reduce sends each rank of the group twice the box, of which the exchange that follows may use little;
 * reduce_scatter sends it once. Where the gain is small, fewer steps are faster. */
static bool should_scatter(const tutti_route *route, const tutti_tiling *now, const tutti_plan_wish *wish) {
    enum { LEAST_BYTES = 16 << 10 };
    const tutti_tiling *target = &route->dst->tiling;
    if (wish->all_reduce || wish->reduce_scatter) return wish->reduce_scatter;
    int64_t box = tutti_tiling_largest(now);
    return box * (int64_t)route->element_bytes >= LEAST_BYTES && tutti_tiling_largest(target) < box;
}

tutti_status tutti_plan_reduce_cut(const tutti_route *route, const tutti_tiling *now, unsigned axes,
                                   const tutti_plan_wish *wish, tutti_tiling *cut_out, bool *scatters_out) {
    *scatters_out = !wish->all_reduce && is_target_cut(now, &route->dst->tiling, axes);
    if (*scatters_out) return tutti_tiling_copy(&route->dst->tiling, cut_out);
    if (should_scatter(route, now, wish)) return tutti_tiling_cut_evenly(now, axes, cut_out, scatters_out);
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- the steps */

static tutti_status add_all_reduce(tutti_plan *plan, size_t pair, tutti_plan_step *step) {
    tutti_route *route = &plan->routes[pair];
    tutti_tiling tiling;
    TUTTI_TRY(tutti_tiling_copy(&route->stages[step->from].tiling, &tiling));
    TUTTI_TRY(tutti_route_add_stage(plan, route, &tiling));
    size_t bytes = route->stages[step->from].bytes;
    plan->received_bytes += 2 * (bytes - bytes / (size_t)step->nranks);
    plan->sent_bytes += 2 * (bytes - bytes / (size_t)step->nranks);
    return TUTTI_OK;
}

/* Packs what this rank sends to each rank of the group. */
static tutti_status pack_parts(tutti_plan *plan, size_t pair, tutti_plan_step *step, unsigned axes) {
    const tutti_route *route = &plan->routes[pair];
    const tutti_placement *placement = route->src->view.placement;
    const tutti_transfer transfer = {.src = &route->stages[step->from].tiling,
                                     .dst = &route->stages[step->to].tiling,
                                     .element_bytes = route->element_bytes};
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->sends, &step->sends));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->srcs, &step->srcs));
    TUTTI_TRY(tutti_calloc((size_t)step->nranks, sizeof *step->src_counts, &step->src_counts));
    for (int i = 0; i < placement->nranks; i++) {
        if (!tutti_placement_is_mate(placement, axes, i)) continue;
        tutti_plan_message *message = &step->sends[step->nsends];
        TUTTI_TRY(tutti_calloc(1, sizeof *message->parts, &message->parts));
        message->nparts = 1;
        message->peer = step->nsends++;
        message->parts->pair = pair;
        TUTTI_TRY(tutti_shards_list_pieces(&transfer, placement->me, i, TUTTI_PIECE_PACK, 0, &message->parts->blocks));
        message->bytes = message->parts->blocks.bytes;
        message->direct = tutti_blocks_are_contiguous(&message->parts->blocks);
        if (!message->direct) message->scratch_offset = tutti_plan_take_scratch(plan, message->bytes);
        step->src_counts[message->peer] = message->bytes / route->element_bytes;
        if (i != placement->me) plan->sent_bytes += message->bytes;
    }
    step->even = tutti_messages_are_even(step->sends, step->nsends, route->element_bytes, /* of_source */ true);
    plan->received_bytes += route->stages[step->to].bytes * (size_t)(step->nranks - 1);
    return TUTTI_OK;
}

/* `cut`: the tiling after the step, for reduce_scatter; the step takes ownership. */
static tutti_status add_run(tutti_plan *plan, size_t pair, const tutti_partial_run *run, tutti_tiling *cut) {
    tutti_route *route = &plan->routes[pair];
    int from = route->nstages - 1;
    if (cut != NULL) TUTTI_TRY(tutti_route_add_stage(plan, route, cut));
    if (route->src->view.placement->me < 0) {
        tutti_tiling tiling;
        if (cut != NULL) return TUTTI_OK;
        TUTTI_TRY(tutti_tiling_copy(&route->stages[from].tiling, &tiling));
        return tutti_route_add_stage(plan, route, &tiling);
    }
    tutti_plan_step *step = tutti_plan_add_step(plan, cut != NULL ? TUTTI_STEP_REDUCE_SCATTER : TUTTI_STEP_ALL_REDUCE);
    if (step == NULL) return TUTTI_ERR_MEMORY;
    step->pair = pair;
    step->from = from;
    step->to = from + 1;
    step->reduction = run->reduction;
    step->nranks = run->nranks;
    TUTTI_TRY(tutti_placement_comm(route->src->view.placement, run->axes, &step->comm));
    step->me = tutti_comm_rank(step->comm);
    return cut != NULL ? pack_parts(plan, pair, step, run->axes) : add_all_reduce(plan, pair, step);
}

tutti_status tutti_plan_reduce(tutti_plan *plan, size_t pair, const tutti_plan_wish *wish) {
    tutti_route *route = &plan->routes[pair];
    tutti_partial_run runs[TUTTI_MOST_AXES];
    int nruns = tutti_plan_reduce_list_runs(route->src, runs);
    for (int i = nruns - 1; i > 0; i--) TUTTI_TRY(add_run(plan, pair, &runs[i], NULL));
    if (nruns == 0) return TUTTI_OK;
    const tutti_tiling *now = &route->stages[route->nstages - 1].tiling;
    tutti_tiling cut;
    bool scatters;
    TUTTI_TRY(tutti_plan_reduce_cut(route, now, runs[0].axes, wish, &cut, &scatters));
    return add_run(plan, pair, &runs[0], scatters ? &cut : NULL);
}
