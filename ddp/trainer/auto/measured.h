/*
 * Measured times of steps, which --explain prints beside the predictions.
 */
#ifndef TUTTI_TRAINER_MEASURED_H
#define TUTTI_TRAINER_MEASURED_H

#include "ddp/trainer/train.h"

typedef struct tutti_measured {
    double step_us; /* the median of some steps, from the batch's arrival to the update */
    /* [2 * nnodes]: forward and backward, means of other steps, since reading the clock takes time; allocated by
     * malloc */
    double *node_us;
} tutti_measured;

/* Collective: trains for some steps, about one and a half seconds; parameters change. The ranks must be connected. */
tutti_status tutti_measure_steps(tutti_trainer *train, double predicted_us, tutti_measured *measured_out);

#endif
