/*
 * Both losses.
 */
#include "ddp/trainer/layers/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/callbacks.h"
#include "ddp/trainer/layers/parallel.h"

bool tutti_loss_is_expanded(const tutti_train_options *options) {
    return strcmp(options->loss, "softmax_cross_entropy_expand") == 0;
}

/* Finds the axes along which ranks have other classes of the same samples. */
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

/* One block, whose arrays begin at multiples of 16 bytes. */
static tutti_status take_memory(tutti_loss *loss, size_t batch) {
    const size_t count = (batch + 3) / 4 * 4, shares = loss->distribute != NULL ? count * (size_t)loss->all_classes : 0;
    const size_t bytes = count * (2 * sizeof *loss->largest + sizeof *loss->best) + shares * sizeof(float);
    TUTTI_TRY(loss->compute->kernels->alloc(loss->compute, bytes, &loss->memory));
    loss->largest = loss->memory;
    loss->sums = loss->largest + count;
    loss->best = (int32_t *)(void *)(loss->sums + count);
    if (shares == 0) return loss->compute->kernels->check(loss->compute);
    loss->distributions = (float *)(void *)(loss->best + count);
    loss->prepared = calloc(shares, sizeof *loss->prepared);
    if (loss->prepared == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the labels of %zu samples", batch);
    return loss->compute->kernels->check(loss->compute);
}

tutti_status tutti_loss_open(tutti_loss *loss, const tutti_train_options *options, const tutti_model *model,
                             int batch) {
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
    TUTTI_TRY(take_memory(loss, (size_t)batch));
    return find_mates(loss, model);
}

void tutti_loss_close(tutti_loss *loss) {
    if (loss->compute == NULL) return;
    loss->compute->kernels->free(loss->compute, loss->memory);
    free(loss->prepared);
    *loss = (tutti_loss){.comm = NULL};
}

static tutti_status check_distributions(const tutti_loss *loss, int count) {
    for (size_t i = 0; i < (size_t)count * (size_t)loss->all_classes; i++)
        if (!(loss->prepared[i] >= 0 && isfinite(loss->prepared[i])))
            return tutti_fail(
                TUTTI_ERR_DATA,
                "distribute gave %g for sample %d of a batch and class %d; expected finite numbers from 0 on",
                (double)loss->prepared[i], (int)(i / (size_t)loss->all_classes), (int)(i % (size_t)loss->all_classes));
    return TUTTI_OK;
}

tutti_status tutti_loss_prepare(tutti_loss *loss, const int32_t *labels, const int64_t *indices, int count) {
    if (loss->distribute == NULL) return TUTTI_OK;
    tutti_callbacks_forget_errors();
    const tutti_status status =
        loss->distribute(loss->distribute_context, labels, indices, count, loss->all_classes, loss->prepared);
    if (status != TUTTI_OK) return tutti_callbacks_fail(status, "distribute");
    TUTTI_TRY(check_distributions(loss, count));
    loss->compute->kernels->upload(loss->compute, loss->distributions, loss->prepared,
                                   (size_t)count * (size_t)loss->all_classes * sizeof *loss->prepared);
    return TUTTI_OK;
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

/* Reduces over the ranks that have the other classes. */
static tutti_status reduce(const tutti_loss *loss, void *values, int count, tutti_type type, tutti_reduction op) {
    const tutti_kernels *kernels = loss->compute->kernels;
    if (loss->comm == NULL) return TUTTI_OK;
    return tutti_all_reduce(loss->comm, values, values, (size_t)count, type, op,
                            &TUTTI_OPTIONS(.memory = kernels->memory, .stream = kernels->stream(loss->compute)));
}

/* In a test `best` tells which answers are right: it is the first of the largest logits of all ranks. */
static tutti_status run_expanded(const tutti_loss *loss, const tutti_loss_batch *batch, double *sums) {
    const tutti_kernels *kernels = loss->compute->kernels;
    const bool tests = batch->dlogits == NULL;
    tutti_softmax_parts parts = {
        .batch = batch->count,
        .classes = loss->classes,
        .first_class = loss->first_class,
        .logits = batch->logits,
        .labels = batch->labels,
        .distributions = loss->distributions,
        .all_classes = loss->all_classes,
        .largest = loss->largest,
        .sums = loss->sums,
        .best = tests ? loss->best : NULL,
    };
    kernels->softmax_largest(loss->compute, &parts);
    TUTTI_TRY(reduce(loss, loss->largest, batch->count, TUTTI_FLOAT64, TUTTI_MAX));
    kernels->softmax_sums(loss->compute, &parts);
    TUTTI_TRY(reduce(loss, loss->sums, batch->count, TUTTI_FLOAT64, TUTTI_SUM));
    if (tests) TUTTI_TRY(reduce(loss, loss->best, batch->count, TUTTI_INT32, TUTTI_MIN));
    if (!loss->counts) parts.best = NULL;
    kernels->softmax_losses(loss->compute, &parts, batch->scale, batch->dlogits, batch->adds, sums);
    return TUTTI_OK;
}

tutti_status tutti_loss_run(tutti_loss *loss, const tutti_loss_batch *batch, double *sums) {
    return loss->expanded ? run_expanded(loss, batch, sums) : run_fused(loss, batch, sums);
}
