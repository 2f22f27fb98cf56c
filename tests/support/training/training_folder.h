/*
 * For suites that train: each test has a folder with a small MNIST, and runs that are expected to end well.
 */
#ifndef TUTTI_TESTS_TRAINING_FOLDER_H
#define TUTTI_TESTS_TRAINING_FOLDER_H

#include "tests/support/training/training.h"

extern char training_folder[FILES_PATH_BYTES];

/* A suite's .init, with 120 training images and 31 test images, and its .fini. */
void training_folder_make(void);
void training_folder_remove(void);

/* Runs ranks that are processes on the folder's images; a failure ends the test. Returns the number of losses. */
int training_folder_losses(int nranks, training_run *run, double *losses_out);

#endif
