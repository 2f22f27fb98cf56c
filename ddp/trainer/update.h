/*
 * Updates of parameters: a table of optimizers, their state for a model, and learning-rate schedules.
 */
#ifndef TUTTI_TRAINER_UPDATE_H
#define TUTTI_TRAINER_UPDATE_H

#include <tutti/ddp.h>

#include "ddp/trainer/layers/model.h"

#define TUTTI_UPDATE_STATES 2

typedef struct tutti_update_options {
    double momentum; /* below 0: the optimizer's default */
    double weight_decay;
    bool nesterov; /* for SGD with momentum */
    /* weight decay applies to arrays of two or more dimensions only: not to biases and batch norm */
    bool only_arrays_decay;
} tutti_update_options;

typedef struct tutti_update tutti_update;

/* Updates all pieces; states are arrays with as many elements as the parameter, zero at the start. */
typedef void (*tutti_update_apply)(const tutti_update *update, double weight_decay, const tutti_step_values *values,
                                   const tutti_optimizer_piece *pieces, int npieces);

typedef struct tutti_update_row {
    const char *name;
    double lr, momentum; /* defaults */
    bool decoupled;      /* AdamW: weight decay is decoupled */
    bool has_momentum;   /* and so may use Nesterov's */
    int nstates;
    const char *state_names[TUTTI_UPDATE_STATES]; /* names in checkpoints */
    tutti_update_apply apply;
} tutti_update_row;

/* Names, separated by '|', for options. */
#define TUTTI_UPDATE_NAMES   "sgd|momentum|adam|adamw"
#define TUTTI_SCHEDULE_NAMES "constant|linear|cosine|step"

/* NULL: no such optimizer. */
const tutti_update_row *tutti_update_find(const char *name);

struct tutti_update {
    const tutti_update_row *row;
    tutti_update_options options;
    tutti_compute *compute;
    int64_t steps;                 /* completed */
    tutti_ddp_part *parts;         /* by parameter: what this rank updates; empty for frozen ones */
    size_t count;                  /* elements of a state: those of all parts, and the gaps that align them */
    float *states;                 /* [row->nstates][count], in the compute's memory */
    tutti_optimizer_piece *pieces; /* one per part that is not empty; filled in again for each step */
};

/* parts: the part of each of the model's parameters that this rank updates and keeps a state of; copied. NULL: all
 * parameters that are not frozen. */
tutti_status tutti_update_init(tutti_update *update, const char *name, const tutti_update_options *options,
                               const tutti_model *model, const tutti_ddp_part *parts);
void tutti_update_fini(tutti_update *update);

/* The addresses of a parameter's states, each with as many elements as the parameter's part. */
void tutti_update_states(const tutti_update *update, int parameter, float *states_out[TUTTI_UPDATE_STATES]);

/* Begins a step: fills in the members of `values` that optimizers read. */
void tutti_update_begin(tutti_update *update, double lr, tutti_step_values *values);
/* Runs one step on all parts, with the gradients in `sink`. `values` is in the compute's memory. */
void tutti_update_step(const tutti_update *update, const tutti_model *model, const tutti_step_values *values,
                       const tutti_gradient_sink *sink);

/* ------------------------------------------------------------------------------------------- schedules */

#define TUTTI_SCHEDULE_MILESTONES 16

/* The rate grows by equal steps up to lr during `warmup` steps. After that: constant; linear and cosine fall from
 * lr to 0 at `total`; step multiplies by `factor` at each milestone (a step), or without milestones at a half and
 * at three quarters of `total`. */
typedef struct tutti_schedule {
    const char *name;
    double lr, factor;
    int64_t total, warmup;
    int64_t milestones[TUTTI_SCHEDULE_MILESTONES];
    int nmilestones;
} tutti_schedule;

/* The learning rate at `step`, from 0. */
double tutti_schedule_lr(const tutti_schedule *schedule, int64_t step);

/* Reads "30,60,80": rising epochs of `epoch` steps each. An error names the option, --lr-milestones. */
tutti_status tutti_schedule_read_milestones(const char *text, int64_t epoch, tutti_schedule *schedule);

#endif
