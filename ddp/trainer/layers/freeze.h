/*
 * Parameters that are not trained: --freeze PREFIX. They have no gradient and no optimizer state, and backward
 * stops at the first layer that has trained parameters. Batch norm's moving values are not parameters and are still
 * updated.
 */
#ifndef TUTTI_TRAINER_FREEZE_H
#define TUTTI_TRAINER_FREEZE_H

#include "ddp/trainer/layers/model.h"

/* Freezes the parameters whose names ("conv1.weight") begin with one of the prefixes. A prefix that matches no
 * parameter is an error that names it. Freezing all parameters is an error, too. */
tutti_status tutti_freeze(tutti_model_layers *list, const char *const *prefixes, int nprefixes);

#endif
