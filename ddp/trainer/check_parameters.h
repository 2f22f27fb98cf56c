/*
 * Checks that ranks that hold the same parameters hold the same bits. Each rank hashes its part of each parameter,
 * and the hashes are compared.
 */
#ifndef TUTTI_TRAINER_CHECK_PARAMETERS_H
#define TUTTI_TRAINER_CHECK_PARAMETERS_H

#include "ddp/trainer/layers/model.h"

/* Collective over `comm`, which contains all of the model's ranks. A difference is an error on all of them. The
 * ranks that hold the parameter name the rank that differs from the majority, or of two ranks the lower one. */
tutti_status tutti_check_parameters(const tutti_model *model, tutti_comm *comm, int64_t step);

#endif
