/*
 * Views and parallel modes of the trainer: however the work is cut, losses are those of one rank with the whole batch.
 *
 * How near: an MLP's differ by rounding only. LeNet's do for the first steps; then a max-pool whose two largest values differ by a
 * rounding may send a gradient elsewhere (support/training.h), and losses drift by up to some thousandths.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/files.h"
#include "tests/support/training.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
    files_write_mnist(folder, 120, 31);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(train_modes, .init = make_folder, .fini = remove_folder);

static int losses_of(int nranks, training_run *what, double *losses_out) {
    int count = 0;
    what->data = folder;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, what, losses_out, &count);
    cr_assert_null(failure, "%s", failure);
    return count;
}

static void expect_near(int count, const double *whole, const double *cut, int exact, const char *what) {
    for (int i = 0; i < count; i++) {
        const double most = i < exact ? 1e-6 : 1e-2;
        cr_assert(fabs(whole[i] - cut[i]) <= most * fabs(whole[i]), "%s, step %d: %.10f and %.10f", what, i + 1,
                  whole[i], cut[i]);
    }
}

/* ----------------------------------------------------------------------------------------------- views */

static void check_view(const char *model, const char *batch_size, const char *steps, int count, int exact) {
    training_run what = {.options = {"--model", model, "--view", "consistent", "--batch-size", batch_size, "--steps",
                                     steps, "--lr", "0.01"}};
    double whole[TRAINING_LOSSES], cut[TRAINING_LOSSES];
    cr_assert_eq(losses_of(1, &what, whole), count);
    cr_assert(whole[count - 1] < whole[0]);
    for (int nranks = 2; nranks <= 4; nranks++) {
        char text[64];
        snprintf(text, sizeof text, "%s on %d ranks", model, nranks);
        cr_assert_eq(losses_of(nranks, &what, cut), count);
        expect_near(count, whole, cut, exact, text);
    }
}

/* 17 and 13 samples: parts differ by one for any number of ranks. */
Test(train_modes, with_the_consistent_view_losses_do_not_depend_on_the_number_of_ranks, .timeout = 100) {
    check_view("mlp", "17", "60", 60, 60);
    check_view("lenet", "13", "20", 20, 3);
}

Test(train_modes, a_batch_smaller_than_the_ranks_is_an_error, .timeout = 100) {
    training_run what = {.options = {"--model", "mlp", "--view", "consistent", "--batch-size", "2", "--steps", "1"},
                         .data = folder};
    double losses[TRAINING_LOSSES];
    int count;
    const char *failure = training_losses(RANKS_PROCESSES, 3, &what, losses, &count);
    cr_assert(failure != NULL && strstr(failure, "--batch-size 2: with --view consistent") != NULL, "%s", failure);
}
