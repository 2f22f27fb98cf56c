/*
 * Plans of tensors: that they are found again, what they are predicted to take, which one is chosen, and works.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/tensor.h>

#include "tensor/plan.h"
#include "tests/support/ranks.h"

TestSuite(tensor_plans, .timeout = 120);

static const int worlds[] = {1, 2, 3, 4, 0};

static void run(const int *sizes, ranks_body body) {
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 90}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------- found again */

static tutti_status find_plan(tutti_placement *placement, const char *from, const char *to, int64_t rows,
                              tutti_plan **plan_out) {
    tutti_sbp sbp[2][2];
    tutti_kept_layout *kept[2];
    int naxes;
    TUTTI_TRY(tutti_sbp_parse(from, sbp[0], 2, &naxes));
    TUTTI_TRY(tutti_sbp_parse(to, sbp[1], 2, &naxes));
    for (int i = 0; i < 2; i++)
        TUTTI_TRY(
            tutti_layout_keep(&TUTTI_LAYOUT(.placement = placement, .sbp = sbp[i], .type = TUTTI_FLOAT32, .ndims = 2,
                                            .shape = (int64_t[]){rows, 6}, .name = rows % 2 == 0 ? "x" : NULL),
                              &kept[i]));
    tutti_status status = tutti_plan_find(kept[0], kept[1], plan_out);
    tutti_layout_release(kept[0]);
    tutti_layout_release(kept[1]);
    return status;
}

static tutti_status find_plans_again(ranks_context *context) {
    enum { PLANS = 300 };
    static const char *const same[][2] = {{"S0,B", "B,B"}, {"S0,S1", "B,P(max)"}, {"S0,P(sum)", "B,S0"}};
    tutti_placement *twin[2];
    tutti_plan *first[PLANS], *again;
    for (int i = 0; i < 2; i++) /* equal, but not the same */
        TUTTI_TRY(
            tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){context->nranks, 1}, 2, &twin[i]));
    for (int i = 0; i < PLANS; i++) TUTTI_TRY(find_plan(twin[0], i % 2 ? "S0,B" : "S1,B", "B,B", 1 + i, &first[i]));
    for (int i = 0; i < PLANS; i++)
        for (int k = 0; k < 2; k++) {
            TUTTI_TRY(find_plan(twin[k], i % 2 ? "S0,B" : "S1,B", "B,B", 1 + i, &again));
            RANKS_CHECK(again == first[i], "layouts of %d rows have got another plan", 1 + i);
        }
    for (int i = 0; i < PLANS; i++)
        for (int k = 0; k < i; k++) RANKS_CHECK(first[i] != first[k], "two layouts have one plan");
    for (int i = 0; i < 3; i++) { /* what an axis of one rank does is nothing */
        TUTTI_TRY(find_plan(twin[0], same[i][0], same[i][1], 2, &again));
        RANKS_CHECK(again == first[1], "'%s' to '%s' has another plan than 'S0,B' to 'B,B'", same[i][0], same[i][1]);
    }
    tutti_placement_destroy(twin[0]);
    tutti_placement_destroy(twin[1]);
    return TUTTI_OK;
}

Test(tensor_plans, plans_are_found_again_by_what_layouts_say) {
    run(worlds, find_plans_again);
}
