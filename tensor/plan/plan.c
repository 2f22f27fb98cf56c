/*
 * Creates plans and answers queries about them. See plan.h.
 */
#include "tensor/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/status.h"

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

/* ------------------------------------------------------------------------------------------------- errors */

static const char *const step_names[] = {
    [TUTTI_STEP_ALL_REDUCE] = "all_reduce", [TUTTI_STEP_REDUCE_SCATTER] = "reduce_scatter",
    [TUTTI_STEP_ALL_GATHER] = "all_gather", [TUTTI_STEP_BROADCAST] = "broadcast",
    [TUTTI_STEP_ALL_TO_ALL] = "all_to_all", [TUTTI_STEP_MESSAGES] = "messages",
    [TUTTI_STEP_LOCAL] = "local copies",
};

const char *tutti_step_name(tutti_step_kind kind) {
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

/* ------------------------------------------------------------------------------------------------- making */

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

/* Ranks have different parts, but either all accept options.work or all refuse it. */
static tutti_status agree_on_works(tutti_plan *plan) {
    if (plan->place != TUTTI_PLAN_HOST) return TUTTI_OK;
    int32_t most = tutti_plan_talks(plan);
    if (plan->nranks > 1) TUTTI_TRY(tutti_all_reduce(plan->comm, &most, &most, 1, TUTTI_INT32, TUTTI_MAX, NULL));
    plan->takes_work = most <= 1;
    plan->is_one_collective = tutti_plan_is_one_collective(plan);
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

/* ---------------------------------------------------------------------------------------------- questions */

tutti_status tutti_plan_get(const tutti_plan *plan, tutti_plan_details *details_out) {
    if (plan == NULL || details_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_get: NULL argument");
    *details_out = (tutti_plan_details){.sent_bytes = plan->sent_bytes,
                                        .received_bytes = plan->received_bytes,
                                        .least_bytes = plan->least_bytes,
                                        .scratch_bytes = plan->scratch_bytes,
                                        .predicted_us = plan->predicted_us};
    for (int i = 0; i < plan->nsteps; i++) details_out->steps += plan->steps[i].kind != TUTTI_STEP_LOCAL;
    return TUTTI_OK;
}

/* Messages to or from one rank are consecutive. */
static int count_peers(const tutti_plan_message *messages, int count) {
    int peers = 0;
    for (int i = 0; i < count; i++) peers += i == 0 || messages[i].peer != messages[i - 1].peer;
    return peers;
}

/* True when the plan was preferred to one that receives less. */
static bool receives_more(const tutti_plan *plan) {
    return plan->choice.least.received < plan->choice.price.received;
}

/* Writes the value of TUTTI_PLAN that selects the plan with that wish and price. */
static void write_words(const tutti_plan_wish *wish, const tutti_plan_price *price, char *text, size_t bytes) {
    const struct {
        bool set;
        const char *word;
    } words[] = {{price->scatters, "reduce_scatter"},
                 {price->reduces && !price->scatters, "all_reduce"},
                 {price->exchanges && price->dense, "all_to_all"},
                 {price->exchanges && !price->dense, "messages"},
                 {wish->shares, "shares"}};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < TUTTI_COUNT_OF(words) && used < bytes; i++)
        if (words[i].set)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? "," : "", words[i].word);
}

tutti_status tutti_plan_describe(const tutti_plan *plan, char *text, size_t bytes) {
    size_t used = 0;
    if (plan == NULL || text == NULL || bytes == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_describe: NULL argument or no room");
    for (int i = 0; i < plan->nsteps && used < bytes; i++) {
        const tutti_plan_step *step = &plan->steps[i];
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", then " : "", step_names[step->kind]);
        if (step->kind == TUTTI_STEP_LOCAL || used >= bytes) continue;
        used += step->kind == TUTTI_STEP_MESSAGES
                    ? (size_t)snprintf(text + used, bytes - used, " to %d and from %d ranks",
                                       count_peers(step->sends, step->nsends), count_peers(step->recvs, step->nrecvs))
                    : (size_t)snprintf(text + used, bytes - used, " of %d ranks", step->nranks);
        if (step->reads && used < bytes) used += (size_t)snprintf(text + used, bytes - used, " by reading");
    }
    if (used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, "%s: receives %llu bytes of at least %llu",
                                 plan->nsteps == 0 ? "nothing" : "", (unsigned long long)plan->received_bytes,
                                 (unsigned long long)plan->least_bytes);
    if (used < bytes && (plan->place == TUTTI_PLAN_HOST || plan->predicted_us > 0))
        used += (size_t)snprintf(text + used, bytes - used, ", predicted %.3g us", plan->predicted_us);
    if (used < bytes && receives_more(plan)) {
        char words[80];
        write_words(&plan->choice.least_wish, &plan->choice.least, words, sizeof words);
        snprintf(text + used, bytes - used, " (TUTTI_PLAN=%s would receive less, predicted %.3g us)", words,
                 plan->choice.least.us);
    }
    return TUTTI_OK;
}
