/*
 * Training with ranks that are threads of one process: nothing in the trainer belongs to the process. What the thread
 * sanitizer looks at.
 */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/training.h"

Test(train_threads, ranks_as_threads_repeat_bit_for_bit_and_follow_one_rank, .timeout = 250) {
    char folder[FILES_PATH_BYTES];
    double one[TRAINING_LOSSES], two[TRAINING_LOSSES], again[TRAINING_LOSSES];
    int count[3];
    files_make_folder(folder);
    files_write_mnist(folder, 100, 21);
    training_run whole = {.options = {"--model", "lenet", "--batch-size", "8", "--steps", "6", "--lr", "0.02"}};
    training_run half = {.options = {"--model", "lenet", "--batch-size", "4", "--steps", "6", "--lr", "0.02"}};
    whole.data = half.data = folder;
    const char *failure = training_losses(RANKS_THREADS, 1, &whole, one, &count[0]);
    cr_assert_null(failure, "%s", failure);
    failure = training_losses(RANKS_THREADS, 2, &half, two, &count[1]);
    cr_assert_null(failure, "%s", failure);
    failure = training_losses(RANKS_THREADS, 2, &half, again, &count[2]);
    cr_assert_null(failure, "%s", failure);
    cr_assert(count[0] == 6 && count[1] == 6 && count[2] == 6);
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(two[i], again[i], "step %d: %.10f and %.10f", i + 1, two[i], again[i]);
        cr_assert(fabs(one[i] - two[i]) < 2e-4 * (1 + one[i]), "step %d: %.10f and %.10f", i + 1, one[i], two[i]);
    }
    files_remove(folder);
}
