/*
 * The table of optimizers and schedules.
 */
#include "ddp/trainer/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizer.h"

static void apply_sgd(const tutti_update *update, double lr, size_t count, const float *gradient, float *const *states,
                      float *parameter) {
    tutti_sgd rule = {.lr = lr, .momentum = update->options.momentum, .weight_decay = update->options.weight_decay};
    tutti_optimizer_sgd(&rule, count, gradient, states[0], parameter);
}

static void apply_any_adam(const tutti_update *update, bool decoupled, double lr, size_t count, const float *gradient,
                           float *const *states, float *parameter) {
    tutti_adam rule = {
        .lr = lr,
        .beta_1 = 0.9,
        .beta_2 = 0.999,
        .epsilon = 1e-8,
        .weight_decay = update->options.weight_decay,
        .decoupled = decoupled,
        .step = update->steps,
    };
    tutti_optimizer_adam(&rule, count, gradient, states[0], states[1], parameter);
}

static void apply_adam(const tutti_update *update, double lr, size_t count, const float *gradient, float *const *states,
                       float *parameter) {
    apply_any_adam(update, false, lr, count, gradient, states, parameter);
}

static void apply_adamw(const tutti_update *update, double lr, size_t count, const float *gradient,
                        float *const *states, float *parameter) {
    apply_any_adam(update, true, lr, count, gradient, states, parameter);
}

static const tutti_update_row rows[] = {
    {.name = "sgd", .lr = 0.1, .nstates = 1, .state_names = {"velocity"}, .apply = apply_sgd},
    {.name = "momentum", .lr = 0.1, .momentum = 0.9, .nstates = 1, .state_names = {"velocity"}, .apply = apply_sgd},
    {.name = "adam", .lr = 0.001, .nstates = 2, .state_names = {"mean", "square"}, .apply = apply_adam},
    {.name = "adamw", .lr = 0.001, .nstates = 2, .state_names = {"mean", "square"}, .apply = apply_adamw},
};

const tutti_update_row *tutti_update_find(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

tutti_status tutti_update_init(tutti_update *update, const char *name, const tutti_update_options *options,
                               const tutti_model *model) {
    *update = (tutti_update){.row = tutti_update_find(name), .options = *options};
    if (update->row == NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "no optimizer %s; there are %s", name, TUTTI_UPDATE_NAMES);
    if (options->momentum < 0) update->options.momentum = update->row->momentum;
    update->count = tutti_model_parameter_count(model);
    update->states = calloc((size_t)update->row->nstates * update->count, sizeof *update->states);
    if (update->states == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the optimizer's state of %zu parameters", update->count);
    return TUTTI_OK;
}

void tutti_update_fini(tutti_update *update) {
    free(update->states);
    update->states = NULL;
}

void tutti_update_states(const tutti_update *update, const tutti_model *model, int parameter,
                         float *states_out[TUTTI_UPDATE_STATES]) {
    size_t offset = 0;
    for (int i = 0; i < parameter; i++) offset += model->parameters[i].count;
    for (int s = 0; s < update->row->nstates; s++) states_out[s] = update->states + (size_t)s * update->count + offset;
}

void tutti_update_step(tutti_update *update, tutti_model *model, double lr, const tutti_gradient_sink *sink) {
    update->steps++;
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        float *states[TUTTI_UPDATE_STATES] = {NULL, NULL};
        tutti_update_states(update, model, i, states);
        update->row->apply(update, lr, parameter->count, sink->where(sink->context, i), states, parameter->data);
    }
}

double tutti_update_lr(const char *schedule, double lr, int64_t step, int64_t total) {
    double done = total > 0 ? (double)step / (double)total : 0;
    if (strcmp(schedule, "linear") == 0) return lr * (1 - done);
    if (strcmp(schedule, "cosine") == 0) return lr * 0.5 * (1 + cos(3.14159265358979323846 * done));
    if (strcmp(schedule, "step") == 0) return done < 0.5 ? lr : done < 0.75 ? lr / 10 : lr / 100;
    return lr;
}
