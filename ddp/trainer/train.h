/*
 * The training loop. It knows no model, no data format and no file format.
 */
#ifndef TUTTI_TRAINER_TRAIN_H
#define TUTTI_TRAINER_TRAIN_H

#include <tutti/ddp.h>
#include <tutti/tutti.h>

#include "ddp/trainer/arguments.h"
#include "ddp/trainer/callbacks.h"
#include "ddp/trainer/checkpoint.h"
#include "ddp/trainer/data/dataset.h"
#include "ddp/trainer/data/shard.h"
#include "ddp/trainer/model.h"
#include "ddp/trainer/step.h"
#include "ddp/trainer/update.h"

typedef struct tutti_train {
    const tutti_arguments *arguments;
    tutti_comm *comm; /* the caller's */
    int rank, nranks;
    uint64_t seed;

    tutti_compute *compute;
    tutti_dataset dataset;
    tutti_shard shard;
    tutti_model *model;
    tutti_update update;
    tutti_step work;
    tutti_ddp *ddp;
    tutti_callbacks callbacks; /* rank 0 */

    int64_t step;         /* done */
    int64_t epoch, batch; /* the next batch of the epoch under way */
    int64_t total_steps;
    double lr; /* before the schedule */

    int64_t speed_ns;   /* images per second: since this time ... */
    int64_t speed_step; /* ... and this step */
    double images_per_second;
} tutti_train;

/* Local: reads data, makes model and optimizer, reads the checkpoint to resume from, prepares folder and files of rank
 * 0. Does not talk to other ranks. */
tutti_status tutti_train_open(tutti_train *train, const tutti_arguments *arguments, tutti_comm *comm);

/* All ranks: trains, tests, and gives the accuracy on the test data, 0 to 1. */
tutti_status tutti_train_run(tutti_train *train, double *accuracy_out);

/* Accepts half-opened ones. */
void tutti_train_close(tutti_train *train);

#endif
