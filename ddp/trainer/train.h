/*
 * A running trainer. The training loop does not depend on models, data formats or file formats.
 */
#ifndef TUTTI_TRAINER_TRAIN_H
#define TUTTI_TRAINER_TRAIN_H

#include <tutti/train.h>

#include "ddp/trainer/auto/auto.h"
#include "ddp/trainer/callbacks.h"
#include "ddp/trainer/checkpoint/checkpoint.h"
#include "ddp/trainer/input.h"
#include "ddp/trainer/layers/model.h"
#include "ddp/trainer/layers/parallel.h"
#include "ddp/trainer/step.h"
#include "ddp/trainer/update.h"

/* The start of an interval, in time and steps. */
typedef struct tutti_train_clock {
    int64_t ns, step;
} tutti_train_clock;

struct tutti_trainer {
    tutti_train_model given;     /* the caller's settings, with */
    tutti_train_options options; /* defaults in place of zeros */
    tutti_comm *whole;           /* the caller's */
    tutti_comm *own;             /* communicator of a rank that trains alone while other ranks exist; else NULL */
    tutti_comm *comm;            /* one of the two: the ranks that train together */
    int rank, nranks;            /* in comm */
    bool silent;                 /* another rank prints and writes */
    bool connected;              /* parameters have been synchronized */
    uint64_t seed;
    int64_t global_batch; /* samples of a step on all ranks */
    int64_t first, rows;  /* this rank's samples of them */
    bool sums;            /* losses and gradients are sums, divided by global_batch; false: means of ranks' means */
    bool cut;             /* some layers are not divided by samples only */
    tutti_gradients_options reduction;
    tutti_parallel_mode mode;
    tutti_model_layers *list;
    tutti_strategy strategy;
    tutti_placement *placement; /* NULL: no layer is cut */
    tutti_parallel parallel;
    tutti_auto *automatic; /* predictions; NULL: not requested */
    const char *model_name, *optimizer_name;
    tutti_checkpoint_found resumed; /* with --resume */

    tutti_compute *compute;
    tutti_input input;
    tutti_model *model;
    tutti_update update;
    tutti_loss loss_of_batches;
    tutti_step work;
    tutti_gradients gradients;
    tutti_callbacks callbacks;

    int64_t step;         /* steps completed */
    int64_t first_step;   /* the step at which this trainer began */
    int64_t looked_step;  /* the last step whose loss was read */
    int64_t epoch, batch; /* the next batch of the current epoch */
    int64_t total_steps;
    tutti_schedule schedule;

    tutti_train_clock lately, row; /* since the last progress line; since the last loss */
    double images_per_second;      /* since the last progress line */

    unsigned telling;       /* events that callbacks are being called for, as bits */
    bool begun;             /* callbacks have been called for the begin */
    bool in_epoch;          /* callbacks have been called for the current epoch */
    bool asked;             /* a callback of this rank has requested a stop */
    bool has_agreed;        /* `writes` and `any_callbacks` are known */
    bool writes;            /* rank 0 writes checkpoints */
    bool replaces;          /* its first checkpoint replaces those in the folder */
    bool any_callbacks;     /* a rank has callbacks of the caller's */
    bool stoppable;         /* a signal ends the run with a checkpoint; the same on all ranks */
    int stopped_by;         /* the signal that ended the run; 0: none */
    int64_t agree_step;     /* the step at which the ranks next check whether any of them received a signal */
    tutti_train_clock pace; /* since the last such check */
    double loss;            /* the last loss that was read; NaN: none */
};

/* Checks the caller's settings. Local. tutti_trainer_fini must be called, whatever this returns. */
tutti_status tutti_trainer_begin(tutti_trainer *train, const tutti_train_model *model, const tutti_train_data *data,
                                 const tutti_train_options *options);

/* Opens the data and divides the batch. All ranks must call it, since with stand_alone the communicator is split
 * here; otherwise it does not communicate, and may fail on a part of the ranks. */
tutti_status tutti_trainer_prepare(tutti_trainer *train, tutti_comm *comm);

/* Collective, after prepare has succeeded on all ranks. With auto_parallel measures and searches for the strategy;
 * else does nothing. */
tutti_status tutti_trainer_search(tutti_trainer *train);

/* Makes model and optimizer, reads the checkpoint to resume from, prepares folder and files of rank 0. Does not
 * communicate, and may fail on a part of the ranks. */
tutti_status tutti_trainer_make(tutti_trainer *train);

/* Collective: makes train->automatic. searches: to search for auto_parallel; false: to price the present strategy. */
tutti_status tutti_trainer_open_auto(tutti_trainer *train, bool searches);

/* Collective: checks that settings and data are the same on all ranks. */
tutti_status tutti_trainer_agree(const tutti_trainer *train);

/* Collective: broadcasts rank 0's parameters, once. */
tutti_status tutti_trainer_connect(tutti_trainer *train);

/* As the calls of <tutti/train.h>, collective; after a failure the caller must end the other ranks. */
tutti_status tutti_trainer_step(tutti_trainer *train, double *loss_out);
tutti_status tutti_trainer_evaluate(tutti_trainer *train, tutti_train_evaluation *evaluation_out);
tutti_status tutti_trainer_save(tutti_trainer *train, char path_out[TUTTI_CHECKPOINT_PATH_BYTES]);
tutti_status tutti_trainer_run(tutti_trainer *train, tutti_train_result *result_out);
tutti_status tutti_trainer_explain(tutti_trainer *train, FILE *file);

/* Accepts a trainer that is only partly made. */
void tutti_trainer_fini(tutti_trainer *train);

#endif
