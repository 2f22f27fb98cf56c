/*
 * What a run trains and tests on: sources of data and pipelines from the options.
 *
 * Training: batches without end, each global batch the same for any number of ranks, samples that do not fill one left out. Tests:
 * each sample once, without crop, flip and shuffle. Images come as uint8 are numbers in [0, 1]; CIFAR's are normalized, too.
 */
#ifndef TUTTI_TRAINER_INPUT_H
#define TUTTI_TRAINER_INPUT_H

#include <tutti/data.h>

#include "ddp/trainer/arguments.h"

typedef struct tutti_input {
    const tutti_arguments *arguments;
    int rank, nranks;
    tutti_data_source *train_source, *test_source;
    tutti_data *train, *test;
    tutti_data_details details; /* of training batches */
    int64_t train_count, test_count;
    int64_t batches;          /* of training in an epoch, which is --repeat passes */
    int64_t global_batch;     /* samples of a batch of all ranks */
    int shards, shard, batch; /* of it training's pipeline gives one of `shards` parts, of `batch` samples, */
    int64_t first;            /* which begins with this sample of the global batch */
    bool tests_whole;         /* every rank tests all samples, by global batches; else its share */
    int test_batch;
    const char *name; /* where the data comes from, for people */
    bool drawn;       /* digits that are drawn, since no data was named or found, or because of --dataset digits */
} tutti_input;

/* Local. Without --dataset and --data: from the folder that TUTTI_DATA names, else from ../shared/data/mnist or
 * data/mnist where that is a folder, else digits are drawn. A folder that was asked for and is missing or incomplete is
 * an error. Fewer samples than one global batch is one, too. */
tutti_status tutti_input_open(tutti_input *input, const tutti_arguments *arguments, int rank, int nranks);
/* Instead of its batch_size this rank needs `count` samples of each global batch, from `first` on. Where pipelines cannot cut
 * them out, since parts are uneven or samples come as a stream, it gets whole batches. */
tutti_status tutti_input_take(tutti_input *input, int64_t first, int count, bool tests_whole, uint64_t seed);
/* Accepts half-opened ones. */
void tutti_input_close(tutti_input *input);

/* Makes the pipelines anew, with this seed, which may be that of a checkpoint. */
tutti_status tutti_input_start(tutti_input *input, uint64_t seed);

/* The training batches of one of `nranks` ranks; the caller's. */
tutti_status tutti_input_create_train(const tutti_input *input, int rank, int nranks, uint64_t seed,
                                      tutti_data **data_out);

/* Training goes on with this batch of this epoch. */
tutti_status tutti_input_seek(const tutti_input *input, tutti_data *train, int64_t epoch, int64_t batch);

/* The next training batch, which is whole. */
tutti_status tutti_input_next(tutti_data *train, int batch_size, tutti_data_batch *batch_out);

#endif
