/*
 * Groups of parameters whose gradients are reduced over the same ranks.
 */
#include "ddp/trainer/gradients.h"

#include <stdio.h>
#include <stdlib.h>

#include "ddp/trainer/parallel.h"

/* ------------------------------------------------------------------------------------------ the groups */

static int find_group(const tutti_gradients *gradients, unsigned axes) {
    int group = 0;
    while (group < gradients->ngroups && gradients->groups[group].axes != axes) group++;
    return group;
}

/* Gives each parameter its group, and its number there. `counts`: how many each group has so far. */
static void sort(tutti_gradients *gradients, const tutti_model *model, int *counts) {
    for (int i = 0; i < model->nparameters; i++) {
        const unsigned axes = model->parameters[i].sums;
        const int group = find_group(gradients, axes);
        if (group == gradients->ngroups) gradients->groups[gradients->ngroups++].axes = axes;
        gradients->places[i].group = group;
        gradients->places[i].index = counts[group]++;
    }
}

/* The ranks that differ from this one only on the group's axes. Placements of the trainer have all ranks in order. */
static void name_ranks(const tutti_parallel *parallel, tutti_gradient_group *group) {
    const tutti_strategy *mesh = parallel->strategy;
    const int nranks = tutti_placement_size(parallel->placement, -1);
    size_t used = 0;
    for (int rank = 0; rank < nranks && used < sizeof group->ranks; rank++) {
        bool mate = true;
        for (int a = mesh->naxes - 1, rest = rank; a >= 0; rest /= mesh->sizes[a], a--)
            mate &= (group->axes >> a & 1) != 0 ||
                    rest % mesh->sizes[a] == tutti_placement_coordinate(parallel->placement, a);
        if (mate)
            used +=
                (size_t)snprintf(group->ranks + used, sizeof group->ranks - used, "%s%d", used > 0 ? "," : "", rank);
    }
}

static tutti_status create_group(tutti_gradients *gradients, int group, const tutti_model *model, tutti_comm *comm,
                                 bool sums, tutti_ddp_parameter *parameters) {
    size_t count = 0;
    for (int i = 0; i < model->nparameters; i++)
        if (gradients->places[i].group == group)
            parameters[count++] = (tutti_ddp_parameter){
                .name = model->parameters[i].name,
                .data = model->parameters[i].data,
                .count = model->parameters[i].count,
                .type = TUTTI_FLOAT32,
            };
    tutti_ddp_options options = TUTTI_DDP_OPTIONS(.sums = sums, .memory = model->compute->kernels->memory,
                                                  .stream = model->compute->kernels->stream(model->compute));
    if (model->parallel != NULL) {
        name_ranks(model->parallel, &gradients->groups[group]);
        TUTTI_TRY(tutti_placement_comm(model->parallel->placement, gradients->groups[group].axes, &comm));
    }
    return tutti_ddp_create(comm, parameters, count, &options, &gradients->groups[group].ddp);
}

tutti_status tutti_gradients_create(tutti_gradients *gradients, const tutti_model *model, tutti_comm *comm, bool sums) {
    const size_t count = (size_t)model->nparameters;
    tutti_ddp_parameter *parameters = calloc(count, sizeof *parameters);
    int *counts = calloc(count, sizeof *counts);
    *gradients = (tutti_gradients){.ngroups = 0};
    gradients->groups = calloc(count, sizeof *gradients->groups);
    gradients->places = calloc(count, sizeof *gradients->places);
    tutti_status status = TUTTI_OK;
    if (parameters == NULL || counts == NULL || gradients->groups == NULL || gradients->places == NULL) {
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    } else {
        sort(gradients, model, counts);
        for (int g = 0; g < gradients->ngroups && status == TUTTI_OK; g++)
            status = create_group(gradients, g, model, comm, sums, parameters);
    }
    free(parameters), free(counts);
    return status;
}

void tutti_gradients_destroy(tutti_gradients *gradients) {
    for (int g = 0; g < gradients->ngroups; g++) tutti_ddp_destroy(gradients->groups[g].ddp);
    free(gradients->groups), free(gradients->places);
    *gradients = (tutti_gradients){.ngroups = 0};
}

/* ---------------------------------------------------------------------------------------------- a step */

static float *where(void *context, int parameter) {
    const tutti_gradients *gradients = context;
    return tutti_ddp_gradient(gradients->groups[gradients->places[parameter].group].ddp,
                              (size_t)gradients->places[parameter].index);
}

/* Errors number ranks as the group's communicator does. */
static tutti_status explain(const tutti_gradient_group *group, tutti_status status) {
    char text[1024];
    if (status == TUTTI_OK || group->ranks[0] == '\0') return status;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    return tutti_fail(status, "gradients, by a communicator whose ranks from 0 on are %s here: %s", group->ranks, text);
}

static tutti_status ready(void *context, int parameter) {
    const tutti_gradients *gradients = context;
    const tutti_gradient_group *group = &gradients->groups[gradients->places[parameter].group];
    return explain(group, tutti_ddp_ready(group->ddp, (size_t)gradients->places[parameter].index));
}

tutti_gradient_sink tutti_gradients_sink(tutti_gradients *gradients) {
    return (tutti_gradient_sink){.context = gradients, .where = where, .ready = ready};
}

tutti_status tutti_gradients_finish(tutti_gradients *gradients) {
    for (int g = 0; g < gradients->ngroups; g++)
        TUTTI_TRY(explain(&gradients->groups[g], tutti_ddp_finish(gradients->groups[g].ddp)));
    return TUTTI_OK;
}

tutti_status tutti_gradients_get_statistics(const tutti_gradients *gradients, tutti_ddp_statistics *statistics_out) {
    tutti_ddp_statistics all = {.steps = 0};
    for (int g = 0; g < gradients->ngroups; g++) {
        tutti_ddp_statistics one;
        TUTTI_TRY(tutti_ddp_get_statistics(gradients->groups[g].ddp, &one));
        if (one.steps > all.steps) all.steps = one.steps;
        all.buckets += one.buckets;
        all.bytes += one.bytes;
        all.compute_ns += one.compute_ns;
        all.communication_ns += one.communication_ns;
        all.exposed_ns += one.exposed_ns;
    }
    *statistics_out = all;
    return TUTTI_OK;
}
