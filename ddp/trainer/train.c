/*
 * The training loop.
 *
 *   for each step:  this rank's part of the global batch, then forward, backward, update (step.c)
 *                   at intervals: read the loss, test, write a checkpoint, check whether any rank received a signal
 *
 * All ranks hold the same parameters at every step, and decide from the same numbers when to read the loss, to test
 * and to stop.
 */
#include "ddp/trainer/train.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/trainer/auto/measured.h"
#include "ddp/trainer/check_parameters.h"
#include "ddp/trainer/explain.h"
#include "ddp/trainer/stop.h"

#define SPEED_EVERY_NS   INT64_C(500000000)
#define AGREE_EVERY_NS   INT64_C(100000000)
#define MOST_AGREE_STEPS INT64_C(1000)

/* --------------------------------------------------------------------------------------------- start */

static void start_clock(const tutti_trainer *train, tutti_train_clock *clock) {
    *clock = (tutti_train_clock){.ns = tutti_callbacks_now_ns(), .step = train->step};
}

tutti_status tutti_trainer_connect(tutti_trainer *train) {
    if (train->connected) return TUTTI_OK;
    TUTTI_TRY(tutti_model_connect(train->model));
    TUTTI_TRY(tutti_loss_open(&train->loss_of_batches, &train->options, train->model, train->work.setup.loss_batch));
    TUTTI_TRY(tutti_gradients_create(&train->gradients, train->model, train->comm, &train->reduction));
    train->work.gradients = &train->gradients;
    train->connected = true;
    TUTTI_TRY(tutti_input_seek(&train->input, train->input.train, train->epoch, train->batch));
    start_clock(train, &train->lately);
    start_clock(train, &train->row);
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------------- events */

static tutti_status tell(tutti_trainer *train, tutti_event event, tutti_train_moment now) {
    const bool begins = event == TUTTI_EVENT_EPOCH_BEGIN || event == TUTTI_EVENT_STEP_BEGIN;
    const bool ended = !begins && train->batch == 0; /* the last step was its epoch's last */
    now.trainer = train;
    now.rank = train->rank;
    now.nranks = train->nranks;
    now.step = train->step;
    now.total_steps = train->total_steps;
    now.epoch = ended ? train->epoch : train->epoch + 1;
    now.epoch_steps = train->input.batches;
    now.epoch_step = begins ? train->batch + 1 : !ended ? train->batch : train->epoch > 0 ? now.epoch_steps : 0;
    now.loss = train->loss;
    now.stopped_by = train->stopped_by;
    const unsigned before = train->telling;
    train->telling |= 1u << event;
    const tutti_status status = tutti_callbacks_run(&train->callbacks, event, &now);
    train->telling = before;
    return status;
}

/* Images per second since the clock was started; restarts the clock. */
static double lap(const tutti_trainer *train, tutti_train_clock *clock) {
    tutti_train_clock since = *clock;
    start_clock(train, clock);
    double images = (double)(clock->step - since.step) * (double)train->global_batch;
    return clock->ns > since.ns ? images * 1e9 / (double)(clock->ns - since.ns) : 0;
}

/* A step with a loss reports the speed since the previous such step; the progress line shows the speed of the last
 * half second. */
static double measure_speed(tutti_trainer *train, bool has_loss) {
    int64_t spent = tutti_callbacks_now_ns() - train->lately.ns;
    if (spent >= SPEED_EVERY_NS || train->images_per_second == 0) train->images_per_second = lap(train, &train->lately);
    return has_loss ? lap(train, &train->row) : train->images_per_second;
}

/* Excludes the time of a test or a checkpoint from the clocks. */
static void leave_out(tutti_trainer *train, int64_t since_ns) {
    int64_t spent = tutti_callbacks_now_ns() - since_ns;
    train->lately.ns += spent;
    train->row.ns += spent;
    train->pace.ns += spent;
}

static tutti_status fail_without_number(const tutti_trainer *train) {
    char advice[256];
    if (train->step == train->first_step + 1) /* the loss of the initial parameters */
        snprintf(
            advice, sizeof advice,
            "there was no update before it in this run, so images have numbers that are not finite or very large, or "
            "initial weights are too large; check the data, and how layers are initialized");
    else
        snprintf(advice, sizeof advice,
                 "training diverged; lower --lr (now %g), or look for images whose numbers are not finite",
                 train->schedule.lr);
    if (train->options.monitor_every > 0)
        return tutti_fail(TUTTI_ERR_DATA,
                          "In epoch: %lld step: %lld, loss is NAN or INF, training process cannot continue: %s",
                          (long long)train->epoch + (train->batch > 0),
                          (long long)(train->batch > 0 ? train->batch : train->input.batches), advice);
    return tutti_fail(TUTTI_ERR_DATA, "the loss at step %lld is not a number: %s", (long long)train->step, advice);
}

/* Reads the last step's loss, averaged over all samples. */
static tutti_status look_at_loss(tutti_trainer *train) {
    double loss;
    TUTTI_TRY(tutti_step_loss(&train->work, &loss));
    TUTTI_TRY(tutti_all_reduce(train->comm, &loss, &loss, 1, TUTTI_FLOAT64, train->sums ? TUTTI_SUM : TUTTI_AVG, NULL));
    train->loss = loss;
    train->looked_step = train->step;
    return isfinite(loss) ? TUTTI_OK : fail_without_number(train);
}

/* Called before a checkpoint, since diverged training must not write one, and before a test, whose sums overwrite
 * the step's. */
static tutti_status look_at_last_loss(tutti_trainer *train) {
    return train->looked_step == train->step ? TUTTI_OK : look_at_loss(train);
}

/* ----------------------------------------------------------------------------------------- evaluation */

/* The same for a model that is cut: among ranks whose samples differ. */
static tutti_status share_parts(tutti_trainer *train) {
    const tutti_model *model = train->model;
    const tutti_options options = TUTTI_OPTIONS(.memory = train->compute->kernels->memory,
                                                .stream = train->compute->kernels->stream(train->compute));
    for (int i = 0; i < model->nstates; i++) {
        tutti_comm *comm;
        if (model->states[i].sums == 0) continue;
        TUTTI_TRY(tutti_placement_comm(model->parallel->placement, model->states[i].sums, &comm));
        TUTTI_TRY(tutti_broadcast(comm, model->states[i].data, model->states[i].count, TUTTI_FLOAT32, 0, &options));
    }
    return TUTTI_OK;
}

/* Each rank computes batch norm's moving values from its own samples. Rank 0's are used: all ranks test with them,
 * and checkpoints, which rank 0 writes, contain them. Training does not read them, so replacing the other ranks'
 * values changes nothing. */
static tutti_status share_states(tutti_trainer *train) {
    const tutti_model *model = train->model;
    tutti_compute *compute = train->compute;
    if (model->state_count == 0 || train->nranks == 1) return TUTTI_OK;
    if (model->parallel != NULL) return share_parts(train);
    return tutti_broadcast(
        train->comm, model->states[0].data, model->state_count, TUTTI_FLOAT32, 0,
        &TUTTI_OPTIONS(.memory = compute->kernels->memory, .stream = compute->kernels->stream(compute)));
}

/* Bounds a test to the first samples of the data, which ranks divide by rows; with a caller's pipeline each rank
 * takes its share of the number. */
static tutti_step_bounds bound_test(const tutti_trainer *train) {
    const int64_t most = train->options.eval_samples;
    if (most == 0) return (tutti_step_bounds){.most = INT64_MAX};
    if (train->input.given.test == NULL) return (tutti_step_bounds){.most = most, .first_row = train->first};
    return (tutti_step_bounds){.most = most / train->nranks + (train->rank < most % train->nranks)};
}

tutti_status tutti_trainer_evaluate(tutti_trainer *train, tutti_train_evaluation *evaluation_out) {
    const int64_t begun_ns = tutti_callbacks_now_ns();
    tutti_step_sums sums = {.samples = 0};
    *evaluation_out = (tutti_train_evaluation){.samples = 0};
    TUTTI_TRY(look_at_last_loss(train));
    TUTTI_TRY(share_states(train));
    if (train->input.test == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_step_test(&train->work, train->input.test, bound_test(train), &sums));
    double all[] = {sums.losses, sums.right, (double)sums.samples};
    TUTTI_TRY(tutti_all_reduce(train->comm, all, all, 3, TUTTI_FLOAT64, TUTTI_SUM, NULL));
    if (all[2] == 0) return tutti_fail(TUTTI_ERR_DATA, "%s: there are no test samples", train->input.name);
    *evaluation_out =
        (tutti_train_evaluation){.loss = all[0] / all[2], .accuracy = all[1] / all[2], .samples = (int64_t)all[2]};
    if (!isfinite(all[0]))
        return tutti_fail(
            TUTTI_ERR_DATA,
            "the test loss after step %lld is not a number: training diverged, or batch norm's moving "
            "values come from too few steps; lower --lr (now %g), or look for test images whose numbers are "
            "not finite",
            (long long)train->step, train->schedule.lr);
    leave_out(train, begun_ns);
    return tell(train, TUTTI_EVENT_EVALUATED, (tutti_train_moment){.test = evaluation_out});
}

/* ------------------------------------------------------------------------------------------- the loop */

/* Exchanges whether rank 0 writes checkpoints, and whether callbacks of any rank may stop the run. */
static tutti_status agree_once(tutti_trainer *train) {
    if (train->has_agreed) return TUTTI_OK;
    int32_t both[2] = {train->rank == 0 && train->options.checkpoint_dir != NULL, train->options.ncallbacks > 0};
    TUTTI_TRY(tutti_all_reduce(train->comm, both, both, 2, TUTTI_INT32, TUTTI_MAX, NULL));
    train->has_agreed = true;
    train->writes = both[0] != 0;
    train->any_callbacks = both[1] != 0;
    return TUTTI_OK;
}

tutti_status tutti_trainer_save(tutti_trainer *train, char path_out[TUTTI_CHECKPOINT_PATH_BYTES]) {
    TUTTI_TRY(agree_once(train));
    path_out[0] = '\0';
    if (!train->writes) return TUTTI_OK;
    TUTTI_TRY(look_at_last_loss(train));
    const tutti_checkpoint_content content = {train->model_name, train->model, &train->update, train->comm,
                                              train->reduction.zero};
    int64_t begun_ns = tutti_callbacks_now_ns();
    if (train->cut) TUTTI_TRY(share_states(train));
    tutti_checkpoint_position position = {
        .seed = train->seed,
        .step = train->step,
        .epoch = train->epoch,
        .samples = train->batch * train->global_batch,
        .ranks = train->sums ? 1 : train->nranks, /* counts as one rank */
        .batch_size = train->sums ? train->global_batch : train->options.batch_size,
        .norm_parts = tutti_parallel_norm_parts(train->model, train->nranks),
    };
    TUTTI_TRY(tutti_checkpoint_save(train->options.checkpoint_dir, &content, &position, path_out));
    if (train->replaces) TUTTI_TRY(tutti_checkpoint_remove_others(train->options.checkpoint_dir, path_out));
    train->replaces = false;
    leave_out(train, begun_ns);
    return tell(train, TUTTI_EVENT_SAVED, (tutti_train_moment){.path = path_out});
}

static tutti_status agree_to_listen(tutti_trainer *train) {
    TUTTI_TRY(agree_once(train));
    train->stoppable = train->writes && train->options.catch_signals;
    train->agree_step = train->step + 1;
    start_clock(train, &train->pace);
    if (train->stoppable) tutti_stop_listen();
    return TUTTI_OK;
}

/* The values that ranks exchange; the largest counts. Signals have numbers from 1 on. */
enum { GOES_ON = 0, ASKED_BY_CALLBACK = 1, ASKED_BY_SIGNAL = 2 };

static int64_t wish(const tutti_trainer *train) {
    const int signal = train->stoppable ? tutti_stop_signal() : 0;
    return signal != 0 ? ASKED_BY_SIGNAL + signal : train->asked ? ASKED_BY_CALLBACK : GOES_ON;
}

/* Finds out whether any rank has requested a stop. With callbacks the ranks exchange this after each step, for
 * signals only about ten times a second; the number of steps between exchanges follows from the slowest rank's
 * pace, so all ranks compute the same number. */
static tutti_status agree_to_stop(tutti_trainer *train) {
    const bool last = train->step == train->total_steps;
    if (!train->any_callbacks && (!train->stoppable || (train->step < train->agree_step && !last))) return TUTTI_OK;
    tutti_train_clock since = train->pace;
    start_clock(train, &train->pace);
    int64_t both[2] = {wish(train), (train->pace.ns - since.ns) / (train->step - since.step)};
    TUTTI_TRY(tutti_all_reduce(train->comm, both, both, 2, TUTTI_INT64, TUTTI_MAX, NULL));
    int64_t steps = both[1] > 0 ? AGREE_EVERY_NS / both[1] : MOST_AGREE_STEPS;
    if (steps < 1) steps = 1;
    train->agree_step = train->step + (steps < MOST_AGREE_STEPS ? steps : MOST_AGREE_STEPS);
    if (both[0] == ASKED_BY_CALLBACK) train->stopped_by = TUTTI_TRAIN_STOPPED_BY_CALLBACK;
    if (both[0] >= ASKED_BY_SIGNAL) train->stopped_by = (int)both[0] - ASKED_BY_SIGNAL;
    return TUTTI_OK;
}

static tutti_status save(tutti_trainer *train) {
    char path[TUTTI_CHECKPOINT_PATH_BYTES];
    return tutti_trainer_save(train, path);
}

/* After a signal the other ranks must not end before rank 0 has written: their launcher might take that for a
 * failure. */
static tutti_status stop(tutti_trainer *train, bool saved) {
    if (!saved) TUTTI_TRY(save(train));
    return tutti_barrier(train->comm, NULL);
}

/* Returns whether the loss of the step just done, number `in_epoch` of its epoch, is read. */
static bool is_looked_at(const tutti_trainer *train, int64_t in_epoch) {
    const tutti_train_options *options = &train->options;
    return train->step == 1 || train->step % options->loss_every == 0 ||
           (options->monitor_every > 0 && in_epoch % options->monitor_every == 0);
}

static tutti_status begin(tutti_trainer *train) {
    if (train->begun) return TUTTI_OK;
    train->begun = true;
    return tell(train, TUTTI_EVENT_BEGIN, (tutti_train_moment){.lr = tutti_schedule_lr(&train->schedule, train->step)});
}

tutti_status tutti_trainer_step(tutti_trainer *train, double *loss_out) {
    tutti_train_moment now = {.lr = tutti_schedule_lr(&train->schedule, train->step)};
    tutti_data_batch batch;
    TUTTI_TRY(begin(train));
    if (!train->in_epoch) TUTTI_TRY(tell(train, TUTTI_EVENT_EPOCH_BEGIN, now));
    train->in_epoch = true;
    TUTTI_TRY(tell(train, TUTTI_EVENT_STEP_BEGIN, now));
    TUTTI_TRY(tutti_input_next(&train->input, &batch));
    TUTTI_TRY(tutti_step_run(&train->work, train->step, now.lr, &batch));
    train->step++;
    train->batch++;
    now.has_loss = is_looked_at(train, train->batch);
    if (now.has_loss || loss_out != NULL || train->options.monitor_every > 0) TUTTI_TRY(look_at_loss(train));
    if (loss_out != NULL) *loss_out = train->loss;
    now.samples_per_second = measure_speed(train, now.has_loss);
    const bool epoch_ends = train->batch == train->input.batches;
    if (epoch_ends) {
        train->epoch++;
        train->batch = 0;
    }
    TUTTI_TRY(tell(train, TUTTI_EVENT_STEP_END, now));
    train->in_epoch = !epoch_ends;
    if (epoch_ends) TUTTI_TRY(tell(train, TUTTI_EVENT_EPOCH_END, now));
    const int64_t every = train->options.check_parameters;
    if (every == 0 || train->step % every != 0) return TUTTI_OK;
    return tutti_check_parameters(train->model, train->comm, train->step);
}

/* Runs one step, and what is due after it. */
static tutti_status advance(tutti_trainer *train) {
    const tutti_train_options *options = &train->options;
    TUTTI_TRY(tutti_trainer_step(train, NULL));
    const bool last = train->step == train->total_steps, epoch_ends = train->batch == 0;
    if (epoch_ends || last) TUTTI_TRY(save(train));
    TUTTI_TRY(agree_to_stop(train));
    if (train->stopped_by != 0) return stop(train, epoch_ends || last);
    tutti_train_evaluation evaluation;
    if (options->eval_every > 0 && train->step % options->eval_every == 0 && !last)
        TUTTI_TRY(tutti_trainer_evaluate(train, &evaluation));
    return TUTTI_OK;
}

/* Predicts, measures and prints steps. */
static tutti_status explain_steps(tutti_trainer *train, FILE *file, tutti_explanation *about, tutti_step_price *price) {
    tutti_measured measured = {.step_us = 0};
    TUTTI_TRY(tutti_auto_price(train->automatic, &train->strategy, price));
    TUTTI_TRY(tutti_measure_steps(train, price->us, &measured));
    about->automatic = train->automatic;
    about->price = price;
    about->node_us = measured.node_us;
    about->step_us = measured.step_us;
    const tutti_status status = train->rank == 0 && !train->silent ? tutti_explain(about, file) : TUTTI_OK;
    free(measured.node_us);
    return status;
}

tutti_status tutti_trainer_explain(tutti_trainer *train, FILE *file) {
    const bool predicts = train->strategy.naxes <= 3;
    /* Must come before plans are made: plans in CUDA memory predict from the costs measured until then. */
    if (predicts && train->automatic == NULL) TUTTI_TRY(tutti_trainer_open_auto(train, false));
    TUTTI_TRY(tutti_trainer_connect(train));
    tutti_explanation about = {
        train->model, train->list, &train->strategy, &train->gradients, train->global_batch, NULL, NULL, NULL, 0};
    if (predicts) {
        tutti_step_price *price = malloc(sizeof *price);
        if (price == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the price of a strategy");
        const tutti_status status = explain_steps(train, file, &about, price);
        free(price);
        return status;
    }
    if (train->rank != 0 || train->silent) return TUTTI_OK;
    return tutti_explain(&about, file);
}

tutti_status tutti_trainer_run(tutti_trainer *train, tutti_train_result *result_out) {
    tutti_train_result result = {.steps = 0};
    train->stopped_by = 0;
    TUTTI_TRY(tutti_trainer_connect(train));
    TUTTI_TRY(begin(train));
    TUTTI_TRY(agree_to_listen(train));
    while (train->step < train->total_steps && train->stopped_by == 0) TUTTI_TRY(advance(train));
    tutti_stop_forget();
    train->asked = false;
    if (train->stopped_by <= 0) TUTTI_TRY(tutti_trainer_evaluate(train, &result.test));
    TUTTI_TRY(tell(train, TUTTI_EVENT_END, (tutti_train_moment){.lr = 0}));
    result.loss = train->loss;
    result.steps = train->step;
    result.stopped_by = train->stopped_by;
    *result_out = result;
    return TUTTI_OK;
}
