/*
 * A trainer at work. The loop knows no model, no data format and no file format.
 */
#ifndef TUTTI_TRAINER_TRAIN_H
#define TUTTI_TRAINER_TRAIN_H

#include <tutti/train.h>

#include "ddp/trainer/auto/auto.h"
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

struct tutti_trainer {
    tutti_train_model given;     /* what the caller gave, with */
    tutti_train_options options; /* defaults in place of zeros */
    tutti_comm *whole;           /* the caller's */
    tutti_comm *own;             /* of a rank that trains by itself beside others; else NULL */
    tutti_comm *comm;            /* one of these: of the ranks that train together */
    int rank, nranks;            /* there */
    bool silent;                 /* another rank prints and writes */
    bool connected;              /* parameters have been brought together */
    uint64_t seed;
    int64_t global_batch; /* samples of a step, of all ranks */
    int64_t first, rows;  /* this rank's part of them */
    bool sums;            /* losses and gradients are sums, divided by global_batch; else means of ranks' means */
    bool cut;             /* some layers are not divided by samples only */
    tutti_gradients_options reduction;
    tutti_parallel_mode mode;
    tutti_model_layers *list;
    tutti_strategy strategy;
    tutti_placement *placement; /* NULL: no layer is cut */
    tutti_parallel parallel;
    tutti_auto *automatic; /* predictions; NULL: none were asked for */
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

    int64_t step;         /* done */
    int64_t first_step;   /* at which this trainer began */
    int64_t looked_step;  /* the loss of this one has been looked at */
    int64_t epoch, batch; /* the next batch of the epoch under way */
    int64_t total_steps;
    tutti_schedule schedule;

    tutti_train_clock lately, row; /* of the progress line, and since the last loss */
    double images_per_second;      /* lately */

    unsigned telling;       /* events that callbacks hear at this moment, as bits */
    bool begun;             /* callbacks know */
    bool in_epoch;          /* they know that an epoch is under way */
    bool asked;             /* a callback of this rank wants to stop */
    bool has_agreed;        /* the next two are known: */
    bool writes;            /* rank 0 writes checkpoints */
    bool replaces;          /* its first one takes the place of those in the folder */
    bool any_callbacks;     /* some rank has callbacks of the caller's */
    bool stoppable;         /* a signal ends the run with a checkpoint: the same on all ranks */
    int stopped_by;         /* the signal that did; 0: none */
    int64_t agree_step;     /* when the ranks look next whether one came to any of them */
    tutti_train_clock pace; /* since they looked last */
    double loss;            /* the last that was looked at; NaN: none */
};

/* Local: checks what the caller gave. tutti_trainer_fini follows, whatever it returns. */
tutti_status tutti_trainer_begin(tutti_trainer *train, const tutti_train_model *model, const tutti_train_data *data,
                                 const tutti_train_options *options);

/* Reads data, divides the batch. All ranks begin it, since those of stand_alone part here; but for that it talks to none, and may
 * fail on some. */
tutti_status tutti_trainer_prepare(tutti_trainer *train, tutti_comm *comm);

/* All ranks, all of which are prepared: with auto_parallel measures and searches for the strategy; else does nothing. */
tutti_status tutti_trainer_search(tutti_trainer *train);

/* Makes model and optimizer, reads the checkpoint to resume from, prepares folder and files of rank 0. Talks to no rank, and may
 * fail on some. */
tutti_status tutti_trainer_make(tutti_trainer *train);

/* All ranks: makes train->automatic; searches: for auto_parallel, else to price the strategy that there is. */
tutti_status tutti_trainer_open_auto(tutti_trainer *train, bool searches);

/* All ranks: are settings and data the same everywhere? */
tutti_status tutti_trainer_agree(const tutti_trainer *train);

/* All ranks: parameters become rank 0's, once. */
tutti_status tutti_trainer_connect(tutti_trainer *train);

/* As the calls of <tutti/train.h>, by all ranks; a failure leaves it to the caller to end the others. */
tutti_status tutti_trainer_step(tutti_trainer *train, double *loss_out);
tutti_status tutti_trainer_evaluate(tutti_trainer *train, tutti_train_evaluation *evaluation_out);
tutti_status tutti_trainer_save(tutti_trainer *train, char path_out[TUTTI_CHECKPOINT_PATH_BYTES]);
tutti_status tutti_trainer_run(tutti_trainer *train, tutti_train_result *result_out);
tutti_status tutti_trainer_explain(tutti_trainer *train, FILE *file);

/* Accepts half-made ones. */
void tutti_trainer_fini(tutti_trainer *train);

#endif
