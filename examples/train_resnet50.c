/*
 * ResNet-50 on CIFAR-10, as in MindSpore's tutorial on distributed training: net = resnet50(32, 10), the expanded
 * loss, Momentum(0.01, 0.9), gradients that are the mean over the ranks (mirror_mean), and LossMonitor.
 *
 *   tuttirun -n 2 ./train_resnet50 FOLDER                      CIFAR-10, binary version; images become 224 x 224
 *   tuttirun -n 2 ./train_resnet50 digits BATCH SIDE STEPS     something small to try: drawn digits
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/train.h>

enum { CLASSES = 10, EPOCHS = 10 };

/* The preprocessing of the tutorial, for each channel. */
static tutti_status train(tutti_comm *comm, tutti_data_source *source, bool drawn, int batch, int side, int steps) {
    const tutti_data_op cifar[] = {{"random_crop", {32, 32, 4, 4, 4, 4}},
                                   {"random_horizontal_flip", {0.5}},
                                   {"resize", {side, side}},
                                   {"rescale", {1.0 / 255, 0}},
                                   {"normalize", {0.4465, 0.4822, 0.4914, 0.2010, 0.1994, 0.2023}}};
    const tutti_data_op digits[] = {{"resize", {side, side}}, {"rescale", {1.0 / 255, 0}}};
    const tutti_train_data data =
        TUTTI_TRAIN_DATA(.train_source = source, .train_ops = drawn ? digits : cifar, .ntrain_ops = drawn ? 2 : 5);
    tutti_train_result result;
    TUTTI_TRY(
        tutti_train(comm, &TUTTI_TRAIN_MODEL(.name = "resnet50", .classes = CLASSES), &data,
                    &TUTTI_TRAIN_OPTIONS(.parallel_mode = "DATA_PARALLEL", .batch_size = batch, .epochs = EPOCHS,
                                         .steps = steps, .loss = "softmax_cross_entropy_expand", .device = "host",
                                         .optimizer = "momentum", .lr = 0.01, .momentum = 0.9, .monitor_every = 1),
                    &result));
    if (tutti_comm_rank(comm) == 0) printf("%lld steps, loss %.4f\n", (long long)result.steps, result.loss);
    return TUTTI_OK;
}

static tutti_status run(int argc, char **argv) {
    const bool drawn = argc < 2 || strcmp(argv[1], "digits") == 0;
    const int batch = argc > 2 ? atoi(argv[2]) : 32, side = argc > 3 ? atoi(argv[3]) : 224;
    tutti_comm *comm;
    tutti_data_source *source;
    TUTTI_TRY(tutti_comm_create_world(&comm));
    if (drawn) TUTTI_TRY(tutti_data_open_digits(1, TUTTI_DATA_TRAIN, 1000, &source));
    else TUTTI_TRY(tutti_data_open_cifar10(argv[1], TUTTI_DATA_TRAIN, &source));
    TUTTI_TRY(train(comm, source, drawn, batch, side, argc > 4 ? atoi(argv[4]) : 0));
    tutti_data_source_destroy(source);
    return tutti_comm_destroy(comm);
}

int main(int argc, char **argv) {
    if (run(argc, argv) == TUTTI_OK) return 0;
    fprintf(stderr, "train_resnet50: %s\n", tutti_last_error());
    return 1;
}
