/*
 * Gradients of a model's trained parameters, summed or averaged over the ranks that have different samples: one
 * tutti_ddp for each set of axes over which gradients are reduced. If no layer is cut there is one, on the job's
 * communicator.
 */
#ifndef TUTTI_TRAINER_GRADIENTS_H
#define TUTTI_TRAINER_GRADIENTS_H

#include <tutti/ddp.h>

#include "ddp/trainer/layers/model.h"

typedef struct tutti_gradient_group {
    unsigned axes; /* of the placement */
    tutti_ddp *ddp;
    char ranks[128]; /* the job's ranks that are ranks 0, 1 ... of the communicator, for errors; empty: the same */
} tutti_gradient_group;

typedef struct tutti_gradients {
    tutti_gradient_group *groups;
    int ngroups;
    struct {
        int group, index; /* index in the group's tutti_ddp */
    } *places;            /* by parameter */
} tutti_gradients;

typedef struct tutti_gradients_options {
    bool sums; /* false: means */
    /* each rank keeps its own parameters; false: those of the lowest rank of each group are broadcast */
    bool no_broadcast;
    bool zero; /* ZeRO-1: each rank of a group updates one part of the parameters */
} tutti_gradients_options;

/* Collective over `comm`. */
tutti_status tutti_gradients_create(tutti_gradients *gradients, const tutti_model *model, tutti_comm *comm,
                                    const tutti_gradients_options *options);
/* The part of each parameter that this rank updates. Local, since the optimizer's state is made before ranks
 * communicate. */
tutti_status tutti_gradients_divide(const tutti_model *model, const tutti_comm *comm,
                                    const tutti_gradients_options *options, tutti_ddp_part *parts_out);
/* Accepts a struct that is only partly made. */
void tutti_gradients_destroy(tutti_gradients *gradients);

/* The sink for backward: where it writes gradients, and the call when one is complete. */
tutti_gradient_sink tutti_gradients_sink(tutti_gradients *gradients);
/* Call this after backward. */
tutti_status tutti_gradients_finish(tutti_gradients *gradients);
/* Call this after the update: with ZeRO it gathers all parts on all ranks. */
tutti_status tutti_gradients_share(tutti_gradients *gradients);
/* Statistics of all groups together. */
tutti_status tutti_gradients_get_statistics(const tutti_gradients *gradients, tutti_ddp_statistics *statistics_out);

#endif
