/*
 * Hashes of parameters, compared among the ranks that hold the same box.
 */
#include "ddp/trainer/check_parameters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ddp/trainer/hash.h"
#include "ddp/trainer/layers/parallel.h"

#define PIECE 4096 /* elements copied to the host at a time */

/* Over the numbers as words. */
static tutti_status hash(tutti_compute *compute, const tutti_parameter *parameter, uint64_t *hash_out) {
    uint32_t words[PIECE];
    uint64_t value = TUTTI_TRAINER_HASH_BASIS;
    for (size_t first = 0; first < parameter->count; first += PIECE) {
        const size_t some = parameter->count - first < PIECE ? parameter->count - first : PIECE;
        TUTTI_TRY(compute->kernels->download(compute, words, parameter->data + first, some * sizeof *words));
        for (size_t i = 0; i < some; i++) value = tutti_trainer_hash_add(value, words[i]);
    }
    *hash_out = value;
    return TUTTI_OK;
}

/* Axes along which all ranks hold the same box. */
static unsigned axes_of_copies(const tutti_parallel *parallel, const tutti_parameter *parameter) {
    unsigned axes = 0;
    for (int a = 0; a < parallel->strategy->naxes; a++)
        if (parameter->sbp[a].kind == TUTTI_SBP_BROADCAST && parallel->strategy->sizes[a] > 1) axes |= 1u << a;
    return axes;
}

/* The job's rank at position `index` among those that differ from this one only along `axes`. */
static int find_mate(const tutti_parallel *parallel, unsigned axes, int index) {
    const tutti_strategy *mesh = parallel->strategy;
    int rank = 0;
    for (int a = mesh->naxes - 1, stride = 1; a >= 0; stride *= mesh->sizes[a], a--) {
        int coordinate = tutti_placement_coordinate(parallel->placement, a);
        if ((axes >> a & 1) != 0) coordinate = index % mesh->sizes[a], index /= mesh->sizes[a];
        rank += coordinate * stride;
    }
    return rank;
}

/* The most frequent value; of several, the first. */
static uint64_t find_common(const uint64_t *values, int count) {
    int best = 0, most = 0;
    for (int i = 0; i < count; i++) {
        int equal = 0;
        for (int j = 0; j < count; j++) equal += values[j] == values[i];
        if (equal > most) most = equal, best = i;
    }
    return values[best];
}

/* `odd_out`, `other_out`: ranks in the communicator, or -1. */
static tutti_status compare(tutti_comm *comm, uint64_t own, int *odd_out, int *other_out) {
    const int nranks = tutti_comm_size(comm);
    uint64_t *all = calloc((size_t)nranks, sizeof *all);
    if (all == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the hashes of %d ranks", nranks);
    tutti_status status = tutti_all_gather(comm, &own, all, 1, TUTTI_UINT64, NULL);
    const uint64_t common = find_common(all, nranks);
    *odd_out = *other_out = -1;
    for (int i = nranks - 1; status == TUTTI_OK && i >= 0; i--) *(all[i] == common ? other_out : odd_out) = i;
    free(all);
    return status;
}

static tutti_status check(const tutti_model *model, tutti_comm *comm, int64_t step, bool *differs_out) {
    for (int i = 0; i < model->nparameters; i++) {
        const tutti_parameter *parameter = &model->parameters[i];
        uint64_t own = 0;
        int odd, other;
        unsigned axes = 0;
        TUTTI_TRY(hash(model->compute, parameter, &own));
        if (model->parallel != NULL) {
            axes = axes_of_copies(model->parallel, parameter);
            if (axes == 0) continue;
            TUTTI_TRY(tutti_placement_comm(model->parallel->placement, axes, &comm));
        }
        TUTTI_TRY(compare(comm, own, &odd, &other));
        if (odd < 0 || *differs_out) continue;
        *differs_out = true;
        if (model->parallel != NULL)
            odd = find_mate(model->parallel, axes, odd), other = find_mate(model->parallel, axes, other);
        (void)tutti_fail(TUTTI_ERR_MISMATCH,
                         "--check-parameters: after step %" PRId64
                         " parameter %s of rank %d differs from that of rank %d: ranks that began with different "
                         "parameters (--parameter-broadcast no), processors that round in different ways, or damaged "
                         "memory; resume from an earlier checkpoint",
                         step, parameter->name, odd, other);
    }
    return TUTTI_OK;
}

tutti_status tutti_check_parameters(const tutti_model *model, tutti_comm *comm, int64_t step) {
    bool differs = false;
    char text[1024] = "";
    TUTTI_TRY(check(model, comm, step, &differs));
    if (differs) snprintf(text, sizeof text, "%s", tutti_last_error());
    int32_t any = differs;
    TUTTI_TRY(tutti_all_reduce(comm, &any, &any, 1, TUTTI_INT32, TUTTI_MAX, NULL));
    if (any == 0) return TUTTI_OK;
    if (differs) return tutti_fail(TUTTI_ERR_MISMATCH, "%s", text);
    return tutti_fail(TUTTI_ERR_MISMATCH,
                      "--check-parameters: after step %" PRId64
                      " parameters differ between other ranks that share them; see their errors",
                      step);
}
