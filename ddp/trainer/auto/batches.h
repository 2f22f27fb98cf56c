/*
 * The time to make a sample of a training batch. A thread of each rank makes batches ahead; if the host has no
 * spare core, this thread takes time from the rank. Strategies differ in this: a rank whose first layer is not
 * divided by samples reads all of them.
 */
#ifndef TUTTI_TRAINER_BATCHES_H
#define TUTTI_TRAINER_BATCHES_H

#include "ddp/trainer/input.h"

/* Collective: one rank of each host makes some batches while the others wait; the slowest host's time counts. The
 * result is 0 if the source or the pipelines are the caller's (the caller may count reads), or if the data cannot
 * be read (training then reports the error). */
tutti_status tutti_measure_batches(const tutti_input *input, tutti_comm *comm, double *sample_us_out);

#endif
