/*
 * The data that a run trains and tests on: sources and pipelines, made from the caller's settings, or the caller's
 * own.
 *
 * Training: batches without end. Each global batch is the same for any number of ranks; remaining samples that do
 * not fill a batch are left out. Tests: each sample once, without crop, flip and shuffle. Images that are uint8
 * become numbers in [0, 1]; CIFAR's are normalized, too.
 */
#ifndef TUTTI_TRAINER_INPUT_H
#define TUTTI_TRAINER_INPUT_H

#include <tutti/train.h>

/* The samples that this rank reads. */
typedef struct tutti_input_division {
    int rank, nranks;
    int batch;       /* samples of a batch of this rank, or with `together` of a batch of all ranks */
    bool together;   /* all ranks have the same training batches, and each reads its own rows */
    int first, rows; /* these rows */
    /* test batches are the same on all ranks, too; false: each rank tests on its share of the samples */
    bool cut;
    bool all_labels; /* shared batches include the labels of all rows */
    bool bounded;    /* tests use the first samples only: all ranks have the same batches of `whole` samples, */
    int whole, row;  /* and each reads its rows from `row` on */
} tutti_input_division;

typedef struct tutti_input {
    tutti_train_data given; /* the caller's settings, with defaults in place of zeros */
    tutti_input_division division;
    tutti_data_source *train_source, *test_source;
    tutti_data *train, *test;
    tutti_data_details details; /* of training batches */
    int64_t train_count, test_count;
    int classes;
    int64_t batches;  /* training batches in an epoch, which is `repeat` passes over the data */
    const char *name; /* origin of the data, for messages */
    bool own;         /* the sources, or the pipelines, belong to the caller */
    bool drawn;       /* digits are drawn, because no data was named or found, or because of --dataset digits */
} tutti_input;

/* Opens the sources; sets counts, classes and name. Local. A named set without --dataset and --data is read from
 * the folder in TUTTI_DATA, else from ../shared/data/mnist or data/mnist if one is a folder, else digits are drawn.
 * A folder that was named and is missing or incomplete is an error. */
tutti_status tutti_input_open(tutti_input *input, const tutti_train_data *data);
/* Accepts an input that is only partly opened. */
void tutti_input_close(tutti_input *input);

/* Makes the pipelines, or makes them again for a new division or a checkpoint's seed. Fewer samples than a batch of
 * all ranks is an error. Allocates no memory for batches yet. */
tutti_status tutti_input_start(tutti_input *input, const tutti_input_division *division, uint64_t seed);

/* The training batches of a division. The caller frees them. */
tutti_status tutti_input_create_train(const tutti_input *input, const tutti_input_division *division, uint64_t seed,
                                      tutti_data **data_out);

/* Training continues with this batch of this epoch. */
tutti_status tutti_input_seek(const tutti_input *input, tutti_data *train, int64_t epoch, int64_t batch);

/* The next training batch, which is always full. */
tutti_status tutti_input_next(const tutti_input *input, tutti_data_batch *batch_out);

#endif
