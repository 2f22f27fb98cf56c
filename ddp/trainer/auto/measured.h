/*
 * What steps really take, for --explain to put next to predictions.
 */
#ifndef TUTTI_TRAINER_MEASURED_H
#define TUTTI_TRAINER_MEASURED_H

#include "ddp/trainer/train.h"

typedef struct tutti_measured {
    double step_us; /* the middle one of some steps, from the batch's arrival to the update */
    double *
        node_us; /* [2 * nnodes]: forwards and backwards, the means of other steps, since looking at the clock takes time; malloc's */
} tutti_measured;

/* Collective: trains for some steps, which take about a second and a half; parameters change. Ranks are connected. */
tutti_status tutti_measure_steps(tutti_trainer *train, double predicted_us, tutti_measured *measured_out);

#endif
