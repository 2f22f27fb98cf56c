/*
 * How parameters are updated: a table of optimizers, their state for a model, and learning-rate schedules.
 */
#ifndef TUTTI_TRAINER_UPDATE_H
#define TUTTI_TRAINER_UPDATE_H

#include <tutti/ddp.h>

#include "ddp/trainer/model.h"

#define TUTTI_UPDATE_STATES 2

typedef struct tutti_update_options {
    double momentum; /* below 0: the optimizer's own */
    double weight_decay;
    bool nesterov; /* of SGD with momentum */
    bool
        only_arrays_decay; /* weight decay is of arrays of two dimensions or more only: not of biases and of batch norm */
} tutti_update_options;

typedef struct tutti_update tutti_update;

/* An update of all pieces; states are arrays of as many elements as the parameter, zero at the start. */
typedef void (*tutti_update_apply)(const tutti_update *update, double weight_decay, const tutti_step_values *values,
                                   const tutti_optimizer_piece *pieces, int npieces);

typedef struct tutti_update_row {
    const char *name;
    double lr, momentum; /* defaults */
    bool decoupled;      /* Adam: weight decay */
    bool has_momentum;   /* and so Nesterov's */
    int nstates;
    const char *state_names[TUTTI_UPDATE_STATES]; /* in checkpoints */
    tutti_update_apply apply;
} tutti_update_row;

/* Names split by '|', for options. */
#define TUTTI_UPDATE_NAMES   "sgd|momentum|adam|adamw"
#define TUTTI_SCHEDULE_NAMES "constant|linear|cosine|step"

/* NULL: no such optimizer. */
const tutti_update_row *tutti_update_find(const char *name);

struct tutti_update {
    const tutti_update_row *row;
    tutti_update_options options;
    tutti_compute *compute;
    int64_t steps;                 /* done so far */
    tutti_ddp_part *parts;         /* of each parameter: what this rank updates; of frozen ones nothing */
    size_t count;                  /* elements of a state: those of all parts, and gaps that align them */
    float *states;                 /* [row->nstates][count], in the compute's memory */
    tutti_optimizer_piece *pieces; /* one per part that is not empty; filled in anew for each step */
};

/* parts: of each of the model's parameters what this rank updates, and so keeps a state of; copied. NULL: all of those that are not
 * frozen. */
tutti_status tutti_update_init(tutti_update *update, const char *name, const tutti_update_options *options,
                               const tutti_model *model, const tutti_ddp_part *parts);
void tutti_update_fini(tutti_update *update);

/* Where the states of a parameter lie: pointers to as many elements each as its part has. */
void tutti_update_states(const tutti_update *update, int parameter, float *states_out[TUTTI_UPDATE_STATES]);

/* A step begins: what the optimizers read of `values`. */
void tutti_update_begin(tutti_update *update, double lr, tutti_step_values *values);
/* One step on all parts, with the gradients that `sink` holds. values: in the compute's memory. */
void tutti_update_step(const tutti_update *update, const tutti_model *model, const tutti_step_values *values,
                       const tutti_gradient_sink *sink);

/* ------------------------------------------------------------------------------------------- schedules */

#define TUTTI_SCHEDULE_MILESTONES 16

/* After `warmup` steps, in which the rate grows by equal steps up to lr: constant; linear and cosine fall from lr to 0 at `total`; step
 * multiplies by `factor` at each milestone, a step; without any after a half and after three quarters of `total`. */
typedef struct tutti_schedule {
    const char *name;
    double lr, factor;
    int64_t total, warmup;
    int64_t milestones[TUTTI_SCHEDULE_MILESTONES];
    int nmilestones;
} tutti_schedule;

/* The learning rate at `step`, from 0. */
double tutti_schedule_lr(const tutti_schedule *schedule, int64_t step);

/* Reads "30,60,80": epochs of `epoch` steps each, rising. An error names the option, --lr-milestones. */
tutti_status tutti_schedule_read_milestones(const char *text, int64_t epoch, tutti_schedule *schedule);

#endif
