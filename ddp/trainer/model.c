/*
 * Nodes from a list of layers, one block of memory for all their buffers, and the two runs over them.
 */
#include "ddp/trainer/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES 64

/* ------------------------------------------------------------------------------------------- the nodes */

static int find_node(const tutti_model *model, int before, const char *name) {
    if (strcmp(name, "input") == 0) return 0;
    for (int i = 1; i < before; i++)
        if (strcmp(model->nodes[i].layer->name, name) == 0) return i;
    return -1;
}

static tutti_status connect_node(tutti_model *model, int index) {
    tutti_node *node = &model->nodes[index];
    const tutti_layer *layer = node->layer;
    const tutti_layer_row *row = tutti_layers_row(layer->kind);
    for (int i = 0; i < row->ninputs; i++) {
        bool named = layer->inputs[i] != NULL;
        int from = named ? find_node(model, index, layer->inputs[i]) : index - 1;
        if (from < 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: its input %s is no earlier layer", layer->name,
                              layer->inputs[i]);
        node->inputs[i] = from;
        model->nodes[from].consumers++;
        node->wants_gradient |= model->nodes[from].wants_gradient;
    }
    node->in = model->nodes[node->inputs[0]].out;
    if (row->ninputs == 2) {
        tutti_shape a = node->in, b = model->nodes[node->inputs[1]].out;
        if (a.height != b.height || a.width != b.width || a.channels != b.channels)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: its inputs differ in shape, %dx%dx%d and %dx%dx%d",
                              layer->name, a.height, a.width, a.channels, b.height, b.width, b.channels);
    }
    return TUTTI_OK;
}

/* Weights: [kernel, kernel, channels, filters] or [inputs, outputs]; biases: [units]. */
static void fill_dims(const tutti_node *node, int which, tutti_parameter *parameter) {
    int64_t units = node->layer->units, kernel = node->layer->kernel;
    if (which == 0 && kernel > 0) {
        parameter->dims[parameter->ndims++] = kernel;
        parameter->dims[parameter->ndims++] = kernel;
        parameter->dims[parameter->ndims++] = node->in.channels;
    } else if (which == 0) {
        parameter->dims[parameter->ndims++] = (int64_t)parameter->count / units;
    }
    parameter->dims[parameter->ndims++] = units;
}

static void add_parameters(tutti_model *model, tutti_node *node) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    node->first_parameter = model->nparameters;
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS && node->parameter_counts[i] > 0; i++) {
        tutti_parameter *parameter = &model->parameters[model->nparameters++];
        snprintf(parameter->name, sizeof parameter->name, "%s.%s", node->layer->name, row->parameter_names[i]);
        parameter->count = node->parameter_counts[i];
        parameter->node = node->index;
        fill_dims(node, i, parameter);
        node->wants_gradient = true;
    }
}

static tutti_status place_nodes(tutti_model *model, tutti_shape in) {
    model->nodes[0] = (tutti_node){.out = in};
    for (int i = 1; i < model->nnodes; i++) {
        tutti_node *node = &model->nodes[i];
        node->index = i;
        node->layer = &model->list.layers[i - 1];
        TUTTI_TRY(connect_node(model, i));
        TUTTI_TRY(tutti_layers_row(node->layer->kind)->place(node));
        add_parameters(model, node);
    }
    for (int i = 0; i < model->nnodes - 1; i++)
        if (model->nodes[i].consumers == 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "nobody reads the output of %s",
                              i == 0 ? "the input" : model->nodes[i].layer->name);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- memory */

/* Hands out the pieces of one block. Run with base NULL first it only adds up their sizes. */
typedef struct layout {
    char *base;
    size_t bytes;
} layout;

static void *take(layout *plan, size_t bytes) {
    void *piece = plan->base != NULL ? plan->base + plan->bytes : NULL;
    plan->bytes += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return piece;
}

static void lay_out(tutti_model *model, layout *plan) {
    const tutti_kernels *kernels = model->compute->kernels;
    size_t batch = (size_t)model->batch_capacity, scratch_count = 0, spare_count = 0;
    for (int i = 0; i < model->nnodes; i++) {
        tutti_node *node = &model->nodes[i];
        size_t count = batch * tutti_shape_count(node->out);
        node->y = take(plan, count * sizeof(float));
        if (node->wants_gradient || i == model->nnodes - 1) node->dy = take(plan, count * sizeof(float));
        if (i > 0 && node->layer->kind == TUTTI_LAYER_MAX_POOL) node->where = take(plan, count * sizeof(int32_t));
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS && node->parameter_counts[p] > 0; p++) {
            node->parameters[p] = take(plan, node->parameter_counts[p] * sizeof(float));
            model->parameters[node->first_parameter + p].data = node->parameters[p];
        }
        if (i > 0 && node->layer->kind == TUTTI_LAYER_CONV) {
            size_t needs = kernels->conv_scratch_count(&node->plan.conv, model->batch_capacity);
            if (needs > scratch_count) scratch_count = needs;
            node->kept = take(plan, kernels->conv_kept_count(&node->plan.conv, model->batch_capacity) * sizeof(float));
        }
        if (node->consumers > 1 && count > spare_count) spare_count = count;
    }
    model->scratch = take(plan, scratch_count * sizeof(float));
    for (int i = 0; i < TUTTI_LAYER_INPUTS; i++) model->spares[i] = take(plan, spare_count * sizeof(float));
}

static tutti_status allocate(tutti_model *model) {
    layout measured = {.base = NULL};
    lay_out(model, &measured);
    tutti_status status = model->compute->kernels->alloc(model->compute, measured.bytes, &model->memory);
    if (status == TUTTI_ERR_MEMORY)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the model's buffers, %zu bytes; lower --batch-size",
                          measured.bytes);
    TUTTI_TRY(status);
    layout real = {.base = model->memory};
    lay_out(model, &real);
    return TUTTI_OK;
}

tutti_status tutti_model_create(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                tutti_compute *compute, tutti_model **model_out) {
    tutti_status status = TUTTI_OK;
    tutti_model *model = calloc(1, sizeof *model);
    if (model == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a model");
    model->list = *list;
    model->compute = compute;
    model->nnodes = list->count + 1;
    model->batch_capacity = batch_capacity;
    model->nodes = calloc((size_t)model->nnodes, sizeof *model->nodes);
    model->parameters = calloc((size_t)model->nnodes * TUTTI_LAYER_PARAMETERS, sizeof *model->parameters);
    if (model->nodes == NULL || model->parameters == NULL) {
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a model of %d layers", list->count);
        goto fail;
    }
    TUTTI_TRY_GOTO(status, place_nodes(model, in), fail);
    TUTTI_TRY_GOTO(status, allocate(model), fail);
    *model_out = model;
    return TUTTI_OK;
fail:
    tutti_model_destroy(model);
    return status;
}

void tutti_model_destroy(tutti_model *model) {
    if (model == NULL) return;
    model->compute->kernels->free(model->compute, model->memory);
    free(model->nodes);
    free(model->parameters);
    free(model);
}

void tutti_model_initialize(tutti_model *model, uint64_t seed) {
    const tutti_kernels *kernels = model->compute->kernels;
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        if (node->parameter_counts[0] == 0) continue;
        tutti_normal normal = {
            .seed = seed,
            .stream = tutti_random_stream(TUTTI_RANDOM_INITIALIZER, (uint64_t)i, 0),
            .stddev = node->layer->stddev,
        };
        kernels->truncated_normal(model->compute, &normal, node->parameter_counts[0], node->parameters[0]);
        kernels->fill(model->compute, node->parameter_counts[1], (float)node->layer->bias, node->parameters[1]);
    }
}

/* ------------------------------------------------------------------------------------------- the runs */

static void gather_inputs(const tutti_model *model, const tutti_node *node, const float **x) {
    for (int i = 0; i < tutti_layers_row(node->layer->kind)->ninputs; i++) x[i] = model->nodes[node->inputs[i]].y;
}

const float *tutti_model_forward(tutti_model *model, const tutti_pass *pass) {
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        const float *x[TUTTI_LAYER_INPUTS] = {NULL, NULL};
        gather_inputs(model, node, x);
        tutti_layers_row(node->layer->kind)->forward(model->compute, node, pass, x, model->scratch);
    }
    return model->nodes[model->nnodes - 1].y;
}

/* One node: the first gradient that reaches an input is written in place, later ones go to a spare buffer and are
 * added. */
static tutti_status backward_node(tutti_model *model, tutti_node *node, const tutti_pass *pass,
                                  const tutti_gradient_sink *sink) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    tutti_layer_gradients gradients = {.dx = {NULL, NULL}};
    bool added[TUTTI_LAYER_INPUTS] = {false, false};
    for (int i = 0; i < row->ninputs; i++) {
        tutti_node *from = &model->nodes[node->inputs[i]];
        if (!from->wants_gradient) continue;
        added[i] = from->dy_written;
        gradients.dx[i] = added[i] ? model->spares[i] : from->dy;
        from->dy_written = true;
    }
    int nparameters = 0;
    for (; nparameters < TUTTI_LAYER_PARAMETERS && node->parameter_counts[nparameters] > 0; nparameters++)
        gradients.parameters[nparameters] = sink->where(sink->context, node->first_parameter + nparameters);

    const float *x[TUTTI_LAYER_INPUTS] = {NULL, NULL};
    gather_inputs(model, node, x);
    row->backward(model->compute, node, pass, x, model->scratch, &gradients);

    for (int p = nparameters - 1; p >= 0; p--) TUTTI_TRY(sink->ready(sink->context, node->first_parameter + p));
    for (int i = 0; i < row->ninputs; i++) {
        if (!added[i]) continue;
        tutti_node *from = &model->nodes[node->inputs[i]];
        size_t count = (size_t)pass->batch * tutti_shape_count(from->out);
        model->compute->kernels->add(model->compute, count, from->dy, model->spares[i], from->dy);
    }
    return TUTTI_OK;
}

tutti_status tutti_model_backward(tutti_model *model, const tutti_pass *pass, const tutti_gradient_sink *sink) {
    for (int i = 0; i < model->nnodes; i++) model->nodes[i].dy_written = false;
    for (int i = model->nnodes - 1; i > 0; i--)
        if (model->nodes[i].wants_gradient) TUTTI_TRY(backward_node(model, &model->nodes[i], pass, sink));
    return TUTTI_OK;
}

float *tutti_model_input(const tutti_model *model) {
    return model->nodes[0].y;
}

float *tutti_model_logits_gradient(const tutti_model *model) {
    return model->nodes[model->nnodes - 1].dy;
}

int tutti_model_classes(const tutti_model *model) {
    return (int)tutti_shape_count(model->nodes[model->nnodes - 1].out);
}

tutti_cost tutti_model_cost(const tutti_model *model) {
    tutti_cost sum = {0, 0};
    for (int i = 1; i < model->nnodes; i++) {
        tutti_cost cost = tutti_layers_row(model->nodes[i].layer->kind)->cost(&model->nodes[i]);
        sum.flops += cost.flops;
        sum.bytes += cost.bytes;
    }
    return sum;
}

size_t tutti_model_parameter_count(const tutti_model *model) {
    size_t count = 0;
    for (int i = 0; i < model->nparameters; i++) count += model->parameters[i].count;
    return count;
}
