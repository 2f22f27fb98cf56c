/*
 * Plans of single tensors that were made once, by their layouts, for as long as their communicator has placements.
 *
 * None is given up before that: a plan is made by all of its ranks together, and ranks that have made different numbers of plans would
 * give up different ones.
 */
#include <pthread.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "tensor/plan.h"

typedef struct cached {
    tutti_cached_plan head; /* first */
    tutti_plan *plan;
    uint64_t src_serial,
        dst_serial; /* atomic; of the layouts that have asked for it last, which spares comparing them */
} cached;

static void destroy(tutti_cached_plan *head) {
    tutti_plan_destroy(((cached *)head)->plan);
    free(head);
}

static tutti_plan *find(tutti_cached_plan *first, const tutti_kept_layout *src, const tutti_kept_layout *dst) {
    for (tutti_cached_plan *at = first; at != NULL; at = at->next) {
        cached *c = (cached *)at;
        if (__atomic_load_n(&c->src_serial, __ATOMIC_RELAXED) == src->serial &&
            __atomic_load_n(&c->dst_serial, __ATOMIC_RELAXED) == dst->serial)
            return c->plan;
    }
    for (tutti_cached_plan *at = first; at != NULL; at = at->next) {
        cached *c = (cached *)at;
        const tutti_route *route = &c->plan->routes[0];
        if (!tutti_layout_is_equal(route->src, src) || !tutti_layout_is_equal(route->dst, dst)) continue;
        __atomic_store_n(&c->src_serial, src->serial, __ATOMIC_RELAXED);
        __atomic_store_n(&c->dst_serial, dst->serial, __ATOMIC_RELAXED);
        return c->plan;
    }
    return NULL;
}

static tutti_status make(const tutti_kept_layout *src, const tutti_kept_layout *dst, tutti_plan **plan_out) {
    tutti_kept_layout *own_src, *own_dst = NULL;
    TUTTI_TRY(tutti_layout_shadow(src, &own_src));
    tutti_status status = tutti_layout_shadow(dst, &own_dst);
    if (status == TUTTI_OK) status = tutti_plan_of(&own_src, &own_dst, 1, plan_out);
    if (status == TUTTI_OK) (*plan_out)->is_cached = true;
    tutti_layout_release(own_src);
    tutti_layout_release(own_dst);
    return status;
}

tutti_status tutti_plan_find(const tutti_kept_layout *src, const tutti_kept_layout *dst, tutti_plan **plan_out) {
    tutti_rank_groups *groups = src->view.placement->groups;
    cached *made;
    *plan_out = find(tutti_rank_groups_plans(groups, NULL), src, dst);
    if (*plan_out != NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc(1, sizeof *made, &made));
    *made = (cached){.head = {.destroy = destroy}, .src_serial = src->serial, .dst_serial = dst->serial};
    tutti_status status = make(src, dst, &made->plan);
    if (status != TUTTI_OK) {
        free(made);
        return status;
    }
    tutti_rank_groups_plans(groups, &made->head);
    *plan_out = made->plan;
    return TUTTI_OK;
}
