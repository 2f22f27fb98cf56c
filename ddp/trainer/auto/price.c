/*
 * Prices of layers and of their outputs.
 */
#include "ddp/trainer/auto/price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/auto/edges.h"

enum { SAMPLES = 0, CHANNELS = 3 };

/* ------------------------------------------------------------------------------------------- open, close */

static bool reads(const tutti_node *node, int index) {
    for (int k = 0; k < tutti_layers_row(node->layer->kind)->ninputs; k++)
        if (node->inputs[k] == index) return true;
    return false;
}

static tutti_status list_readers(tutti_prices *prices) {
    const tutti_model *model = prices->setup.whole;
    const size_t count = (size_t)model->nnodes;
    prices->readers = calloc(count * TUTTI_LAYER_INPUTS, sizeof *prices->readers);
    prices->first_reader = calloc(count + 1, sizeof *prices->first_reader);
    if (prices->readers == NULL || prices->first_reader == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the prices of a strategy");
    int used = 0;
    for (int i = 0; i < model->nnodes; i++) {
        prices->first_reader[i] = used;
        for (int reader = i + 1; reader < model->nnodes; reader++)
            if (reads(&model->nodes[reader], i)) prices->readers[used++] = reader;
    }
    prices->first_reader[model->nnodes] = used;
    return TUTTI_OK;
}

#define WORDS         4 /* splits along an axis */
#define PARTS_OF_KIND ((size_t)WORDS * WORDS * WORDS)

static const uint8_t words[WORDS] = {TUTTI_SPLIT_SAMPLES, TUTTI_SPLIT_OUTPUTS, TUTTI_SPLIT_INPUTS, 0};

/* The splits with index `place` among all. */
static void splits_at(const tutti_prices *prices, size_t place, uint8_t *splits_out) {
    for (int a = prices->mesh->naxes - 1; a >= 0; a--, place /= WORDS) splits_out[a] = words[place % WORDS];
}

static size_t place_of(const tutti_prices *prices, const uint8_t *splits) {
    size_t place = 0;
    for (int a = 0; a < prices->mesh->naxes; a++) {
        const uint8_t split = splits[a];
        place = WORDS * place + (split == TUTTI_SPLIT_SAMPLES   ? 0
                                 : split == TUTTI_SPLIT_OUTPUTS ? 1
                                 : split == TUTTI_SPLIT_INPUTS  ? 2
                                                                : 3);
    }
    return place;
}

static tutti_status list_parts(tutti_prices *prices) {
    prices->parts = calloc(TUTTI_LAYER_KIND_COUNT * PARTS_OF_KIND, sizeof *prices->parts);
    if (prices->parts == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the prices of a strategy");
    for (size_t i = 0; i < TUTTI_LAYER_KIND_COUNT * PARTS_OF_KIND; i++) {
        splits_at(prices, i % PARTS_OF_KIND, prices->parts[i].splits);
        tutti_parallel_fill_layouts(prices->mesh, (tutti_layer_kind)(i / PARTS_OF_KIND), &prices->parts[i]);
    }
    return TUTTI_OK;
}

tutti_status tutti_prices_open(tutti_prices *prices, const tutti_price_setup *setup, const int *sizes, int naxes) {
    *prices = (tutti_prices){.setup = *setup, .gradient_weight = 1};
    for (int i = 0; i < 1 << 3; i++) prices->reduce_us[i] = -1;
    if (naxes > 3)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "predictions need a mesh of up to 3 axes, and this one "
                          "has %d",
                          naxes);
    prices->mesh = calloc(1, sizeof *prices->mesh);
    if (prices->mesh == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the prices of a strategy");
    for (int i = 0; i < setup->whole->nparameters; i++)
        if (!setup->whole->parameters[i].frozen) prices->trained += (double)setup->whole->parameters[i].count;
    prices->mesh->naxes = naxes;
    memcpy(prices->mesh->sizes, sizes, (size_t)naxes * sizeof *sizes);
    TUTTI_TRY(list_readers(prices));
    TUTTI_TRY(list_parts(prices));
    return tutti_placement_create(setup->comm, setup->whole->compute->kernels->memory, NULL, sizes, naxes,
                                  &prices->placement);
}

void tutti_prices_close(tutti_prices *prices) {
    tutti_placement_destroy(prices->placement);
    free(prices->edges), free(prices->mesh), free(prices->parts), free(prices->readers), free(prices->first_reader);
    *prices = (tutti_prices){.nedges = 0};
}

/* ---------------------------------------------------------------------------------------------- extents */

static const tutti_node *node_of(const tutti_prices *prices, int whole) {
    return &prices->setup.whole->nodes[whole];
}

static bool has_weights(const tutti_node *node) {
    return node->layer->kind == TUTTI_LAYER_CONV || node->layer->kind == TUTTI_LAYER_DENSE;
}

/* The largest part of an extent that is divided along the axes with this split. */
static int part_of(const tutti_prices *prices, int extent, const uint8_t *splits, uint8_t split) {
    for (int a = 0; a < prices->mesh->naxes; a++) {
        const int size = prices->mesh->sizes[a];
        if (splits[a] == split) extent = (extent + size - 1) / size;
    }
    return extent;
}

/* Returns whether the extent has enough elements for all parts, none of them empty. */
static bool fits(const tutti_prices *prices, int extent, const uint8_t *splits, uint8_t split) {
    for (int a = 0; a < prices->mesh->naxes; a++)
        if (splits[a] == split) extent /= prices->mesh->sizes[a];
    return extent > 0;
}

static bool is_allowed(const tutti_prices *prices, const tutti_node *node, const uint8_t *splits) {
    const unsigned axes = tutti_layers_row(node->layer->kind)->split_axes;
    for (int a = 0; a < prices->mesh->naxes; a++)
        if (splits[a] != 0 && (axes & splits[a]) == 0) return false;
    return fits(prices, prices->setup.batch, splits, TUTTI_SPLIT_SAMPLES) &&
           fits(prices, node->out.channels, splits, TUTTI_SPLIT_OUTPUTS) &&
           fits(prices, tutti_parallel_seen_by(node).channels, splits, TUTTI_SPLIT_INPUTS);
}

int tutti_prices_list(const tutti_prices *prices, int whole, uint8_t (*choices_out)[TUTTI_MOST_AXES]) {
    int count = 0;
    size_t all = 1;
    for (int a = 0; a < prices->mesh->naxes; a++) all *= WORDS;
    for (size_t i = 0; i < all; i++) {
        uint8_t splits[TUTTI_MOST_AXES] = {0};
        splits_at(prices, i, splits);
        if (is_allowed(prices, node_of(prices, whole), splits)) memcpy(choices_out[count++], splits, sizeof splits);
    }
    return count;
}

bool tutti_prices_allow(const tutti_prices *prices, const tutti_strategy *strategy) {
    for (int i = 1; i < prices->setup.whole->nnodes; i++)
        if (!is_allowed(prices, node_of(prices, i), strategy->layers[i - 1])) return false;
    return true;
}

int tutti_prices_readers(const tutti_prices *prices, int whole, const int **readers_out) {
    *readers_out = prices->readers + prices->first_reader[whole];
    return prices->first_reader[whole + 1] - prices->first_reader[whole];
}

/* ----------------------------------------------------------------------------------------------- layers */

static bool any_is(const tutti_prices *prices, const uint8_t *splits, uint8_t split) {
    for (int a = 0; a < prices->mesh->naxes; a++)
        if (splits[a] == split) return true;
    return false;
}

/* Returns whether bias and ReLU follow the partial sums in a separate node. */
static bool needs_bias(const tutti_prices *prices, const tutti_node *node, const uint8_t *splits) {
    return any_is(prices, splits, TUTTI_SPLIT_INPUTS) && (node->layer->relu || !node->layer->no_bias);
}

static tutti_piece_times times_of(tutti_prices *prices, const tutti_piece *piece) {
    return tutti_auto_pieces_get(prices->setup.pieces, piece);
}

static void add_times(tutti_price *price, tutti_piece_times times) {
    price->forward_us += times.forward_us;
    price->backward_us += times.backward_us;
}

static tutti_piece piece_of(const tutti_prices *prices, const tutti_node *node, const uint8_t *splits) {
    const tutti_layer *layer = node->layer;
    const tutti_shape in = tutti_parallel_seen_by(node);
    const bool weights = has_weights(node), bare = needs_bias(prices, node, splits);
    bool gives_dx = false;
    for (int k = 0; k < tutti_layers_row(layer->kind)->ninputs; k++)
        gives_dx |= prices->setup.whole->nodes[node->inputs[k]].wants_gradient;
    return (tutti_piece){
        .kind = (int32_t)layer->kind,
        .kernel = layer->kernel,
        .stride = layer->stride,
        .padding = (int32_t)layer->padding,
        .relu = layer->relu && !bare,
        .bias = !layer->no_bias && !bare,
        .drops = layer->rate > 0,
        .backward = !node->wants_gradient ? 0
                    : gives_dx            ? 2
                                          : 1,
        .height = in.height,
        .width = in.width,
        .channels = part_of(prices, in.channels, splits, weights ? TUTTI_SPLIT_INPUTS : TUTTI_SPLIT_OUTPUTS),
        .units = weights ? part_of(prices, layer->units, splits, TUTTI_SPLIT_OUTPUTS) : 0,
        .batch = part_of(prices, prices->setup.batch, splits, TUTTI_SPLIT_SAMPLES),
    };
}

/* The time to update one element of a state: measured with as many elements as the model has, since few of them
 * stay in caches. */
static double update_us(tutti_prices *prices) {
    const double all = prices->trained;
    const tutti_update_row *row = tutti_update_find(prices->setup.optimizer);
    const double momentum = prices->setup.update.momentum;
    const tutti_piece piece = {.kind = TUTTI_PIECE_UPDATE,
                               .channels = all < 1 << 22 ? (int32_t)all : 1 << 22,
                               .batch = 1,
                               .units = row->nstates * 2 + row->decoupled,
                               .relu = row->has_momentum && (momentum < 0 ? row->momentum : momentum) > 0};
    return times_of(prices, &piece).forward_us / piece.channels;
}

static int states_of(const tutti_prices *prices) {
    return tutti_update_find(prices->setup.optimizer)->nstates;
}

/* Microseconds to sum the gradients of `count` elements over the ranks of these axes. */
static double reduce(tutti_prices *prices, unsigned axes, double count) {
    const double all = prices->trained;
    if (axes == 0 || !prices->measured) return 0;
    if (prices->reduce_us[axes] < 0) prices->reduce_us[axes] = tutti_edges_reduction(prices, axes, all) / all;
    return count * prices->reduce_us[axes];
}

static unsigned axes_of(const tutti_prices *prices, const uint8_t *splits) {
    unsigned axes = 0;
    for (int a = 0; a < prices->mesh->naxes; a++)
        if (splits[a] == TUTTI_SPLIT_SAMPLES && prices->mesh->sizes[a] > 1) axes |= 1u << a;
    return axes;
}

/* Adds a parameter on the rank: its gradient is summed along axes of samples. */
static void add_parameter(tutti_prices *prices, const uint8_t *splits, double count, bool frozen, tutti_price *price) {
    double ranks = 1;
    if (frozen) {
        price->bytes += sizeof(float) * count;
        return;
    }
    for (int a = 0; a < prices->mesh->naxes; a++)
        if ((axes_of(prices, splits) >> a & 1) != 0) ranks *= prices->mesh->sizes[a];
    price->gradient_us += reduce(prices, axes_of(prices, splits), count);
    const double sharers = prices->setup.zero ? ranks : 1; /* ranks that share the optimizer's state and work */
    price->update_us += count * update_us(prices) / sharers;
    price->bytes += sizeof(float) * count * (2 + states_of(prices) / sharers);
    price->reduced += 2 * sizeof(float) * count * (ranks - 1) / ranks;
}

/* Elements of the layer's output on the rank. */
static double output_count(const tutti_prices *prices, const tutti_node *node, const uint8_t *splits) {
    return (double)part_of(prices, prices->setup.batch, splits, TUTTI_SPLIT_SAMPLES) * node->out.height *
           node->out.width * part_of(prices, node->out.channels, splits, TUTTI_SPLIT_OUTPUTS);
}

tutti_price tutti_prices_layer(tutti_prices *prices, int whole, const uint8_t *splits) {
    const tutti_node *node = node_of(prices, whole);
    const tutti_piece piece = piece_of(prices, node, splits);
    tutti_price price = {.forward_us = 0};
    tutti_layer layer;
    tutti_node placed;
    add_times(&price, times_of(prices, &piece));
    price.bytes = sizeof(float) * output_count(prices, node, splits);
    if (node->layer->kind == TUTTI_LAYER_MAX_POOL) price.bytes *= 2; /* the indices of the maxima */
    if (tutti_piece_place(&piece, &layer, &placed) != TUTTI_OK) return price;
    for (int p = 0; p < TUTTI_LAYER_PARAMETERS && placed.parameter_counts[p] > 0; p++)
        add_parameter(prices, splits, (double)placed.parameter_counts[p], (node->frozen >> p & 1) != 0, &price);
    return price;
}

/* ---------------------------------------------------------------------------------------------- outputs */

/* Cached, since a search needs the same parts many times. */
static const tutti_part *part_with(const tutti_prices *prices, tutti_layer_kind kind, const uint8_t *splits) {
    return &prices->parts[(size_t)kind * PARTS_OF_KIND + place_of(prices, splits)];
}

static bool is_edge(const tutti_prices *prices, const tutti_part *has, bool backwards, const tutti_part *wants,
                    tutti_shape shape) {
    return !tutti_parallel_is_same(prices->mesh, has->y, has->out, wants->x, shape) ||
           (backwards && !tutti_parallel_is_same(prices->mesh, has->dy, has->out, wants->dx, shape));
}

static bool are_equal(const tutti_prices *prices, const tutti_edge *edge) {
    return memcmp(&edge->in, &edge->out, sizeof edge->in) == 0 &&
           memcmp(edge->from, edge->to, (size_t)prices->mesh->naxes * sizeof *edge->from) == 0;
}

/* If only one of the two directions changes the layout, the other one is a copy, which is measured like the copy of
 * a batch into the model. */
static double edge_us(tutti_prices *prices, const tutti_edge *edge, tutti_price *price) {
    if (are_equal(prices, edge)) {
        const tutti_piece piece = {.kind = TUTTI_PIECE_INPUT,
                                   .height = 1,
                                   .width = 1,
                                   .channels = (int32_t)fmin(tutti_edges_part(prices, edge->to, edge->out), 1 << 30),
                                   .batch = 1};
        return times_of(prices, &piece).forward_us;
    }
    const double us = tutti_edges_price(prices, edge);
    price->moved_us += us;
    return us;
}

/* Adds a redistribution of the output of `has` for a reader with part `wants`. */
static void add_edge(tutti_prices *prices, const tutti_part *has, bool backwards, const tutti_part *wants,
                     tutti_shape shape, tutti_price *price) {
    const tutti_edge forward = {has->y, wants->x, has->out, shape}, backward = {wants->dx, has->dy, shape, has->out};
    price->forward_us += edge_us(prices, &forward, price);
    if (prices->counts_bytes) price->received += tutti_edges_received(prices, &forward);
    price->bytes += sizeof(float) * tutti_edges_part(prices, wants->x, shape);
    if (!backwards) return;
    price->backward_us += edge_us(prices, &backward, price);
    if (prices->counts_bytes) price->received += tutti_edges_received(prices, &backward);
}

/* Adds what follows a product: the sums, then bias and ReLU, whose part becomes the one that readers find. */
static void add_bias(tutti_prices *prices, int whole, const int *readers, int nreaders, const uint8_t *const *splits,
                     tutti_part *has, tutti_price *price) {
    const tutti_node *node = node_of(prices, whole), *reader = nreaders > 0 ? node_of(prices, readers[0]) : NULL;
    tutti_part bias = *has;
    tutti_parallel_choose_bias(prices->mesh, node, reader,
                               reader != NULL ? part_with(prices, reader->layer->kind, splits[readers[0]]) : NULL,
                               &bias);
    const bool backwards = node->wants_gradient;
    if (is_edge(prices, has, backwards, &bias, node->out)) add_edge(prices, has, backwards, &bias, node->out, price);
    const tutti_piece piece = {
        .kind = TUTTI_LAYER_BIAS,
        .relu = node->layer->relu,
        .bias = !node->layer->no_bias,
        .backward = backwards ? 2 : 0,
        .height = node->out.height,
        .width = node->out.width,
        .channels = part_of(prices, node->out.channels, bias.splits, TUTTI_SPLIT_OUTPUTS),
        .batch = part_of(prices, prices->setup.batch, bias.splits, TUTTI_SPLIT_SAMPLES),
    };
    add_times(price, times_of(prices, &piece));
    if (piece.bias) add_parameter(prices, bias.splits, piece.channels, (node->frozen >> 1 & 1) != 0, price);
    price->bytes += sizeof(float) * output_count(prices, node, bias.splits);
    *has = bias;
}

/* Adds the sum of two readers' gradients. */
static void add_sum(tutti_prices *prices, const tutti_node *node, const tutti_part *has, tutti_price *price) {
    const tutti_piece piece = {
        .kind = TUTTI_LAYER_ADD,
        .height = node->out.height,
        .width = node->out.width,
        .channels = part_of(prices, node->out.channels, has->splits, TUTTI_SPLIT_OUTPUTS),
        .batch = part_of(prices, prices->setup.batch, has->splits, TUTTI_SPLIT_SAMPLES),
    };
    price->backward_us += times_of(prices, &piece).forward_us;
}

/* As in parallel.c and loss.c: the loss needs all logits of a sample, unless it is the expanded one. */
static void add_loss(tutti_prices *prices, const tutti_node *node, const tutti_part *has, tutti_price *price) {
    tutti_part wants = {.batch = 0};
    int batch = prices->setup.batch, classes = (int)tutti_shape_count(node->out);
    unsigned axes = 0; /* axes along which ranks have other classes */
    for (int a = 0; a < prices->mesh->naxes; a++) {
        const int size = prices->mesh->sizes[a];
        const bool samples = has->y[a].kind == TUTTI_SBP_SPLIT && has->y[a].dim == SAMPLES;
        const bool divided = has->y[a].kind == TUTTI_SBP_SPLIT && !samples && prices->setup.expanded;
        if (samples || divided) wants.x[a] = wants.dx[a] = has->y[a];
        if (samples) batch = (batch + size - 1) / size;
        if (divided) classes = (classes + size - 1) / size;
        if (divided && size > 1) axes |= 1u << a;
    }
    if (is_edge(prices, has, true, &wants, has->out)) add_edge(prices, has, true, &wants, has->out, price);
    const tutti_piece piece = {.kind = prices->setup.expanded ? TUTTI_PIECE_EXPANDED_LOSS : TUTTI_PIECE_LOSS,
                               .channels = classes,
                               .batch = batch};
    add_times(price, times_of(prices, &piece));
    price->forward_us += tutti_edges_agreement(prices, axes, batch);
}

/* The model's input is divided by samples where the first layer's is, and along no other axis. */
static void fill_input(tutti_prices *prices, const uint8_t *splits, tutti_part *part, tutti_price *price) {
    for (int a = 0; a < prices->mesh->naxes; a++)
        if (splits[a] == TUTTI_SPLIT_SAMPLES) part->y[a] = part->dy[a] = TUTTI_SPLIT(SAMPLES);
    const tutti_shape out = node_of(prices, 0)->out;
    const tutti_piece piece = {.kind = TUTTI_PIECE_INPUT,
                               .height = out.height,
                               .width = out.width,
                               .channels = out.channels,
                               .batch = part_of(prices, prices->setup.batch, splits, TUTTI_SPLIT_SAMPLES)};
    add_times(price, times_of(prices, &piece));
    price->batch_us = prices->setup.sample_us * piece.batch * tutti_auto_pieces_crowding(prices->setup.pieces);
    price->forward_us += price->batch_us;
}

tutti_price tutti_prices_output(tutti_prices *prices, int whole, const uint8_t *const *splits) {
    const tutti_node *node = node_of(prices, whole);
    tutti_price price = {.forward_us = 0};
    tutti_part has = {.batch = 0};
    const int *readers;
    const int nreaders = tutti_prices_readers(prices, whole, &readers);
    if (whole > 0) has = *part_with(prices, node->layer->kind, splits[whole]);
    else fill_input(prices, splits[readers[0]], &has, &price);
    has.out = node->out;
    if (whole > 0 && needs_bias(prices, node, splits[whole]))
        add_bias(prices, whole, readers, nreaders, splits, &has, &price);
    if (nreaders == 0) add_loss(prices, node, &has, &price);
    for (int r = 0; r < nreaders; r++) {
        const tutti_node *reader = node_of(prices, readers[r]);
        const tutti_shape shape = tutti_parallel_seen_by(reader);
        const tutti_part *wants = part_with(prices, reader->layer->kind, splits[readers[r]]);
        if (r > 0 && node->wants_gradient) add_sum(prices, node, &has, &price);
        if (!is_edge(prices, &has, node->wants_gradient, wants, shape)) continue;
        bool shared = false; /* with an earlier reader that needs the same layout */
        for (int other = 0; other < r; other++) {
            const tutti_node *earlier = node_of(prices, readers[other]);
            const tutti_shape seen = tutti_parallel_seen_by(earlier);
            const tutti_part *its = part_with(prices, earlier->layer->kind, splits[readers[other]]);
            shared |= memcmp(&seen, &shape, sizeof seen) == 0 && memcmp(its->x, wants->x, sizeof its->x) == 0 &&
                      memcmp(its->dx, wants->dx, sizeof its->dx) == 0;
        }
        if (!shared) add_edge(prices, &has, node->wants_gradient, wants, shape, &price);
    }
    return price;
}

/* ------------------------------------------------------------------------------------------------- steps */

double tutti_prices_sum(const tutti_prices *prices, const tutti_price *price) {
    return price->forward_us + price->backward_us + price->update_us + prices->gradient_weight * price->gradient_us;
}

/* Gradients are reduced when they become ready, one after another; the step waits for the remaining ones after
 * backward. */
static void follow_backward(const tutti_prices *prices, tutti_step_price *price) {
    double now = 0, free_at = 0, all = 0;
    for (int i = prices->setup.whole->nnodes - 1; i >= 0; i--) {
        const double of_output = price->outputs[i].gradient_us, of_layer = price->layers[i].gradient_us;
        now += price->outputs[i].backward_us;
        if (of_output > 0) free_at = fmax(free_at, now) + of_output;
        now += price->layers[i].backward_us;
        if (of_layer > 0) free_at = fmax(free_at, now) + of_layer;
        all += of_output + of_layer;
    }
    price->reduce_us = prices->setup.overlaps ? fmax(0, free_at - now) : all;
}

tutti_status tutti_prices_step(tutti_prices *prices, const tutti_strategy *strategy, tutti_step_price *price_out) {
    const uint8_t *splits[TUTTI_MODEL_LAYERS + 1] = {NULL};
    const int nnodes = prices->setup.whole->nnodes;
    for (int i = 1; i < nnodes; i++) splits[i] = strategy->layers[i - 1];
    memset(price_out, 0, sizeof *price_out);
    prices->counts_bytes = true;
    for (int i = 0; i < nnodes; i++) {
        tutti_price *layer = &price_out->layers[i], *output = &price_out->outputs[i];
        if (i > 0) *layer = tutti_prices_layer(prices, i, splits[i]);
        *output = tutti_prices_output(prices, i, splits);
        price_out->us += layer->forward_us + layer->backward_us + layer->update_us;
        price_out->us += output->forward_us + output->backward_us + output->update_us;
        price_out->bytes += layer->bytes + output->bytes;
        price_out->reduced += layer->reduced + output->reduced;
        price_out->received += output->received;
        price_out->move_us += output->moved_us;
        price_out->batch_us += output->batch_us;
    }
    prices->counts_bytes = false;
    follow_backward(prices, price_out);
    price_out->us += price_out->reduce_us;
    TUTTI_TRY(prices->setup.pieces->failure);
    return prices->failure;
}
