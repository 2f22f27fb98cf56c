/*
 * The search for a strategy: its result is the minimum of all strategies, as found by trying all; its sums equal what
 * a model that is divided in that way does.
 *
 * Kernels' times are not measured here but drawn at random for each piece: the minimum of random numbers is harder to
 * find than that of real times, which nearly all agree on the best choice.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ddp/trainer/auto/auto.h"
#include "ddp/trainer/layers/freeze.h"
#include "ddp/trainer/models/models.h"
#include "kernels/random.h"
#include "tests/support/ranks.h"

/* ----------------------------------------------------------------------------------------------- tables */

static double draw(uint64_t stream, uint64_t number) {
    return tutti_random_uniform(7, stream, number);
}

/* The sum of all tables for these choices. */
static double sum_of(const tutti_search *search, const int *choices) {
    double sum = 0;
    for (int t = 0; t < search->ntables; t++) {
        const tutti_search_table *table = &search->tables[t];
        size_t at = 0;
        for (int i = 0; i < table->nvariables; i++)
            at = at * (size_t)search->nchoices[table->variables[i]] + (size_t)choices[table->variables[i]];
        sum += table->values[at];
    }
    return sum;
}

static double least_by_trying(const tutti_search *search) {
    int choices[16] = {0};
    double least = INFINITY;
    for (;;) {
        least = fmin(least, sum_of(search, choices));
        int v = 0;
        while (v < search->nvariables && ++choices[v] == search->nchoices[v]) choices[v++] = 0;
        if (v == search->nvariables) return least;
    }
}

static void add_drawn(tutti_search *search, const int *variables, int count, uint64_t stream) {
    double *values;
    size_t size = 1;
    for (int i = 0; i < count; i++) size *= (size_t)search->nchoices[variables[i]];
    cr_assert_eq(tutti_search_add(search, variables, count, &values), TUTTI_OK, "%s", tutti_last_error());
    for (size_t i = 0; i < size; i++) values[i] = draw(stream, i) < 0.1 ? INFINITY : draw(stream, size + i);
}

/* Chains with random connections over one to three variables, some of whose combinations are not allowed. */
Test(auto_search, finds_the_least_sum_of_any_tables) {
    for (uint64_t round = 0; round < 60; round++) {
        tutti_search search;
        const int n = 2 + (int)(round % 6);
        cr_assert_eq(tutti_search_init(&search, n), TUTTI_OK);
        for (int v = 0; v < n; v++) search.nchoices[v] = 1 + (int)(4 * draw(round, (uint64_t)v));
        for (int v = 0; v < n; v++) add_drawn(&search, &v, 1, 100 * round + (uint64_t)v);
        for (int v = 0; v + 1 < n; v++) add_drawn(&search, (int[]){v, v + 1}, 2, 7000 + 100 * round + (uint64_t)v);
        for (int v = 0; v + 3 < n; v++)
            add_drawn(&search, (int[]){v + 3, v, v + 1}, 3, 90000 + 100 * round + (uint64_t)v);
        int choices[16];
        double least;
        cr_assert_eq(tutti_search_solve(&search, choices, &least), TUTTI_OK, "%s", tutti_last_error());
        const double tried = least_by_trying(&search);
        cr_assert(least == tried || fabs(least - tried) < 1e-12, "round %d: %.17g, by trying %.17g", (int)round, least,
                  tried);
        if (isfinite(least)) cr_assert_float_eq(sum_of(&search, choices), least, 1e-12);
        tutti_search_fini(&search);
    }
}

/* ----------------------------------------------------------------------------------------------- models */

static void fill_chain(const tutti_models_options *options, tutti_model_layers *list) {
    (void)options;
    tutti_models_add(list, (tutti_layer){.name = "a",
                                         .kind = TUTTI_LAYER_CONV,
                                         .units = 6,
                                         .kernel = 3,
                                         .stride = 1,
                                         .padding = TUTTI_PADDING_SAME,
                                         .relu = true});
    tutti_models_add(list, (tutti_layer){.name = "p", .kind = TUTTI_LAYER_MAX_POOL, .kernel = 2, .stride = 2});
    tutti_models_add(list, (tutti_layer){.name = "b", .kind = TUTTI_LAYER_DENSE, .units = 12, .relu = true});
    tutti_models_add(list, (tutti_layer){.name = "c", .kind = TUTTI_LAYER_DENSE, .units = 4});
}

static void fill_residual(const tutti_models_options *options, tutti_model_layers *list) {
    (void)options;
    tutti_models_add(list, (tutti_layer){.name = "a",
                                         .kind = TUTTI_LAYER_CONV,
                                         .units = 4,
                                         .kernel = 3,
                                         .stride = 1,
                                         .padding = TUTTI_PADDING_SAME,
                                         .no_bias = true});
    tutti_models_add(list, (tutti_layer){.name = "b",
                                         .kind = TUTTI_LAYER_CONV,
                                         .units = 4,
                                         .kernel = 1,
                                         .stride = 1,
                                         .padding = TUTTI_PADDING_SAME,
                                         .no_bias = true});
    tutti_models_add(list,
                     (tutti_layer){.name = "n", .kind = TUTTI_LAYER_BATCH_NORM, .epsilon = 1e-5, .momentum = 0.01});
    tutti_models_add(list, (tutti_layer){.name = "s", .kind = TUTTI_LAYER_ADD, .inputs = {"n", "a"}, .relu = true});
    tutti_models_add(list, (tutti_layer){.name = "d", .kind = TUTTI_LAYER_DENSE, .units = 4});
}

/* Layers of one shape; one of them may be frozen. */
static void fill_alike(const tutti_models_options *options, tutti_model_layers *list) {
    (void)options;
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"a", "b", "c", "d"};
        tutti_models_add(list, (tutti_layer){.name = names[i], .kind = TUTTI_LAYER_DENSE, .units = 4});
    }
}

typedef struct problem {
    tutti_model_layers list;
    bool expanded;             /* the loss */
    const char *const *frozen; /* up to two beginnings of parameters' names, and NULL; NULL: all are trained */
    tutti_compute *compute;
    tutti_model *whole;
    tutti_auto_pieces pieces;
    tutti_prices prices;
} problem;

static void open_compute(problem *p) {
    if (tutti_kernels_host.open(&(tutti_compute_options){.device = 0}, &p->compute) != TUTTI_OK) abort();
}

static tutti_status open_problem(problem *p, tutti_comm *comm,
                                 void (*fill)(const tutti_models_options *, tutti_model_layers *), tutti_shape in,
                                 int batch, const int *sizes, int naxes) {
    *p = (problem){.expanded = p->expanded, .frozen = p->frozen};
    open_compute(p);
    fill(&(tutti_models_options){.classes = 10, .dropout = -1}, &p->list);
    if (p->frozen != NULL) TUTTI_TRY(tutti_freeze(&p->list, p->frozen, p->frozen[1] != NULL ? 2 : 1));
    TUTTI_TRY(tutti_model_create_outline(&p->list, in, 1, NULL, p->compute, &p->whole));
    const tutti_price_setup setup = {.comm = comm,
                                     .whole = p->whole,
                                     .batch = batch,
                                     .optimizer = "momentum",
                                     .update = {.momentum = -1},
                                     .pieces = &p->pieces,
                                     .expanded = p->expanded};
    return tutti_prices_open(&p->prices, &setup, sizes, naxes);
}

static void close_problem(problem *p) {
    tutti_prices_close(&p->prices);
    tutti_model_destroy(p->whole);
    tutti_auto_pieces_fini(&p->pieces);
    p->compute->kernels->close(p->compute);
}

/* Replaces calibration by random times: up to 100 microseconds. */
static void draw_times(problem *p) {
    for (int i = 0; i < p->pieces.count; i++)
        p->pieces.entries[i].times = (tutti_piece_times){
            100 * draw(1, (uint64_t)i), p->pieces.entries[i].piece.backward > 0 ? 100 * draw(2, (uint64_t)i) : 0};
    p->prices.measured = true;
}

/* The first layer's choices change last. */
static tutti_status least_of_all(problem *p, double *least_out, int *count_out) {
    uint8_t choices[8][TUTTI_PRICE_CHOICES][TUTTI_MOST_AXES];
    int counts[8], at[8] = {0};
    const int nlayers = p->list.count;
    tutti_strategy *strategy = calloc(1, sizeof *strategy);
    tutti_step_price *price = malloc(sizeof *price);
    *strategy = *p->prices.mesh;
    strategy->nlayers = nlayers;
    for (int i = 0; i < nlayers; i++) counts[i] = tutti_prices_list(&p->prices, i + 1, choices[i]);
    *least_out = INFINITY, *count_out = 0;
    tutti_status status = TUTTI_OK;
    for (int i = 0; i >= 0 && status == TUTTI_OK;) {
        for (int k = 0; k < nlayers; k++) memcpy(strategy->layers[k], choices[k][at[k]], sizeof strategy->layers[k]);
        status = tutti_prices_step(&p->prices, strategy, price);
        *least_out = fmin(*least_out, price->us);
        *count_out += 1;
        for (i = nlayers - 1; i >= 0 && ++at[i] == counts[i]; i--) at[i] = 0;
    }
    free(strategy), free(price);
    return status;
}

typedef struct trial {
    void (*fill)(const tutti_models_options *options, tutti_model_layers *list);
    int sizes[2], naxes, batch;
    bool expanded;
    const char *const *frozen;
} trial;

static const char *const first_frozen[] = {"a.", NULL};
static const char *const some_frozen[] = {"a.weight", "b.bias", NULL};
static const char *const third_frozen[] = {"c.", NULL};
static const char *const body_frozen[] = {"a.", "b.", NULL};

static tutti_status compare(ranks_context *context) {
    const trial *t = context->argument;
    problem p = {.expanded = t->expanded, .frozen = t->frozen};
    double tried, found;
    int count;
    TUTTI_TRY(open_problem(&p, context->comm, t->fill, (tutti_shape){6, 6, 1}, t->batch, t->sizes, t->naxes));
    tutti_tables tables;
    TUTTI_TRY(tutti_tables_open(&tables, &p.prices)); /* records the pieces */
    tutti_tables_close(&tables);
    draw_times(&p);
    TUTTI_TRY(tutti_tables_open(&tables, &p.prices));
    tutti_strategy strategy;
    TUTTI_TRY(tutti_tables_solve(&tables, &p.prices, 0, &strategy, &found));
    tutti_step_price *price = malloc(sizeof *price);
    TUTTI_TRY(tutti_prices_step(&p.prices, &strategy, price));
    RANKS_CHECK(fabs(price->us - found) < 1e-6 * found, "the search adds up %.9g, the strategy takes %.9g", found,
                price->us);
    TUTTI_TRY(least_of_all(&p, &tried, &count));
    RANKS_CHECK(count > 100, "only %d strategies", count);
    RANKS_CHECK(fabs(tried - found) < 1e-6 * tried, "%.9g us by searching, %.9g by trying %d strategies", found, tried,
                count);
    free(price);
    tutti_tables_close(&tables);
    close_problem(&p);
    return TUTTI_OK;
}

Test(auto_search, finds_the_strategy_that_trying_all_of_them_finds, .timeout = 100) {
    static trial trials[] = {{.fill = fill_chain, .sizes = {2}, .naxes = 1, .batch = 8},
                             {.fill = fill_residual, .sizes = {2}, .naxes = 1, .batch = 8},
                             {.fill = fill_residual, .sizes = {3}, .naxes = 1, .batch = 7},
                             {.fill = fill_chain, .sizes = {2, 2}, .naxes = 2, .batch = 8},
                             {.fill = fill_chain, .sizes = {2}, .naxes = 1, .batch = 8, .expanded = true},
                             {.fill = fill_chain, .sizes = {2}, .naxes = 1, .batch = 8, .frozen = body_frozen},
                             {.fill = fill_residual, .sizes = {2}, .naxes = 1, .batch = 8, .frozen = first_frozen},
                             {.fill = fill_alike, .sizes = {2}, .naxes = 1, .batch = 8, .frozen = third_frozen}};
    static const int ranks[] = {2, 2, 3, 4, 2, 2, 2, 2};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        const char *failure =
            ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = ranks[i], .argument = &trials[i]}, compare);
        cr_assert_null(failure, "trial %zu: %s", i, failure);
    }
}

/* The sum of the predictions of a divided model's plans. */
static tutti_status sum_plans(const tutti_model *model, double *us_out) {
    *us_out = 0;
    for (int i = 1; i < model->nnodes; i++) {
        tutti_plan_details details;
        const tutti_part *part = model->nodes[i].part;
        if (part->forward == NULL) continue;
        TUTTI_TRY(tutti_plan_get(part->forward, &details));
        *us_out += details.predicted_us;
        if (part->backward == NULL) continue;
        TUTTI_TRY(tutti_plan_get(part->backward, &details));
        *us_out += details.predicted_us;
    }
    return TUTTI_OK;
}

/* The bytes that gradients' reductions move on a rank, and the elements that its optimizer updates: the maximum over
 * ranks, like prices. */
static tutti_status count_parameters(const tutti_model *model, tutti_comm *comm, double *reduced_out,
                                     double *updated_out) {
    double both[2] = {0, 0};
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        double ranks = 1;
        if (parameter->frozen) continue;
        for (int a = 0; a < model->parallel->strategy->naxes; a++)
            if ((parameter->sums >> a & 1) != 0) ranks *= model->parallel->strategy->sizes[a];
        both[0] += 2 * sizeof(float) * (double)parameter->count * (ranks - 1) / ranks;
        both[1] += (double)parameter->count;
    }
    TUTTI_TRY(tutti_all_reduce(comm, both, both, 2, TUTTI_FLOAT64, TUTTI_MAX, NULL));
    *reduced_out = both[0], *updated_out = both[1];
    return TUTTI_OK;
}

/* The update time of one element, as it was drawn. */
static double update_of_one(const problem *p) {
    for (int i = 0; i < p->pieces.count; i++)
        if (p->pieces.entries[i].piece.kind == TUTTI_PIECE_UPDATE)
            return p->pieces.entries[i].times.forward_us / p->pieces.entries[i].piece.channels;
    return 0;
}

/* Checks that layers, those without parameters too, run backwards and pass gradients to their inputs in the prices if
 * they do in the model. */
static tutti_status compare_backwards(const problem *p, const tutti_model *model, const tutti_step_price *price) {
    for (int i = 1; i < p->whole->nnodes; i++) {
        bool runs = false;
        for (int n = 1; n < model->nnodes; n++)
            runs |= model->nodes[n].number == i && !tutti_node_is_redistribution(&model->nodes[n]) &&
                    model->nodes[n].wants_gradient;
        RANKS_CHECK((price->layers[i].backward_us > 0) == runs, "layer %d takes %g us backwards, and %s backwards", i,
                    price->layers[i].backward_us, runs ? "runs" : "does not run");
    }
    return TUTTI_OK;
}

/* Compares prices of random strategies with the models that are really divided: what they move, reduce and update,
 * and which layers run backwards. */
static tutti_status compare_with_models(ranks_context *context) {
    const trial *t = context->argument;
    const tutti_shape in = {6, 6, 1};
    problem p = {.expanded = t->expanded, .frozen = t->frozen};
    TUTTI_TRY(open_problem(&p, context->comm, t->fill, in, t->batch, t->sizes, t->naxes));
    draw_times(&p);
    tutti_strategy strategy = *p.prices.mesh;
    strategy.nlayers = p.list.count;
    tutti_step_price *price = malloc(sizeof *price);
    for (uint64_t number = 0; number < 50; number++) { /* in the first run plans measure the connection of the ranks */
        const uint64_t round = number % 25;
        uint8_t choices[TUTTI_PRICE_CHOICES][TUTTI_MOST_AXES];
        for (int i = 0; i < p.list.count; i++) {
            const int count = tutti_prices_list(&p.prices, i + 1, choices);
            memcpy(strategy.layers[i], choices[(int)(count * draw(50 + round, (uint64_t)i))], sizeof choices[0]);
        }
        /* Two readers of one output that need the same placement share a redistribution. */
        for (int i = 1; i < p.list.count && round % 3 == 0; i++)
            memset(strategy.layers[i], TUTTI_SPLIT_SAMPLES, sizeof strategy.layers[i]);
        const tutti_parallel parallel = {.comm = context->comm,
                                         .placement = p.prices.placement,
                                         .strategy = &strategy,
                                         .batch = t->batch,
                                         .divided_classes = t->expanded};
        tutti_model *model;
        double planned, reduced, updated;
        TUTTI_TRY(tutti_model_create_part(&p.list, in, &parallel, p.compute, &model));
        TUTTI_TRY(tutti_model_connect(model));
        TUTTI_TRY(sum_plans(model, &planned));
        TUTTI_TRY(count_parameters(model, context->comm, &reduced, &updated));
        if (number >= 25) {
            TUTTI_TRY(tutti_prices_step(&p.prices, &strategy, price)); /* records pieces */
            draw_times(&p);
            TUTTI_TRY(tutti_prices_step(&p.prices, &strategy, price));
            RANKS_CHECK(fabs(price->move_us - planned) <= 1e-2 * planned,
                        "round %d: %.9g us are added up, %.9g planned", (int)round, price->move_us, planned);
            RANKS_CHECK(fabs(price->reduced - reduced) <= 1e-6 * reduced, "round %d: %.9g bytes are reduced, of %.9g",
                        (int)round, price->reduced, reduced);
            double update_us = 0;
            for (int i = 0; i < p.whole->nnodes; i++)
                update_us += price->layers[i].update_us + price->outputs[i].update_us;
            const double of_each = update_of_one(&p);
            RANKS_CHECK(fabs(update_us - updated * of_each) <= 1e-6 * update_us,
                        "round %d: %.9g us of updates, %.9g elements of %.9g us", (int)round, update_us, updated,
                        of_each);
            TUTTI_TRY(compare_backwards(&p, model, price));
        }
        tutti_model_destroy(model);
    }
    free(price);
    close_problem(&p);
    return TUTTI_OK;
}

Test(auto_search, adds_up_the_redistributions_that_models_make, .timeout = 100) {
    static trial trials[] = {{.fill = fill_chain, .sizes = {2, 2}, .naxes = 2, .batch = 9},
                             {.fill = fill_residual, .sizes = {2, 2}, .naxes = 2, .batch = 8},
                             {.fill = fill_chain, .sizes = {2, 2}, .naxes = 2, .batch = 9, .expanded = true},
                             {.fill = fill_chain, .sizes = {2, 2}, .naxes = 2, .batch = 9, .frozen = first_frozen},
                             {.fill = fill_chain, .sizes = {2, 2}, .naxes = 2, .batch = 9, .frozen = some_frozen},
                             {.fill = fill_chain, .sizes = {2, 2}, .naxes = 2, .batch = 9, .frozen = body_frozen},
                             {.fill = fill_residual, .sizes = {2, 2}, .naxes = 2, .batch = 8, .frozen = body_frozen}};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 4, .argument = &trials[i]},
                                        compare_with_models);
        cr_assert_null(failure, "trial %zu: %s", i, failure);
    }
}

/* ------------------------------------------------------------------------------------------------- time */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Three axes of size two: every mesh with fewer axes has fewer strategies. */
static tutti_status search_resnet50(ranks_context *context) {
    static const int sizes[] = {2, 2, 2};
    problem p = {.expanded = false};
    double found;
    if (context->rank != 0) return TUTTI_OK;
    TUTTI_TRY(open_problem(&p, context->comm, tutti_resnet50_fill, (tutti_shape){32, 32, 3}, 256, sizes, 3));
    tutti_tables tables;
    TUTTI_TRY(tutti_tables_open(&tables, &p.prices));
    tutti_tables_close(&tables);
    draw_times(&p);
    const double begun = seconds();
    TUTTI_TRY(tutti_tables_open(&tables, &p.prices));
    tutti_strategy strategy;
    const double filled = seconds();
    TUTTI_TRY(tutti_tables_solve(&tables, &p.prices, 0, &strategy, &found));
    const double solved = seconds();
    printf("ResNet-50 on 8 ranks: %d pieces, %zu edges, %.2f s to price, %.2f s to search\n", p.pieces.count,
           p.prices.nedges, filled - begun, solved - filled);
    tutti_tables_close(&tables);
    close_problem(&p);
    RANKS_CHECK(solved - begun < 20, "%.2f s to price strategies, %.2f s to search", filled - begun, solved - filled);
    return TUTTI_OK;
}

Test(auto_search, takes_little_time_for_resnet50_on_eight_ranks, .timeout = 100) {
#if defined(__SANITIZE_THREAD__)
    cr_skip_test("one thread computes for long");
#endif
    const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = 8}, search_resnet50);
    cr_assert_null(failure, "%s", failure);
}
