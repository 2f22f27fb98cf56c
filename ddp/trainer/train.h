/*
 * The training loop. It knows no model, no data format and no file format.
 */
#ifndef TUTTI_TRAINER_TRAIN_H
#define TUTTI_TRAINER_TRAIN_H

#include <tutti/tutti.h>

#include "ddp/trainer/arguments.h"
#include "ddp/trainer/callbacks.h"
#include "ddp/trainer/checkpoint.h"
#include "ddp/trainer/input.h"
#include "ddp/trainer/model.h"
#include "ddp/trainer/parallel.h"
#include "ddp/trainer/step.h"
#include "ddp/trainer/update.h"

/* Since when, in time and steps. */
typedef struct tutti_train_clock {
    int64_t ns, step;
} tutti_train_clock;

typedef struct tutti_train {
    const tutti_arguments *arguments;
    tutti_comm *comm; /* the caller's */
    int rank, nranks;
    uint64_t seed;
    int64_t global_batch; /* samples of a step, of all ranks */
    int64_t first, rows;  /* this rank's part of them */
    bool sums;            /* losses and gradients are sums, divided by global_batch; else means of ranks' means */
    bool cut;             /* some layers are not divided by samples only */
    tutti_parallel_mode mode;
    tutti_model_layers *list;
    tutti_strategy strategy;
    tutti_placement *placement; /* NULL: no layer is cut */
    tutti_parallel parallel;
    const char *model_name, *optimizer_name;
    tutti_checkpoint_found resumed; /* with --resume */

    tutti_compute *compute;
    tutti_input input;
    tutti_model *model;
    tutti_update update;
    tutti_step work;
    tutti_gradients gradients;
    tutti_callbacks callbacks; /* rank 0 */

    int64_t step;         /* done */
    int64_t epoch, batch; /* the next batch of the epoch under way */
    int64_t total_steps;
    tutti_schedule schedule;

    tutti_train_clock lately, row; /* of the progress line, and since the last loss */
    double images_per_second;      /* lately */

    bool stoppable;         /* a signal ends the run with a checkpoint: the same on all ranks */
    int stopped_by;         /* the signal that did; 0: none */
    int64_t agree_step;     /* when the ranks look next whether one came to any of them */
    tutti_train_clock pace; /* since they looked last */
} tutti_train;

/* Local: reads data, makes model and optimizer, reads the checkpoint to resume from, prepares folder and files of rank
 * 0. Does not talk to other ranks. */
tutti_status tutti_train_open(tutti_train *train, const tutti_arguments *arguments, tutti_comm *comm);

/* All ranks: trains, tests, and gives the accuracy on the test data, 0 to 1. Where a checkpoint folder was given, SIGINT or
 * SIGTERM to any of them ends the run on all: with a checkpoint, stopped_by set, and no test. */
tutti_status tutti_train_run(tutti_train *train, double *accuracy_out);

/* All ranks: rank 0 prints how the work is divided. In place of tutti_train_run. */
tutti_status tutti_train_explain(tutti_train *train);

/* Accepts half-opened ones. */
void tutti_train_close(tutti_train *train);

#endif
