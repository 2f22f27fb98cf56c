/*
 * The table of optimizers and schedules.
 */
#include "ddp/trainer/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void apply_sgd(const tutti_update *update, tutti_compute *compute, const tutti_step_values *values,
                      const tutti_optimizer_piece *pieces, int npieces) {
    tutti_sgd rule = {.momentum = update->options.momentum, .weight_decay = update->options.weight_decay};
    compute->kernels->sgd(compute, &rule, values, pieces, npieces);
}

static tutti_adam adam_rule(const tutti_update *update) {
    return (tutti_adam){
        .beta_1 = 0.9,
        .beta_2 = 0.999,
        .epsilon = 1e-8,
        .weight_decay = update->options.weight_decay,
        .decoupled = update->row->decoupled,
    };
}

static void apply_adam(const tutti_update *update, tutti_compute *compute, const tutti_step_values *values,
                       const tutti_optimizer_piece *pieces, int npieces) {
    tutti_adam rule = adam_rule(update);
    compute->kernels->adam(compute, &rule, values, pieces, npieces);
}

static const tutti_update_row rows[] = {
    {.name = "sgd", .lr = 0.1, .nstates = 1, .state_names = {"velocity"}, .apply = apply_sgd},
    {.name = "momentum", .lr = 0.1, .momentum = 0.9, .nstates = 1, .state_names = {"velocity"}, .apply = apply_sgd},
    {.name = "adam", .lr = 0.001, .nstates = 2, .state_names = {"mean", "square"}, .apply = apply_adam},
    {.name = "adamw",
     .lr = 0.001,
     .decoupled = true,
     .nstates = 2,
     .state_names = {"mean", "square"},
     .apply = apply_adam},
};

const tutti_update_row *tutti_update_find(const char *name) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* Elements of a state that a parameter takes: kernels want arrays to begin at multiples of 64 bytes. */
static size_t room_of(const tutti_parameter *parameter) {
    return (parameter->count + 15) / 16 * 16;
}

tutti_status tutti_update_init(tutti_update *update, const char *name, const tutti_update_options *options,
                               const tutti_model *model) {
    *update = (tutti_update){.row = tutti_update_find(name), .options = *options};
    if (update->row == NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "no optimizer %s; there are %s", name, TUTTI_UPDATE_NAMES);
    if (options->momentum < 0) update->options.momentum = update->row->momentum;
    update->compute = model->compute;
    update->count = 0;
    for (int i = 0; i < model->nparameters; i++) update->count += room_of(&model->parameters[i]);
    update->pieces = calloc((size_t)model->nparameters, sizeof *update->pieces);
    if (update->pieces == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    size_t bytes = (size_t)update->row->nstates * update->count * sizeof *update->states;
    void *states;
    TUTTI_TRY(model->compute->kernels->alloc(model->compute, bytes, &states));
    update->states = states;
    return TUTTI_OK;
}

void tutti_update_fini(tutti_update *update) {
    if (update->states != NULL) update->compute->kernels->free(update->compute, update->states);
    free(update->pieces);
    update->states = NULL;
    update->pieces = NULL;
}

void tutti_update_states(const tutti_update *update, const tutti_model *model, int parameter,
                         float *states_out[TUTTI_UPDATE_STATES]) {
    size_t offset = 0;
    for (int i = 0; i < parameter; i++) offset += room_of(&model->parameters[i]);
    for (int s = 0; s < update->row->nstates; s++) states_out[s] = update->states + (size_t)s * update->count + offset;
}

void tutti_update_begin(tutti_update *update, double lr, tutti_step_values *values) {
    tutti_adam rule = adam_rule(update);
    update->steps++;
    rule.lr = lr;
    rule.step = update->steps;
    values->lr = (float)lr;
    values->adam = tutti_optimizer_adam_factors(&rule);
}

void tutti_update_step(const tutti_update *update, const tutti_model *model, const tutti_step_values *values,
                       const tutti_gradient_sink *sink) {
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        tutti_optimizer_piece *piece = &update->pieces[i];
        *piece = (tutti_optimizer_piece){
            .count = parameter->count, .gradient = sink->where(sink->context, i), .parameter = parameter->data};
        tutti_update_states(update, model, i, piece->states);
    }
    update->row->apply(update, update->compute, values, update->pieces, model->nparameters);
}

double tutti_update_lr(const char *schedule, double lr, int64_t step, int64_t total) {
    double done = total > 0 ? (double)step / (double)total : 0;
    if (strcmp(schedule, "linear") == 0) return lr * (1 - done);
    if (strcmp(schedule, "cosine") == 0) return lr * 0.5 * (1 + cos(3.14159265358979323846 * done));
    if (strcmp(schedule, "step") == 0) return done < 0.5 ? lr : done < 0.75 ? lr / 10 : lr / 100;
    return lr;
}
