/*
 * The table of optimizers and schedules.
 */
#include "ddp/trainer/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void apply_sgd(const tutti_update *update, double weight_decay, const tutti_step_values *values,
                      const tutti_optimizer_piece *pieces, int npieces) {
    tutti_sgd rule = {
        .momentum = update->options.momentum, .weight_decay = weight_decay, .nesterov = update->options.nesterov};
    update->compute->kernels->sgd(update->compute, &rule, values, pieces, npieces);
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

static void apply_adam(const tutti_update *update, double weight_decay, const tutti_step_values *values,
                       const tutti_optimizer_piece *pieces, int npieces) {
    tutti_adam rule = adam_rule(update);
    rule.weight_decay = weight_decay;
    update->compute->kernels->adam(update->compute, &rule, values, pieces, npieces);
}

static const tutti_update_row rows[] = {
    {.name = "sgd", .lr = 0.1, .has_momentum = true, .nstates = 1, .state_names = {"velocity"}, .apply = apply_sgd},
    {.name = "momentum",
     .lr = 0.1,
     .momentum = 0.9,
     .has_momentum = true,
     .nstates = 1,
     .state_names = {"velocity"},
     .apply = apply_sgd},
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

/* Elements of a state that a part occupies: kernels need arrays that begin at multiples of 64 bytes. */
static size_t room_of(tutti_ddp_part part) {
    return (part.count + 15) / 16 * 16;
}

tutti_status tutti_update_init(tutti_update *update, const char *name, const tutti_update_options *options,
                               const tutti_model *model, const tutti_ddp_part *parts) {
    *update = (tutti_update){.row = tutti_update_find(name), .options = *options};
    if (update->row == NULL)
        return tutti_fail(TUTTI_ERR_CONFIG, "--optimizer %s: expected one of %s", name, TUTTI_UPDATE_NAMES);
    if (options->momentum < 0) update->options.momentum = update->row->momentum;
    update->compute = model->compute;
    update->count = 0;
    update->pieces = calloc((size_t)model->nparameters, sizeof *update->pieces);
    update->parts = calloc((size_t)model->nparameters, sizeof *update->parts);
    if (update->pieces == NULL || update->parts == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        if (parts != NULL) update->parts[i] = parts[i];
        else if (!parameter->frozen) update->parts[i].count = parameter->count;
        update->count += room_of(update->parts[i]);
    }
    size_t bytes = (size_t)update->row->nstates * update->count * sizeof *update->states;
    void *states;
    TUTTI_TRY(model->compute->kernels->alloc(model->compute, bytes, &states));
    update->states = states;
    return TUTTI_OK;
}

void tutti_update_fini(tutti_update *update) {
    if (update->states != NULL) update->compute->kernels->free(update->compute, update->states);
    free(update->pieces);
    free(update->parts);
    update->states = NULL;
    update->pieces = NULL;
    update->parts = NULL;
}

void tutti_update_states(const tutti_update *update, int parameter, float *states_out[TUTTI_UPDATE_STATES]) {
    size_t offset = 0;
    for (int i = 0; i < parameter; i++) offset += room_of(update->parts[i]);
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

static void fill_piece(const tutti_update *update, const tutti_model *model, int parameter,
                       const tutti_gradient_sink *sink, tutti_optimizer_piece *piece) {
    const tutti_ddp_part part = update->parts[parameter];
    *piece = (tutti_optimizer_piece){.count = part.count,
                                     .gradient = sink->where(sink->context, parameter) + part.first,
                                     .parameter = model->parameters[parameter].data + part.first};
    tutti_update_states(update, parameter, piece->states);
}

/* Pieces with weight decay come first in the list. */
void tutti_update_step(const tutti_update *update, const tutti_model *model, const tutti_step_values *values,
                       const tutti_gradient_sink *sink) {
    int ndecaying = 0, others = model->nparameters;
    for (int i = 0; i < model->nparameters; i++) {
        if (update->parts[i].count == 0) continue;
        bool decays = !update->options.only_arrays_decay || model->parameters[i].ndims > 1;
        int at = decays ? ndecaying++ : --others;
        fill_piece(update, model, i, sink, &update->pieces[at]);
    }
    const int nothers = model->nparameters - others;
    if (ndecaying > 0) update->row->apply(update, update->options.weight_decay, values, update->pieces, ndecaying);
    if (nothers > 0) update->row->apply(update, 0, values, update->pieces + others, nothers);
}

/* ------------------------------------------------------------------------------------------- schedules */

static double step_factor(const tutti_schedule *schedule, int64_t step, double done) {
    if (schedule->nmilestones == 0)
        return done < 0.5 ? 1 : done < 0.75 ? schedule->factor : schedule->factor * schedule->factor;
    double factor = 1;
    for (int i = 0; i < schedule->nmilestones && step >= schedule->milestones[i]; i++) factor *= schedule->factor;
    return factor;
}

double tutti_schedule_lr(const tutti_schedule *schedule, int64_t step) {
    const char *name = schedule->name;
    const double lr = schedule->lr;
    if (step < schedule->warmup) return lr * (double)(step + 1) / (double)schedule->warmup;
    const int64_t falling = schedule->total - schedule->warmup;
    double done = falling > 0 ? (double)(step - schedule->warmup) / (double)falling : 0;
    if (strcmp(name, "linear") == 0) return lr * (1 - done);
    if (strcmp(name, "cosine") == 0) return lr * 0.5 * (1 + cos(3.14159265358979323846 * done));
    if (strcmp(name, "step") == 0) return lr * step_factor(schedule, step, done);
    return lr;
}

tutti_status tutti_schedule_read_milestones(const char *text, int64_t epoch, tutti_schedule *schedule) {
    double last = 0;
    schedule->nmilestones = 0;
    for (const char *next = text;; next++) {
        char *end;
        double at = strtod(next, &end);
        if (end == next || !(at > last && at < 1e6) || (*end != ',' && *end != '\0'))
            return tutti_fail(TUTTI_ERR_CONFIG,
                              "--lr-milestones %s: expected rising epochs, separated by commas, such as 80,120", text);
        if (schedule->nmilestones == TUTTI_SCHEDULE_MILESTONES)
            return tutti_fail(TUTTI_ERR_CONFIG, "--lr-milestones %s: expected at most %d", text,
                              TUTTI_SCHEDULE_MILESTONES);
        schedule->milestones[schedule->nmilestones++] = llround(at * (double)epoch);
        last = at;
        if (*end == '\0') return TUTTI_OK;
        next = end;
    }
}
