/*
 * Training with ranks that are threads of one process: nothing in the trainer belongs to the process. The thread
 * sanitizer checks this.
 */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/training/training.h"

enum { STEPS = 6 };

static void expect_equal(const double *a, const double *b) {
    for (int i = 0; i < STEPS; i++) cr_assert_eq(a[i], b[i], "step %d: %.10f and %.10f", i + 1, a[i], b[i]);
}

Test(train_threads, ranks_as_threads_repeat_bit_for_bit_and_follow_one_rank, .timeout = 250) {
    char folder[FILES_PATH_BYTES], checkpoints[FILES_PATH_BYTES];
    double two[TRAINING_LOSSES], again[TRAINING_LOSSES], parts[TRAINING_LOSSES], whole[TRAINING_LOSSES];
    int count[4];
    files_make_folder(folder);
    files_write_mnist(folder, 100, 21);
    training_run half = {.options = {"--model", "lenet", "--batch-size", "4", "--steps", "6", "--lr", "0.02"},
                         .data = folder};
    const char *failure = training_losses(RANKS_THREADS, 2, &half, two, &count[0]);
    cr_assert_null(failure, "%s", failure);
    /* Again with options that change no bit. */
    files_join(folder, "checkpoints", checkpoints);
    training_run zero = {.options = {"--model", "lenet", "--batch-size", "4", "--steps", "6", "--lr", "0.02", "--zero",
                                     "1", "--check-parameters", "3", "--checkpoint-dir", checkpoints},
                         .data = folder};
    failure = training_losses(RANKS_THREADS, 2, &zero, again, &count[1]);
    cr_assert_null(failure, "%s", failure);
    failure = training_losses_of_parts(RANKS_THREADS, 2, &half, parts, &count[2]);
    cr_assert_null(failure, "%s", failure);
    half.options[3] = "8";
    failure = training_losses(RANKS_THREADS, 1, &half, whole, &count[3]);
    cr_assert_null(failure, "%s", failure);
    for (int i = 0; i < 4; i++) cr_assert_eq(count[i], STEPS);
    expect_equal(two, again);
    expect_equal(two, parts);
    cr_assert(fabs(two[0] - whole[0]) < TRAINING_ROUNDING * (1 + two[0]), "%.10f and %.10f", two[0], whole[0]);
    files_remove(folder);
}
