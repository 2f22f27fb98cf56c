/*
 * ZeRO-1 in the DDP engine: each rank has the reduced gradients of its part, and all have the updated parameters.
 *
 * Every test runs twice: with buckets that travel during backward, and with buckets reduced inside finish.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/ddp.h>

#include "tests/support/modes.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

enum { NPARAMETERS = 9, MOST = 1000, CAPS = 4 };
static const size_t counts[NPARAMETERS] = {3, 0, 1, 17, 64, 1000, 5, 129, 0};
static const size_t caps[CAPS] = {1, 256, 4096, 0};
static const int worlds[] = {1, 2, 3, 4, 0};

typedef struct model {
    float data[NPARAMETERS][MOST], expected[NPARAMETERS][MOST];
    tutti_ddp_parameter parameters[NPARAMETERS];
    tutti_ddp_part parts[NPARAMETERS]; /* this rank's */
    tutti_ddp_options options;
} model;

static model *make_model(int rank, size_t cap) {
    model *made = calloc(1, sizeof *made);
    made->options = TUTTI_DDP_OPTIONS(.bucket_bytes = cap, .zero = 1);
    for (size_t i = 0; i < NPARAMETERS; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            made->data[i][k] = (float)(rank * 1000 + (int)i);
            made->expected[i][k] = (float)i;
        }
        made->parameters[i] = (tutti_ddp_parameter){"layer", made->data[i], counts[i], TUTTI_FLOAT32};
    }
    return made;
}

/* A gradient that rounds when it is summed. */
static float gradient_value(int rank, int step, size_t parameter, size_t k) {
    return (float)(reference_hash((uint64_t)step, (uint64_t)rank * 16 + parameter, k) % 100003) / 3.0f;
}

static float expected_average(int nranks, int step, size_t parameter, size_t k) {
    float sum = gradient_value(0, step, parameter, k);
    for (int rank = 1; rank < nranks; rank++) sum += gradient_value(rank, step, parameter, k);
    return sum / (float)nranks;
}

/* All ranks' parts one after the other make up the parameter; parts of a bucket have equal sizes but for its end. */
static tutti_status check_parts(const ranks_context *context, model *m, size_t cap) {
    size_t next[NPARAMETERS] = {0}, least = SIZE_MAX, most = 0;
    for (int rank = 0; rank < context->nranks; rank++) {
        tutti_ddp_part parts[NPARAMETERS];
        size_t all = 0;
        TUTTI_TRY(tutti_ddp_divide(m->parameters, NPARAMETERS, &m->options, rank, context->nranks, parts));
        if (rank == context->rank) memcpy(m->parts, parts, sizeof parts);
        for (size_t i = 0; i < NPARAMETERS; i++) {
            if (parts[i].count == 0) continue;
            RANKS_CHECK(parts[i].first == next[i] && parts[i].first % 16 == 0,
                        "rank %d has %zu from %zu on of %zu, not %zu", rank, parts[i].count, parts[i].first, i,
                        next[i]);
            next[i] += parts[i].count;
            all += parts[i].count;
        }
        if (all < least) least = all;
        if (all > most) most = all;
    }
    for (size_t i = 0; i < NPARAMETERS; i++)
        RANKS_CHECK(next[i] == counts[i], "%zu elements of %zu have a rank", next[i], i);
    /* One bucket of 1344 elements, gaps included; parts end at cache lines. */
    RANKS_CHECK(cap != 0 || most <= (size_t)(1344 / context->nranks + 16), "a rank has %zu elements", most);
    return TUTTI_OK;
}

static tutti_status run_step(const ranks_context *context, model *m, tutti_ddp *ddp, int step) {
    for (size_t i = 0; i < NPARAMETERS; i++) {
        const size_t index =
            (i * 4 + (size_t)context->rank + (size_t)step) % NPARAMETERS; /* a different order on each rank */
        float *view = tutti_ddp_gradient(ddp, index);
        for (size_t k = 0; k < counts[index]; k++) view[k] = gradient_value(context->rank, step, index, k);
        TUTTI_TRY(tutti_ddp_ready(ddp, index));
    }
    TUTTI_TRY(tutti_ddp_finish(ddp));
    for (size_t i = 0; i < NPARAMETERS; i++) {
        const float *view = tutti_ddp_gradient(ddp, i);
        for (size_t k = m->parts[i].first; k < m->parts[i].first + m->parts[i].count; k++) m->data[i][k] -= view[k];
        for (size_t k = 0; k < counts[i]; k++) m->expected[i][k] -= expected_average(context->nranks, step, i, k);
    }
    TUTTI_TRY(tutti_ddp_share(ddp));
    for (size_t i = 0; i < NPARAMETERS; i++)
        RANKS_CHECK(memcmp(m->data[i], m->expected[i], sizeof m->data[i]) == 0, "step %d: parameter %zu is another",
                    step, i);
    return TUTTI_OK;
}

static tutti_status update_parts(ranks_context *context) {
    for (size_t c = 0; c < CAPS; c++) {
        model *m = make_model(context->rank, caps[c]);
        tutti_ddp *ddp;
        TUTTI_TRY(check_parts(context, m, caps[c]));
        TUTTI_TRY(tutti_ddp_create(context->comm, m->parameters, NPARAMETERS, &m->options, &ddp));
        for (int step = 0; step < 5; step++) TUTTI_TRY(run_step(context, m, ddp, step));
        tutti_ddp_destroy(ddp);
        free(m);
    }
    return TUTTI_OK;
}

Test(ddp_zero, parts_that_ranks_update_are_the_parameters_of_one_that_updates_all) {
    run_modes(worlds, RANKS_THREADS, update_parts, NULL);
}

static tutti_status share_too_early(ranks_context *context) {
    model *m = make_model(context->rank, 0);
    tutti_ddp *ddp;
    TUTTI_TRY(tutti_ddp_create(context->comm, m->parameters, NPARAMETERS, &m->options, &ddp));
    TUTTI_TRY(tutti_ddp_ready(ddp, 5));
    RANKS_CHECK(tutti_ddp_share(ddp) == TUTTI_ERR_ARGUMENT, "parameters are shared within a step");
    RANKS_CHECK(strstr(tutti_last_error(), "1 of 9 gradients are ready") != NULL, "%s", tutti_last_error());
    tutti_ddp_destroy(ddp);
    free(m);
    RANKS_CHECK(tutti_ddp_divide(NULL, 0, NULL, 2, 2, NULL) == TUTTI_ERR_ARGUMENT,
                "a rank that is not there has a part");
    return TUTTI_OK;
}

Test(ddp_zero, parameters_are_shared_between_steps_only) {
    run_modes(worlds, RANKS_THREADS, share_too_early, NULL);
}

/* ------------------------------------------------------------------------------------------- no_broadcast */

static tutti_status keep_own(ranks_context *context) {
    for (int no_broadcast = 0; no_broadcast <= 1; no_broadcast++) {
        model *m = make_model(context->rank, 0);
        tutti_ddp *ddp;
        TUTTI_TRY(tutti_ddp_create(context->comm, m->parameters, NPARAMETERS,
                                   &TUTTI_DDP_OPTIONS(.no_broadcast = no_broadcast), &ddp));
        const float expected = no_broadcast ? (float)(context->rank * 1000 + 5) : 5;
        RANKS_CHECK(m->data[5][999] == expected, "no_broadcast %d: %g, expected %g", no_broadcast,
                    (double)m->data[5][999], (double)expected);
        tutti_ddp_destroy(ddp);
        free(m);
    }
    tutti_ddp *ddp = NULL;
    model *m = make_model(context->rank, 0);
    const tutti_status status = tutti_ddp_create(context->comm, m->parameters, NPARAMETERS,
                                                 &TUTTI_DDP_OPTIONS(.zero = context->rank == 0), &ddp);
    RANKS_CHECK(status == (context->nranks > 1 ? TUTTI_ERR_MISMATCH : TUTTI_OK), "%s", tutti_last_error());
    if (status == TUTTI_OK) tutti_ddp_destroy(ddp);
    free(m);
    return TUTTI_OK;
}

Test(ddp_zero, without_a_broadcast_each_rank_keeps_its_parameters) {
    run_modes(worlds, RANKS_THREADS, keep_own, NULL);
}
