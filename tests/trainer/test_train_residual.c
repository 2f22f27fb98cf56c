/*
 * Long runs of every mode: twenty steps with 1 to 4 ranks, residual networks among them, and a residual network that
 * learns.
 *
 * What holds for residual networks, whose batch norm divides by deviations of few rows: the first loss, which depends
 * on the initial values only, equals that of one rank except for rounding. After that an activation that a rounding
 * moves over a ReLU's edge has an effect, and differences grow from step to step, as between PyTorch's float32 and
 * float64. If samples are divided, batch norm has only a rank's own samples, so modes that divide them in the same
 * way are compared with each other.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/training/files.h"
#include "tests/support/training/training_folder.h"

TestSuite(train_residual, .init = training_folder_make, .fini = training_folder_remove);

enum { STEPS = 20, MOST_RANKS = 4 };

#define STEPS_TEXT "20"

static const char *const modes[] = {"data_parallel", "layerwise_parallel", "hybrid_parallel", "auto_parallel"};
enum { DATA, LAYERWISE, HYBRID, AUTO, MODES };

/* `exact` losses must be equal but for rounding, the others within `rest`, relative to 1 + loss. */
typedef struct bounds {
    int exact;
    double rounding, rest;
} bounds;

static void expect_near(const double *expected, const double *found, const bounds *to, const char *what) {
    for (int i = 0; i < STEPS; i++) {
        const double most = (i < to->exact ? to->rounding : to->rest) * (1 + expected[i]);
        cr_expect(fabs(expected[i] - found[i]) <= most, "%s, step %d: %.10f, expected %.10f", what, i + 1, found[i],
                  expected[i]);
    }
}

static training_run run_of(const char *model) {
    return (training_run){.options = {"--model", model, "--view", "consistent", "--batch-size", "12", "--lr", "0.001",
                                      "--resize", "32", "--eval-samples", "4", "--steps", STEPS_TEXT},
                          .timeout_s = 300};
}

static void losses_by(const char *model, int nranks, int mode, double *losses_out) {
    training_run what = run_of(model);
    what.options[14] = "--parallel-mode", what.options[15] = modes[mode];
    cr_assert_eq(training_folder_losses(nranks, &what, losses_out), STEPS, "%s, %d ranks, %s", model, nranks,
                 modes[mode]);
}

/* For models without batch norm all modes give the losses of one rank. */
static void check_all_modes(const char *model, const bounds *to) {
    double whole[TRAINING_LOSSES], found[TRAINING_LOSSES];
    losses_by(model, 1, DATA, whole);
    cr_assert(fabs(whole[STEPS - 1] - whole[0]) > 0.01, "%s does not train", model);
    for (int nranks = 1; nranks <= MOST_RANKS; nranks++)
        for (int mode = 0; mode < MODES; mode++) {
            char text[128];
            snprintf(text, sizeof text, "%s, %d ranks, %s", model, nranks, modes[mode]);
            losses_by(model, nranks, mode, found);
            expect_near(whole, found, to, text);
        }
}

Test(train_residual, every_mode_gives_the_losses_of_one_rank_for_twenty_steps, .timeout = 600) {
    check_all_modes("mlp", &(bounds){.exact = STEPS, .rounding = TRAINING_ROUNDING});
    check_all_modes("lenet", &(bounds){.exact = 3, .rounding = TRAINING_ROUNDING, .rest = 1e-2});
}

/* Divided by outputs, each rank has all samples of its channels, as a single rank does. Hybrid parallelism divides
 * the last dense layer only, so it is data parallelism but for rounding. */
static void check_residual(const char *model, const bounds *to) {
    double whole[TRAINING_LOSSES], layerwise[TRAINING_LOSSES], data[TRAINING_LOSSES], hybrid[TRAINING_LOSSES];
    losses_by(model, 1, DATA, whole);
    cr_assert(fabs(whole[STEPS - 1] - whole[0]) > 0.01, "%s does not train", model);
    for (int nranks = 2; nranks <= MOST_RANKS; nranks++) {
        char text[128];
        snprintf(text, sizeof text, "%s, %d ranks", model, nranks);
        losses_by(model, nranks, LAYERWISE, layerwise);
        expect_near(whole, layerwise, to, text);
        losses_by(model, nranks, DATA, data);
        losses_by(model, nranks, HYBRID, hybrid);
        expect_near(data, hybrid, to, text);
        cr_expect(fabs(whole[0] - data[0]) > 1e-4, "%s: batch norm of a part of the samples is that of all", text);
    }
}

/* The strategy that a search has chosen trains like the same strategy from a file, bit for bit. */
static void check_auto(const char *model, int nranks) {
    char path[FILES_PATH_BYTES];
    double found[TRAINING_LOSSES], again[TRAINING_LOSSES];
    training_run what = run_of(model);
    files_join(training_folder, "strategy", path);
    what.options[14] = "--parallel-mode", what.options[15] = modes[AUTO];
    what.options[16] = "--save-strategy", what.options[17] = path;
    cr_assert_eq(training_folder_losses(nranks, &what, found), STEPS);
    cr_assert(fabs(found[STEPS - 1] - found[0]) > 0.01, "%s does not train", model);
    what.options[14] = "--strategy", what.options[15] = path, what.options[16] = NULL;
    cr_assert_eq(training_folder_losses(nranks, &what, again), STEPS);
    cr_assert_arr_eq(found, again, sizeof(double) * STEPS, "%s on %d ranks", model, nranks);
}

Test(train_residual, modes_that_divide_alike_train_resnet20_alike, .timeout = 600) {
    check_residual("resnet20", &(bounds){.exact = 1, .rounding = 1e-5, .rest = 1e-2});
    for (int nranks = 2; nranks <= MOST_RANKS; nranks++) check_auto("resnet20", nranks);
}

Test(train_residual, modes_that_divide_alike_train_resnet50_alike, .timeout = 1200) {
    check_residual("resnet50", &(bounds){.exact = 1, .rounding = 1e-4, .rest = 1});
    check_auto("resnet50", 2);
}

Test(train_residual, resnet20_learns_drawn_images_of_cifars_form, .timeout = 600) {
    training_run what = {.options = {"--dataset", "cifar10", "--no-augment", "--model", "resnet20", "--batch-size",
                                     "20", "--steps", "200", "--lr", "0.05"},
                         .timeout_s = 300};
    double losses[TRAINING_LOSSES], late = 0;
    files_write_cifar(training_folder, "data_batch_1.bin", 1, 10, 400);
    files_write_cifar(training_folder, "test_batch.bin", 1, 10, 40);
    cr_assert_eq(training_folder_losses(2, &what, losses), 200);
    for (int i = 190; i < 200; i++) late += losses[i] / 10;
    cr_assert(losses[0] > 1.5 && late < 0.3, "losses begin with %g; mean of the last ten steps: %g", losses[0], late);
}
