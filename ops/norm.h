/*
 * Rows of batch normalisation.
 */
#ifndef TUTTI_OPS_NORM_H
#define TUTTI_OPS_NORM_H

#include "ops/call.h"

/* Their params: double epsilon. Inputs: x | x, gamma, beta, statistics | x, statistics, dy | x, gamma, statistics,
 * sums, dy */
extern const tutti_ops_row tutti_ops_row_batch_norm_statistics, tutti_ops_row_batch_norm, tutti_ops_row_batch_norm_sums,
    tutti_ops_row_batch_norm_dx;

#endif
