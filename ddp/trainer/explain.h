/*
 * What --explain prints: how each layer is divided, where tensors lie, and what moves in a step.
 */
#ifndef TUTTI_TRAINER_EXPLAIN_H
#define TUTTI_TRAINER_EXPLAIN_H

#include <stdio.h>

#include "ddp/trainer/gradients.h"
#include "ddp/trainer/parallel.h"

typedef struct tutti_explanation {
    const tutti_model *model;
    const tutti_model_layers *list;
    const tutti_strategy *strategy;
    const tutti_gradients *gradients;
    int64_t batch; /* of all ranks together */
    /* Where steps are predicted and measured (auto/auto.h); else NULL. */
    struct tutti_auto *automatic;
    const struct tutti_step_price *price;
    const double *node_us; /* [2 * nnodes]: forwards and backwards */
    double step_us;
} tutti_explanation;

/* Of this rank; local. Plans have been made. */
tutti_status tutti_explain(const tutti_explanation *about, FILE *file);

#endif
