/*
 * The training loop.
 *
 *   for each step:  this rank's part of the global batch, then forward, backward, update (step.c)
 *                   now and then: look at the loss, test, write a checkpoint
 *
 * All ranks hold the same parameters at every step, and decide from the same numbers when to look at the loss, to test
 * and to stop.
 */
#include "ddp/trainer/train.h"

#include <math.h>
#include <stdlib.h>

#define SPEED_EVERY_NS INT64_C(500000000)

/* --------------------------------------------------------------------------------------------- start */

static tutti_status create_ddp(tutti_train *train) {
    const tutti_model *model = train->model;
    tutti_ddp_parameter *parameters = calloc((size_t)model->nparameters, sizeof *parameters);
    if (parameters == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    for (int i = 0; i < model->nparameters; i++)
        parameters[i] = (tutti_ddp_parameter){
            .name = model->parameters[i].name,
            .data = model->parameters[i].data,
            .count = model->parameters[i].count,
            .type = TUTTI_FLOAT32,
        };
    tutti_ddp_options options = TUTTI_DDP_OPTIONS(.memory = train->compute->kernels->memory,
                                                  .stream = train->compute->kernels->stream(train->compute));
    tutti_status status = tutti_ddp_create(train->comm, parameters, (size_t)model->nparameters, &options, &train->ddp);
    free(parameters);
    train->work.ddp = train->ddp;
    return status;
}

/* --------------------------------------------------------------------------------------------- events */

static tutti_status tell(tutti_train *train, tutti_event event) {
    if (train->rank != 0) return TUTTI_OK;
    event.step = train->step;
    event.total_steps = train->total_steps;
    event.epoch = train->epoch;
    return tutti_callbacks_tell(&train->callbacks, &event);
}

static tutti_status tell_start(tutti_train *train) {
    tutti_event event = {
        .kind = TUTTI_EVENT_START,
        .model = train->arguments->model,
        .data = train->dataset.source,
        .ranks = train->nranks,
        .batch_size = (int)train->arguments->batch_size,
        .parameters = tutti_model_parameter_count(train->model),
        .flops_per_image = 3 * tutti_model_cost(train->model).flops, /* backward costs about twice forward */
    };
    return tell(train, event);
}

static void measure_speed(tutti_train *train) {
    int64_t now = tutti_callbacks_now_ns(), spent = now - train->speed_ns;
    if (spent < SPEED_EVERY_NS && train->images_per_second > 0) return;
    double images = (double)(train->step - train->speed_step) * (double)train->nranks * train->shard.batch;
    train->images_per_second = spent > 0 ? images * 1e9 / (double)spent : 0;
    train->speed_ns = now;
    train->speed_step = train->step;
}

/* The mean over ranks of the step's loss, on the steps that show it. */
static tutti_status look_at_loss(tutti_train *train, double *loss) {
    TUTTI_TRY(tutti_step_loss(&train->work, loss));
    TUTTI_TRY(tutti_all_reduce(train->comm, loss, loss, 1, TUTTI_FLOAT64, TUTTI_AVG, NULL));
    if (isfinite(*loss)) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "the loss at step %lld is no number: training diverged; lower --lr (now %g)",
                      (long long)train->step, train->lr);
}

/* ----------------------------------------------------------------------------------------- evaluation */

static tutti_status evaluate(tutti_train *train, double *accuracy_out) {
    double sums[2]; /* losses, right answers */
    int64_t first, end;
    tutti_shard_range(train->dataset.test.count, train->rank, train->nranks, &first, &end);
    TUTTI_TRY(tutti_step_test(&train->work, first, end, sums));
    TUTTI_TRY(tutti_all_reduce(train->comm, sums, sums, 2, TUTTI_FLOAT64, TUTTI_SUM, NULL));
    double count = (double)train->dataset.test.count;
    tutti_event event = {
        .kind = TUTTI_EVENT_EVALUATION, .has_loss = true, .loss = sums[0] / count, .accuracy = sums[1] / count};
    *accuracy_out = event.accuracy;
    return tell(train, event);
}

/* ------------------------------------------------------------------------------------------- the loop */

static tutti_status save(tutti_train *train) {
    if (train->rank != 0 || train->arguments->checkpoint_dir == NULL) return TUTTI_OK;
    tutti_checkpoint_content content = {train->arguments->model, train->model, &train->update};
    tutti_checkpoint_position position = {
        .seed = train->seed,
        .step = train->step,
        .epoch = train->epoch,
        .samples = train->batch * train->nranks * train->shard.batch,
        .ranks = train->nranks,
        .batch_size = train->shard.batch,
    };
    TUTTI_TRY(tutti_checkpoint_save(train->arguments->checkpoint_dir, &content, &position));
    return tell(train, (tutti_event){.kind = TUTTI_EVENT_CHECKPOINT});
}

/* One step, and what is due after it. */
static tutti_status advance(tutti_train *train) {
    const tutti_arguments *arguments = train->arguments;
    tutti_event event = {.kind = TUTTI_EVENT_STEP};
    event.lr = tutti_update_lr(arguments->lr_schedule, train->lr, train->step, train->total_steps);
    const uint32_t *indices = tutti_shard_batch(&train->shard, train->epoch, train->batch);
    TUTTI_TRY(tutti_step_run(&train->work, train->step, event.lr, indices));
    train->step++;
    event.has_loss = train->step == 1 || train->step % arguments->log_every == 0;
    if (event.has_loss) TUTTI_TRY(look_at_loss(train, &event.loss));
    measure_speed(train);
    event.images_per_second = train->images_per_second;
    TUTTI_TRY(tell(train, event));

    bool last = train->step == train->total_steps, epoch_ends = ++train->batch == tutti_shard_batches(&train->shard);
    if (epoch_ends) {
        train->epoch++;
        train->batch = 0;
    }
    if (epoch_ends || last) TUTTI_TRY(save(train));
    double accuracy;
    if (arguments->eval_every > 0 && train->step % arguments->eval_every == 0 && !last)
        TUTTI_TRY(evaluate(train, &accuracy));
    return TUTTI_OK;
}

tutti_status tutti_train_run(tutti_train *train, double *accuracy_out) {
    tutti_event end = {.kind = TUTTI_EVENT_END};
    TUTTI_TRY(create_ddp(train));
    TUTTI_TRY(tell_start(train));
    train->speed_ns = tutti_callbacks_now_ns();
    train->speed_step = train->step;
    while (train->step < train->total_steps) TUTTI_TRY(advance(train));
    TUTTI_TRY(evaluate(train, accuracy_out));
    TUTTI_TRY(tutti_ddp_get_statistics(train->ddp, &end.ddp));
    return tell(train, end);
}
