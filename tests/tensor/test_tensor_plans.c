/*
 * Plans of tensors: the cache, the predicted time, the choice, and works.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/tensor.h>

#include "tensor/plan/plan.h"
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
    for (int i = 0; i < 2; i++) /* equal, but another object */
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
    for (int i = 0; i < 3; i++) { /* an axis of one rank has no effect */
        TUTTI_TRY(find_plan(twin[0], same[i][0], same[i][1], 2, &again));
        RANKS_CHECK(again == first[1], "'%s' to '%s' has another plan than 'S0,B' to 'B,B'", same[i][0], same[i][1]);
    }
    tutti_placement_destroy(twin[0]);
    tutti_placement_destroy(twin[1]);
    return TUTTI_OK;
}

Test(tensor_plans, plans_are_cached_by_the_layouts_values) {
    run(worlds, find_plans_again);
}

/* -------------------------------------------------------------------------------------------- predictions */

#define EXPECT_ERROR(words, expr)                                                                                      \
    do {                                                                                                               \
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, expr);                                                                        \
        RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "line %d: '%s', not '%s'", __LINE__,                    \
                    tutti_last_error(), words);                                                                        \
    } while (0)

/* Two layouts of one tensor. */
typedef struct couple {
    tutti_sbp sbp[2][2];
    int64_t shape[2];
    tutti_layout src, dst;
} couple;

static tutti_status make_couple(tutti_placement *placement, const char *from, const char *to, int64_t rows,
                                int64_t columns, couple *c) {
    int naxes;
    TUTTI_TRY(tutti_sbp_parse(from, c->sbp[0], 2, &naxes));
    TUTTI_TRY(tutti_sbp_parse(to, c->sbp[1], 2, &naxes));
    c->shape[0] = rows;
    c->shape[1] = columns;
    c->src =
        TUTTI_LAYOUT(.placement = placement, .sbp = c->sbp[0], .type = TUTTI_FLOAT32, .ndims = 2, .shape = c->shape);
    c->dst = c->src;
    c->dst.sbp = c->sbp[1];
    return TUTTI_OK;
}

static tutti_status predict(tutti_placement *placement, const char *from, const char *to, int64_t rows,
                            double *us_out) {
    couple c;
    TUTTI_TRY(make_couple(placement, from, to, rows, 64, &c));
    return tutti_layout_predict(&c.src, &c.dst, us_out);
}

static const char *const pairs[][2] = {{"S0,S1", "S1,S0"},         {"B,S0", "S0,S0"},         {"S0,S1", "B,B"},
                                       {"P(sum),P(sum)", "B,B"},   {"P(sum),S0", "S0,B"},     {"S0,B", "B,S1"},
                                       {"B,B", "S0,S1"},           {"P(sum),P(max)", "S1,B"}, {"S0,B", "P(sum),B"},
                                       {"P(sum),P(sum)", "S0,S1"}, {"B,B", "P(sum),S1"},      {"S1,S1", "S0,S0"}};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static bool are_equal(const couple *c) {
    tutti_kept_layout *kept[2] = {NULL, NULL};
    bool equal = tutti_layout_keep(&c->src, &kept[0]) == TUTTI_OK && tutti_layout_keep(&c->dst, &kept[1]) == TUTTI_OK &&
                 tutti_layout_is_equal(kept[0], kept[1]);
    tutti_layout_release(kept[0]);
    tutti_layout_release(kept[1]);
    return equal;
}

static tutti_status compare_predictions(ranks_context *context) {
    static const int64_t rows[] = {1, 7, 64, 3000, 20000};
    int n = context->nranks;
    tutti_placement *grid;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, n == 4 ? (int[]){2, 2} : (int[]){1, n}, 2,
                                     &grid));
    for (int i = 0; i < PAIRS; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            couple c;
            tutti_plan *plan;
            tutti_plan_details details;
            double us[3], least[3], most[3];
            TUTTI_TRY(make_couple(grid, pairs[i][0], pairs[i][1], rows[k], 64, &c));
            TUTTI_TRY(tutti_layout_predict(&c.src, &c.dst, &us[0])); /* possibly by ordinary costs */
            TUTTI_TRY(tutti_plan_create(&c.src, &c.dst, 1, &plan));
            TUTTI_TRY(tutti_plan_get(plan, &details));
            us[1] = details.predicted_us;
            TUTTI_TRY(tutti_layout_predict(&c.src, &c.dst, &us[2]));
            tutti_plan_destroy(plan);
            TUTTI_TRY(tutti_all_reduce(context->comm, us, least, 3, TUTTI_FLOAT64, TUTTI_MIN, NULL));
            TUTTI_TRY(tutti_all_reduce(context->comm, us, most, 3, TUTTI_FLOAT64, TUTTI_MAX, NULL));
            RANKS_CHECK(memcmp(least, most, sizeof least) == 0, "%s to %s: ranks predict %g to %g us", pairs[i][0],
                        pairs[i][1], least[2], most[2]);
            bool equal = are_equal(&c);
            RANKS_CHECK(n == 1 || equal || (us[0] > 0 && us[1] > 0 && us[1] < 1e9), "%s to %s: %g us", pairs[i][0],
                        pairs[i][1], us[1]);
            RANKS_CHECK(equal || n == 1 || us[1] == us[2],
                        "%s to %s of %lld rows: the plan is predicted %.17g us, the layouts %.17g", pairs[i][0],
                        pairs[i][1], (long long)rows[k], us[1], us[2]);
            RANKS_CHECK(!equal || us[2] == 0, "equal layouts take %g us", us[2]);
        }
    tutti_placement_destroy(grid);
    return TUTTI_OK;
}

Test(tensor_plans, layouts_and_plans_are_predicted_alike_on_all_ranks) {
    run(worlds, compare_predictions);
}

static tutti_status order_predictions(ranks_context *context) {
    tutti_placement *grid, *other;
    tutti_comm *apart;
    couple c;
    double same, slice, gather, large, sum, us;
    int n = context->nranks;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){n, 1}, 2, &grid));
    TUTTI_TRY(predict(grid, "S0,B", "S0,B", 4000, &same));
    TUTTI_TRY(predict(grid, "B,B", "S0,B", 4000, &slice));
    TUTTI_TRY(predict(grid, "S0,B", "B,B", 4000, &gather));
    TUTTI_TRY(predict(grid, "S0,B", "B,B", 40000, &large));
    TUTTI_TRY(predict(grid, "P(sum),B", "B,B", 4000, &sum));
    RANKS_CHECK(same == 0 && slice > 0 && slice < gather && gather < sum && 5 * gather < large,
                "predicted %g (same), %g (slice), %g (all_gather), %g (of more), %g (all_reduce) us", same, slice,
                gather, large, sum);
    TUTTI_TRY(make_couple(grid, "S0,B", "B,B", 4, 4, &c));
    EXPECT_ERROR("NULL", tutti_layout_predict(&c.src, &c.dst, NULL));
    EXPECT_ERROR("NULL", tutti_layout_predict(NULL, &c.dst, &us));
    EXPECT_ERROR("NULL", tutti_layout_predict(&c.src, NULL, &us));
    c.dst.type = TUTTI_INT8;
    EXPECT_ERROR("their types must be equal", tutti_layout_predict(&c.src, &c.dst, &us));
    c.dst.type = TUTTI_FLOAT32;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &apart));
    TUTTI_TRY(tutti_placement_create(apart, TUTTI_MEMORY_HOST, NULL, (int[]){n, 1}, 2, &other));
    c.dst.placement = other;
    EXPECT_ERROR("must be of one communicator", tutti_layout_predict(&c.src, &c.dst, &us));
    tutti_placement_destroy(other);
    TUTTI_TRY(tutti_comm_destroy(apart));
    tutti_placement_destroy(grid);
    return TUTTI_OK;
}

Test(tensor_plans, predictions_grow_with_the_work) {
    static const int some[] = {2, 3, 0};
    run(some, order_predictions);
}

/* ----------------------------------------------------------------------------------------------- choices */

/* As if the ranks had measured these costs: all ordinary, except that messages from one rank to another cost `factor`
 * times as much. */
static tutti_status pretend(tutti_placement *placement, double factor) {
    int n = tutti_placement_size(placement, -1), ranks[4] = {0, 1, 2, 3};
    tutti_comm *comm;
    tutti_costs *costs = calloc(1, sizeof *costs);
    RANKS_CHECK(costs != NULL, "no memory");
    TUTTI_TRY(tutti_rank_groups_get(placement->groups, ranks, n, &comm));
    *costs = tutti_costs_ordinary;
    costs->level = 1000; /* so that nothing is measured */
    for (int i = 0; i < TUTTI_COST_POINTS; i++) {
        costs->byte_ns[TUTTI_COST_MESSAGE][i] *= factor;
        costs->byte_ns[TUTTI_COST_PULL][i] *= factor;
    }
    tutti_rank_groups_set_costs(placement->groups, comm, costs);
    return TUTTI_OK;
}

static tutti_status describe(const couple *c, char *text, size_t bytes, tutti_plan_details *details) {
    tutti_plan *plan;
    TUTTI_TRY(tutti_plan_create(&c->src, &c->dst, 1, &plan));
    TUTTI_TRY(tutti_plan_describe(plan, text, bytes));
    TUTTI_TRY(tutti_plan_get(plan, details));
    tutti_plan_destroy(plan);
    return TUTTI_OK;
}

/* From the first two of four ranks to copies on all: by shares if messages are expensive, although these are more
 * bytes. */
static tutti_status choose_shares(ranks_context *context) {
    tutti_placement *two, *four;
    tutti_plan_details details;
    couple c;
    char text[400];
    for (int dear = 0; dear < 2; dear++) {
        TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){0, 1}, (int[]){2, 1}, 2, &two));
        TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){4, 1}, 2, &four));
        TUTTI_TRY(pretend(four, dear ? 100 : 1));
        TUTTI_TRY(make_couple(two, "S0,B", "B,B", 4000, 64, &c));
        c.dst.placement = four;
        TUTTI_TRY(describe(&c, text, sizeof text, &details));
        RANKS_CHECK((strstr(text, "all_gather") != NULL) == (dear != 0), "%s: '%s'", dear ? "dear" : "cheap", text);
        RANKS_CHECK(strstr(text, "predicted ") != NULL, "no prediction: '%s'", text);
        const char *other = strstr(text, "(TUTTI_PLAN=messages would receive less, predicted ");
        RANKS_CHECK((other != NULL) == (dear != 0), "%s: '%s'", dear ? "dear" : "cheap", text);
        tutti_placement_destroy(two);
        tutti_placement_destroy(four);
    }
    return TUTTI_OK;
}

Test(tensor_plans, the_fastest_plan_by_the_costs_is_chosen) {
    static const int four[] = {4, 0};
    run(four, choose_shares);
}

/* One rank sends to one other: by messages, for which the sender does not have to wait. */
static tutti_status keep_messages(ranks_context *context) {
    tutti_placement *line;
    tutti_plan_details details;
    couple c;
    char text[400];
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){context->nranks, 1}, 2, &line));
    TUTTI_TRY(make_couple(line, "S0,B", "S1,B", context->nranks, 1, &c)); /* one column: all of it goes to rank 0 */
    TUTTI_TRY(describe(&c, text, sizeof text, &details));
    RANKS_CHECK(strstr(text, "messages to") != NULL, "'%s'", text);
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor_plans, few_pieces_stay_messages) {
    static const int some[] = {2, 3, 0};
    run(some, keep_messages);
}

/* ------------------------------------------------------------------------------------------------- works */

enum { ROWS = 24, COLUMNS = 5 };

static tutti_status make_pair(tutti_placement *from, tutti_placement *to, const char *src, const char *dst,
                              tutti_tensor *pair_out[2]) {
    couple c;
    TUTTI_TRY(make_couple(from, src, dst, ROWS, COLUMNS, &c));
    c.src.type = c.dst.type = TUTTI_INT32;
    c.dst.placement = to;
    TUTTI_TRY(tutti_tensor_create(&c.src, &pair_out[0]));
    return tutti_tensor_create(&c.dst, &pair_out[1]);
}

/* The element's number multiplied by `times`. */
static void fill(const tutti_tensor *tensor, int times) {
    tutti_local local;
    if (tutti_tensor_local(tensor, &local) != TUTTI_OK) return;
    for (size_t i = 0; i < local.count; i++) {
        int64_t columns = local.shape[1], row = (int64_t)i / columns, column = (int64_t)i % columns;
        ((int32_t *)local.data)[i] =
            (int32_t)((local.first[0] + row) * COLUMNS + local.first[1] + column) * (int32_t)times;
    }
}

static tutti_status check(const tutti_tensor *tensor, int times, const char *what) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    for (size_t i = 0; i < local.count; i++) {
        int64_t columns = local.shape[1], row = (int64_t)i / columns, column = (int64_t)i % columns;
        int32_t expected = (int32_t)((local.first[0] + row) * COLUMNS + local.first[1] + column) * (int32_t)times;
        RANKS_CHECK(((int32_t *)local.data)[i] == expected, "%s: element %zu is %d, not %d", what, i,
                    ((int32_t *)local.data)[i], expected);
    }
    return TUTTI_OK;
}

static void destroy_pair(tutti_tensor *pair[2]) {
    tutti_tensor_destroy(pair[0]);
    tutti_tensor_destroy(pair[1]);
}

static tutti_status work_on_many(ranks_context *context) {
    static const struct {
        const char *src, *dst;
        bool from_one, sums;
    } ways[] = {{"S0,B", "B,B", false, false}, {"P(sum),B", "B,B", false, true}, {"P(sum),B", "S0,B", false, true},
                {"B,B", "S0,B", false, false}, {"B,B", "B,B", true, false},      {"B,B", "S0,B", true, false}};
    enum { WAYS = sizeof ways / sizeof *ways };
    int n = context->nranks;
    tutti_placement *all, *one;
    tutti_tensor *pair[WAYS][2];
    tutti_work *works[WAYS];
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){n, 1}, 2, &all));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){0}, (int[]){1, 1}, 2, &one));
    for (int round = 1; round < 4; round++) {
        for (int i = 0; i < WAYS; i++) {
            TUTTI_TRY(make_pair(ways[i].from_one ? one : all, all, ways[i].src, ways[i].dst, pair[i]));
            fill(pair[i][0], round);
        }
        for (int i = 0; i < WAYS; i++) {
            works[i] = NULL;
            TUTTI_TRY(tutti_tensor_redistribute(pair[i][0], pair[i][1], &TUTTI_OPTIONS(.work = &works[i])));
            RANKS_CHECK(works[i] != NULL, "%s to %s has returned no work", ways[i].src, ways[i].dst);
        }
        for (int i = WAYS - 1; i >= 0; i--) { /* the other way round */
            TUTTI_TRY(tutti_work_wait(works[i], -1));
            TUTTI_TRY(check(pair[i][1], round * (ways[i].sums ? n : 1), ways[i].src));
            tutti_work_free(works[i]);
        }
        for (int i = 0; i < WAYS; i++) destroy_pair(pair[i]);
    }
    tutti_placement_destroy(one);
    tutti_placement_destroy(all);
    return TUTTI_OK;
}

Test(tensor_plans, plans_of_one_call_run_with_works) {
    run(worlds, work_on_many);
}

/* Rank 1 dies without calling, while the others wait for their works. */
static tutti_status lose_one_at_work(ranks_context *context) {
    enum { VICTIM = 1, CALLS = 3 };
    int n = context->nranks;
    tutti_placement *all;
    tutti_tensor *pair[2];
    tutti_work *works[CALLS];
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, (int[]){n, 1}, 2, &all));
    TUTTI_TRY(make_pair(all, all, "P(sum),B", "B,B", pair));
    TUTTI_TRY(tutti_tensor_redistribute(pair[0], pair[1], NULL));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        ranks_strike(context, SIGKILL);
    }
    for (int i = 0; i < CALLS; i++)
        TUTTI_TRY(tutti_tensor_redistribute(pair[0], pair[1], &TUTTI_OPTIONS(.work = &works[i], .timeout_ms = 10000)));
    for (int i = 0; i < CALLS; i++) {
        RANKS_EXPECT(TUTTI_ERR_PEER_DIED, tutti_work_wait(works[i], -1));
        RANKS_CHECK(strstr(tutti_work_error(works[i]), "rank 1") != NULL, "'%s'", tutti_work_error(works[i]));
        tutti_work_free(works[i]);
    }
    destroy_pair(pair);
    tutti_placement_destroy(all);
    return TUTTI_OK;
}

Test(tensor_plans, works_end_when_a_rank_dies) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here, and cannot be killed");
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 30}, lose_one_at_work);
    cr_assert(failure == NULL, "%s", failure);
}
