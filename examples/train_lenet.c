/*
 * LeNet on MNIST, as in OneFlow's tutorial: a list of layers, and a loop that prints the loss of every 20th step.
 *
 *   tuttirun -n 2 ./train_lenet                 digits that are drawn, where no MNIST is found
 *   tuttirun -n 2 ./train_lenet FOLDER STEPS    MNIST's four files; 300 steps otherwise
 */
#include <stdio.h>
#include <stdlib.h>

#include <tutti/train.h>

enum { BATCH_OF_ALL = 100, EVERY = 20 };

#define CONV                                                                                                           \
    .kind = TUTTI_LAYER_CONV, .kernel = 5, .stride = 1, .padding = TUTTI_PADDING_SAME, .relu = true, .stddev = 0.1
#define POOL .kind = TUTTI_LAYER_MAX_POOL, .kernel = 2, .stride = 2, .padding = TUTTI_PADDING_SAME

static const tutti_layer lenet[] = {
    {.name = "conv1", CONV, .units = 32},
    {.name = "pool1", POOL},
    {.name = "conv2", CONV, .units = 64},
    {.name = "pool2", POOL},
    {.name = "dense1", .kind = TUTTI_LAYER_DENSE, .units = 512, .relu = true, .stddev = 0.1},
    {.name = "dropout", .kind = TUTTI_LAYER_DROPOUT, .rate = 0.5},
    {.name = "dense2", .kind = TUTTI_LAYER_DENSE, .units = 10, .stddev = 0.1},
};

/* Exits with the error text if a call has failed. */
static void check(tutti_status status) {
    if (status == TUTTI_OK) return;
    fprintf(stderr, "train_lenet: %s\n", tutti_last_error());
    _Exit(1);
}

int main(int argc, char **argv) {
    const int steps = argc > 2 ? atoi(argv[2]) : 300;
    tutti_comm *comm;
    tutti_trainer *trainer;
    tutti_train_evaluation test;
    double loss;
    check(tutti_comm_create_world(&comm));
    const int rank = tutti_comm_rank(comm);
    check(tutti_train_open(comm, &TUTTI_TRAIN_MODEL(.layers = lenet, .nlayers = sizeof lenet / sizeof lenet[0]),
                           &TUTTI_TRAIN_DATA(.folder = argc > 1 && argv[1][0] != '\0' ? argv[1] : NULL),
                           &TUTTI_TRAIN_OPTIONS(.batch_size = BATCH_OF_ALL, .view = "consistent", .optimizer = "sgd",
                                                .lr = 0.1, .steps = steps),
                           &trainer));
    for (int step = 0; step < steps; step++) {
        check(tutti_train_step(trainer, step % EVERY == 0 ? &loss : NULL));
        if (rank == 0 && step % EVERY == 0) printf("%12d %12.10f\n", step, loss);
    }
    check(tutti_train_evaluate(trainer, &test));
    if (rank == 0) printf("accuracy on %lld images: %.1f %%\n", (long long)test.samples, 100 * test.accuracy);
    tutti_train_close(trainer);
    tutti_comm_destroy(comm);
    return 0;
}
