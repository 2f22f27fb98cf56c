/*
 * Prints a table of nodes, and the groups in which gradients are reduced.
 */
#include "ddp/trainer/explain.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/auto/auto.h"

enum { TEXT_BYTES = 160 };

static void put_mesh(const tutti_explanation *about, FILE *file) {
    fputs("mesh ", file);
    for (int a = 0; a < about->strategy->naxes; a++) fprintf(file, "%s%d", a > 0 ? "x" : "", about->strategy->sizes[a]);
    fprintf(file,
            ", batch %" PRId64 "; S0: samples, S3: channels are divided; B: on all; P(sum): sums are to be added\n\n",
            about->batch);
    fprintf(file, "%-20s %-18s %-12s %-12s ", "layer", "strategy", "in", "out");
    if (about->price != NULL) fprintf(file, "%12s %12s  ", "predicted us", "measured us");
    fputs("parameters\n", file);
}

/* Formats a layout. Without parts, everything is divided by samples. */
static void format(const tutti_explanation *about, const tutti_sbp *sbp, char *text) {
    tutti_sbp samples[TUTTI_MOST_AXES];
    for (int a = 0; a < about->strategy->naxes; a++) samples[a] = TUTTI_SPLIT(0);
    tutti_sbp_format(sbp != NULL ? sbp : samples, about->strategy->naxes, text, TEXT_BYTES);
}

static void put_parameters(const tutti_explanation *about, const tutti_node *node, FILE *file) {
    for (int p = 0; p < TUTTI_LAYER_PARAMETERS && node->parameter_counts[p] > 0; p++) {
        const tutti_parameter *parameter = &about->model->parameters[node->first_parameter + p];
        char text[TEXT_BYTES];
        tutti_sbp_format(parameter->sbp, about->strategy->naxes, text, sizeof text);
        fprintf(file, "%s%s %s", p > 0 ? ", " : "", strrchr(parameter->name, '.') + 1, text);
    }
    fputc('\n', file);
}

/* Prints forward and backward together. Bias and ReLU after partial sums count as a part of the layer's output. */
static void put_times(const tutti_explanation *about, const tutti_node *node, FILE *file) {
    if (about->price == NULL) return;
    const tutti_price *layer = &about->price->layers[node->number], *output = &about->price->outputs[node->number];
    const bool is_bias = node->layer->kind == TUTTI_LAYER_BIAS;
    fprintf(file, "%12.0f %12.0f  ",
            is_bias ? output->forward_us + output->backward_us - output->moved_us
                    : layer->forward_us + layer->backward_us,
            about->node_us[2 * node->index] + about->node_us[2 * node->index + 1]);
}

static void put_layer(const tutti_explanation *about, const tutti_node *node, FILE *file) {
    char strategy[TEXT_BYTES] = "", in[TEXT_BYTES], out[TEXT_BYTES], name[TEXT_BYTES];
    format(about, node->part != NULL ? node->part->x : NULL, in);
    format(about, node->part != NULL ? node->part->y : NULL, out);
    if (node->layer->kind != TUTTI_LAYER_BIAS)
        tutti_strategy_format(about->strategy, node->number - 1, strategy, sizeof strategy);
    snprintf(name, sizeof name, "%s%s", node->layer->name, node->layer->kind == TUTTI_LAYER_BIAS ? " (bias)" : "");
    fprintf(file, "%-20s %-18s %-12s %-12s ", name, strategy, in, out);
    put_times(about, node, file);
    put_parameters(about, node, file);
}

/* measured: NULL: not measured. */
static tutti_status put_plan(const char *what, const tutti_plan *plan, const double *measured, uint64_t *bytes,
                             FILE *file) {
    tutti_plan_details details;
    char text[512];
    TUTTI_TRY(tutti_plan_get(plan, &details));
    TUTTI_TRY(tutti_plan_describe(plan, text, sizeof text));
    fprintf(file, "    %s: %s", what, text);
    if (measured != NULL) fprintf(file, ", measured %.0f us", *measured);
    fputc('\n', file);
    *bytes += details.received_bytes;
    return TUTTI_OK;
}

static tutti_status put_redistribution(const tutti_explanation *about, const tutti_node *node, uint64_t *bytes,
                                       FILE *file) {
    const tutti_part *part = node->part;
    char in[TEXT_BYTES], out[TEXT_BYTES], dy[TEXT_BYTES], dx[TEXT_BYTES];
    format(about, part->x, in), format(about, part->y, out);
    format(about, part->dy, dy), format(about, part->dx, dx);
    fprintf(file, "  %s becomes %s, its gradient %s becomes %s\n", in, out, dy, dx);
    const double *measured = about->node_us != NULL ? &about->node_us[2 * node->index] : NULL;
    TUTTI_TRY(put_plan("forwards", part->forward, measured, bytes, file));
    if (part->backward == NULL) return TUTTI_OK;
    return put_plan("backwards", part->backward, measured != NULL ? measured + 1 : NULL, bytes, file);
}

/* In an all_reduce over n ranks each rank receives 2 (n - 1) / n of its bytes. */
static uint64_t put_group(const tutti_explanation *about, const tutti_gradients *gradients, int group, FILE *file) {
    const tutti_model *model = about->model;
    const bool cut = model->parallel != NULL;
    uint64_t bytes = 0, ranks = 1;
    for (int i = 0; i < model->nparameters; i++)
        if (gradients->places[i].group == group) bytes += model->parameters[i].count * sizeof(float);
    for (int a = 0; a < about->strategy->naxes; a++)
        if (!cut || (gradients->groups[group].axes >> a & 1) != 0) ranks *= (uint64_t)about->strategy->sizes[a];
    if (ranks == 1) fprintf(file, "gradients of %" PRIu64 " bytes are complete on this rank\n", bytes);
    else fprintf(file, "gradients of %" PRIu64 " bytes are summed over %" PRIu64 " ranks\n", bytes, ranks);
    return 2 * bytes * (ranks - 1) / ranks;
}

static void put_shares(const tutti_step_price *price, FILE *file) {
    fprintf(file, "%.1f ms redistribute %.1f MiB, and %.1f ms reduce %.1f MiB of gradients\n", price->move_us / 1e3,
            price->received / 0x1p20, price->reduce_us / 1e3, price->reduced / 0x1p20);
}

/* Prints the predictions for the plain modes. */
static tutti_status put_others(const tutti_explanation *about, FILE *file) {
    static const char *const names[] = {[TUTTI_MODE_DATA_PARALLEL] = "data_parallel",
                                        [TUTTI_MODE_LAYERWISE_PARALLEL] = "layerwise_parallel",
                                        [TUTTI_MODE_HYBRID_PARALLEL] = "hybrid_parallel"};
    tutti_step_price *price = malloc(sizeof *price);
    tutti_status status =
        price != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory for the price of a strategy");
    for (int i = 0; i < TUTTI_AUTO_PLAIN && status == TUTTI_OK; i++) {
        const char *name = names[about->automatic->plain[i].mode];
        if (!about->automatic->plain[i].allowed) {
            fprintf(file, "%s cannot divide this model over this number of ranks\n", name);
            continue;
        }
        status = tutti_auto_price(about->automatic, about->automatic->plain[i].strategy, price);
        if (status != TUTTI_OK) break;
        fprintf(file, "%s would take %.1f ms, of which ", name, price->us / 1e3);
        put_shares(price, file);
    }
    free(price);
    return status;
}

static tutti_status put_step(const tutti_explanation *about, FILE *file) {
    double bytes;
    TUTTI_TRY(tutti_auto_bytes(about->automatic, about->strategy, &bytes));
    fprintf(file, "step: predicted %.1f ms, measured %.1f ms (%.0f %% off); of the prediction ", about->price->us / 1e3,
            about->step_us / 1e3, 100 * fabs(about->price->us - about->step_us) / about->step_us);
    put_shares(about->price, file);
    if (about->price->batch_us > 0)
        fprintf(file, "batches: %.1f ms of the prediction, since no core is free to make them during the steps\n",
                about->price->batch_us / 1e3);
    fprintf(file, "memory of rank 0: %.1f MiB of parameters, gradients, optimizer's state and activations\n",
            bytes / 0x1p20);
    TUTTI_TRY(put_others(about, file));
    fprintf(file, "layers' kernels: %d measured in %.2f s", about->automatic->pieces.measured,
            about->automatic->pieces.seconds);
    if (about->automatic->setup.searches)
        fprintf(file, "; strategies: searched in %.2f s", about->automatic->search_seconds);
    fputc('\n', file);
    return TUTTI_OK;
}

tutti_status tutti_explain(const tutti_explanation *about, FILE *file) {
    const tutti_model *model = about->model;
    uint64_t activations = 0, gradients = 0;
    put_mesh(about, file);
    for (int i = 1; i < model->nnodes; i++) {
        const tutti_node *node = &model->nodes[i];
        if (tutti_node_is_redistribution(node)) TUTTI_TRY(put_redistribution(about, node, &activations, file));
        else put_layer(about, node, file);
    }
    fputc('\n', file);
    for (int g = 0; g < about->gradients->ngroups; g++) gradients += put_group(about, about->gradients, g, file);
    fprintf(file,
            "in a step rank 0 receives %" PRIu64 " bytes of activations and their gradients, and %" PRIu64
            " of parameters' gradients\n",
            activations, gradients);
    if (about->price != NULL) TUTTI_TRY(put_step(about, file));
    fflush(file);
    return TUTTI_OK;
}
