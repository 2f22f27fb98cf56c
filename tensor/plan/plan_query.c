/*
 * Answers queries about plans.
 */
#include <stdio.h>

#include "bootstrap/base/common.h"
#include "tensor/plan/plan.h"

tutti_status tutti_plan_get(const tutti_plan *plan, tutti_plan_details *details_out) {
    if (plan == NULL || details_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_plan_get: NULL argument");
    *details_out = (tutti_plan_details){.sent_bytes = plan->sent_bytes,
                                        .received_bytes = plan->received_bytes,
                                        .least_bytes = plan->least_bytes,
                                        .scratch_bytes = plan->scratch_bytes,
                                        .predicted_us = plan->predicted_us,
                                        .steps = tutti_plan_talks(plan)};
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
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", then " : "",
                                 tutti_plan_step_name(step->kind));
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
