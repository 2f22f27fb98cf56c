/*
 * Makes this rank's parts from whole layers, with redistributions between them.
 */
#include "ddp/trainer/layers/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 0, CHANNELS = 3, DIMS = 4 }; /* dimensions of an activation */

typedef struct builder {
    const tutti_parallel *parallel;
    const tutti_node *whole;
    int nwhole;
    int *now; /* by whole node: the node that has its output */
    tutti_node *nodes;
    tutti_part *parts;
    int count;
} builder;

/* ---------------------------------------------------------------------------------------------- layouts */

static bool has_weights(tutti_layer_kind kind) {
    return kind == TUTTI_LAYER_CONV || kind == TUTTI_LAYER_DENSE;
}

void tutti_parallel_fill_layouts(const tutti_strategy *mesh, tutti_layer_kind kind, tutti_part *part) {
    const tutti_sbp sum = TUTTI_PARTIAL(TUTTI_SUM), whole = TUTTI_BROADCAST;
    const tutti_sbp samples = TUTTI_SPLIT(SAMPLES), channels = TUTTI_SPLIT(CHANNELS);
    for (int a = 0; a < mesh->naxes; a++) {
        part->x[a] = part->dx[a] = part->y[a] = part->dy[a] = whole;
        switch (part->splits[a]) {
        case TUTTI_SPLIT_SAMPLES: part->x[a] = part->dx[a] = part->y[a] = part->dy[a] = samples; break;
        case TUTTI_SPLIT_OUTPUTS:
            part->x[a] = has_weights(kind) ? whole : channels;
            part->dx[a] = has_weights(kind) ? sum : channels;
            part->y[a] = part->dy[a] = channels;
            break;
        case TUTTI_SPLIT_INPUTS:
            part->x[a] = part->dx[a] = channels;
            part->y[a] = sum;
            break;
        default: break;
        }
    }
}

bool tutti_parallel_is_same(const tutti_strategy *mesh, const tutti_sbp *a, tutti_shape of_a, const tutti_sbp *b,
                            tutti_shape of_b) {
    for (int i = 0; i < mesh->naxes; i++) {
        if (mesh->sizes[i] == 1) continue;
        if (a[i].kind != b[i].kind || (a[i].kind == TUTTI_SBP_SPLIT && a[i].dim != b[i].dim)) return false;
        if (a[i].kind == TUTTI_SBP_SPLIT && a[i].dim == CHANNELS && of_a.channels != of_b.channels) return false;
    }
    return true;
}

static tutti_layout layout_of(const tutti_parallel *parallel, const tutti_sbp *sbp, int64_t *dims, const char *name) {
    return TUTTI_LAYOUT(.placement = parallel->placement, .sbp = sbp, .type = TUTTI_FLOAT32, .ndims = DIMS,
                        .shape = dims, .name = name);
}

static void fill_dims(const tutti_parallel *parallel, tutti_shape shape, int64_t *dims) {
    dims[0] = parallel->batch, dims[1] = shape.height, dims[2] = shape.width, dims[3] = shape.channels;
}

/* Finds this rank's box of an activation. A rank with an empty box is an error. */
static tutti_status find_box(const tutti_parallel *parallel, const tutti_sbp *sbp, tutti_shape shape, const char *name,
                             int64_t *first_out, int64_t *end_out) {
    int64_t dims[DIMS], first[DIMS], end[DIMS];
    fill_dims(parallel, shape, dims);
    const tutti_layout layout = layout_of(parallel, sbp, dims, name);
    const int nranks = tutti_placement_size(parallel->placement, -1);
    for (int r = 0; r < nranks; r++) {
        TUTTI_TRY(tutti_layout_box(&layout, r, first, end));
        if (end[SAMPLES] == first[SAMPLES])
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "layer %s: a batch of %d samples is divided into more parts than that; give a larger "
                              "--batch-size, or divide the layer in another way",
                              name, parallel->batch);
        if (end[CHANNELS] == first[CHANNELS])
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "layer %s: %d channels are divided into more parts than that; divide it in another way, "
                              "or along a smaller axis",
                              name, shape.channels);
    }
    return tutti_layout_box(&layout, tutti_placement_coordinate(parallel->placement, -1), first_out, end_out);
}

/* -------------------------------------------------------------------------------------------- the nodes */

/* Fills in what follows from the layouts and whole shapes of a new node. */
static tutti_status place_part(builder *b, int index) {
    tutti_node *node = &b->nodes[index];
    tutti_part *part = node->part;
    int64_t first[DIMS], end[DIMS];
    if (index > 0) {
        TUTTI_TRY(find_box(b->parallel, part->x, part->in, node->layer->name, first, end));
        node->in = (tutti_shape){part->in.height, part->in.width, (int)(end[CHANNELS] - first[CHANNELS])};
    }
    TUTTI_TRY(find_box(b->parallel, part->y, part->out, index > 0 ? node->layer->name : "input", first, end));
    part->batch = (int)(end[SAMPLES] - first[SAMPLES]);
    part->first_sample = (uint64_t)first[SAMPLES];
    part->first_channel = (int)first[CHANNELS];
    node->units = (int)(end[CHANNELS] - first[CHANNELS]);
    node->out = (tutti_shape){part->out.height, part->out.width, node->units};
    return index > 0 ? tutti_layers_row(node->layer->kind)->place(node) : TUTTI_OK;
}

static tutti_node *add_node(builder *b) {
    tutti_node *node = &b->nodes[b->count];
    *node = (tutti_node){.part = &b->parts[b->count], .index = b->count};
    b->count++;
    return node;
}

/* Finds or makes the node that has the output of node `from` in the layout `want`; the reader has its gradient in
 * the layout `dx`. */
static tutti_status redistribute(builder *b, int from, const tutti_sbp *want, const tutti_sbp *dx, tutti_shape shape,
                                 int *index_out) {
    const tutti_node *source = &b->nodes[from];
    const tutti_part *has = source->part;
    const size_t bytes = sizeof has->x;
    const bool backwards = source->wants_gradient;
    *index_out = from;
    const tutti_strategy *mesh = b->parallel->strategy;
    if (tutti_parallel_is_same(mesh, has->y, has->out, want, shape) &&
        (!backwards || tutti_parallel_is_same(mesh, has->dy, has->out, dx, shape)))
        return TUTTI_OK;
    for (int i = from + 1; i < b->count; i++) {
        const tutti_part *other = b->nodes[i].part;
        if (!tutti_node_is_redistribution(&b->nodes[i]) || b->nodes[i].inputs[0] != from ||
            memcmp(&other->out, &shape, sizeof shape) != 0 || memcmp(other->y, want, bytes) != 0 ||
            memcmp(other->dy, dx, bytes) != 0)
            continue;
        *index_out = i;
        return TUTTI_OK;
    }
    tutti_node *node = add_node(b);
    tutti_part *part = node->part;
    part->layer = (tutti_layer){.name = from > 0 ? source->layer->name : "input", .kind = TUTTI_LAYER_REDISTRIBUTE};
    part->in = has->out;
    part->out = shape;
    memcpy(part->x, has->y, bytes), memcpy(part->dx, has->dy, bytes);
    memcpy(part->y, want, bytes), memcpy(part->dy, dx, bytes);
    node->layer = &part->layer;
    node->inputs[0] = from;
    node->number = source->number;
    node->wants_gradient = backwards;
    *index_out = node->index;
    return place_part(b, node->index);
}

/* The first whole node that reads node `of`; nwhole: none, its output is the logits. */
static int first_reader(const builder *b, int of) {
    for (int i = of + 1; i < b->nwhole; i++)
        for (int k = 0; k < tutti_layers_row(b->whole[i].layer->kind)->ninputs; k++)
            if (b->whole[i].inputs[k] == of) return i;
    return b->nwhole;
}

static void take_splits(const builder *b, int whole, tutti_part *part) {
    memcpy(part->splits, b->parallel->strategy->layers[whole - 1], sizeof part->splits);
    tutti_parallel_fill_layouts(b->parallel->strategy, b->whole[whole].layer->kind, part);
}

tutti_shape tutti_parallel_seen_by(const tutti_node *whole) {
    const tutti_shape flat = {1, 1, (int)tutti_shape_count(whole->in)};
    return whole->layer->kind == TUTTI_LAYER_DENSE ? flat : whole->in;
}

void tutti_parallel_choose_bias(const tutti_strategy *mesh, const tutti_node *whole, const tutti_node *reader,
                                const tutti_part *next, tutti_part *part) {
    const bool alike = reader != NULL && tutti_parallel_seen_by(reader).channels == whole->out.channels;
    for (int a = 0; a < mesh->naxes; a++) {
        if (part->splits[a] != TUTTI_SPLIT_INPUTS) continue;
        part->splits[a] = 0;
        if (reader == NULL || next->x[a].kind != TUTTI_SBP_SPLIT) continue;
        if (next->x[a].dim == SAMPLES) part->splits[a] = TUTTI_SPLIT_SAMPLES;
        else if (alike) part->splits[a] = TUTTI_SPLIT_OUTPUTS;
    }
    tutti_parallel_fill_layouts(mesh, TUTTI_LAYER_BIAS, part);
}

static void choose_bias_splits(const builder *b, int whole, tutti_part *part) {
    const int index = first_reader(b, whole);
    const tutti_node *reader = index < b->nwhole ? &b->whole[index] : NULL;
    tutti_part next = {.batch = 0};
    if (reader != NULL) take_splits(b, index, &next);
    tutti_parallel_choose_bias(b->parallel->strategy, &b->whole[whole], reader, &next, part);
}

/* Adds the bias and ReLU that node `product` has left out of its layer. */
static tutti_status add_bias(builder *b, int whole, int product) {
    const tutti_node *from = &b->whole[whole];
    tutti_part wanted = {.batch = 0};
    int input;
    memcpy(wanted.splits, b->nodes[product].part->splits, sizeof wanted.splits);
    choose_bias_splits(b, whole, &wanted);
    TUTTI_TRY(redistribute(b, product, wanted.x, wanted.dx, from->out, &input));
    tutti_node *node = add_node(b);
    *node->part = wanted;
    node->part->layer = *from->layer;
    node->part->layer.kind = TUTTI_LAYER_BIAS;
    node->frozen = from->frozen >> 1; /* the bias is its first parameter */
    node->part->in = node->part->out = from->out;
    node->layer = &node->part->layer;
    node->inputs[0] = input;
    node->number = from->number;
    node->wants_gradient = from->wants_gradient;
    return place_part(b, node->index);
}

static tutti_status add_layer(builder *b, int whole) {
    const tutti_node *from = &b->whole[whole];
    const tutti_layer_row *row = tutti_layers_row(from->layer->kind);
    tutti_part wanted = {.batch = 0};
    int inputs[TUTTI_LAYER_INPUTS] = {0};
    int64_t first[DIMS], end[DIMS];
    take_splits(b, whole, &wanted);
    /* Checked before the redistribution, so that an error names this layer. */
    TUTTI_TRY(find_box(b->parallel, wanted.x, tutti_parallel_seen_by(from), from->layer->name, first, end));
    for (int k = 0; k < row->ninputs; k++)
        TUTTI_TRY(
            redistribute(b, b->now[from->inputs[k]], wanted.x, wanted.dx, tutti_parallel_seen_by(from), &inputs[k]));
    tutti_node *node = add_node(b);
    *node->part = wanted;
    node->part->in = tutti_parallel_seen_by(from);
    node->part->out = from->out;
    node->layer = from->layer;
    node->number = from->number;
    node->frozen = from->frozen;
    node->wants_gradient = from->wants_gradient;
    memcpy(node->inputs, inputs, sizeof inputs);
    bool by_inputs = false;
    for (int a = 0; a < b->parallel->strategy->naxes; a++) by_inputs |= wanted.splits[a] == TUTTI_SPLIT_INPUTS;
    const bool needs_bias = by_inputs && (from->layer->relu || !from->layer->no_bias);
    if (needs_bias) {
        node->part->layer = *from->layer;
        node->part->layer.relu = false;
        node->part->layer.no_bias = true;
        node->layer = &node->part->layer;
    }
    TUTTI_TRY(place_part(b, node->index));
    if (needs_bias) TUTTI_TRY(add_bias(b, whole, node->index));
    b->now[whole] = b->count - 1;
    return TUTTI_OK;
}

/* The input is divided by samples where the first layer's is, and along no other axis: each rank reads what it
 * needs. */
static tutti_status add_input(builder *b) {
    tutti_node *node = add_node(b);
    tutti_part reader = {.batch = 0};
    take_splits(b, first_reader(b, 0), &reader);
    for (int a = 0; a < b->parallel->strategy->naxes; a++)
        if (reader.x[a].kind == TUTTI_SBP_SPLIT && reader.x[a].dim == SAMPLES)
            node->part->y[a] = node->part->dy[a] = reader.x[a];
    node->part->out = b->whole[0].out;
    b->now[0] = 0;
    return place_part(b, 0);
}

/* The loss needs all logits of a sample on one rank, unless it accepts divided classes. */
static tutti_status add_logits(builder *b) {
    const int last = b->now[b->nwhole - 1];
    const tutti_part *has = b->nodes[last].part;
    tutti_sbp want[TUTTI_MOST_AXES] = {{.dim = 0}};
    for (int a = 0; a < b->parallel->strategy->naxes; a++)
        if (has->y[a].kind == TUTTI_SBP_SPLIT && (has->y[a].dim == SAMPLES || b->parallel->divided_classes))
            want[a] = has->y[a];
    int index;
    return redistribute(b, last, want, want, has->out, &index);
}

static tutti_status cut(builder *b) {
    TUTTI_TRY(add_input(b));
    for (int i = 1; i < b->nwhole; i++) TUTTI_TRY(add_layer(b, i));
    TUTTI_TRY(add_logits(b));
    for (int i = 1; i < b->count; i++)
        for (int k = 0; k < tutti_layers_row(b->nodes[i].layer->kind)->ninputs; k++)
            b->nodes[b->nodes[i].inputs[k]].consumers++;
    return TUTTI_OK;
}

tutti_status tutti_parallel_cut(const tutti_parallel *parallel, const tutti_node *whole, int nwhole,
                                tutti_node **nodes_out, tutti_part **parts_out, int *count_out) {
    /* For each layer: the layer, a redistribution of each input, and two nodes for its bias; at the end one for the
     * logits. */
    const size_t most = (size_t)nwhole * (2 + TUTTI_LAYER_INPUTS + 1) + 1;
    builder b = {.parallel = parallel, .whole = whole, .nwhole = nwhole};
    b.now = calloc((size_t)nwhole, sizeof *b.now);
    b.nodes = calloc(most, sizeof *b.nodes);
    b.parts = calloc(most, sizeof *b.parts);
    tutti_status status;
    if (b.now == NULL || b.nodes == NULL || b.parts == NULL)
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory to divide %d layers", nwhole - 1);
    else status = cut(&b);
    free(b.now);
    if (status != TUTTI_OK) {
        free(b.nodes), free(b.parts);
        return status;
    }
    *nodes_out = b.nodes, *parts_out = b.parts, *count_out = b.count;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------- parameters */

static tutti_layout parameter_layout(const tutti_parameter *parameter, tutti_placement *placement,
                                     const tutti_sbp *sbp) {
    return TUTTI_LAYOUT(.placement = placement, .sbp = sbp, .type = TUTTI_FLOAT32, .ndims = parameter->ndims,
                        .shape = parameter->dims, .name = parameter->name);
}

tutti_status tutti_parallel_divide(const tutti_parallel *parallel, const tutti_node *node, bool is_bias,
                                   tutti_parameter *parameter) {
    int64_t end[TUTTI_MOST_DIMS], first[TUTTI_MOST_DIMS];
    parameter->sums = 0;
    for (int a = 0; a < parallel->strategy->naxes; a++) {
        const uint8_t split = node->part->splits[a];
        parameter->sbp[a] = TUTTI_BROADCAST;
        if (split == TUTTI_SPLIT_OUTPUTS) parameter->sbp[a] = TUTTI_SPLIT(parameter->ndims - 1);
        if (split == TUTTI_SPLIT_INPUTS && !is_bias) parameter->sbp[a] = TUTTI_SPLIT(parameter->ndims - 2);
        if (split == TUTTI_SPLIT_SAMPLES && parallel->strategy->sizes[a] > 1) parameter->sums |= 1u << a;
    }
    const tutti_layout layout = parameter_layout(parameter, parallel->placement, parameter->sbp);
    TUTTI_TRY(tutti_layout_box(&layout, tutti_placement_coordinate(parallel->placement, -1), first, end));
    for (int d = 0; d < parameter->ndims; d++) {
        parameter->first[d] = first[d];
        parameter->part[d] = end[d] - first[d];
    }
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- plans */

static tutti_status make_plan(const tutti_parallel *parallel, const char *name, const tutti_sbp *from, tutti_shape in,
                              float *src, const tutti_sbp *to, tutti_shape out, float *dst, tutti_plan **plan_out,
                              tutti_tensor **tensors) {
    int64_t in_dims[DIMS], out_dims[DIMS];
    fill_dims(parallel, in, in_dims);
    fill_dims(parallel, out, out_dims);
    const tutti_layout a = layout_of(parallel, from, in_dims, name), b = layout_of(parallel, to, out_dims, name);
    TUTTI_TRY(tutti_tensor_wrap(&a, src, &tensors[0]));
    TUTTI_TRY(tutti_tensor_wrap(&b, dst, &tensors[1]));
    return tutti_plan_create(&a, &b, 1, plan_out);
}

tutti_status tutti_parallel_connect(const tutti_parallel *parallel, tutti_node *nodes, int nnodes) {
    for (int i = 1; i < nnodes; i++) {
        const tutti_node *node = &nodes[i], *from = &nodes[node->inputs[0]];
        tutti_part *part = node->part;
        if (!tutti_node_is_redistribution(node)) continue;
        TUTTI_TRY(make_plan(parallel, node->layer->name, part->x, part->in, from->y, part->y, part->out, node->y,
                            &part->forward, &part->tensors[0]));
        if (!node->wants_gradient) continue;
        float *dx = node->way[0] == TUTTI_GRADIENT_ADD ? node->spares[0] : from->dy;
        TUTTI_TRY(make_plan(parallel, node->layer->name, part->dy, part->out, node->dy, part->dx, part->in, dx,
                            &part->backward, &part->tensors[2]));
    }
    return TUTTI_OK;
}

void tutti_parallel_disconnect(tutti_node *nodes, int nnodes) {
    for (int i = 1; i < nnodes; i++) {
        tutti_part *part = nodes[i].part;
        if (part == NULL) continue;
        tutti_plan_destroy(part->forward);
        tutti_plan_destroy(part->backward);
        for (int t = 0; t < 4; t++) tutti_tensor_destroy(part->tensors[t]);
    }
}

static tutti_status run(const tutti_compute *compute, const char *name, tutti_plan *plan, tutti_tensor **tensors) {
    const tutti_tensor *src = tensors[0];
    tutti_status status =
        tutti_plan_run(plan, &src, &tensors[1],
                       &TUTTI_OPTIONS(.memory = compute->kernels->memory, .stream = compute->kernels->stream(compute)));
    if (status == TUTTI_OK) return TUTTI_OK;
    return tutti_fail(status, "the output of layer %s: %s", name, tutti_last_error());
}

tutti_status tutti_parallel_forward(const tutti_compute *compute, const tutti_node *node) {
    return run(compute, node->layer->name, node->part->forward, &node->part->tensors[0]);
}

tutti_status tutti_parallel_backward(const tutti_compute *compute, const tutti_node *node) {
    return run(compute, node->layer->name, node->part->backward, &node->part->tensors[2]);
}

int tutti_parallel_norm_parts(const tutti_model *model, int nranks) {
    int most = 0;
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        if (node->layer->kind != TUTTI_LAYER_BATCH_NORM) continue;
        int parts = node->part != NULL ? 1 : nranks;
        for (int a = 0; node->part != NULL && a < model->parallel->strategy->naxes; a++)
            if (node->part->y[a].kind == TUTTI_SBP_SPLIT && node->part->y[a].dim == 0)
                parts *= model->parallel->strategy->sizes[a];
        if (parts > most) most = parts;
    }
    return most;
}
