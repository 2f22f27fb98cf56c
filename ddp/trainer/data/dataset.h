/*
 * Images with labels for training and for testing: MNIST from files, or digits that we draw ourselves.
 *
 * Images stay bytes in memory (one rank holds all of MNIST in 55 MB); a batch becomes floats when it is gathered.
 */
#ifndef TUTTI_TRAINER_DATASET_H
#define TUTTI_TRAINER_DATASET_H

#include <stdint.h>

#include <tutti/tutti.h>

#define TUTTI_DATASET_CLASSES      10
#define TUTTI_DATASET_SOURCE_BYTES 512
#define TUTTI_DATASET_DRAWN        "synthetic digits"

typedef struct tutti_samples {
    uint8_t *images; /* [count, height, width] */
    uint8_t *labels; /* [count], below TUTTI_DATASET_CLASSES */
    int64_t count;
} tutti_samples;

typedef struct tutti_dataset {
    tutti_samples train, test;
    int height, width;
    char source[TUTTI_DATASET_SOURCE_BYTES]; /* the folder, or TUTTI_DATASET_DRAWN; for people */
} tutti_dataset;

/* From `folder` unless it is NULL, else from the folder that TUTTI_DATA names, else from ../shared/data/mnist or
 * data/mnist where that is a folder, else digits are drawn. A folder that was asked for and is missing or
 * incomplete is an error. The caller closes the dataset. */
tutti_status tutti_dataset_open(const char *folder, tutti_dataset *dataset_out);
void tutti_dataset_close(tutti_dataset *dataset);

/* Reads the four files of MNIST (or of a set in its form) from a folder. */
tutti_status tutti_mnist_open(const char *folder, tutti_dataset *dataset_out);

/* Draws train_count + test_count digits of 28x28; which ones depends on the seed only. */
tutti_status tutti_digits_draw(uint64_t seed, int64_t train_count, int64_t test_count, tutti_dataset *dataset_out);

#endif
