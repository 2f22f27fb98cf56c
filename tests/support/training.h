/*
 * Training runs of several ranks inside a test, and the losses that they give.
 */
#ifndef TUTTI_TESTS_TRAINING_H
#define TUTTI_TESTS_TRAINING_H

#include "kernels/kernels.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

#define TRAINING_LOSSES  64
#define TRAINING_OPTIONS 24

/* The processor's. */
tutti_compute *training_compute(void);

typedef struct training_run {
    const char
        *options[TRAINING_OPTIONS]; /* of tutti-train, ended by NULL; --data, --metrics, --log-every come from here */
    const char *data;               /* folder with MNIST's files; metrics are written into it for a while */
    char metrics[FILES_PATH_BYTES]; /* filled in by the run */
    bool own_gpus;                  /* each rank, a process, takes the GPU of its number */
} training_run;

/* Runs the ranks. losses_out: up to TRAINING_LOSSES losses, as the metrics hold them, ten digits. NULL when all went
 * well, else the first failure. */
const char *training_losses(ranks_kind kind, int nranks, training_run *run, double *losses_out, int *count_out);

#endif
