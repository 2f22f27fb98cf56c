/*
 * The DDP engine's errors: they name the parameter, are the same on all ranks where they concern all, and leave no
 * rank waiting.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/ddp.h>

#include "tests/support/modes.h"
#include "tests/support/ranks.h"

/* One for each rank, also where ranks are threads. */
static _Thread_local float data_a[10], data_b[20], data_c[30];

static void make_model(tutti_ddp_parameter model_out[3]) {
    model_out[0] = (tutti_ddp_parameter){"conv.weight", data_a, 10, TUTTI_FLOAT32};
    model_out[1] = (tutti_ddp_parameter){"conv.bias", data_b, 20, TUTTI_FLOAT32};
    model_out[2] = (tutti_ddp_parameter){"dense.weight", data_c, 30, TUTTI_FLOAT32};
}

static const int worlds[] = {2, 3, 0};

/* The last failure's text must contain all of the words. */
static tutti_status expect_words(const char *const *words) {
    for (; *words; words++)
        RANKS_CHECK(strstr(tutti_last_error(), *words), "no '%s' in: %s", *words, tutti_last_error());
    return TUTTI_OK;
}
#define EXPECT_WORDS(...) TUTTI_TRY(expect_words((const char *const[]){__VA_ARGS__, NULL}))

static tutti_status misuse_steps(ranks_context *context) {
    tutti_ddp_parameter model[3];
    make_model(model);
    tutti_ddp *ddp;
    TUTTI_TRY(tutti_ddp_create(context->comm, model, 3, NULL, &ddp));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_ready(ddp, 3));
    EXPECT_WORDS("index 3", "3 parameters");
    RANKS_CHECK(tutti_ddp_gradient(ddp, 3) == NULL, "a view of a parameter that does not exist");
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_finish(ddp));
    EXPECT_WORDS("parameter 0", "conv.weight", "0 of 3");
    for (int step = 0; step < 3; step++) {
        TUTTI_TRY(tutti_ddp_ready(ddp, 2));
        TUTTI_TRY(tutti_ddp_ready(ddp, 0));
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_ready(ddp, 2));
        EXPECT_WORDS("parameter 2", "dense.weight");
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_set_sync(ddp, 0));
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_finish(ddp));
        EXPECT_WORDS("parameter 1", "conv.bias", "2 of 3");
        TUTTI_TRY(tutti_ddp_ready(ddp, 1)); /* the step went on */
        TUTTI_TRY(tutti_ddp_finish(ddp));
    }
    tutti_ddp_destroy(ddp);
    return TUTTI_OK;
}

Test(ddp_errors, wrong_steps_name_the_parameter_and_can_be_put_right) {
    run_modes(worlds, RANKS_THREADS, misuse_steps, NULL);
}

static tutti_status null_arguments(ranks_context *context) {
    tutti_ddp_parameter model[3];
    make_model(model);
    tutti_ddp *ddp = NULL;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_create(NULL, model, 3, NULL, &ddp));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_create(context->comm, NULL, 3, NULL, &ddp));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_create(context->comm, model, 3, &(tutti_ddp_options){0}, &ddp));
    RANKS_CHECK(ddp == NULL, "written on failure");
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_ready(NULL, 0));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_finish(NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_zero(NULL));
    RANKS_CHECK(tutti_ddp_gradient(NULL, 0) == NULL, "a view of nothing");
    tutti_ddp_destroy(NULL);
    /* A model without parameters is valid: its steps are empty. */
    TUTTI_TRY(tutti_ddp_create(context->comm, NULL, 0, NULL, &ddp));
    for (int step = 0; step < 2; step++) TUTTI_TRY(tutti_ddp_finish(ddp));
    tutti_ddp_destroy(ddp);
    return TUTTI_OK;
}

Test(ddp_errors, missing_arguments_are_refused_on_all_ranks) {
    run_modes(worlds, RANKS_THREADS, null_arguments, NULL);
}

static tutti_status differ_in_count(ranks_context *context) {
    tutti_ddp_parameter model[3];
    make_model(model);
    tutti_ddp *ddp;
    tutti_ddp_parameter mine[3];
    make_model(mine);
    if (context->rank == context->nranks - 1) mine[1].count = 19;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_ddp_create(context->comm, mine, 3, NULL, &ddp));
    EXPECT_WORDS("parameter 1", "conv.bias", "20 elements", "19", "rank 0");
    make_model(mine);
    if (context->rank == 1) mine[2] = (tutti_ddp_parameter){"dense.weight", data_c, 15, TUTTI_FLOAT64};
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_ddp_create(context->comm, mine, 3, NULL, &ddp));
    EXPECT_WORDS("parameter 2", "dense.weight", "30 elements of float32", "15 of float64", "rank 1");
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_ddp_create(context->comm, model, context->rank == 1 ? 2 : 3, NULL, &ddp));
    EXPECT_WORDS("3 parameters", "only 2", "parameter 2", "rank 1");
    if (context->rank == 0) EXPECT_WORDS("dense.weight");
    /* Nothing is broken: the same communicator serves a model that agrees. */
    TUTTI_TRY(tutti_ddp_create(context->comm, model, 3, NULL, &ddp));
    tutti_ddp_destroy(ddp);
    return TUTTI_OK;
}

Test(ddp_errors, different_models_are_an_error_on_all_ranks_with_name_and_both_shapes) {
    run_modes(worlds, RANKS_THREADS, differ_in_count, NULL);
}

static tutti_status differ_in_options(ranks_context *context) {
    tutti_ddp_parameter model[3];
    make_model(model);
    tutti_ddp *ddp;
    tutti_ddp_options options = TUTTI_DDP_OPTIONS(.bucket_bytes = 0);
    if (context->rank == 1) options.bucket_bytes = 4096;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_ddp_create(context->comm, model, 3, &options, &ddp));
    EXPECT_WORDS("26214400", "4096", "rank 1");
    options = TUTTI_DDP_OPTIONS(.bucket_bytes = 0);
    options.sums = context->rank == 1;
    RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_ddp_create(context->comm, model, 3, &options, &ddp));
    EXPECT_WORDS("avg", "sum", "rank 1");
    return TUTTI_OK;
}

Test(ddp_errors, different_options_are_an_error_on_all_ranks) {
    run_modes(worlds, RANKS_THREADS, differ_in_options, NULL);
}

static tutti_status fail_on_one_rank(ranks_context *context) {
    tutti_ddp *ddp;
    tutti_ddp_parameter mine[3];
    make_model(mine);
    if (context->rank != 1) {
        RANKS_EXPECT(TUTTI_ERR_MISMATCH, tutti_ddp_create(context->comm, mine, 3, NULL, &ddp));
        EXPECT_WORDS("rank 1", tutti_status_name(TUTTI_ERR_ARGUMENT));
        return TUTTI_OK;
    }
    mine[1].data = NULL;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_ddp_create(context->comm, mine, 3, NULL, &ddp));
    EXPECT_WORDS("parameter 1", "conv.bias", "20 elements but no data");
    return TUTTI_OK;
}

Test(ddp_errors, a_rank_that_cannot_begin_keeps_no_rank_waiting) {
    run_modes(worlds, RANKS_THREADS, fail_on_one_rank, NULL);
}

static tutti_status die_in_a_step(ranks_context *context) {
    tutti_ddp_parameter model[3];
    make_model(model);
    tutti_ddp *ddp;
    TUTTI_TRY(tutti_ddp_create(context->comm, model, 3, &TUTTI_DDP_OPTIONS(.bucket_bytes = 64), &ddp));
    for (int step = 0; step < 3; step++)
        for (size_t i = 0; i <= 3; i++) {
            if (step == 1 && i == 2 && context->rank == 1) ranks_strike(context, SIGKILL);
            tutti_status status = i < 3 ? tutti_ddp_ready(ddp, i) : tutti_ddp_finish(ddp);
            if (status == TUTTI_OK) continue;
            RANKS_CHECK(status == TUTTI_ERR_PEER_DIED && step == 1, "step %d, call %zu: %s: %s", step, i,
                        tutti_status_name(status), tutti_last_error());
            EXPECT_WORDS("rank 1");
            tutti_ddp_destroy(ddp);
            return TUTTI_OK;
        }
    return tutti_fail(TUTTI_ERR_DATA, "all steps finished without rank 1");
}

Test(ddp_errors, the_death_of_a_rank_ends_the_step_of_the_others) {
    run_modes(worlds, RANKS_PROCESSES, die_in_a_step,
              NULL); /* nothing to test where ranks can only be threads, which do not die alone */
}
