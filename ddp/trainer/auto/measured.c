/*
 * Times some training steps.
 */
#include "ddp/trainer/auto/measured.h"

#include <stdlib.h>

/* A block is a number of steps in a row, and its mean counts: if ranks are oversubscribed, some steps wait for
 * other ranks, and the next ones are shorter because of that. */
enum { WARM_STEPS = 3, LEAST_STEPS = 5, MOST_BLOCKS = 15, MOST_STEPS = MOST_BLOCKS * 40 };

#define SECONDS 1.0

static tutti_status run_step(tutti_trainer *train) {
    tutti_data_batch batch;
    TUTTI_TRY(tutti_input_next(&train->input, &batch));
    TUTTI_TRY(tutti_step_run(&train->work, train->step, tutti_schedule_lr(&train->schedule, train->step), &batch));
    return train->compute->kernels->wait(train->compute);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tutti_status time_steps(tutti_trainer *train, int steps, double *middle_out) {
    double us[MOST_BLOCKS];
    const int blocks = steps < MOST_BLOCKS ? steps : MOST_BLOCKS, of_each = steps / blocks;
    for (int i = 0; i < WARM_STEPS || i < of_each; i++) TUTTI_TRY(run_step(train));
    for (int b = 0; b < blocks; b++) {
        const int64_t start_ns = tutti_callbacks_now_ns();
        for (int i = 0; i < of_each; i++) TUTTI_TRY(run_step(train));
        us[b] = (double)(tutti_callbacks_now_ns() - start_ns) / 1e3 / of_each;
    }
    qsort(us, (size_t)blocks, sizeof *us, compare);
    *middle_out = us[blocks / 2];
    return TUTTI_OK;
}

static tutti_status time_nodes(tutti_trainer *train, int steps, double *node_us) {
    tutti_model *model = train->model;
    const size_t count = 2 * (size_t)model->nnodes;
    int64_t *times = calloc(count, sizeof *times);
    if (times == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of %d layers", model->nnodes);
    tutti_status status = TUTTI_OK;
    model->times = times;
    for (int i = 0; i < steps && status == TUTTI_OK; i++) status = run_step(train);
    model->times = NULL;
    for (size_t i = 0; i < count; i++) node_us[i] = (double)times[i] / 1e3 / steps;
    free(times);
    return status;
}

/* Chooses the number of steps on rank 0, for all ranks. */
static tutti_status choose_steps(tutti_trainer *train, double predicted_us, int *steps_out) {
    const double wanted = SECONDS * 1e6 / predicted_us;
    int32_t steps = wanted < LEAST_STEPS ? LEAST_STEPS : wanted < MOST_STEPS ? (int32_t)wanted : MOST_STEPS;
    TUTTI_TRY(tutti_broadcast(train->comm, &steps, 1, TUTTI_INT32, 0, NULL));
    *steps_out = steps;
    return TUTTI_OK;
}

tutti_status tutti_measure_steps(tutti_trainer *train, double predicted_us, tutti_measured *measured_out) {
    int steps;
    TUTTI_TRY(tutti_input_seek(&train->input, train->input.train, train->epoch, train->batch));
    TUTTI_TRY(choose_steps(train, predicted_us, &steps));
    double *node_us = calloc(2 * (size_t)train->model->nnodes, sizeof *node_us);
    if (node_us == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the times of layers");
    tutti_status status = time_steps(train, steps, &measured_out->step_us);
    if (status == TUTTI_OK) status = time_nodes(train, (steps + 2) / 3, node_us);
    if (status == TUTTI_OK) measured_out->node_us = node_us;
    else free(node_us);
    return status;
}
