/*
 * Gradients of a model's trained parameters, summed or averaged over the ranks that have samples of their own: one tutti_ddp for each
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

typedef struct tutti_gradients_options {
    bool sums; /* else means */
    bool
        no_broadcast; /* parameters stay as each rank has them; else they become those of the lowest rank of each group */
    bool zero;        /* ZeRO-1: each rank of a group updates one part of the parameters */
} tutti_gradients_options;

/* Collective over `comm`. */
tutti_status tutti_gradients_create(tutti_gradients *gradients, const tutti_model *model, tutti_comm *comm,
                                    const tutti_gradients_options *options);
/* What this rank is to update of each parameter. Local, since the optimizer's state is made before ranks talk. */
tutti_status tutti_gradients_divide(const tutti_model *model, const tutti_comm *comm,
                                    const tutti_gradients_options *options, tutti_ddp_part *parts_out);
/* Accepts half-made ones. */
void tutti_gradients_destroy(tutti_gradients *gradients);

/* Where backward writes, and what it tells. */
tutti_gradient_sink tutti_gradients_sink(tutti_gradients *gradients);
/* After backward. */
tutti_status tutti_gradients_finish(tutti_gradients *gradients);
/* After the update: with ZeRO all ranks get all parts. */
tutti_status tutti_gradients_share(tutti_gradients *gradients);
/* Statistics of all groups together. */
tutti_status tutti_gradients_get_statistics(const tutti_gradients *gradients, tutti_ddp_statistics *statistics_out);

#endif
