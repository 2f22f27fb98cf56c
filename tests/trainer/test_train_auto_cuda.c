/*
 * The search for strategies, and predictions, on GPUs: kernels are measured by the time in their stream, and data
 * movement by the calls that redistributions on GPUs make. On the stand-in or a real GPU, like test_train_cuda.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/training/files.h"
#include "tests/support/training/training_folder.h"
#include "tests/support/training/training_run.h"

static bool is_standin(void) {
    return getenv("TUTTI_CUDA_MODULE") != NULL;
}

static void make_folder(void) {
    if (!is_standin() && access("/dev/nvidiactl", F_OK) != 0) cr_skip("no GPU or stand-in");
    training_folder_make();
}

TestSuite(train_auto_cuda, .init = make_folder, .fini = training_folder_remove, .timeout = 120);

#define MLP "--model", "mlp", "--view", "consistent", "--batch-size", "16", "--lr", "0.01", "--device", "cuda"

/* ---------------------------------------------------------------------------------------------- losses */

Test(train_auto_cuda, the_chosen_strategy_has_the_losses_of_data_parallelism) {
    enum { STEPS = 6, MODE = 13 };
    for (int i = 0; i < 3; i++) {
        const int nranks = i == 1 ? 4 : 2;
        training_run data = {.options = {MLP, "--steps", "6", "--parallel-mode", "data_parallel"},
                             .own_gpus = i == 2 && is_standin()},
                     found = data;
        found.options[MODE] = "auto_parallel";
        double expected[TRAINING_LOSSES], got[TRAINING_LOSSES];
        cr_assert_eq(training_folder_losses(nranks, &data, expected), STEPS);
        cr_assert_eq(training_folder_losses(nranks, &found, got), STEPS);
        for (int s = 0; s < STEPS; s++)
            cr_assert(fabs(got[s] - expected[s]) <= TRAINING_ROUNDING * (1 + expected[s]),
                      "%d ranks, step %d: %.10f, not %.10f", nranks, s + 1, got[s], expected[s]);
    }
}

/* --------------------------------------------------------------------------------------------- predictions */

static tutti_status check_number(const char *line, const char *before) {
    const char *at = strstr(line, before);
    RANKS_CHECK(at != NULL && atof(at + strlen(before)) > 0, "\"%sNUMBER\" is missing in: %s", before, line);
    return TUTTI_OK;
}

/* A layer's row has two times, and so has a plan's. */
static tutti_status check_line(const char *line, double *dense_us) {
    double predicted, measured;
    int layer;
    if (strstr(line, "wards: ") != NULL) {
        TUTTI_TRY(check_number(line, ", predicted "));
        return check_number(line, ", measured ");
    }
    if (sscanf(line, "dense%d %*s %*s %*s %lf %lf", &layer, &predicted, &measured) != 3) return TUTTI_OK;
    RANKS_CHECK(predicted > 0 && measured > 0, "the time of a layer is 0: %s", line);
    if (layer <= 2 && strstr(line, "(bias)") == NULL) dense_us[layer - 1] = predicted;
    return TUTTI_OK;
}

static tutti_status check_explanation(char *text) {
    static const char *const lines[] = {"step: predicted ", "data_parallel would take ",
                                        "layerwise_parallel would take ", "hybrid_parallel would take "};
    double dense_us[2] = {0, 0};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) TUTTI_TRY(check_number(text, lines[i]));
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) TUTTI_TRY(check_line(line, dense_us));
    RANKS_CHECK(dense_us[0] > 0 && dense_us[1] > 0, "dense1 or dense2 has no row");
    /* Eighty times as long by the arithmetic, equal by the time of enqueuing. On a GPU launches may be most of both
     * times. */
    RANKS_CHECK(!is_standin() || dense_us[0] > 3 * dense_us[1], "dense1 takes %g us, dense2 %g", dense_us[0],
                dense_us[1]);
    return TUTTI_OK;
}

static tutti_status explain(ranks_context *context) {
    static char text[16384];
    tutti_arguments arguments;
    tutti_trainer train = {.rank = 0};
    FILE *file = fmemopen(text, sizeof text, "w");
    RANKS_CHECK(file != NULL, "no memory");
    tutti_status status = training_open(context->argument, context->comm, &arguments, &train);
    if (status == TUTTI_OK) status = tutti_trainer_explain(&train, file);
    fclose(file);
    tutti_trainer_fini(&train);
    TUTTI_TRY(status);
    return context->rank == 0 ? check_explanation(text) : TUTTI_OK;
}

static const char *run(int nranks, training_run *what, ranks_body body, const char *const *environment) {
    what->data = training_folder;
    files_join(training_folder, "metrics", what->metrics);
    return ranks_run(
        &(ranks_options){.kind = RANKS_PROCESSES, .nranks = nranks, .argument = what, .environment = environment},
        body);
}

/* Steps of data parallelism are recorded, steps of the other modes launched. */
Test(train_auto_cuda, layers_plans_and_steps_are_predicted_and_measured) {
    static const char *const modes[] = {"data_parallel", "auto_parallel"};
    for (int i = 0; i < 2; i++) {
        training_run what = {.options = {MLP, "--parallel-mode", modes[i]}};
        const char *failure = run(2, &what, explain, NULL);
        cr_assert_null(failure, "%s: %s", modes[i], failure);
    }
}

/* ------------------------------------------------------------------------------------------- the file */

static tutti_status count_measured(ranks_context *context, bool any) {
    tutti_arguments arguments;
    tutti_trainer train = {.rank = 0};
    tutti_status status = training_open(context->argument, context->comm, &arguments, &train);
    const int measured = status == TUTTI_OK ? train.automatic->pieces.measured : 0;
    tutti_trainer_fini(&train);
    TUTTI_TRY(status);
    RANKS_CHECK((measured > 0) == any, "%d pieces were measured", measured);
    return TUTTI_OK;
}

static tutti_status measure(ranks_context *context) {
    return count_measured(context, true);
}

static tutti_status read_times(ranks_context *context) {
    return count_measured(context, false);
}

static void expect_failure(const char *failure, const char *words) {
    cr_assert(failure != NULL && strstr(failure, words) != NULL, "expected \"%s\", not \"%s\"", words, failure);
}

Test(train_auto_cuda, measured_times_are_kept_for_one_kind_of_gpu_and_precision) {
    char path[FILES_PATH_BYTES], setting[FILES_PATH_BYTES + 32], machine[256];
    training_run fp32 = {.options = {MLP, "--parallel-mode", "auto_parallel"}}, tf32 = fp32, host = fp32;
    tf32.options[12] = "--precision", tf32.options[13] = "tf32";
    host.options[12] = "--device", host.options[13] = "host";
    files_join(training_folder, "speeds", path);
    snprintf(setting, sizeof setting, "TUTTI_SPEED_FILE=%s", path);
    const char *environment[] = {setting, NULL};
    const char *failure = run(2, &fp32, measure, environment);
    cr_assert_null(failure, "%s", failure);
    failure = run(2, &fp32, read_times, environment);
    cr_assert_null(failure, "%s", failure);
    expect_failure(run(2, &tf32, read_times, environment), " multiprocessors, tf32, up to ");
    expect_failure(run(2, &host, read_times, environment), "was measured elsewhere");
    expect_failure(run(1, &fp32, read_times, environment), "up to 1 ranks on a GPU, cuda");
    size_t bytes;
    char *text = (char *)files_read(path, &bytes);
    cr_assert(text != NULL && sscanf(text, "%*[^\n]\nmachine %255[^\n]", machine) == 1, "%s", text);
    cr_assert(strstr(machine, ", fp32, up to ") != NULL, "%s", machine);
    if (is_standin()) cr_assert(strstr(machine, "stand-in with 2 multiprocessors") == machine, "%s", machine);
    free(text);
}
