/*
 * Gradients of a model's parameters, summed or averaged over the ranks that have samples of their own: one tutti_ddp for each
 * set of axes along which parameters' gradients differ. Where no layer is cut that is one, on the job's communicator.
 */
#ifndef TUTTI_TRAINER_GRADIENTS_H
#define TUTTI_TRAINER_GRADIENTS_H

#include <tutti/ddp.h>

#include "ddp/trainer/model.h"

typedef struct tutti_gradient_group {
    unsigned axes; /* of the placement */
    tutti_ddp *ddp;
    char ranks[128]; /* of the job that are the communicator's 0, 1 ...: for errors; empty: the same */
} tutti_gradient_group;

typedef struct tutti_gradients {
    tutti_gradient_group *groups;
    int ngroups;
    struct {
        int group, index; /* in its tutti_ddp */
    } * places;           /* of each parameter */
} tutti_gradients;

/* Collective over `comm`: parameters become those of the lowest rank of each group. */
tutti_status tutti_gradients_create(tutti_gradients *gradients, const tutti_model *model, tutti_comm *comm, bool sums);
/* Accepts half-made ones. */
void tutti_gradients_destroy(tutti_gradients *gradients);

/* Where backward writes, and what it tells. */
tutti_gradient_sink tutti_gradients_sink(tutti_gradients *gradients);
/* After backward. */
tutti_status tutti_gradients_finish(tutti_gradients *gradients);
/* Of all groups together. */
tutti_status tutti_gradients_get_statistics(const tutti_gradients *gradients, tutti_ddp_statistics *statistics_out);

#endif
