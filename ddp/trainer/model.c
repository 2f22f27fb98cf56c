/*
 * Nodes from a list of layers, one block of memory for all their buffers, and the two runs over them.
 */
#include "ddp/trainer/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Weights: [kernel, kernel, channels, filters] or [inputs, outputs]; biases: [units]; of layers without units: [channels]. */
static void fill_dims(const tutti_node *node, int which, tutti_parameter *parameter) {
    int64_t units = node->layer->units, kernel = node->layer->kernel;
    if (units == 0) units = (int64_t)parameter->count;
    else if (which == 0 && kernel > 0) {
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

static void add_states(tutti_model *model, const tutti_node *node) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    for (int i = 0; i < TUTTI_LAYER_STATES && node->state_counts[i] > 0; i++) {
        tutti_parameter *state = &model->states[model->nstates++];
        snprintf(state->name, sizeof state->name, "%s.%s", node->layer->name, row->state_names[i]);
        state->count = node->state_counts[i];
        state->node = node->index;
        state->ndims = 1;
        state->dims[0] = (int64_t)state->count;
    }
}

static tutti_status place_nodes(tutti_model *model, tutti_shape in) {
    model->nodes[0] = (tutti_node){.out = in};
    for (int i = 1; i < model->nnodes; i++) {
        tutti_node *node = &model->nodes[i];
        node->index = i;
        node->layer = &model->list.layers[i - 1];
        TUTTI_TRY(connect_node(model, i));
        const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
        TUTTI_TRY(row->place(node));
        if (row->runs_on != NULL && !row->runs_on(node, model->compute->kernels))
            return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                              "layer %s (%s): there are no kernels for it with --device %s; train with --device host",
                              node->layer->name, row->name, model->compute->kernels->name);
        add_parameters(model, node);
        add_states(model, node);
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
    plan->bytes += tutti_memory_align(bytes);
    return piece;
}

static size_t scratch_count(const tutti_model *model) {
    size_t most = 0;
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_layer_row *row = tutti_layers_row(model->nodes[i].layer->kind);
        if (row->scratch_count == NULL) continue;
        size_t count = row->scratch_count(model->compute, &model->nodes[i], model->batch_capacity);
        if (count > most) most = count;
    }
    return most;
}

/* What lives as long as the model, then what the plan places. States lie side by side: they are broadcast as one. */
static void lay_out(tutti_model *model, layout *plan) {
    for (int i = 0; i < model->nparameters; i++)
        model->parameters[i].data = take(plan, model->parameters[i].count * sizeof(float));
    size_t states_at = plan->bytes;
    for (int i = 0; i < model->nstates; i++) model->states[i].data = take(plan, model->states[i].count * sizeof(float));
    model->state_count = (plan->bytes - states_at) / sizeof(float);
    model->nodes[0].y =
        take(plan, (size_t)model->batch_capacity * tutti_shape_count(model->nodes[0].out) * sizeof(float));
    model->scratch = take(plan, model->scratch_count * sizeof(float));
    model->planned = take(plan, model->plan.bytes);
}

static void bind_nodes(tutti_model *model) {
    tutti_memory_plan_bind(&model->plan, model->nodes, model->nnodes, model->planned);
    int state = 0;
    for (int i = 1; i < model->nnodes; i++) {
        tutti_node *node = &model->nodes[i];
        node->scratch = model->scratch;
        node->scratch_count = model->scratch_count;
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS && node->parameter_counts[p] > 0; p++)
            node->parameters[p] = model->parameters[node->first_parameter + p].data;
        for (int k = 0; k < TUTTI_LAYER_STATES && node->state_counts[k] > 0; k++)
            node->states[k] = model->states[state++].data;
    }
}

static tutti_status allocate(tutti_model *model) {
    layout measured = {.base = NULL};
    TUTTI_TRY(tutti_memory_plan_make(&model->plan, model->nodes, model->nnodes, model->compute, model->batch_capacity));
    model->scratch_count = scratch_count(model);
    lay_out(model, &measured);
    model->memory_bytes = measured.bytes;
    tutti_status status = model->compute->kernels->alloc(model->compute, measured.bytes, &model->memory);
    if (status == TUTTI_ERR_MEMORY)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the model's buffers, %zu bytes; lower --batch-size",
                          measured.bytes);
    TUTTI_TRY(status);
    layout real = {.base = model->memory};
    lay_out(model, &real);
    bind_nodes(model);
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
    model->states = calloc((size_t)model->nnodes * TUTTI_LAYER_STATES, sizeof *model->states);
    if (model->nodes == NULL || model->parameters == NULL || model->states == NULL) {
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
    free(model->states);
    tutti_memory_plan_fini(&model->plan);
    free(model);
}

/* ------------------------------------------------------------------------------------- initial values */

#define PIECE 1024

/* In +-limit, the same with any compute. */
static void fill_uniform(tutti_model *model, uint64_t seed, uint64_t stream, double limit, size_t count, float *data) {
    float piece[PIECE];
    for (size_t first = 0; first < count; first += PIECE) {
        size_t some = count - first < PIECE ? count - first : PIECE;
        for (size_t i = 0; i < some; i++)
            piece[i] = (float)(limit * (2 * tutti_random_uniform(seed, stream, first + i) - 1));
        model->compute->kernels->upload(model->compute, data + first, piece, some * sizeof *piece);
    }
}

static void initialize_weights(tutti_model *model, const tutti_node *node, uint64_t seed) {
    /* A normal deviate that is cut off at two standard deviations has this one. */
    static const double CUT_OFF = 0.87962566103423978;
    const tutti_layer *layer = node->layer;
    const size_t count = node->parameter_counts[0];
    const double fan_in = layer->units > 0 ? (double)count / layer->units : 1;
    const double fan_out = (double)layer->units * (layer->kernel > 0 ? layer->kernel * layer->kernel : 1);
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_INITIALIZER, (uint64_t)node->index, 0);
    tutti_normal normal = {.seed = seed, .stream = stream, .stddev = layer->stddev};
    switch (layer->initializer) {
    case TUTTI_INITIALIZER_HE_NORMAL: normal.stddev = sqrt(2 / fan_in) / CUT_OFF; /* fall through */
    case TUTTI_INITIALIZER_TRUNCATED_NORMAL:
        model->compute->kernels->truncated_normal(model->compute, &normal, count, node->parameters[0]);
        return;
    case TUTTI_INITIALIZER_XAVIER_UNIFORM:
        fill_uniform(model, seed, stream, sqrt(6 / (fan_in + fan_out)), count, node->parameters[0]);
        return;
    case TUTTI_INITIALIZER_UNIFORM: fill_uniform(model, seed, stream, layer->limit, count, node->parameters[0]); return;
    case TUTTI_INITIALIZER_CONSTANT:
        model->compute->kernels->fill(model->compute, count, (float)layer->constant, node->parameters[0]);
        return;
    }
}

void tutti_model_initialize(tutti_model *model, uint64_t seed) {
    const tutti_kernels *kernels = model->compute->kernels;
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
        if (node->parameter_counts[0] > 0) initialize_weights(model, node, seed);
        if (node->parameter_counts[1] > 0 && node->layer->bias_limit > 0)
            fill_uniform(model, seed, tutti_random_stream(TUTTI_RANDOM_INITIALIZER, (uint64_t)i, 1),
                         node->layer->bias_limit, node->parameter_counts[1], node->parameters[1]);
        else if (node->parameter_counts[1] > 0)
            kernels->fill(model->compute, node->parameter_counts[1], (float)node->layer->bias, node->parameters[1]);
        for (int k = 0; k < TUTTI_LAYER_STATES; k++)
            if (node->state_counts[k] > 0)
                kernels->fill(model->compute, node->state_counts[k], (float)row->state_starts[k], node->states[k]);
    }
}

/* ------------------------------------------------------------------------------------------- the runs */

static void gather_inputs(const tutti_model *model, const tutti_node *node, const float **x) {
    for (int i = 0; i < tutti_layers_row(node->layer->kind)->ninputs; i++) x[i] = model->nodes[node->inputs[i]].y;
}

/* For tests: what nobody needs any more becomes NaN, so that who reads it all the same is found out. */
static void poison(const tutti_model *model, int time) {
    const tutti_kernels *kernels = model->compute->kernels;
    if (!model->poisons) return;
    kernels->fill(model->compute, model->scratch_count, NAN, model->scratch);
    for (int i = 0; i < model->plan.count; i++) {
        const tutti_buffer *buffer = &model->plan.buffers[i];
        float *data = (void *)((char *)model->planned + buffer->offset);
        if (buffer->death == time) kernels->fill(model->compute, buffer->bytes / sizeof(float), NAN, data);
    }
}

const float *tutti_model_forward(tutti_model *model, const tutti_pass *pass) {
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        const float *x[TUTTI_LAYER_INPUTS] = {NULL, NULL};
        gather_inputs(model, node, x);
        tutti_layers_row(node->layer->kind)->forward(model->compute, node, pass, x);
        poison(model, i);
    }
    return model->nodes[model->nnodes - 1].y;
}

static tutti_status backward_node(tutti_model *model, tutti_node *node, const tutti_pass *pass,
                                  const tutti_gradient_sink *sink) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    tutti_layer_gradients gradients = {.dx = {NULL, NULL}};
    for (int i = 0; i < row->ninputs; i++) {
        if (node->way[i] == TUTTI_GRADIENT_WRITE) gradients.dx[i] = model->nodes[node->inputs[i]].dy;
        else if (node->way[i] == TUTTI_GRADIENT_ADD) gradients.dx[i] = node->spares[i]; /* NULL: it passes its own on */
    }
    int nparameters = 0;
    for (; nparameters < TUTTI_LAYER_PARAMETERS && node->parameter_counts[nparameters] > 0; nparameters++)
        gradients.parameters[nparameters] = sink->where(sink->context, node->first_parameter + nparameters);

    const float *x[TUTTI_LAYER_INPUTS] = {NULL, NULL};
    gather_inputs(model, node, x);
    row->backward(model->compute, node, pass, x, &gradients);

    for (int p = nparameters - 1; p >= 0; p--) TUTTI_TRY(sink->ready(sink->context, node->first_parameter + p));
    for (int i = 0; i < row->ninputs; i++) {
        if (node->way[i] != TUTTI_GRADIENT_ADD) continue;
        tutti_node *from = &model->nodes[node->inputs[i]];
        size_t count = (size_t)pass->batch * tutti_shape_count(from->out);
        const float *part = row->passes_gradient ? node->dy : node->spares[i];
        model->compute->kernels->add(model->compute, count, from->dy, part, from->dy);
    }
    return TUTTI_OK;
}

tutti_status tutti_model_backward(tutti_model *model, const tutti_pass *pass, const tutti_gradient_sink *sink) {
    poison(model, model->nnodes);
    for (int i = model->nnodes - 1; i > 0; i--) {
        if (model->nodes[i].wants_gradient) TUTTI_TRY(backward_node(model, &model->nodes[i], pass, sink));
        poison(model, 2 * model->nnodes - i);
    }
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

size_t tutti_model_state_count(const tutti_model *model) {
    size_t count = 0;
    for (int i = 0; i < model->nstates; i++) count += model->states[i].count;
    return count;
}
