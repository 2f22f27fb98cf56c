/*
 * Steps and tests, which are launched or replayed.
 */
#include "ddp/trainer/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/trainer/layers/parallel.h"

/* The first finish lays the buckets out again; libraries initialize at first use. */
#define STEPS_BEFORE_RECORDING 2

/* ---------------------------------------------------------------------------------------- open, close */

static size_t block_bytes(const tutti_step *step) {
    return sizeof(tutti_step_values) + (size_t)step->setup.loss_batch * sizeof(int32_t);
}

static bool is_cut(const tutti_step *step) {
    return step->setup.model->parallel != NULL;
}

tutti_status tutti_step_open(tutti_step *step, const tutti_step_setup *setup) {
    *step = (tutti_step){.setup = *setup};
    tutti_compute *compute = setup->compute;
    step->prepared = calloc(1, block_bytes(step));
    if (step->prepared == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a batch's labels");
    void *memory;
    TUTTI_TRY(compute->kernels->alloc(compute, block_bytes(step), &step->block));
    TUTTI_TRY(compute->kernels->alloc(compute, 2 * sizeof *step->sums, &memory));
    step->sums = memory;
    return compute->kernels->check(compute);
}

void tutti_step_close(tutti_step *step) {
    tutti_compute *compute = step->setup.compute;
    if (compute == NULL) return;
    const tutti_kernels *kernels = compute->kernels;
    kernels->forget(compute, step->recording);
    kernels->free(compute, step->block);
    kernels->free(compute, step->sums);
    free(step->prepared);
    *step = (tutti_step){.recording = NULL};
}

/* --------------------------------------------------------------------------------------------- a step */

static const tutti_step_values *values_of(const tutti_step *step) {
    return step->block;
}

static const int32_t *labels_of(const tutti_step *step) {
    return (const int32_t *)(values_of(step) + 1);
}

/* Checks labels, since the caller's sources may contain any. */
static tutti_status check_labels(const tutti_step *step, const int32_t *labels, int count) {
    const int classes = tutti_model_classes(step->setup.model);
    for (int i = 0; i < count; i++)
        if (labels[i] < 0 || labels[i] >= classes)
            return tutti_fail(TUTTI_ERR_DATA,
                              "sample %d of a batch has the label %d; expected 0 to %d, since the model has %d logits",
                              i, (int)labels[i], classes - 1, classes);
    return TUTTI_OK;
}

/* Copies the images to the model's input of `rows` rows; zeros follow those of the batch. The labels of the samples
 * whose losses are computed are a part of the block, which is uploaded with them. Returns the number of these
 * samples, which is smaller at the end of a pass. */
static tutti_status upload_batch(tutti_step *step, const tutti_data_batch *batch, int rows, int *losses_out) {
    const tutti_step_setup *setup = &step->setup;
    tutti_compute *compute = setup->compute;
    const tutti_shape in = setup->model->nodes[0].out;
    const size_t image = tutti_shape_count(in);
    const size_t given = (size_t)batch->count * image, wanted = (size_t)rows * image;
    const bool has_all = batch->all_labels != NULL;
    const int64_t left = has_all ? batch->whole - (int64_t)setup->first_loss : batch->count;
    const int losses = left < 0 ? 0 : left < setup->loss_batch ? (int)left : setup->loss_batch;
    const int32_t *labels = has_all && losses > 0 ? batch->all_labels + setup->first_loss : batch->labels;
    float *input = tutti_model_input(setup->model);
    TUTTI_TRY(check_labels(step, labels, losses));
    step->indices = has_all ? NULL : batch->indices;
    memcpy((tutti_step_values *)step->prepared + 1, labels, (size_t)losses * sizeof *labels);
    compute->kernels->upload(compute, step->block, step->prepared, block_bytes(step));
    compute->kernels->upload(compute, input, batch->images, given * sizeof *input);
    if (given < wanted) compute->kernels->zero(compute, input + given, (wanted - given) * sizeof *input);
    *losses_out = losses;
    return TUTTI_OK;
}

static tutti_status prepare_loss(const tutti_step *step, int losses) {
    const int32_t *labels = (const int32_t *)((const tutti_step_values *)step->prepared + 1);
    return tutti_loss_prepare(step->setup.loss, labels, step->indices, losses);
}

/* Launches everything that a step does after its batch is uploaded. */
static tutti_status launch(tutti_step *step) {
    const tutti_step_setup *setup = &step->setup;
    tutti_compute *compute = setup->compute;
    tutti_pass pass = {
        .batch = setup->batch,
        .training = true,
        .seed = setup->seed,
        .first_sample = setup->first_sample,
        .values = values_of(step),
    };
    tutti_loss_batch loss = {
        .count = setup->loss_batch,
        .logits = tutti_model_forward(setup->model, &pass),
        .labels = labels_of(step),
        .scale = 1.0f / (float)setup->divisor,
        .dlogits = tutti_model_logits_gradient(setup->model),
    };
    if (loss.logits == NULL) return setup->model->failure;
    TUTTI_TRY(tutti_loss_run(setup->loss, &loss, step->sums));

    tutti_gradient_sink sink = tutti_gradients_sink(step->gradients);
    TUTTI_TRY(tutti_model_backward(setup->model, &pass, &sink));
    TUTTI_TRY(tutti_gradients_finish(step->gradients));
    tutti_update_step(setup->update, setup->model, values_of(step), &sink);
    TUTTI_TRY(tutti_gradients_share(step->gradients));
    return compute->kernels->check(compute);
}

/* Tries whether collectives can be recorded; the result is the same on all ranks. The collective that is recorded
 * for this is never executed. */
static tutti_status try_collective(tutti_step *step) {
    tutti_compute *compute = step->setup.compute;
    if (tutti_comm_size(step->setup.comm) == 1) return TUTTI_OK;
    TUTTI_TRY(compute->kernels->record_begin(compute));
    tutti_status status =
        tutti_all_reduce(step->setup.comm, step->sums, step->sums, 1, TUTTI_FLOAT64, TUTTI_SUM,
                         &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = compute->kernels->stream(compute)));
    tutti_recording *recording = NULL;
    tutti_status ended = compute->kernels->record_end(compute, &recording);
    if (ended == TUTTI_OK) compute->kernels->forget(compute, recording);
    return status != TUTTI_OK ? status : ended;
}

/* Launches a whole step between the begin and the end of a recording. If the step fails, returns its error, not the
 * error of the recording that it spoiled. */
static tutti_status record_launch(tutti_step *step) {
    tutti_compute *compute = step->setup.compute;
    tutti_recording *recording = NULL;
    char text[1024] = "";
    TUTTI_TRY(compute->kernels->record_begin(compute));
    tutti_status status = launch(step);
    if (status != TUTTI_OK) snprintf(text, sizeof text, "%s", tutti_last_error());
    tutti_status ended = compute->kernels->record_end(compute, &recording);
    if (status == TUTTI_OK) {
        step->recording = recording;
        return ended;
    }
    if (ended == TUTTI_OK) compute->kernels->forget(compute, recording);
    return tutti_fail(status, "%s", text);
}

/* Records a step, if that is possible; it is replayed from the next step on. */
static tutti_status record(tutti_step *step) {
    tutti_status status = try_collective(step);
    if (status == TUTTI_ERR_UNSUPPORTED) {
        step->setup.eager = true;
        return TUTTI_OK;
    }
    TUTTI_TRY(status);
    status = record_launch(step);
    if (status == TUTTI_OK) return status;
    return tutti_fail(status, "%s (--eager trains without recording steps)", tutti_last_error());
}

tutti_status tutti_step_run(tutti_step *step, int64_t number, double lr, const tutti_data_batch *batch) {
    tutti_compute *compute = step->setup.compute;
    /* The messages of redistributions cannot be recorded. */
    if (compute->kernels->memory == TUTTI_MEMORY_HOST || is_cut(step)) step->setup.eager = true;
    if (!step->setup.eager && step->recording == NULL && step->launched == STEPS_BEFORE_RECORDING)
        TUTTI_TRY(record(step));
    tutti_step_values *values = step->prepared;
    values->time = (uint64_t)number;
    tutti_update_begin(step->setup.update, lr, values);
    int losses;
    TUTTI_TRY(upload_batch(step, batch, step->setup.batch, &losses));
    TUTTI_TRY(prepare_loss(step, losses));
    const bool times_layers = step->setup.model->times != NULL; /* a replayed step has no times of layers */
    if (step->recording != NULL && !times_layers) return compute->kernels->replay(compute, step->recording);
    step->launched++;
    return launch(step);
}

tutti_status tutti_step_loss(tutti_step *step, double *loss_out) {
    tutti_compute *compute = step->setup.compute;
    double loss;
    TUTTI_TRY(compute->kernels->download(compute, &loss, step->sums, sizeof loss));
    *loss_out = step->setup.counts ? loss / (double)step->setup.divisor : 0;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- a test */

/* The number of `count` samples, the first at place `first` of the pass, that come before `most`. */
static int count_before(int64_t most, int64_t first, int count) {
    const int64_t left = most - first;
    return left <= 0 ? 0 : left < count ? (int)left : count;
}

/* Tests one batch, whose first sample has the place `at` in the pass. If the model is cut, ranks exchange
 * activations of whole batches: an incomplete batch is filled up with samples that do not count. */
static tutti_status test_batch(tutti_step *step, const tutti_data_batch *batch, tutti_step_bounds bounds, int64_t at,
                               int64_t *samples) {
    const tutti_step_setup *setup = &step->setup;
    int losses;
    int rows = setup->batch;
    if (!is_cut(step)) rows = count_before(bounds.most, at + bounds.first_row, batch->count);
    if (rows == 0) return TUTTI_OK;
    TUTTI_TRY(upload_batch(step, batch, rows, &losses));
    losses = count_before(bounds.most, at + (is_cut(step) ? (int64_t)setup->first_loss : bounds.first_row), losses);
    tutti_pass pass = {.batch = rows, .training = false};
    tutti_loss_batch loss = {
        .count = losses,
        .logits = tutti_model_forward(setup->model, &pass),
        .labels = labels_of(step),
        .adds = true,
    };
    if (loss.logits == NULL) return setup->model->failure;
    if (!setup->counts || losses == 0) return TUTTI_OK;
    TUTTI_TRY(prepare_loss(step, losses));
    TUTTI_TRY(tutti_loss_run(setup->loss, &loss, step->sums));
    if (setup->loss->counts) *samples += losses;
    return TUTTI_OK;
}

tutti_status tutti_step_test(tutti_step *step, tutti_data *test, tutti_step_bounds bounds, tutti_step_sums *sums_out) {
    tutti_compute *compute = step->setup.compute;
    tutti_data_batch batch;
    double sums[2];
    int64_t samples = 0;
    compute->kernels->zero(compute, step->sums, sizeof sums);
    TUTTI_TRY(tutti_data_seek(test, 0, 0));
    for (int64_t at = 0; at < bounds.most; at += batch.whole) {
        TUTTI_TRY(tutti_data_next(test, &batch));
        if (batch.whole == 0) break;
        TUTTI_TRY(test_batch(step, &batch, bounds, at, &samples));
    }
    TUTTI_TRY(compute->kernels->download(compute, sums, step->sums, sizeof sums));
    *sums_out = (tutti_step_sums){sums[0], sums[1], samples};
    return TUTTI_OK;
}
