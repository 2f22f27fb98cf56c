/*
 * Shared by the tests of training as a library: a folder with data, ranks, a small model and options for it.
 */
#ifndef TESTS_TRAINER_TRAIN_LIBRARY_H
#define TESTS_TRAINER_TRAIN_LIBRARY_H

#include <criterion/criterion.h>

#include <tutti/train.h>

#include "tests/support/ranks.h"
#include "tests/support/training/files.h"

enum { STEPS = 9, BATCH = 5, SAMPLES = 60 };

static char folder[FILES_PATH_BYTES];

static inline void make_folder(void) {
    files_make_folder(folder);
    files_write_mnist(folder, SAMPLES, 23);
}

static inline void remove_folder(void) {
    files_remove(folder);
}

static inline void expect_ranks(int nranks, ranks_body body, void *argument) {
    const ranks_options options = {.kind = RANKS_THREADS, .nranks = nranks, .argument = argument};
    const char *failure = ranks_run(&options, body);
    cr_assert_null(failure, "%s", failure);
}

/* The layers of the bundled mlp. */
static const tutti_layer layers[] = {
    {.name = "dense1", .kind = TUTTI_LAYER_DENSE, .units = 512, .relu = true, .stddev = 0.1},
    {.name = "dense2", .kind = TUTTI_LAYER_DENSE, .units = 10, .stddev = 0.1},
};

static const tutti_train_options plain = {
    .struct_bytes = sizeof plain, .steps = STEPS, .batch_size = BATCH, .lr = 0.01, .device = "host", .loss_every = 1};

#endif
