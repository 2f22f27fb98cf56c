/*
 * What making a sample of a training batch takes. A thread of each rank makes batches ahead; where a host has no core for it, it
 * takes the time from the rank. Strategies differ in that: a rank whose first layer is not divided by samples reads all of them.
 */
#ifndef TUTTI_TRAINER_BATCHES_H
#define TUTTI_TRAINER_BATCHES_H

#include "ddp/trainer/input.h"

/* Collective: one rank of each host makes some batches while the others wait; the slowest host's time counts. Gives 0
 * where the source or the pipelines are the caller's (the caller may count reads), and where the data cannot be read
 * (training then reports the error). */
tutti_status tutti_measure_batches(const tutti_input *input, tutti_comm *comm, double *sample_us_out);

#endif
