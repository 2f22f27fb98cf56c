/*
 * Shared by training.c and training_parts.c.
 */
#ifndef TUTTI_TESTS_TRAINING_RUN_H
#define TUTTI_TESTS_TRAINING_RUN_H

#include "ddp/trainer/program/arguments.h"
#include "ddp/trainer/train.h"
#include "tests/support/training/training.h"

/* Parses the options into `arguments`, which must live as long as `train`, and opens it. Call tutti_trainer_fini
 * whatever it returns. */
tutti_status training_open(const training_run *run, tutti_comm *comm, tutti_arguments *arguments, tutti_trainer *train);

/* Runs the body, whose argument is a training_run, and reads the losses that its rank 0 leaves in the metrics. */
const char *training_run_body(const ranks_options *options, ranks_body body, double *losses_out, int *count_out);

#endif
