/*
 * Groups of parameters whose gradients are reduced over the same ranks.
 */
#include "ddp/trainer/gradients.h"

#include <stdio.h>
#include <stdlib.h>

#include "ddp/trainer/layers/parallel.h"

/* ------------------------------------------------------------------------------------------ the groups */

static int find_group(const tutti_gradients *gradients, unsigned axes) {
    int group = 0;
    while (group < gradients->ngroups && gradients->groups[group].axes != axes) group++;
    return group;
}

/* Assigns each trained parameter to a group, with an index in it. */
static tutti_status sort(tutti_gradients *gradients, const tutti_model *model) {
    const size_t count = (size_t)model->nparameters;
    int *counts = calloc(count, sizeof *counts); /* parameters of each group so far */
    *gradients = (tutti_gradients){.ngroups = 0};
    gradients->groups = calloc(count, sizeof *gradients->groups);
    gradients->places = calloc(count, sizeof *gradients->places);
    if (counts == NULL || gradients->groups == NULL || gradients->places == NULL) {
        free(counts);
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    }
    for (int i = 0; i < model->nparameters; i++) {
        const unsigned axes = model->parameters[i].sums;
        gradients->places[i].group = -1;
        if (model->parameters[i].frozen) continue;
        const int group = find_group(gradients, axes);
        if (group == gradients->ngroups) gradients->groups[gradients->ngroups++].axes = axes;
        gradients->places[i].group = group;
        gradients->places[i].index = counts[group]++;
    }
    free(counts);
    return TUTTI_OK;
}

/* Lists the ranks that differ from this one only along the group's axes. Placements of the trainer contain all
 * ranks in order. */
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

/* The group's parameters, in their order. */
static size_t list_group(const tutti_gradients *gradients, int group, const tutti_model *model,
                         tutti_ddp_parameter *parameters) {
    size_t count = 0;
    for (int i = 0; i < model->nparameters; i++)
        if (gradients->places[i].group == group)
            parameters[count++] = (tutti_ddp_parameter){
                .name = model->parameters[i].name,
                .data = model->parameters[i].data,
                .count = model->parameters[i].count,
                .type = TUTTI_FLOAT32,
            };
    return count;
}

static tutti_ddp_options engine_options(const tutti_model *model, const tutti_gradients_options *options) {
    return TUTTI_DDP_OPTIONS(.sums = options->sums, .no_broadcast = options->no_broadcast, .zero = options->zero,
                             .memory = model->compute->kernels->memory,
                             .stream = model->compute->kernels->stream(model->compute));
}

static tutti_status create_group(tutti_gradients *gradients, int group, const tutti_model *model, tutti_comm *comm,
                                 const tutti_gradients_options *options, tutti_ddp_parameter *parameters) {
    const size_t count = list_group(gradients, group, model, parameters);
    const tutti_ddp_options engine = engine_options(model, options);
    if (model->parallel != NULL) {
        name_ranks(model->parallel, &gradients->groups[group]);
        TUTTI_TRY(tutti_placement_comm(model->parallel->placement, gradients->groups[group].axes, &comm));
    }
    return tutti_ddp_create(comm, parameters, count, &engine, &gradients->groups[group].ddp);
}

/* Broadcasts the frozen parameters, which are in no tutti_ddp. */
static tutti_status broadcast_frozen(const tutti_model *model, tutti_comm *comm) {
    const tutti_compute *compute = model->compute;
    const tutti_options options =
        TUTTI_OPTIONS(.memory = compute->kernels->memory, .stream = compute->kernels->stream(compute));
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        if (!parameter->frozen) continue;
        if (model->parallel != NULL)
            TUTTI_TRY(tutti_placement_comm(model->parallel->placement, parameter->sums, &comm));
        TUTTI_TRY(tutti_broadcast(comm, parameter->data, parameter->count, TUTTI_FLOAT32, 0, &options));
    }
    return TUTTI_OK;
}

tutti_status tutti_gradients_create(tutti_gradients *gradients, const tutti_model *model, tutti_comm *comm,
                                    const tutti_gradients_options *options) {
    TUTTI_TRY(sort(gradients, model));
    tutti_ddp_parameter *parameters = calloc((size_t)model->nparameters, sizeof *parameters);
    if (parameters == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    tutti_status status = options->no_broadcast ? TUTTI_OK : broadcast_frozen(model, comm);
    for (int g = 0; g < gradients->ngroups && status == TUTTI_OK; g++)
        status = create_group(gradients, g, model, comm, options, parameters);
    free(parameters);
    return status;
}

/* This rank's position among those that differ from it only along these axes, and their number. */
static void find_rank(const tutti_model *model, const tutti_comm *comm, unsigned axes, int *rank_out, int *nranks_out) {
    *rank_out = tutti_comm_rank(comm), *nranks_out = tutti_comm_size(comm);
    if (model->parallel == NULL) return;
    *rank_out = 0, *nranks_out = 1;
    for (int a = 0; a < model->parallel->strategy->naxes; a++) {
        if ((axes >> a & 1) == 0) continue;
        *rank_out =
            *rank_out * model->parallel->strategy->sizes[a] + tutti_placement_coordinate(model->parallel->placement, a);
        *nranks_out *= model->parallel->strategy->sizes[a];
    }
}

static tutti_status divide_group(const tutti_gradients *gradients, int group, const tutti_model *model,
                                 const tutti_comm *comm, const tutti_ddp_options *options,
                                 tutti_ddp_parameter *parameters, tutti_ddp_part *parts, tutti_ddp_part *parts_out) {
    int rank, nranks;
    const size_t count = list_group(gradients, group, model, parameters);
    find_rank(model, comm, gradients->groups[group].axes, &rank, &nranks);
    TUTTI_TRY(tutti_ddp_divide(parameters, count, options, rank, nranks, parts));
    for (int i = 0; i < model->nparameters; i++)
        if (gradients->places[i].group == group) parts_out[i] = parts[gradients->places[i].index];
    return TUTTI_OK;
}

tutti_status tutti_gradients_divide(const tutti_model *model, const tutti_comm *comm,
                                    const tutti_gradients_options *options, tutti_ddp_part *parts_out) {
    const size_t count = (size_t)model->nparameters;
    const tutti_ddp_options engine = engine_options(model, options);
    tutti_gradients sorted;
    tutti_ddp_parameter *parameters = calloc(count, sizeof *parameters);
    tutti_ddp_part *parts = calloc(count, sizeof *parts);
    tutti_status status = sort(&sorted, model);
    if (status == TUTTI_OK && (parameters == NULL || parts == NULL))
        status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for the list of parameters");
    for (size_t i = 0; i < count; i++) parts_out[i] = (tutti_ddp_part){0, 0};
    for (int g = 0; g < sorted.ngroups && status == TUTTI_OK; g++)
        status = divide_group(&sorted, g, model, comm, &engine, parameters, parts, parts_out);
    free(parameters), free(parts);
    tutti_gradients_destroy(&sorted);
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

/* Explains the numbers of ranks in an error, which are those of the group's communicator. */
static tutti_status explain(const tutti_gradient_group *group, tutti_status status) {
    if (status == TUTTI_OK || group->ranks[0] == '\0') return status;
    return tutti_fail(status, "gradients, reduced by a communicator whose ranks 0, 1 ... are ranks %s of the job: %s",
                      group->ranks, tutti_last_error());
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

tutti_status tutti_gradients_share(tutti_gradients *gradients) {
    for (int g = 0; g < gradients->ngroups; g++)
        TUTTI_TRY(explain(&gradients->groups[g], tutti_ddp_share(gradients->groups[g].ddp)));
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
