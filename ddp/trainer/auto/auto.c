/*
 * Meshes, candidate strategies, and the choice between them.
 */
#include "ddp/trainer/auto/auto.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ddp/trainer/auto/edges.h"

/* A strategy other than data parallelism must be predicted to be faster by this fraction: predictions are not more
 * exact, and a model that is not cut records steps on GPUs, makes no plans, and has the job's rank numbers in
 * errors. */
#define MARGIN 0.02
/* Number of bisections of the price of a byte. */
#define BISECTIONS 14
/* At this price in microseconds a byte outweighs any time. */
#define DEAR_BYTE_US 1e3
/* Links between ranks are measured for tensors up to this size. */
#define MOST_MEASURED_BYTES ((double)(64 << 20))

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static tutti_memory memory_of(const tutti_auto *automatic) {
    return automatic->setup.compute->kernels->memory;
}

/* ------------------------------------------------------------------------------------------------ meshes */

static tutti_prices *find_mesh(tutti_auto *automatic, const int *sizes, int naxes) {
    for (int m = 0; m < automatic->nmeshes; m++) {
        const tutti_strategy *mesh = automatic->meshes[m].mesh;
        if (mesh != NULL && mesh->naxes == naxes && memcmp(mesh->sizes, sizes, (size_t)naxes * sizeof *sizes) == 0)
            return &automatic->meshes[m];
    }
    return NULL;
}

/* Collective: true if every host has a second core for each rank. Then gradients are reduced during backward, by
 * the same test as in the engine (ddp.c), and batches are made during the steps; a GPU needs no core for this. */
static tutti_status find_spare_cores(const tutti_auto *automatic, bool *spare_out) {
    tutti_comm_details details;
    TUTTI_TRY(tutti_comm_get(automatic->setup.comm, &details));
    int32_t spare = details.host_cores >= 2 * details.host_ranks || memory_of(automatic) != TUTTI_MEMORY_HOST;
    TUTTI_TRY(tutti_all_reduce(automatic->setup.comm, &spare, &spare, 1, TUTTI_INT32, TUTTI_MIN, NULL));
    *spare_out = spare != 0;
    return TUTTI_OK;
}

static tutti_status add_mesh(tutti_auto *automatic, bool spare_cores, const int *sizes, int naxes) {
    const tutti_auto_setup *setup = &automatic->setup;
    if (automatic->nmeshes == TUTTI_AUTO_MESHES || find_mesh(automatic, sizes, naxes) != NULL) return TUTTI_OK;
    const tutti_price_setup about = {.comm = setup->comm,
                                     .whole = automatic->whole,
                                     .batch = setup->batch,
                                     .optimizer = setup->optimizer,
                                     .update = setup->update,
                                     .pieces = &automatic->pieces,
                                     .overlaps = spare_cores && tutti_comm_size(setup->comm) > 1,
                                     .zero = setup->zero,
                                     .expanded = setup->expanded,
                                     .sample_us = spare_cores ? 0 : setup->sample_us};
    return tutti_prices_open(&automatic->meshes[automatic->nmeshes++], &about, sizes, naxes);
}

/* Adds all ways to write n as a product of up to three numbers above 1, in any order, and 1 itself. Fewer axes come
 * first. */
static tutti_status add_meshes(tutti_auto *automatic, bool spare_cores) {
    const int n = tutti_comm_size(automatic->setup.comm);
    TUTTI_TRY(add_mesh(automatic, spare_cores, (int[]){n}, 1));
    for (int a = 2; a < n; a++)
        if (n % a == 0) TUTTI_TRY(add_mesh(automatic, spare_cores, (int[]){a, n / a}, 2));
    for (int a = 2; a < n; a++)
        for (int b = 2; n % a == 0 && b < n / a; b++)
            if (n / a % b == 0) TUTTI_TRY(add_mesh(automatic, spare_cores, (int[]){a, b, n / a / b}, 3));
    return TUTTI_OK;
}

static tutti_status add_plain(tutti_auto *automatic, bool spare_cores) {
    static const tutti_parallel_mode modes[TUTTI_AUTO_PLAIN] = {TUTTI_MODE_DATA_PARALLEL, TUTTI_MODE_LAYERWISE_PARALLEL,
                                                                TUTTI_MODE_HYBRID_PARALLEL};
    const int nranks = tutti_comm_size(automatic->setup.comm);
    for (int i = 0; i < TUTTI_AUTO_PLAIN; i++) {
        tutti_strategy *strategy = calloc(1, sizeof *strategy);
        if (strategy == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a strategy");
        automatic->plain[i].mode = modes[i];
        automatic->plain[i].strategy = strategy;
        TUTTI_TRY(tutti_strategy_read_mesh(NULL, NULL, nranks, modes[i], strategy));
        tutti_strategy_fill(modes[i], automatic->setup.list, strategy);
        TUTTI_TRY(add_mesh(automatic, spare_cores, strategy->sizes, strategy->naxes));
        automatic->plain[i].allowed =
            tutti_prices_allow(find_mesh(automatic, strategy->sizes, strategy->naxes), strategy);
    }
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- open, close */

/* Measures the links between ranks, for boxes of the model's largest tensor. */
static tutti_status measure_links(const tutti_auto *automatic) {
    const tutti_model *whole = automatic->whole;
    const int nranks = tutti_comm_size(automatic->setup.comm);
    double most = sizeof(float) * (double)tutti_model_parameter_count(whole);
    if (nranks == 1 && memory_of(automatic) == TUTTI_MEMORY_HOST) return TUTTI_OK;
    for (int i = 0; i < whole->nnodes; i++) {
        const double bytes =
            sizeof(float) * (double)automatic->setup.batch * (double)tutti_shape_count(whole->nodes[i].out);
        if (bytes > most) most = bytes;
    }
    if (most > MOST_MEASURED_BYTES) most = MOST_MEASURED_BYTES;
    tutti_placement *placement;
    TUTTI_TRY(tutti_placement_create(automatic->setup.comm, memory_of(automatic), NULL, &nranks, 1, &placement));
    const tutti_status status = tutti_placement_measure(placement, (size_t)most / (size_t)nranks);
    tutti_placement_destroy(placement);
    return status;
}

/* Makes all queries that will be made later, before anything is measured. */
static tutti_status note_pieces(tutti_auto *automatic) {
    tutti_step_price *price = malloc(sizeof *price);
    tutti_status status =
        price != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory for the price of a strategy");
    for (int i = 0; i < TUTTI_AUTO_PLAIN && status == TUTTI_OK; i++)
        if (automatic->plain[i].allowed) status = tutti_auto_price(automatic, automatic->plain[i].strategy, price);
    if (status == TUTTI_OK && automatic->setup.given != NULL)
        status = tutti_auto_price(automatic, automatic->setup.given, price);
    free(price);
    for (int m = 0; m < automatic->nmeshes && automatic->setup.searches && status == TUTTI_OK; m++) {
        tutti_tables tables;
        status = tutti_tables_open(&tables, &automatic->meshes[m]);
        tutti_tables_close(&tables);
    }
    return status;
}

tutti_status tutti_auto_open(tutti_auto *automatic, const tutti_auto_setup *setup) {
    bool spare_cores;
    const char *path = getenv("TUTTI_SPEED_FILE");
    *automatic = (tutti_auto){.setup = *setup};
    automatic->meshes = calloc(TUTTI_AUTO_MESHES, sizeof *automatic->meshes);
    if (automatic->meshes == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the prices of a strategy");
    TUTTI_TRY(tutti_model_create_outline(setup->list, setup->in, 1, NULL, setup->compute, &automatic->whole));
    TUTTI_TRY(find_spare_cores(automatic, &spare_cores));
    if (setup->naxes > 0) TUTTI_TRY(add_mesh(automatic, spare_cores, setup->sizes, setup->naxes));
    else if (setup->searches) TUTTI_TRY(add_meshes(automatic, spare_cores));
    if (setup->given != NULL) TUTTI_TRY(add_mesh(automatic, spare_cores, setup->given->sizes, setup->given->naxes));
    TUTTI_TRY(add_plain(automatic, spare_cores));
    TUTTI_TRY(measure_links(automatic));
    TUTTI_TRY(note_pieces(automatic));
    const tutti_calibration calibration = {setup->comm,   setup->compute,   setup->optimizer,
                                           setup->update, setup->precision, path != NULL ? path : ""};
    TUTTI_TRY(tutti_calibrate(&calibration, &automatic->pieces));
    for (int m = 0; m < automatic->nmeshes; m++) automatic->meshes[m].measured = true;
    return TUTTI_OK;
}

void tutti_auto_close(tutti_auto *automatic) {
    for (int m = 0; m < automatic->nmeshes; m++) tutti_prices_close(&automatic->meshes[m]);
    for (int i = 0; i < TUTTI_AUTO_PLAIN; i++) free(automatic->plain[i].strategy);
    free(automatic->meshes);
    tutti_auto_pieces_fini(&automatic->pieces);
    tutti_model_destroy(automatic->whole);
    *automatic = (tutti_auto){.nmeshes = 0};
}

/* -------------------------------------------------------------------------------------------------- asking */

tutti_status tutti_auto_price(tutti_auto *automatic, const tutti_strategy *strategy, tutti_step_price *price_out) {
    tutti_prices *prices = find_mesh(automatic, strategy->sizes, strategy->naxes);
    if (prices == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "the mesh of this strategy was not given to tutti_auto_open");
    return tutti_prices_step(prices, strategy, price_out);
}

/* The number of ranks over which a parameter's gradients are summed. */
static double summing_ranks(const tutti_strategy *strategy, bool cut, const tutti_parameter *parameter) {
    double ranks = 1;
    for (int a = 0; a < strategy->naxes; a++)
        if (!cut || (parameter->sums >> a & 1) != 0) ranks *= strategy->sizes[a];
    return ranks;
}

tutti_status tutti_auto_bytes(tutti_auto *automatic, const tutti_strategy *strategy, double *bytes_out) {
    const tutti_auto_setup *setup = &automatic->setup;
    const int nranks = tutti_comm_size(setup->comm);
    const bool cut = !tutti_strategy_is_data_parallel(strategy);
    const int rows = (setup->batch + nranks - 1) / nranks;
    tutti_placement *placement = NULL;
    tutti_model *model;
    TUTTI_TRY(
        tutti_placement_create(setup->comm, memory_of(automatic), NULL, strategy->sizes, strategy->naxes, &placement));
    const tutti_parallel parallel = {.comm = setup->comm,
                                     .placement = placement,
                                     .strategy = strategy,
                                     .batch = setup->batch,
                                     .divided_classes = setup->expanded};
    tutti_status status =
        tutti_model_create_outline(setup->list, setup->in, rows, cut ? &parallel : NULL, setup->compute, &model);
    if (status == TUTTI_OK) {
        const int states = tutti_update_find(setup->optimizer)->nstates;
        *bytes_out = (double)model->memory_bytes;
        for (int i = 0; i < model->nparameters; i++) {
            const tutti_parameter *parameter = &model->parameters[i];
            if (parameter->frozen) continue;
            const double kept = states / (setup->zero ? summing_ranks(strategy, cut, parameter) : 1);
            *bytes_out += (double)sizeof(float) * (double)parameter->count * (1 + kept);
        }
        tutti_model_destroy(model);
    }
    tutti_placement_destroy(placement);
    return status;
}

/* ------------------------------------------------------------------------------------------------ choosing */

typedef struct choice {
    tutti_strategy best, tried;
    tutti_step_price price; /* price of the strategy tried last */
    double us;              /* of the best strategy; below 0: none yet */
    double least_bytes;     /* of all strategies tried */
} choice;

static bool keeps_limit(const tutti_auto *automatic, double bytes) {
    return automatic->setup.memory_limit == 0 || bytes <= (double)automatic->setup.memory_limit;
}

/* Takes the strategy being tried if it is better than the best so far. */
static tutti_status consider(tutti_auto *automatic, choice *c, bool *fits_out) {
    double bytes;
    TUTTI_TRY(tutti_auto_bytes(automatic, &c->tried, &bytes));
    *fits_out = keeps_limit(automatic, bytes);
    if (bytes < c->least_bytes) c->least_bytes = bytes;
    if (!*fits_out) return TUTTI_OK;
    TUTTI_TRY(tutti_auto_price(automatic, &c->tried, &c->price));
    const bool best_is_plain = c->us >= 0 && tutti_strategy_is_data_parallel(&c->best);
    if (c->us >= 0 && c->price.us >= c->us * (best_is_plain ? 1 - MARGIN : 1)) return TUTTI_OK;
    c->us = c->price.us;
    c->best = c->tried;
    return TUTTI_OK;
}

/* Considers the best strategy of a mesh with bytes free of cost or, if that is too large, at the lowest price of a
 * byte at which it fits. */
static tutti_status search_tables(tutti_auto *automatic, tutti_tables *tables, const tutti_prices *prices, choice *c) {
    double low = 1e-9, high = DEAR_BYTE_US, least;
    bool fits;
    TUTTI_TRY(tutti_tables_solve(tables, prices, 0, &c->tried, &least));
    TUTTI_TRY(consider(automatic, c, &fits));
    if (fits) return TUTTI_OK;
    TUTTI_TRY(tutti_tables_solve(tables, prices, high, &c->tried, &least));
    TUTTI_TRY(consider(automatic, c, &fits));
    for (int i = 0; i < BISECTIONS && fits; i++) {
        const double middle = sqrt(low * high);
        TUTTI_TRY(tutti_tables_solve(tables, prices, middle, &c->tried, &least));
        bool now;
        TUTTI_TRY(consider(automatic, c, &now));
        if (now) high = middle;
        else low = middle;
    }
    return TUTTI_OK;
}

/* If gradients are reduced during backward, a sum cannot express how much of that is hidden: the search runs with
 * all, half and none of it. */
static tutti_status search_mesh(tutti_auto *automatic, tutti_prices *prices, choice *c) {
    static const double weights[] = {1, 0.5, 0};
    tutti_status status = TUTTI_OK;
    for (int w = 0; w < (prices->setup.overlaps ? 3 : 1) && status == TUTTI_OK; w++) {
        tutti_tables tables;
        prices->gradient_weight = weights[w];
        status = tutti_tables_open(&tables, prices);
        if (status == TUTTI_OK) status = search_tables(automatic, &tables, prices, c);
        tutti_tables_close(&tables);
    }
    prices->gradient_weight = 1;
    return status;
}

/* Returns whether the mesh has an axis of size 1: a plain mode's mesh of 1 x n is equal to one of n. */
static bool has_idle_axis(const tutti_strategy *mesh) {
    for (int a = 0; a < mesh->naxes; a++)
        if (mesh->sizes[a] == 1 && mesh->naxes > 1) return true;
    return false;
}

static tutti_status choose(tutti_auto *automatic, choice *c) {
    bool fits;
    const bool any = automatic->setup.naxes == 0;
    c->us = -1;
    c->least_bytes = 1e300;
    for (int i = 0; i < TUTTI_AUTO_PLAIN && any; i++) {
        if (!automatic->plain[i].allowed) continue;
        c->tried = *automatic->plain[i].strategy;
        TUTTI_TRY(consider(automatic, c, &fits));
    }
    for (int m = 0; m < automatic->nmeshes; m++) {
        const tutti_prices *prices = &automatic->meshes[m];
        if (any && has_idle_axis(prices->mesh)) continue;
        if (!any && prices != find_mesh(automatic, automatic->setup.sizes, automatic->setup.naxes)) continue;
        TUTTI_TRY(search_mesh(automatic, &automatic->meshes[m], c));
    }
    if (c->us >= 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "--memory-limit %" PRId64 ": no strategy fits it; the smallest found needs %.0f bytes on "
                      "each rank: raise the limit, lower --batch-size, or take more ranks",
                      automatic->setup.memory_limit, c->least_bytes);
}

tutti_status tutti_auto_choose(tutti_auto *automatic, tutti_strategy *strategy_out) {
    const double begun = now_seconds();
    choice *c = calloc(1, sizeof *c);
    tutti_status status = c != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory to choose a strategy");
    if (status == TUTTI_OK && tutti_comm_rank(automatic->setup.comm) == 0) status = choose(automatic, c);
    status = tutti_calibrate_agree(automatic->setup.comm, status);
    if (status == TUTTI_OK)
        status = tutti_broadcast(automatic->setup.comm, &c->best, sizeof c->best, TUTTI_UINT8, 0, NULL);
    if (status == TUTTI_OK) *strategy_out = c->best;
    free(c);
    automatic->search_seconds = now_seconds() - begun;
    return status;
}
