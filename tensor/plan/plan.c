/*
 * Creates plans. See plan.h.
 */
#include "tensor/plan/plan.h"

#include <stdlib.h>

#include "bootstrap/base/common.h"

/* --------------------------------------------------------------------------------------------------- ends */

static void free_messages(tutti_plan_message *messages, int count) {
    for (int i = 0; i < count; i++) {
        for (size_t part = 0; part < messages[i].nparts; part++) tutti_blocks_free(&messages[i].parts[part].blocks);
        free(messages[i].parts);
    }
    free(messages);
}

static void free_step(tutti_plan_step *step) {
    free_messages(step->sends, step->nsends);
    free_messages(step->recvs, step->nrecvs);
    free_messages(step->lookups, step->nlookups);
    free(step->shown);
    free(step->tables);
    for (size_t i = 0; i < step->nlocals; i++) tutti_blocks_free(&step->locals[i].blocks);
    free(step->locals);
    free(step->from_stages);
    free(step->srcs);
    free(step->dsts);
    free(step->src_counts);
    free(step->dst_counts);
}

/* A forked child has no threads that would end the plan's works. */
static void await_end(tutti_plan *plan) {
    if (atomic_load_explicit(&plan->works, memory_order_acquire) > 0 &&
        tutti_plan_await_works(plan) == TUTTI_ERR_FORKED)
        return;
    tutti_plan_lock(plan); /* the thread that ended the last work has left the plan */
    pthread_mutex_unlock(&plan->lock);
}

void tutti_plan_destroy(tutti_plan *plan) {
    if (plan == NULL) return;
    await_end(plan);
    for (int i = 0; i < plan->nsteps; i++) free_step(&plan->steps[i]);
    for (size_t i = 0; i < plan->npairs && plan->routes != NULL; i++) {
        tutti_route *route = &plan->routes[i];
        for (int stage = 0; stage < route->nstages; stage++) tutti_tiling_free(&route->stages[stage].tiling);
        tutti_layout_release(route->src);
        tutti_layout_release(route->dst);
        free(route->wants);
    }
    (void)tutti_mem_free(plan->scratch);
    (void)tutti_mem_free(plan->packed);
    tutti_scratch_pool_free(&plan->gpu_scratch);
    free(plan->mirrors);
    pthread_mutex_destroy(&plan->lock);
    pthread_cond_destroy(&plan->unused);
    free(plan->steps);
    free(plan->routes);
    free(plan->ranks);
    free(plan);
}

/* ------------------------------------------------------------------------------------------------- making */

/* The ranks of all placements, in order. */
static tutti_status list_ranks(tutti_plan *plan, tutti_comm *comm) {
    int size = tutti_comm_size(comm);
    bool *there;
    TUTTI_TRY(tutti_calloc((size_t)size, sizeof *there, &there));
    for (size_t i = 0; i < plan->npairs; i++) {
        const tutti_placement *src = plan->routes[i].src->view.placement, *dst = plan->routes[i].dst->view.placement;
        for (int k = 0; k < src->nranks; k++) there[src->ranks[k]] = true;
        for (int k = 0; k < dst->nranks; k++) there[dst->ranks[k]] = true;
    }
    bool member = there[tutti_comm_rank(comm)];
    tutti_status status = tutti_calloc((size_t)size, sizeof *plan->ranks, &plan->ranks);
    for (int rank = 0; rank < size && status == TUTTI_OK; rank++)
        if (there[rank]) plan->ranks[plan->nranks++] = rank;
    free(there);
    TUTTI_TRY(status);
    if (!member)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "rank %d is in none of the placements, and must not make this call",
                          tutti_comm_rank(comm));
    return TUTTI_OK;
}

static tutti_plan_place place_of(const tutti_plan *plan) {
    size_t cuda = 0;
    for (size_t i = 0; i < plan->npairs; i++) {
        cuda += plan->routes[i].src->view.placement->memory == TUTTI_MEMORY_CUDA;
        cuda += plan->routes[i].dst->view.placement->memory == TUTTI_MEMORY_CUDA;
    }
    return cuda == 0 ? TUTTI_PLAN_HOST : cuda == 2 * plan->npairs ? TUTTI_PLAN_CUDA : TUTTI_PLAN_STAGED;
}

static tutti_status measure_costs(const tutti_plan *plan) {
    double bytes = 0;
    if (plan->place != TUTTI_PLAN_HOST) return TUTTI_OK; /* costs are those of host memory */
    for (size_t i = 0; i < plan->npairs; i++) bytes += tutti_price_touched(&plan->routes[i]);
    return tutti_costs_measure(plan->groups, plan->ranks, plan->nranks, plan->comm, /* gpu */ -1, (size_t)(bytes / 2));
}

static bool are_direct(const tutti_plan_message *messages, int count) {
    for (int i = 0; i < count; i++)
        if (messages[i].bytes > 0 && !messages[i].direct) return false;
    return true;
}

static bool is_one_collective(const tutti_plan *plan) {
    const tutti_plan_step *step = plan->steps;
    for (size_t i = 0; i < plan->npairs; i++)
        if (plan->routes[i].filler >= 0) return false;
    if (plan->nsteps != 1 || step->reads || !are_direct(step->sends, step->nsends)) return false;
    return step->kind == TUTTI_STEP_ALL_REDUCE || step->kind == TUTTI_STEP_REDUCE_SCATTER ||
           (step->kind == TUTTI_STEP_ALL_GATHER && are_direct(step->recvs, step->nrecvs));
}

/* Ranks have different parts, but either all accept options.work or all refuse it. */
static tutti_status agree_on_works(tutti_plan *plan) {
    if (plan->place != TUTTI_PLAN_HOST) return TUTTI_OK;
    int32_t most = tutti_plan_talks(plan);
    if (plan->nranks > 1) TUTTI_TRY(tutti_all_reduce(plan->comm, &most, &most, 1, TUTTI_INT32, TUTTI_MAX, NULL));
    plan->takes_work = most <= 1;
    plan->is_one_collective = is_one_collective(plan);
    for (int i = 0; i < plan->nsteps; i++)
        if (plan->steps[i].kind != TUTTI_STEP_LOCAL)
            plan->steps[i].works = tutti_rank_groups_works(plan->groups, plan->steps[i].comm);
    return TUTTI_OK;
}

static tutti_status make(tutti_plan *plan) {
    tutti_placement *first = plan->routes[0].src->view.placement;
    plan->place = place_of(plan);
    for (size_t i = 0; i < plan->npairs; i++) {
        plan->routes[i].element_bytes = tutti_type_bytes(plan->routes[i].src->view.type);
        TUTTI_TRY(tutti_plan_check_pair(plan->routes[i].src, plan->routes[i].dst, first->comm));
    }
    TUTTI_TRY(list_ranks(plan, first->comm));
    plan->groups = first->groups;
    tutti_status status = tutti_rank_groups_get(plan->groups, plan->ranks, plan->nranks, &plan->comm);
    if (status != TUTTI_OK) return tutti_plan_fail_context(plan, status, "plan", NULL);
    status = tutti_plan_agree(plan);
    if (status == TUTTI_ERR_ARGUMENT) return status; /* its text shows the difference */
    if (status != TUTTI_OK) return tutti_plan_fail_context(plan, status, "comparison of the layouts", plan->comm);
    status = measure_costs(plan);
    if (status != TUTTI_OK) return tutti_plan_fail_context(plan, status, "measurement of the costs", plan->comm);
    status = tutti_plan_choose(plan);
    if (status == TUTTI_OK) status = agree_on_works(plan);
    return status == TUTTI_OK ? status : tutti_plan_fail_context(plan, status, "plan", NULL);
}

tutti_status tutti_plan_of(tutti_kept_layout *const *srcs, tutti_kept_layout *const *dsts, size_t npairs,
                           tutti_plan **plan_out) {
    tutti_plan *plan;
    TUTTI_TRY(tutti_calloc(1, sizeof *plan, &plan));
    pthread_mutex_init(&plan->lock, NULL);
    pthread_cond_init(&plan->unused, NULL);
    tutti_scratch_pool_init(&plan->gpu_scratch);
    tutti_status status = tutti_calloc(npairs, sizeof *plan->routes, &plan->routes);
    for (size_t i = 0; i < npairs && status == TUTTI_OK; i++) {
        plan->routes[i].src = tutti_layout_again(srcs[i]);
        plan->routes[i].dst = tutti_layout_again(dsts[i]);
        plan->npairs++;
    }
    if (status == TUTTI_OK) status = make(plan);
    if (status == TUTTI_OK) *plan_out = plan;
    else tutti_plan_destroy(plan);
    return status;
}

/* The layouts of a list are as far apart as the program's header says, which may be another version's. */
static tutti_status keep_all(const tutti_layout *layouts, size_t count, tutti_kept_layout **kept) {
    const char *next = (const char *)layouts;
    for (size_t i = 0; i < count; i++, next += layouts->struct_bytes)
        TUTTI_TRY(tutti_layout_keep((const tutti_layout *)(const void *)next, &kept[i]));
    return TUTTI_OK;
}

tutti_status tutti_plan_create(const tutti_layout *srcs, const tutti_layout *dsts, size_t npairs,
                               tutti_plan **plan_out) {
    tutti_kept_layout **kept;
    if (srcs == NULL || dsts == NULL || npairs == 0 || plan_out == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_create: NULL argument or no pairs");
    TUTTI_TRY(tutti_calloc(2 * npairs, sizeof *kept, &kept));
    tutti_status status = keep_all(srcs, npairs, kept);
    if (status == TUTTI_OK) status = keep_all(dsts, npairs, kept + npairs);
    if (status == TUTTI_OK) status = tutti_plan_of(kept, kept + npairs, npairs, plan_out);
    for (size_t i = 0; i < 2 * npairs; i++) tutti_layout_release(kept[i]);
    free(kept);
    return status;
}
