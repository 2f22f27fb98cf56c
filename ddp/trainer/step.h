/*
 * One step on this rank's part of a batch, and this rank's part of a test.
 *
 *   prepare   (host)      images; learning rate and labels as one block, which is uploaded
 *   run       (compute)   forward, loss, backward: each gradient is written into its bucket, which is reduced when it
 *                         is full; finish: gradients are the mean over ranks; update
 *
 * On a GPU the first steps are launched kernel by kernel. Then one step is recorded, buckets included, and the
 * others replay it: everything that changes from step to step is in the block and in the model's input. If
 * collectives cannot be recorded, every step is launched. The loss stays in the compute's memory until the caller
 * asks for it.
 */
#ifndef TUTTI_TRAINER_STEP_H
#define TUTTI_TRAINER_STEP_H

#include <tutti/data.h>

#include "ddp/trainer/gradients.h"
#include "ddp/trainer/layers/loss.h"
#include "ddp/trainer/layers/model.h"
#include "ddp/trainer/update.h"

typedef struct tutti_step_setup {
    tutti_compute *compute;
    tutti_comm *comm;
    tutti_model *model;
    tutti_update *update;
    uint64_t seed;
    int batch;             /* samples that this rank reads */
    uint64_t first_sample; /* the first of them in the batch of all ranks */
    int64_t divisor;       /* divisor of losses and gradients: samples that they are averaged over */
    /* Samples whose losses this rank computes, the first of them, and whether it counts them: of ranks that compute
     * the same losses, one counts. In a model that is cut over ranks these samples may differ from those that this
     * rank reads; then batches include all labels. */
    int loss_batch;
    uint64_t first_loss;
    bool counts;
    bool eager;       /* never record */
    tutti_loss *loss; /* the caller's, open before the first step */
} tutti_step_setup;

typedef struct tutti_step {
    tutti_step_setup setup;
    tutti_gradients *gradients; /* the caller's */
    /* tutti_step_values, then the labels of the samples whose losses are computed: on the host (prepared), and in
     * the compute's memory (block). */
    void *prepared, *block;
    const int64_t *indices; /* indices of these samples, valid as long as the batch; NULL: unknown */
    double *sums;           /* sums of losses, and of right answers */
    int64_t launched;       /* steps so far, before recording */
    tutti_recording *recording;
} tutti_step;

/* Local. */
tutti_status tutti_step_open(tutti_step *step, const tutti_step_setup *setup);
/* Accepts a step that is only partly opened. */
void tutti_step_close(tutti_step *step);

/* Runs training step `number` (from 0) on a full batch; returns when it is done or, on a GPU, enqueued. */
tutti_status tutti_step_run(tutti_step *step, int64_t number, double lr, const tutti_data_batch *batch);
/* The sum of this rank's losses in the last step, divided by the divisor. Waits for the step. */
tutti_status tutti_step_loss(tutti_step *step, double *loss_out);
typedef struct tutti_step_sums {
    double losses, right; /* right: answers */
    int64_t samples;
} tutti_step_sums;

/* Bounds of one pass over test samples: this rank's samples are those at the places [first_row, ...) of each batch,
 * up to the first `most` samples of the pass, counted over all ranks if they have the same batches, else over this
 * rank's own. In a model that is cut, the sums contain the losses that this rank counts. */
typedef struct tutti_step_bounds {
    int64_t most, first_row;
} tutti_step_bounds;

tutti_status tutti_step_test(tutti_step *step, tutti_data *test, tutti_step_bounds bounds, tutti_step_sums *sums_out);

#endif
