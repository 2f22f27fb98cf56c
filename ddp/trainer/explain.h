/*
 * The output of --explain: how each layer is divided, where tensors are stored, and what is sent in a step.
 */
#ifndef TUTTI_TRAINER_EXPLAIN_H
#define TUTTI_TRAINER_EXPLAIN_H

#include <stdio.h>

#include "ddp/trainer/gradients.h"
#include "ddp/trainer/layers/parallel.h"

typedef struct tutti_explanation {
    const tutti_model *model;
    const tutti_model_layers *list;
    const tutti_strategy *strategy;
    const tutti_gradients *gradients;
    int64_t batch; /* samples of all ranks together */
    /* Set if steps are predicted and measured (auto/auto.h); else NULL. */
    struct tutti_auto *automatic;
    const struct tutti_step_price *price;
    const double *node_us; /* [2 * nnodes]: forward and backward */
    double step_us;
} tutti_explanation;

/* Prints this rank's view. Local. The plans must have been made. */
tutti_status tutti_explain(const tutti_explanation *about, FILE *file);

#endif
