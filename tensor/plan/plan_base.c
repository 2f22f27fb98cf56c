/*
 * The parts of plans that the other files of this folder use: the wish in TUTTI_PLAN, routes and their stages, steps,
 * scratch memory, errors.
 */
#include <stdio.h>
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

/* -------------------------------------------------------------------------------------------------- routes */

tutti_status tutti_plan_check_pair(const tutti_kept_layout *src, const tutti_kept_layout *dst, const tutti_comm *comm) {
    char from[300], to[300];
    const char *problem = NULL;
    if (src->view.type != dst->view.type) problem = "their types must be equal";
    else if (src->nelements != dst->nelements) problem = "their numbers of elements must be equal";
    else if (src->view.placement->comm != comm || dst->view.placement->comm != comm)
        problem = "their placements must be of one communicator";
    if (problem == NULL) return TUTTI_OK;
    tutti_layout_text(src, from, sizeof from);
    tutti_layout_text(dst, to, sizeof to);
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%s cannot become %s: %s", from, to, problem);
}

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

int tutti_plan_talks(const tutti_plan *plan) {
    int steps = 0;
    for (int i = 0; i < plan->nsteps; i++) steps += plan->steps[i].kind != TUTTI_STEP_LOCAL;
    return steps;
}

/* ------------------------------------------------------------------------------------------------- errors */

static const char *const step_names[] = {
    [TUTTI_STEP_ALL_REDUCE] = "all_reduce", [TUTTI_STEP_REDUCE_SCATTER] = "reduce_scatter",
    [TUTTI_STEP_ALL_GATHER] = "all_gather", [TUTTI_STEP_BROADCAST] = "broadcast",
    [TUTTI_STEP_ALL_TO_ALL] = "all_to_all", [TUTTI_STEP_MESSAGES] = "messages",
    [TUTTI_STEP_LOCAL] = "local copies",
};

const char *tutti_plan_step_name(tutti_step_kind kind) {
    return step_names[kind];
}

tutti_status tutti_plan_fail_context(const tutti_plan *plan, tutti_status status, const char *what,
                                     const tutti_comm *comm) {
    char src[300], dst[300], more[60] = "", ranks[400] = "";
    tutti_layout_text(plan->routes[0].src, src, sizeof src);
    tutti_layout_text(plan->routes[0].dst, dst, sizeof dst);
    if (plan->npairs > 1) snprintf(more, sizeof more, ", and of %zu more tensors", plan->npairs - 1);
    if (comm != NULL) tutti_rank_groups_text(plan->groups, comm, ranks, sizeof ranks);
    return tutti_fail_context(status, "%s of %s to %s%s%s", what, src, dst, more, ranks);
}
