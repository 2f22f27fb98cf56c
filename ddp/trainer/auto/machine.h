/*
 * The identity of a machine: measured times are not valid on another one.
 */
#ifndef TUTTI_TRAINER_MACHINE_H
#define TUTTI_TRAINER_MACHINE_H

#include "ddp/trainer/auto/pieces.h"

/* Collective: the processor with the numbers of ranks and cores; or the GPU, the precision of its matrix products,
 * and the number of ranks that share one. */
tutti_status tutti_machine_name(const tutti_calibration *calibration, char *text, size_t bytes);

#endif
