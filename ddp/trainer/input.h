/*
 * What a run trains and tests on: sources of data and pipelines, from what the caller gave; or the caller's own.
 *
 * Training: batches without end, each global batch the same for any number of ranks, samples that do not fill one left out. Tests:
 * each sample once, without crop, flip and shuffle. Images come as uint8 are numbers in [0, 1]; CIFAR's are normalized, too.
 */
#ifndef TUTTI_TRAINER_INPUT_H
#define TUTTI_TRAINER_INPUT_H

#include <tutti/train.h>

/* Which samples this rank reads. */
typedef struct tutti_input_division {
    int rank, nranks;
    int batch;       /* samples of a batch: of each rank's own ones, or with `together` of those of all ranks */
    bool together;   /* all ranks have the same training batches, of which each reads its rows */
    int first, rows; /* them */
    bool cut;        /* test batches are the same on all ranks, too; else each tests on its share of the samples */
    bool all_labels; /* batches that are the same come with the labels of all rows */
    bool bounded;   /* tests are on the first samples only: all ranks have the same batches, of `whole` samples, too, */
    int whole, row; /* of which each reads its rows, from `row` on */
} tutti_input_division;

typedef struct tutti_input {
    tutti_train_data given; /* what the caller gave, with defaults in place of zeros */
    tutti_input_division division;
    tutti_data_source *train_source, *test_source;
    tutti_data *train, *test;
    tutti_data_details details; /* of training batches */
    int64_t train_count, test_count;
    int classes;
    int64_t batches;  /* of training in an epoch, which is `repeat` passes */
    const char *name; /* where the data comes from, for people */
    bool own;         /* sources, or pipelines, are the caller's */
    bool drawn;       /* digits that are drawn, since no data was named or found, or because of --dataset digits */
} tutti_input;

/* Local: the sources; counts, classes and name are known then. Of a set by name, without --dataset and --data: from the folder that
 * TUTTI_DATA names, else from ../shared/data/mnist or data/mnist where that is a folder, else digits are drawn. A folder that was
 * asked for and is missing or incomplete is an error. */
tutti_status tutti_input_open(tutti_input *input, const tutti_train_data *data);
/* Accepts half-opened ones. */
void tutti_input_close(tutti_input *input);

/* Makes the pipelines, or makes them anew: for a division that is known better, or a seed that is a checkpoint's. Fewer samples
 * than a batch of all ranks is an error. Takes no memory for batches yet. */
tutti_status tutti_input_start(tutti_input *input, const tutti_input_division *division, uint64_t seed);

/* The training batches of a division; the caller's. */
tutti_status tutti_input_create_train(const tutti_input *input, const tutti_input_division *division, uint64_t seed,
                                      tutti_data **data_out);

/* Training goes on with this batch of this epoch. */
tutti_status tutti_input_seek(const tutti_input *input, tutti_data *train, int64_t epoch, int64_t batch);

/* The next training batch, which is whole. */
tutti_status tutti_input_next(const tutti_input *input, tutti_data_batch *batch_out);

#endif
