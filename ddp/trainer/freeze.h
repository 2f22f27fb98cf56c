/*
 * Parameters that are not trained: --freeze PREFIX. They have no gradient and no state of the optimizer, and backward ends at the first
 * layer before which, and in which, nothing is trained. Batch norm's moving values are no parameters and go on.
 */
#ifndef TUTTI_TRAINER_FREEZE_H
#define TUTTI_TRAINER_FREEZE_H

#include "ddp/trainer/model.h"

/* Freezes the parameters whose names ("conv1.weight") begin with one of the prefixes. A prefix that fits none is an error that names
 * it, and so it is if nothing is left to train. */
tutti_status tutti_freeze(tutti_model_layers *list, const char *const *prefixes, int nprefixes);

#endif
