/*
 * Several ranks' training on one rank: see training_losses_of_parts. Only the model, its kernels and the division of
 * samples are the trainer's; steps, means and the place of each gradient are implemented here a second time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/training/training_run.h"

enum { MOST_PARTS = 8, MOST_PARAMETERS = 16 };

typedef struct work {
    tutti_trainer train;
    tutti_arguments arguments;
    int parts;
    tutti_data *data[MOST_PARTS];
    float *gradient[MOST_PARAMETERS]; /* of a part, then the mean; in the compute's memory */
    float *of_parts[MOST_PARTS];      /* all parameters' gradients, on the host */
    size_t count;                     /* number of elements */
} work;

static float *gradient_where(void *context, int parameter) {
    return ((work *)context)->gradient[parameter];
}

static tutti_status gradient_ready(void *context, int parameter) {
    (void)context, (void)parameter;
    return TUTTI_OK;
}

static tutti_status open_parts(work *w) {
    tutti_trainer *train = &w->train;
    const tutti_model *model = train->model;
    RANKS_CHECK(w->parts <= MOST_PARTS && model->nparameters <= MOST_PARAMETERS, "too many parts or parameters");
    for (int p = 0; p < w->parts; p++) {
        tutti_input_division division = train->input.division;
        division.rank = p, division.nranks = w->parts;
        TUTTI_TRY(tutti_input_create_train(&train->input, &division, train->seed, &w->data[p]));
    }
    w->count = tutti_model_parameter_count(model);
    for (int i = 0; i < model->nparameters; i++) {
        void *memory;
        TUTTI_TRY(train->compute->kernels->alloc(train->compute, model->parameters[i].count * sizeof(float), &memory));
        w->gradient[i] = memory;
    }
    for (int p = 0; p < w->parts; p++) {
        w->of_parts[p] = malloc(w->count * sizeof(float));
        RANKS_CHECK(w->of_parts[p] != NULL, "no memory");
    }
    return TUTTI_OK;
}

static void close_parts(work *w) {
    for (int i = 0; i < MOST_PARAMETERS; i++)
        if (w->gradient[i] != NULL) w->train.compute->kernels->free(w->train.compute, w->gradient[i]);
    for (int p = 0; p < w->parts; p++) {
        free(w->of_parts[p]);
        tutti_data_destroy(w->data[p]);
    }
    tutti_trainer_fini(&w->train);
}

/* Forwards and backwards on a part, whose gradient and loss are downloaded. */
static tutti_status compute_part(work *w, int part, double *loss_out) {
    tutti_step *step = &w->train.work;
    tutti_compute *compute = w->train.compute;
    tutti_model *model = w->train.model;
    const int batch = (int)w->arguments.batch_size;
    tutti_step_values *values = step->prepared, *there = step->block;
    tutti_data_batch data;
    TUTTI_TRY(tutti_data_next(w->data[part], &data));
    const tutti_data_details *about = &w->train.input.details;
    const size_t pixels = (size_t)about->height * (size_t)about->width * (size_t)about->channels;
    memcpy(values + 1, data.labels, (size_t)batch * sizeof *data.labels);
    compute->kernels->upload(compute, there, values, sizeof *values + (size_t)batch * sizeof *data.labels);
    compute->kernels->upload(compute, tutti_model_input(model), data.images, (size_t)batch * pixels * sizeof(float));
    tutti_pass pass = {.batch = batch,
                       .training = true,
                       .seed = w->train.seed,
                       .first_sample = (uint64_t)(part * batch),
                       .values = there};
    tutti_softmax_loss_args loss = {.batch = batch,
                                    .classes = tutti_model_classes(model),
                                    .logits = tutti_model_forward(model, &pass),
                                    .labels = (const int32_t *)(there + 1),
                                    .scale = 1.0f / (float)batch,
                                    .dlogits = tutti_model_logits_gradient(model)};
    compute->kernels->softmax_loss(compute, &loss, false, step->sums);
    tutti_gradient_sink sink = {w, gradient_where, gradient_ready};
    TUTTI_TRY(tutti_model_backward(model, &pass, &sink));
    float *to = w->of_parts[part];
    for (int i = 0; i < model->nparameters; to += model->parameters[i].count, i++)
        TUTTI_TRY(compute->kernels->download(compute, to, w->gradient[i], model->parameters[i].count * sizeof *to));
    TUTTI_TRY(compute->kernels->download(compute, loss_out, step->sums, sizeof *loss_out));
    *loss_out /= batch;
    return compute->kernels->check(compute);
}

/* The first part's gradient becomes the mean, in the order of parts. */
static void take_mean(work *w) {
    float *mean = w->of_parts[0];
    for (int p = 1; p < w->parts; p++)
        for (size_t i = 0; i < w->count; i++) mean[i] += w->of_parts[p][i];
    for (size_t i = 0; i < w->count; i++) mean[i] /= (float)w->parts;
}

static tutti_status run_step(work *w, int64_t number, double *mean_loss_out) {
    tutti_trainer *train = &w->train;
    tutti_compute *compute = train->compute;
    tutti_step_values *values = train->work.prepared;
    double lr = tutti_schedule_lr(&train->schedule, number), loss;
    values->time = (uint64_t)number;
    tutti_update_begin(&train->update, lr, values);
    *mean_loss_out = 0;
    for (int p = 0; p < w->parts; p++) {
        TUTTI_TRY(compute_part(w, p, &loss));
        *mean_loss_out += loss;
    }
    *mean_loss_out /= w->parts;
    take_mean(w);
    const float *from = w->of_parts[0];
    for (int i = 0; i < train->model->nparameters; from += train->model->parameters[i].count, i++)
        compute->kernels->upload(compute, w->gradient[i], from, train->model->parameters[i].count * sizeof *from);
    tutti_gradient_sink sink = {w, gradient_where, gradient_ready};
    tutti_update_step(&train->update, train->model, train->work.block, &sink);
    return compute->kernels->check(compute);
}

static tutti_status train_parts(work *w) {
    TUTTI_TRY(open_parts(w));
    for (int64_t number = 0; number < w->arguments.steps; number++) {
        double loss;
        TUTTI_TRY(run_step(w, number, &loss));
        FILE *file = fopen(w->arguments.metrics, "ae");
        RANKS_CHECK(file != NULL, "%s cannot be written", w->arguments.metrics);
        fprintf(file, "{\"loss\":%.10g}\n", loss); /* as in the metrics */
        fclose(file);
    }
    return TUTTI_OK;
}

static tutti_status run_parts(ranks_context *context) {
    const training_run *run = context->argument;
    work *w = calloc(1, sizeof *w);
    RANKS_CHECK(w != NULL, "no memory");
    w->parts = run->parts;
    tutti_status status = training_open(run, context->comm, &w->arguments, &w->train);
    if (status == TUTTI_OK) status = train_parts(w);
    close_parts(w);
    free(w);
    return status;
}

const char *training_losses_of_parts(ranks_kind kind, int parts, training_run *run, double *losses_out,
                                     int *count_out) {
    ranks_options options = {.kind = kind, .nranks = 1, .argument = run};
    run->parts = parts;
    return training_run_body(&options, run_parts, losses_out, count_out);
}
