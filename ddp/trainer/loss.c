/*
 * Both losses.
 */
#include "ddp/trainer/loss.h"

#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/parallel.h"

bool tutti_loss_is_expanded(const tutti_train_options *options) {
    return strcmp(options->loss, "softmax_cross_entropy_expand") == 0;
}

/* The axes along which ranks have other classes of the same samples. */
static tutti_status find_mates(tutti_loss *loss, const tutti_model *model) {
    const tutti_part *part = tutti_model_output_part(model);
    unsigned axes = 0;
    if (part == NULL) return TUTTI_OK;
    for (int a = 0; a < model->parallel->strategy->naxes; a++) {
        if (part->y[a].kind != TUTTI_SBP_SPLIT || part->y[a].dim == 0 || model->parallel->strategy->sizes[a] == 1)
            continue;
        axes |= 1u << a;
        loss->counts &= tutti_placement_coordinate(model->parallel->placement, a) == 0;
    }
    loss->first_class = part->first_channel;
    return axes != 0 ? tutti_placement_comm(model->parallel->placement, axes, &loss->comm) : TUTTI_OK;
}

tutti_status tutti_loss_open(tutti_loss *loss, const tutti_train_options *options, const tutti_model *model,
                             int batch) {
    const size_t count = (size_t)batch;
    *loss = (tutti_loss){
        .expanded = tutti_loss_is_expanded(options),
        .compute = model->compute,
        .counts = true,
        .classes = (int)tutti_shape_count(model->nodes[model->nnodes - 1].out),
        .all_classes = tutti_model_classes(model),
        .distribute = options->distribute,
        .distribute_context = options->distribute_context,
    };
    if (!loss->expanded) return TUTTI_OK;
    loss->largest = calloc(count, sizeof *loss->largest);
    loss->own = calloc(count, sizeof *loss->own);
    loss->sums = calloc(count, sizeof *loss->sums);
    loss->best = calloc(count, sizeof *loss->best);
    if (loss->distribute != NULL)
        loss->distributions = calloc(count * (size_t)loss->all_classes, sizeof *loss->distributions);
    if (loss->largest == NULL || loss->own == NULL || loss->sums == NULL || loss->best == NULL ||
        (loss->distribute != NULL && loss->distributions == NULL))
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the loss of a batch of %d samples", batch);
    return find_mates(loss, model);
}

void tutti_loss_close(tutti_loss *loss) {
    free(loss->largest), free(loss->own), free(loss->sums), free(loss->best), free(loss->distributions);
    *loss = (tutti_loss){.comm = NULL};
}

static tutti_status run_fused(const tutti_loss *loss, const tutti_loss_batch *batch, double *sums) {
    const tutti_softmax_loss_args args = {
        .batch = batch->count,
        .classes = loss->classes,
        .logits = batch->logits,
        .labels = batch->labels,
        .scale = batch->scale,
        .dlogits = batch->dlogits,
    };
    loss->compute->kernels->softmax_loss(loss->compute, &args, batch->adds, sums);
    return TUTTI_OK;
}

/* The class that a label is of. */
static int32_t answer(const tutti_loss *loss, const tutti_loss_batch *batch, int sample) {
    const float *shares = loss->distributions + (size_t)sample * (size_t)loss->all_classes;
    int32_t best = 0;
    if (loss->distributions == NULL) return batch->labels[sample];
    for (int c = 1; c < loss->all_classes; c++)
        if (shares[c] > shares[best]) best = c;
    return best;
}

/* The first of the largest logits of all ranks. */
static tutti_status count_right(tutti_loss *loss, const tutti_loss_batch *batch, const double *own, int64_t *right) {
    const size_t count = (size_t)batch->count;
    for (size_t b = 0; b < count && loss->comm != NULL; b++)
        if (own[b] != loss->largest[b]) loss->best[b] = INT32_MAX;
    if (loss->comm != NULL)
        TUTTI_TRY(tutti_all_reduce(loss->comm, loss->best, loss->best, count, TUTTI_INT32, TUTTI_MIN, NULL));
    for (int b = 0; b < batch->count && loss->counts; b++) *right += loss->best[b] == answer(loss, batch, b);
    return TUTTI_OK;
}

static tutti_status run_expanded(tutti_loss *loss, const tutti_loss_batch *batch, double *sums) {
    const size_t count = (size_t)batch->count;
    const bool divided = loss->comm != NULL;
    int64_t right = 0;
    const tutti_softmax_parts parts = {
        .batch = batch->count,
        .classes = loss->classes,
        .first_class = loss->first_class,
        .logits = batch->logits,
        .labels = batch->labels,
        .distributions = loss->distributions,
        .all_classes = loss->all_classes,
        .largest = loss->largest,
        .sums = loss->sums,
    };
    if (loss->distribute != NULL)
        TUTTI_TRY(loss->distribute(loss->distribute_context, batch->labels, batch->indices, batch->count,
                                   loss->all_classes, loss->distributions));
    tutti_softmax_largest(&parts, loss->best);
    memcpy(loss->own, loss->largest, count * sizeof *loss->own);
    if (divided)
        TUTTI_TRY(tutti_all_reduce(loss->comm, loss->largest, loss->largest, count, TUTTI_FLOAT64, TUTTI_MAX, NULL));
    tutti_softmax_sums(&parts);
    if (divided) TUTTI_TRY(tutti_all_reduce(loss->comm, loss->sums, loss->sums, count, TUTTI_FLOAT64, TUTTI_SUM, NULL));
    if (batch->dlogits == NULL) TUTTI_TRY(count_right(loss, batch, loss->own, &right));
    const double losses = tutti_softmax_losses(&parts, batch->scale, batch->dlogits);
    sums[0] = batch->adds ? sums[0] + losses : losses;
    sums[1] = batch->adds ? sums[1] + (double)right : (double)right;
    return TUTTI_OK;
}

tutti_status tutti_loss_run(tutti_loss *loss, const tutti_loss_batch *batch, double *sums) {
    return loss->expanded ? run_expanded(loss, batch, sums) : run_fused(loss, batch, sums);
}
