/*
 * A user-defined model and data, and a callback: an MLP on synthetic digits, which stops as soon as a loss is
 * small.
 *
 *   tuttirun -n 2 ./train_mlp
 */
#include <stdio.h>

#include <tutti/train.h>

enum { TRAIN = 2000, TEST = 500 };

static const tutti_layer mlp[] = {
    {.name = "hidden1",
     .kind = TUTTI_LAYER_DENSE,
     .units = 128,
     .relu = true,
     .initializer = TUTTI_INITIALIZER_HE_NORMAL},
    {.name = "hidden2",
     .kind = TUTTI_LAYER_DENSE,
     .units = 64,
     .relu = true,
     .initializer = TUTTI_INITIALIZER_HE_NORMAL},
    {.name = "logits", .kind = TUTTI_LAYER_DENSE, .units = 10, .initializer = TUTTI_INITIALIZER_XAVIER_UNIFORM},
};

/* Called on all ranks after each step. The run stops if any rank requests it. */
static tutti_status stop_when_small(void *context, const tutti_train_moment *now) {
    const double *small = context;
    return now->loss < *small ? tutti_train_stop(now->trainer) : TUTTI_OK;
}

static tutti_status tell_epoch(void *context, const tutti_train_moment *now) {
    (void)context;
    if (now->rank == 0) printf("epoch %lld: loss %.4f\n", (long long)now->epoch, now->loss);
    return TUTTI_OK;
}

static tutti_status run(void) {
    double small = 0.05;
    tutti_comm *comm;
    tutti_data_source *train, *test;
    tutti_train_result result;
    const tutti_data_op rescale = {"rescale", {1.0 / 255, 0}};
    const tutti_train_callback callback = {
        .name = "small loss", .context = &small, .step_end = stop_when_small, .epoch_end = tell_epoch};
    TUTTI_TRY(tutti_comm_create_world(&comm));
    TUTTI_TRY(tutti_data_open_digits(1, TUTTI_DATA_TRAIN, TRAIN, &train));
    TUTTI_TRY(tutti_data_open_digits(1, TUTTI_DATA_TEST, TEST, &test));
    TUTTI_TRY(
        tutti_train(comm, &TUTTI_TRAIN_MODEL(.layers = mlp, .nlayers = sizeof mlp / sizeof mlp[0]),
                    &TUTTI_TRAIN_DATA(.train_source = train, .train_ops = &rescale, .ntrain_ops = 1,
                                      .test_source = test, .test_ops = &rescale, .ntest_ops = 1),
                    &TUTTI_TRAIN_OPTIONS(.epochs = 40, .batch_size = 40, .view = "consistent", .optimizer = "adam",
                                         .loss_every = 1, .callbacks = &callback, .ncallbacks = 1),
                    &result));
    if (tutti_comm_rank(comm) == 0)
        printf("%s after %lld steps, accuracy %.0f %%\n", result.stopped_by == 0 ? "done" : "stopped",
               (long long)result.steps, 100 * result.test.accuracy);
    tutti_data_source_destroy(train), tutti_data_source_destroy(test);
    return tutti_comm_destroy(comm);
}

int main(void) {
    if (run() == TUTTI_OK) return 0;
    fprintf(stderr, "train_mlp: %s\n", tutti_last_error());
    return 1;
}
