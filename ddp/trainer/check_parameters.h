/*
 * Do ranks that hold the same parameters hold the same bits? Each hashes what it has of each parameter, and the hashes are compared.
 */
#ifndef TUTTI_TRAINER_CHECK_PARAMETERS_H
#define TUTTI_TRAINER_CHECK_PARAMETERS_H

#include "ddp/trainer/model.h"

/* Collective over `comm`, all of the model's ranks. A difference is an error on all of them; those that hold the parameter say which
 * rank's differs from most others', or of two from the lower one's. */
tutti_status tutti_check_parameters(const tutti_model *model, tutti_comm *comm, int64_t step);

#endif
