/*
 * The tables of a search: one for each layer, one for each output. The tables of repeated blocks are copied.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/auto/auto.h"

/* ------------------------------------------------------------------------------------------- what is alike */

static bool are_alike(const tutti_node *a, const tutti_node *b) {
    const tutti_layer *la = a->layer, *lb = b->layer;
    if ((la == NULL) != (lb == NULL)) return false;
    if (memcmp(&a->in, &b->in, sizeof a->in) != 0 || memcmp(&a->out, &b->out, sizeof a->out) != 0 ||
        a->wants_gradient != b->wants_gradient || a->frozen != b->frozen)
        return false;
    return la == NULL || (la->kind == lb->kind && la->units == lb->units && la->kernel == lb->kernel &&
                          la->stride == lb->stride && la->padding == lb->padding && la->relu == lb->relu &&
                          la->no_bias == lb->no_bias && (la->rate > 0) == (lb->rate > 0));
}

/* Returns whether the layer computes the gradient of its inputs. */
static bool gives_gradient(const tutti_model *model, const tutti_node *node) {
    for (int k = 0; node->layer != NULL && k < tutti_layers_row(node->layer->kind)->ninputs; k++)
        if (model->nodes[node->inputs[k]].wants_gradient) return true;
    return false;
}

/* Returns whether the prices of two layers are equal. */
static bool are_layers_alike(const tutti_model *model, int a, int b) {
    return are_alike(&model->nodes[a], &model->nodes[b]) &&
           gives_gradient(model, &model->nodes[a]) == gives_gradient(model, &model->nodes[b]);
}

/* Returns whether the prices of two outputs are equal. */
static bool are_outputs_alike(const tutti_prices *prices, int a, int b) {
    const tutti_model *model = prices->setup.whole;
    const int *of_a, *of_b, count = tutti_prices_readers(prices, a, &of_a);
    if (!are_alike(&model->nodes[a], &model->nodes[b]) || tutti_prices_readers(prices, b, &of_b) != count) return false;
    for (int r = 0; r < count; r++)
        if (!are_alike(&model->nodes[of_a[r]], &model->nodes[of_b[r]])) return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------- filling */

static tutti_status add_table(tutti_tables *tables, const int *variables, int nvariables, size_t *size_out) {
    double *values;
    const int index = tables->search.ntables;
    TUTTI_TRY(tutti_search_add(&tables->search, variables, nvariables, &values));
    *size_out = 1;
    for (int i = 0; i < nvariables; i++) *size_out *= (size_t)tables->search.nchoices[variables[i]];
    tables->us[index] = malloc(*size_out * sizeof(double));
    tables->bytes[index] = malloc(*size_out * sizeof(double));
    if (tables->us[index] != NULL && tables->bytes[index] != NULL) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy");
}

static void copy_table(tutti_tables *tables, int from, size_t size) {
    const int to = tables->search.ntables - 1;
    memcpy(tables->us[to], tables->us[from], size * sizeof(double));
    memcpy(tables->bytes[to], tables->bytes[from], size * sizeof(double));
}

/* Layer i is variable i - 1 and the i-th table. */
static tutti_status add_layer(tutti_tables *tables, tutti_prices *prices, int whole) {
    const int variable = whole - 1;
    size_t size;
    tables->search.nchoices[variable] = tutti_prices_list(prices, whole, tables->choices[variable]);
    if (tables->search.nchoices[variable] == 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "layer %s cannot be divided over this mesh in any way; take fewer ranks or another --mesh",
                          prices->setup.whole->nodes[whole].layer->name);
    TUTTI_TRY(add_table(tables, &variable, 1, &size));
    for (int other = 1; other < whole; other++) {
        if (!are_layers_alike(prices->setup.whole, whole, other)) continue;
        copy_table(tables, other - 1, size);
        return TUTTI_OK;
    }
    for (size_t c = 0; c < size; c++) {
        const tutti_price price = tutti_prices_layer(prices, whole, tables->choices[variable][c]);
        tables->us[variable][c] = tutti_prices_sum(prices, &price);
        tables->bytes[variable][c] = price.bytes;
    }
    return TUTTI_OK;
}

static tutti_status add_output(tutti_tables *tables, tutti_prices *prices, int whole) {
    const uint8_t *splits[TUTTI_MODEL_LAYERS + 1] = {NULL};
    const int *readers, nreaders = tutti_prices_readers(prices, whole, &readers);
    const int nlayers = prices->setup.whole->nnodes - 1, table = nlayers + whole;
    int variables[TUTTI_MODEL_LAYERS + 1], count = 0, choices[TUTTI_SEARCH_VARIABLES] = {0};
    size_t size;
    if (whole > 0) variables[count++] = whole - 1;
    for (int r = 0; r < nreaders; r++) variables[count++] = readers[r] - 1;
    TUTTI_TRY(add_table(tables, variables, count, &size));
    for (int other = 0; other < whole; other++) {
        if (!are_outputs_alike(prices, whole, other)) continue;
        copy_table(tables, nlayers + other, size);
        return TUTTI_OK;
    }
    for (size_t i = 0; i < size; i++) {
        for (int v = 0; v < count; v++) splits[variables[v] + 1] = tables->choices[variables[v]][choices[v]];
        const tutti_price price = tutti_prices_output(prices, whole, splits);
        tables->us[table][i] = tutti_prices_sum(prices, &price);
        tables->bytes[table][i] = price.bytes;
        for (int v = count - 1; v >= 0 && ++choices[v] == tables->search.nchoices[variables[v]]; v--) choices[v] = 0;
    }
    return TUTTI_OK;
}

tutti_status tutti_tables_open(tutti_tables *tables, tutti_prices *prices) {
    const int nnodes = prices->setup.whole->nnodes;
    *tables = (tutti_tables){.us = NULL};
    TUTTI_TRY(tutti_search_init(&tables->search, nnodes - 1));
    tables->us = calloc(2 * (size_t)nnodes, sizeof *tables->us);
    tables->bytes = calloc(2 * (size_t)nnodes, sizeof *tables->bytes);
    tables->choices = calloc((size_t)nnodes, sizeof *tables->choices);
    if (tables->us == NULL || tables->bytes == NULL || tables->choices == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory to search for a strategy");
    for (int i = 1; i < nnodes; i++) TUTTI_TRY(add_layer(tables, prices, i));
    for (int i = 0; i < nnodes; i++) TUTTI_TRY(add_output(tables, prices, i));
    TUTTI_TRY(prices->setup.pieces->failure);
    return prices->failure;
}

void tutti_tables_close(tutti_tables *tables) {
    for (int t = 0; t < tables->search.ntables; t++) free(tables->us[t]), free(tables->bytes[t]);
    free(tables->us), free(tables->bytes), free(tables->choices);
    tutti_search_fini(&tables->search);
}

tutti_status tutti_tables_solve(tutti_tables *tables, const tutti_prices *prices, double byte_us,
                                tutti_strategy *strategy_out, double *least_out) {
    int choices[TUTTI_MODEL_LAYERS];
    tutti_search *search = &tables->search;
    for (int t = 0; t < search->ntables; t++) {
        const tutti_search_table *table = &search->tables[t];
        size_t size = 1;
        for (int i = 0; i < table->nvariables; i++) size *= (size_t)search->nchoices[table->variables[i]];
        for (size_t i = 0; i < size; i++) table->values[i] = tables->us[t][i] + byte_us * tables->bytes[t][i];
    }
    TUTTI_TRY(tutti_search_solve(search, choices, least_out));
    *strategy_out = *prices->mesh;
    strategy_out->nlayers = search->nvariables;
    for (int i = 0; i < search->nvariables; i++)
        memcpy(strategy_out->layers[i], tables->choices[i][choices[i]], sizeof strategy_out->layers[i]);
    return TUTTI_OK;
}
