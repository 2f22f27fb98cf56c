/*
 * A folder for each test. See training_folder.h.
 */
#include "tests/support/training/training_folder.h"

#include <criterion/criterion.h>

char training_folder[FILES_PATH_BYTES];

void training_folder_make(void) {
    files_make_folder(training_folder);
    files_write_mnist(training_folder, 120, 31);
}

void training_folder_remove(void) {
    files_remove(training_folder);
}

int training_folder_losses(int nranks, training_run *run, double *losses_out) {
    int count = 0;
    run->data = training_folder;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, run, losses_out, &count);
    cr_assert_null(failure, "%s", failure);
    return count;
}
