/*
 * Nodes from a list of layers, one block of memory for all their buffers, and the forward and backward passes.
 */
#include "ddp/trainer/layers/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ddp/trainer/layers/parallel.h"
#include "kernels/box.h"

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
        if (i > 0 && !named)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "layer %s (%s): the second input is missing; name two earlier layers in inputs",
                              layer->name, row->name);
        int from = named ? find_node(model, index, layer->inputs[i]) : index - 1;
        if (from < 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "layer %s: its input %s is not an earlier layer", layer->name,
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

/* Weights: [kernel, kernel, channels, filters] or [inputs, outputs]; all other parameters are vectors: [channels of
 * the output]. */
static void fill_dims(const tutti_node *node, int which, tutti_parameter *parameter) {
    const tutti_shape in = node->part != NULL ? node->part->in : node->in;
    const tutti_shape out = node->part != NULL ? node->part->out : node->out;
    const tutti_layer_kind kind = node->layer->kind;
    if (which == 0 && kind == TUTTI_LAYER_CONV) {
        parameter->dims[parameter->ndims++] = node->layer->kernel;
        parameter->dims[parameter->ndims++] = node->layer->kernel;
        parameter->dims[parameter->ndims++] = in.channels;
    } else if (which == 0 && kind == TUTTI_LAYER_DENSE) {
        parameter->dims[parameter->ndims++] = (int64_t)tutti_shape_count(in);
    }
    parameter->dims[parameter->ndims++] = out.channels;
}

static bool is_weight(const tutti_node *node, int which) {
    return which == 0 && node->layer->kind != TUTTI_LAYER_BIAS;
}

/* Finds this rank's box of the parameter. */
static tutti_status divide(const tutti_model *model, const tutti_node *node, bool is_bias, tutti_parameter *parameter) {
    memcpy(parameter->part, parameter->dims, sizeof parameter->part);
    if (model->parallel == NULL) return TUTTI_OK;
    return tutti_parallel_divide(model->parallel, node, is_bias, parameter);
}

static bool is_frozen(const tutti_node *node, int which) {
    return (node->frozen >> which & 1) != 0;
}

static tutti_status add_parameters(tutti_model *model, tutti_node *node) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    node->first_parameter = model->nparameters;
    for (int i = 0; i < TUTTI_LAYER_PARAMETERS && node->parameter_counts[i] > 0; i++) {
        tutti_parameter *parameter = &model->parameters[model->nparameters++];
        snprintf(parameter->name, sizeof parameter->name, "%s.%s", node->layer->name, row->parameter_names[i]);
        parameter->count = node->parameter_counts[i];
        parameter->node = node->index;
        parameter->frozen = is_frozen(node, i);
        fill_dims(node, i, parameter);
        TUTTI_TRY(divide(model, node, !is_weight(node, i), parameter));
    }
    return TUTTI_OK;
}

static tutti_status add_states(tutti_model *model, const tutti_node *node) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    for (int i = 0; i < TUTTI_LAYER_STATES && node->state_counts[i] > 0; i++) {
        tutti_parameter *state = &model->states[model->nstates++];
        snprintf(state->name, sizeof state->name, "%s.%s", node->layer->name, row->state_names[i]);
        state->count = node->state_counts[i];
        state->node = node->index;
        fill_dims(node, 1, state);
        TUTTI_TRY(divide(model, node, true, state));
    }
    return TUTTI_OK;
}

static tutti_status check_kernels(const tutti_model *model, const tutti_node *node) {
    const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
    if (row->runs_on == NULL || row->runs_on(node, model->compute->kernels)) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                      "layer %s (%s): --device %s has no kernels for it; train with --device host", node->layer->name,
                      row->name, model->compute->kernels->name);
}

static tutti_status place_nodes(tutti_model *model, tutti_shape in) {
    model->nodes[0] = (tutti_node){.out = in};
    for (int i = 1; i < model->nnodes; i++) {
        tutti_node *node = &model->nodes[i];
        node->index = node->number = i;
        node->layer = &model->list.layers[i - 1];
        node->frozen = model->list.frozen[i - 1];
        node->units = node->layer->units;
        TUTTI_TRY(connect_node(model, i));
        const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
        TUTTI_TRY(row->place(node));
        TUTTI_TRY(check_kernels(model, node));
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS; p++)
            node->wants_gradient |= node->parameter_counts[p] > 0 && !is_frozen(node, p);
    }
    for (int i = 0; i < model->nnodes - 1; i++)
        if (model->nodes[i].consumers == 0)
            return tutti_fail(TUTTI_ERR_ARGUMENT, "no layer reads the output of %s",
                              i == 0 ? "the input" : model->nodes[i].layer->name);
    return TUTTI_OK;
}

/* Replaces the whole nodes by this rank's parts. */
static tutti_status cut_nodes(tutti_model *model) {
    tutti_node *nodes;
    TUTTI_TRY(tutti_parallel_cut(model->parallel, model->nodes, model->nnodes, &nodes, &model->parts, &model->nnodes));
    free(model->nodes);
    model->nodes = nodes;
    for (int i = 1; i < model->nnodes; i++) TUTTI_TRY(check_kernels(model, &nodes[i]));
    return TUTTI_OK;
}

static tutti_status list_parameters(tutti_model *model) {
    for (int i = 1; i < model->nnodes; i++) {
        TUTTI_TRY(add_parameters(model, &model->nodes[i]));
        TUTTI_TRY(add_states(model, &model->nodes[i]));
    }
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- memory */

/* Hands out the pieces of one block. A first run with base NULL only adds up their sizes. */
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
        const tutti_node *node = &model->nodes[i];
        size_t count = row->scratch_count(model->compute, node, tutti_node_batch(node, model->batch_capacity));
        if (count > most) most = count;
    }
    return most;
}

/* Bytes of the frozen parameters of the layer with the most of them. */
static size_t discard_bytes(const tutti_model *model) {
    size_t most = 0;
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        size_t bytes = 0;
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS && node->wants_gradient; p++)
            if (is_frozen(node, p)) bytes += tutti_memory_align(node->parameter_counts[p] * sizeof(float));
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Places the arrays that live as long as the model, then those of the plan. States are adjacent: they are broadcast
 * as one. */
static void lay_out(tutti_model *model, layout *plan) {
    for (int i = 0; i < model->nparameters; i++)
        model->parameters[i].data = take(plan, model->parameters[i].count * sizeof(float));
    size_t states_at = plan->bytes;
    for (int i = 0; i < model->nstates; i++) model->states[i].data = take(plan, model->states[i].count * sizeof(float));
    model->state_count = (plan->bytes - states_at) / sizeof(float);
    const size_t samples = (size_t)tutti_node_batch(&model->nodes[0], model->batch_capacity);
    model->nodes[0].y = take(plan, samples * tutti_shape_count(model->nodes[0].out) * sizeof(float));
    model->scratch = take(plan, model->scratch_count * sizeof(float));
    model->discard = take(plan, discard_bytes(model));
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

/* Returns whether ranks read each other's activations in mapped memory. */
static bool is_mapped(const tutti_model *model) {
    return model->parallel != NULL && model->compute->kernels->memory == TUTTI_MEMORY_HOST;
}

static tutti_status take_memory(tutti_model *model, size_t bytes) {
    if (!is_mapped(model)) return model->compute->kernels->alloc(model->compute, bytes, &model->memory);
    TUTTI_TRY(tutti_mem_alloc(bytes, &model->memory));
    memset(model->memory, 0, bytes);
    return TUTTI_OK;
}

/* outline: only computes the size. */
static tutti_status allocate(tutti_model *model, bool outline) {
    layout measured = {.base = NULL};
    TUTTI_TRY(tutti_memory_plan_make(&model->plan, model->nodes, model->nnodes, model->compute, model->batch_capacity));
    model->scratch_count = scratch_count(model);
    lay_out(model, &measured);
    model->memory_bytes = measured.bytes;
    if (outline) return TUTTI_OK;
    tutti_status status = take_memory(model, measured.bytes);
    if (status == TUTTI_ERR_MEMORY)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the model's buffers, %zu bytes; lower --batch-size",
                          measured.bytes);
    TUTTI_TRY(status);
    layout real = {.base = model->memory};
    lay_out(model, &real);
    bind_nodes(model);
    return TUTTI_OK;
}

static tutti_status make_nodes(tutti_model *model, tutti_shape in) {
    TUTTI_TRY(place_nodes(model, in));
    if (model->parallel != NULL) TUTTI_TRY(cut_nodes(model));
    model->parameters = calloc((size_t)model->nnodes * TUTTI_LAYER_PARAMETERS, sizeof *model->parameters);
    model->states = calloc((size_t)model->nnodes * TUTTI_LAYER_STATES, sizeof *model->states);
    if (model->parameters == NULL || model->states == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a model of %d layers", model->list.count);
    return list_parameters(model);
}

static tutti_status create(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                           const tutti_parallel *parallel, tutti_compute *compute, bool outline,
                           tutti_model **model_out) {
    tutti_status status = TUTTI_OK;
    tutti_model *model = calloc(1, sizeof *model);
    if (model == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a model");
    model->list = *list;
    model->compute = compute;
    model->parallel = parallel;
    model->nnodes = list->count + 1;
    model->batch_capacity = batch_capacity;
    model->nodes = calloc((size_t)model->nnodes, sizeof *model->nodes);
    if (model->nodes == NULL) {
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a model of %d layers", list->count);
        goto fail;
    }
    TUTTI_TRY_GOTO(status, make_nodes(model, in), fail);
    TUTTI_TRY_GOTO(status, allocate(model, outline), fail);
    *model_out = model;
    return TUTTI_OK;
fail:
    tutti_model_destroy(model);
    return status;
}

tutti_status tutti_model_create(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                tutti_compute *compute, tutti_model **model_out) {
    return create(list, in, batch_capacity, NULL, compute, false, model_out);
}

tutti_status tutti_model_create_part(const tutti_model_layers *list, tutti_shape in, const tutti_parallel *parallel,
                                     tutti_compute *compute, tutti_model **model_out) {
    return create(list, in, 0, parallel, compute, false, model_out);
}

tutti_status tutti_model_create_outline(const tutti_model_layers *list, tutti_shape in, int batch_capacity,
                                        const tutti_parallel *parallel, tutti_compute *compute,
                                        tutti_model **model_out) {
    return create(list, in, batch_capacity, parallel, compute, true, model_out);
}

tutti_status tutti_model_connect(tutti_model *model) {
    return model->parallel != NULL ? tutti_parallel_connect(model->parallel, model->nodes, model->nnodes) : TUTTI_OK;
}

void tutti_model_destroy(tutti_model *model) {
    if (model == NULL) return;
    tutti_parallel_disconnect(model->nodes, model->nodes != NULL ? model->nnodes : 0);
    if (is_mapped(model)) (void)tutti_mem_free(model->memory);
    else model->compute->kernels->free(model->compute, model->memory);
    free(model->nodes);
    free(model->parts);
    free(model->parameters);
    free(model->states);
    tutti_memory_plan_fini(&model->plan);
    free(model);
}

/* ------------------------------------------------------------------------------------- initial values */

#define PIECE 1024

/* Fills with numbers in [-limit, limit], the same on any compute. */
static void fill_uniform(const tutti_model *model, uint64_t seed, uint64_t stream, double limit, size_t count,
                         float *data) {
    float piece[PIECE];
    for (size_t first = 0; first < count; first += PIECE) {
        size_t some = count - first < PIECE ? count - first : PIECE;
        for (size_t i = 0; i < some; i++)
            piece[i] = (float)(limit * (2 * tutti_random_uniform(seed, stream, first + i) - 1));
        model->compute->kernels->upload(model->compute, data + first, piece, some * sizeof *piece);
    }
}

size_t tutti_parameter_whole_count(const tutti_parameter *parameter) {
    size_t count = 1;
    for (int d = 0; d < parameter->ndims; d++) count *= (size_t)parameter->dims[d];
    return count;
}

/* Copies the box out of the whole array, or into it. */
static void copy_box(const tutti_parameter *parameter, bool to_part, float *dst, const float *src) {
    tutti_box box = {.ndims = parameter->ndims, .element_bytes = sizeof(float)};
    int64_t part_stride = 1, whole_stride = 1, first = 0;
    for (int d = parameter->ndims - 1; d >= 0; d--) {
        box.shape[d] = parameter->part[d];
        box.dst_strides[d] = to_part ? part_stride : whole_stride;
        box.src_strides[d] = to_part ? whole_stride : part_stride;
        first += parameter->first[d] * whole_stride;
        part_stride *= parameter->part[d];
        whole_stride *= parameter->dims[d];
    }
    tutti_box_copy copy;
    tutti_box_plan(&box, &copy);
    tutti_box_run(&copy, dst + (to_part ? 0 : first), src + (to_part ? first : 0));
}

static void initialize_weights(const tutti_model *model, const tutti_node *node, uint64_t seed, size_t count,
                               float *data) {
    /* The standard deviation of a standard normal distribution that is cut off at two standard deviations. */
    static const double CUT_OFF = 0.87962566103423978;
    const tutti_layer *layer = node->layer;
    const double fan_in = layer->units > 0 ? (double)count / layer->units : 1;
    const double fan_out = (double)layer->units * (layer->kernel > 0 ? layer->kernel * layer->kernel : 1);
    uint64_t stream = tutti_random_stream(TUTTI_RANDOM_INITIALIZER, (uint64_t)node->number, 0);
    tutti_normal normal = {.seed = seed, .stream = stream, .stddev = layer->stddev};
    switch (layer->initializer) {
    case TUTTI_INITIALIZER_HE_NORMAL: normal.stddev = sqrt(2 / fan_in) / CUT_OFF; /* fall through */
    case TUTTI_INITIALIZER_TRUNCATED_NORMAL:
        model->compute->kernels->truncated_normal(model->compute, &normal, count, data);
        return;
    case TUTTI_INITIALIZER_XAVIER_UNIFORM:
        fill_uniform(model, seed, stream, sqrt(6 / (fan_in + fan_out)), count, data);
        return;
    case TUTTI_INITIALIZER_UNIFORM: fill_uniform(model, seed, stream, layer->limit, count, data); return;
    case TUTTI_INITIALIZER_CONSTANT:
        model->compute->kernels->fill(model->compute, count, (float)layer->constant, data);
        return;
    }
}

static void initialize_whole(const tutti_model *model, const tutti_node *node, int which, uint64_t seed, size_t count,
                             float *data) {
    const tutti_layer *layer = node->layer;
    if (is_weight(node, which)) initialize_weights(model, node, seed, count, data);
    else if (layer->bias_limit > 0)
        fill_uniform(model, seed, tutti_random_stream(TUTTI_RANDOM_INITIALIZER, (uint64_t)node->number, 1),
                     layer->bias_limit, count, data);
    else model->compute->kernels->fill(model->compute, count, (float)layer->bias, data);
}

/* Draws all of a parameter that is divided, and keeps this rank's box. */
static tutti_status initialize_part(const tutti_model *model, const tutti_node *node, int which, uint64_t seed) {
    const tutti_parameter *parameter = &model->parameters[node->first_parameter + which];
    const size_t count = tutti_parameter_whole_count(parameter);
    const tutti_kernels *kernels = model->compute->kernels;
    if (count == parameter->count) {
        initialize_whole(model, node, which, seed, count, parameter->data);
        return TUTTI_OK;
    }
    void *drawn;
    TUTTI_TRY(kernels->alloc(model->compute, count * sizeof(float), &drawn));
    float *whole = malloc(count * sizeof *whole), *part = malloc(parameter->count * sizeof *part);
    tutti_status status = TUTTI_ERR_MEMORY;
    if (whole != NULL && part != NULL) {
        initialize_whole(model, node, which, seed, count, drawn);
        status = kernels->download(model->compute, whole, drawn, count * sizeof *whole);
        copy_box(parameter, true, part, whole);
        kernels->upload(model->compute, parameter->data, part, parameter->count * sizeof *part);
    }
    free(whole), free(part);
    kernels->free(model->compute, drawn);
    if (status != TUTTI_ERR_MEMORY) return status;
    return tutti_fail(status, "no memory for the initial values of %s, %zu bytes", parameter->name,
                      count * sizeof *whole);
}

tutti_status tutti_model_initialize(tutti_model *model, uint64_t seed) {
    const tutti_kernels *kernels = model->compute->kernels;
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        const tutti_layer_row *row = tutti_layers_row(node->layer->kind);
        for (int p = 0; p < TUTTI_LAYER_PARAMETERS && node->parameter_counts[p] > 0; p++)
            TUTTI_TRY(initialize_part(model, node, p, seed));
        for (int k = 0; k < TUTTI_LAYER_STATES; k++)
            if (node->state_counts[k] > 0)
                kernels->fill(model->compute, node->state_counts[k], (float)row->state_starts[k], node->states[k]);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- the runs */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Called when a node begins; add_time is called when it has ended. On a GPU both wait for the stream; the end of the
 * step reports a failure of the stream. */
static int64_t start_time(const tutti_model *model) {
    if (model->times == NULL) return 0;
    (void)model->compute->kernels->wait(model->compute);
    return now_ns();
}

static void add_time(const tutti_model *model, int node, bool backward, int64_t since_ns) {
    if (model->times == NULL) return;
    (void)model->compute->kernels->wait(model->compute);
    model->times[2 * node + backward] += now_ns() - since_ns;
}

static void gather_inputs(const tutti_model *model, const tutti_node *node, const float **x) {
    for (int i = 0; i < tutti_layers_row(node->layer->kind)->ninputs; i++) x[i] = model->nodes[node->inputs[i]].y;
}

/* For tests: fills buffers that no layer needs any more with NaN, so that a layer that reads them is found. */
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
        const int64_t since_ns = start_time(model);
        gather_inputs(model, node, x);
        if (tutti_node_is_redistribution(node)) {
            model->failure = tutti_parallel_forward(model->compute, node);
            if (model->failure != TUTTI_OK) return NULL;
        } else {
            tutti_layers_row(node->layer->kind)->forward(model->compute, node, pass, x);
        }
        add_time(model, i, false, since_ns);
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
        /* stays NULL: the node passes its own gradient on */
        else if (node->way[i] == TUTTI_GRADIENT_ADD) gradients.dx[i] = node->spares[i];
    }
    int nparameters = 0;
    layout discarded = {.base = (char *)model->discard};
    for (; nparameters < TUTTI_LAYER_PARAMETERS && node->parameter_counts[nparameters] > 0; nparameters++)
        gradients.parameters[nparameters] = is_frozen(node, nparameters)
                                                ? take(&discarded, node->parameter_counts[nparameters] * sizeof(float))
                                                : sink->where(sink->context, node->first_parameter + nparameters);

    const float *x[TUTTI_LAYER_INPUTS] = {NULL, NULL};
    const int64_t since_ns = start_time(model);
    gather_inputs(model, node, x);
    if (tutti_node_is_redistribution(node)) TUTTI_TRY(tutti_parallel_backward(model->compute, node));
    else row->backward(model->compute, node, pass, x, &gradients);
    add_time(model, node->index, true, since_ns);

    for (int p = nparameters - 1; p >= 0; p--)
        if (!is_frozen(node, p)) TUTTI_TRY(sink->ready(sink->context, node->first_parameter + p));
    for (int i = 0; i < row->ninputs; i++) {
        if (node->way[i] != TUTTI_GRADIENT_ADD) continue;
        tutti_node *from = &model->nodes[node->inputs[i]];
        size_t count = (size_t)tutti_node_batch(from, pass->batch) * tutti_shape_count(from->out);
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

const tutti_part *tutti_model_output_part(const tutti_model *model) {
    return model->nodes[model->nnodes - 1].part;
}

int tutti_model_classes(const tutti_model *model) {
    const tutti_node *last = &model->nodes[model->nnodes - 1];
    return (int)tutti_shape_count(last->part != NULL ? last->part->out : last->out);
}

/* The cost of a sample on all ranks together, as a multiple of its cost on this rank, whose part may be slightly
 * larger than others'. */
static double share_of(const tutti_model *model, const tutti_node *node) {
    if (model->parallel == NULL) return 1;
    return (double)node->part->batch / model->parallel->batch * tutti_placement_size(model->parallel->placement, -1);
}

tutti_layer_cost tutti_model_cost(const tutti_model *model) {
    tutti_layer_cost sum = {0, 0};
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        tutti_layer_cost cost = tutti_layers_row(node->layer->kind)->cost(node);
        const double share = share_of(model, node);
        sum.flops += share * cost.flops;
        sum.bytes += share * cost.bytes;
    }
    return sum;
}

size_t tutti_model_parameter_count(const tutti_model *model) {
    size_t count = 0;
    for (int i = 0; i < model->nparameters; i++) count += tutti_parameter_whole_count(&model->parameters[i]);
    return count;
}

size_t tutti_model_frozen_count(const tutti_model *model) {
    size_t count = 0;
    for (int i = 0; i < model->nparameters; i++)
        if (model->parameters[i].frozen) count += tutti_parameter_whole_count(&model->parameters[i]);
    return count;
}

size_t tutti_model_state_count(const tutti_model *model) {
    size_t count = 0;
    for (int i = 0; i < model->nstates; i++) count += tutti_parameter_whole_count(&model->states[i]);
    return count;
}
