/*
 * Training on other data than MNIST's files: OFRecord, CIFAR, any number of classes. Losses are compared bit for bit
 * if the same samples are read in the same order.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/data.h>

#include "data/ofrecord_pack.h"
#include "tests/support/training/files.h"
#include "tests/support/training/training_run.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(train_data, .init = make_folder, .fini = remove_folder);

static int losses_of(int nranks, const training_run *what, double *losses) {
    training_run run = *what;
    int count = 0;
    run.data = folder;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, &run, losses, &count);
    cr_assert_null(failure, "%s", failure);
    return count;
}

static void expect_equal(int count, const double *a, const double *b) {
    for (int i = 0; i < count; i++) cr_assert(a[i] == b[i], "loss %d: %.10f and %.10f", i, a[i], b[i]);
}

/* The losses of two ranks, and of one rank that computes both parts. */
static void expect_parts(const training_run *what, int steps) {
    double two[TRAINING_LOSSES], parts[TRAINING_LOSSES];
    training_run run = *what;
    int count;
    cr_assert_eq(losses_of(2, what, two), steps);
    run.data = folder;
    const char *failure = training_losses_of_parts(RANKS_PROCESSES, 2, &run, parts, &count);
    cr_assert_null(failure, "%s", failure);
    cr_assert_eq(count, steps);
    expect_equal(steps, two, parts);
}

static void pack(tutti_data_part part, const char *name, int parts) {
    char path[FILES_PATH_BYTES];
    tutti_data_source *source;
    files_join(folder, name, path);
    cr_assert_eq(tutti_data_open_mnist(folder, part, &source), TUTTI_OK, "%s", tutti_last_error());
    const tutti_ofrecord_pack how = {
        .folder = path, .prefix = "part-", .parts = parts, .image = "img_raw", .label = "label"};
    cr_assert_eq(tutti_ofrecord_pack_source(source, &how), TUTTI_OK, "%s", tutti_last_error());
    tutti_data_source_destroy(source);
}

#define OFRECORD                                                                                                       \
    "--dataset", "ofrecord", "--data-part-num", "60", "--test-part-num", "3", "--blob", "img_raw:28,28,1:float32",     \
        "--blob", "label:1,1:int32"

Test(train_data, files_of_ofrecord_train_as_the_idx_files_that_they_were_packed_from, .timeout = 60) {
    files_write_mnist(folder, 123, 31);
    pack(TUTTI_DATA_TRAIN, "train", 60);
    pack(TUTTI_DATA_TEST, "test", 3);
    training_run idx = {.options = {"--no-shuffle", "--batch-size", "10", "--steps", "26", "--lr", "0.02"}};
    training_run records = {.options = {OFRECORD, "--batch-size", "10", "--steps", "26", "--lr", "0.02"}};
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES], c[TRAINING_LOSSES];
    cr_assert_eq(losses_of(1, &idx, a), 26); /* more than two epochs of 12 */
    cr_assert_eq(losses_of(1, &records, b), 26);
    expect_equal(26, a, b);
    expect_parts(&records, 26);
    training_run shuffled = records;
    shuffled.options[16] = "--shuffle-buffer", shuffled.options[17] = "50";
    cr_assert_eq(losses_of(1, &shuffled, c), 26);
    cr_assert_neq(a[0], c[0]);
}

static double test_loss_of(int nranks, const training_run *what) {
    training_run run = *what;
    double losses[TRAINING_LOSSES];
    int count;
    run.data = folder;
    const char *failure = training_losses(RANKS_PROCESSES, nranks, &run, losses, &count);
    cr_assert_null(failure, "%s", failure);
    return run.test_loss;
}

/* The samples after the first ones would change the loss; batches of 3 and of 3, 6 or 9 do not divide their number. */
Test(train_data, a_bounded_test_is_on_the_same_samples_with_any_number_of_ranks, .timeout = 60) {
    files_write_mnist(folder, 123, 31);
    pack(TUTTI_DATA_TRAIN, "train", 60);
    pack(TUTTI_DATA_TEST, "test", 3);
    training_run idx = {.options = {"--model", "mlp", "--batch-size", "3", "--steps", "0", "--eval-samples", "17"}};
    training_run records = {
        .options = {OFRECORD, "--model", "mlp", "--batch-size", "3", "--steps", "0", "--eval-samples", "17"}};
    training_run all = {.options = {"--model", "mlp", "--batch-size", "3", "--steps", "0"}};
    const double whole = test_loss_of(1, &all), expected = test_loss_of(1, &idx);
    cr_assert(fabs(whole - expected) > 1e-3, "the test is not bounded: %.10f", whole);
    for (int nranks = 1; nranks <= 3; nranks++)
        for (int m = 0; m < 3; m++) {
            training_run some = idx, streams = records;
            if (m > 0) {
                some.options[8] = streams.options[18] = m == 1 ? "--view" : "--parallel-mode";
                some.options[9] = streams.options[19] = m == 1 ? "consistent" : "layerwise_parallel";
            }
            const double a = test_loss_of(nranks, &some), b = test_loss_of(nranks, &streams);
            cr_assert(fabs(a - expected) < TRAINING_ROUNDING * (1 + expected) &&
                          fabs(b - expected) < TRAINING_ROUNDING * (1 + expected),
                      "%d ranks, way %d: %.10f and %.10f, expected %.10f", nranks, m, a, b, expected);
        }
}

Test(train_data, more_ranks_than_files_are_refused, .timeout = 60) {
    files_write_mnist(folder, 60, 31);
    pack(TUTTI_DATA_TRAIN, "train", 60);
    pack(TUTTI_DATA_TEST, "test", 2);
    training_run run = {.options = {OFRECORD, "--batch-size", "1", "--steps", "1"}, .data = folder};
    double losses[TRAINING_LOSSES];
    int count;
    run.options[5] = "2"; /* --test-part-num */
    const char *failure = training_losses(RANKS_PROCESSES, 3, &run, losses, &count);
    cr_assert(failure != NULL && strstr(failure, "3 ranks share 2 OFRecord files") != NULL, "%s", failure);
}

static void write_cifar10(int64_t train, int64_t test) {
    files_write_cifar(folder, "data_batch_1.bin", 1, 10, train / 2);
    files_write_cifar(folder, "data_batch_2.bin", 1, 10, train - train / 2);
    files_write_cifar(folder, "test_batch.bin", 1, 10, test);
}

Test(train_data, drawn_images_of_cifars_form_are_learned, .timeout = 60) {
    training_run what = {.options = {"--dataset", "cifar10", "--no-augment", "--model", "mlp", "--batch-size", "20",
                                     "--steps", "60", "--lr", "0.01"}};
    double losses[TRAINING_LOSSES], late = 0;
    write_cifar10(400, 40);
    cr_assert_eq(losses_of(2, &what, losses), 60);
    for (int i = 50; i < 60; i++) late += losses[i] / 10;
    cr_assert(late < 0.2, "mean loss of the last ten steps: %g", late);
}

/* Defaults of options that are not given. */
static tutti_status look_at_defaults(ranks_context *context) {
    static const struct {
        const char *options[4], *model;
        double lr;
    } rows[] = {{{NULL}, "resnet20", 0.1},
                {{"--model", "lenet"}, "lenet", 0.1},
                {{"--model", "resnet50"}, "resnet50", 0.01},
                {{"--model", "resnet18", "--optimizer", "momentum"}, "resnet18", 0.01},
                {{"--model", "resnet18", "--optimizer", "adam"}, "resnet18", 0.001}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        training_run run = {.options = {"--dataset", "cifar10", "--batch-size", "1"}, .data = folder};
        tutti_arguments arguments;
        tutti_trainer train;
        for (int k = 0; k < 4; k++) run.options[4 + k] = rows[i].options[k];
        files_join(folder, "metrics.jsonl", run.metrics);
        TUTTI_TRY(training_open(&run, context->comm, &arguments, &train));
        const bool same = strcmp(train.model_name, rows[i].model) == 0 && train.schedule.lr == rows[i].lr;
        char found[64];
        snprintf(found, sizeof found, "%s at %g", train.model_name, train.schedule.lr);
        tutti_trainer_fini(&train);
        RANKS_CHECK(same, "%s, expected %s at %g", found, rows[i].model, rows[i].lr);
    }
    return TUTTI_OK;
}

Test(train_data, the_default_model_of_cifar_and_rates_of_residual_networks_do_not_diverge, .timeout = 60) {
    training_run what = {.options = {"--dataset", "cifar10", "--batch-size", "10", "--steps", "4"}};
    const ranks_options options = {.kind = RANKS_PROCESSES, .nranks = 1};
    double losses[TRAINING_LOSSES];
    write_cifar10(40, 10);
    const char *failure = ranks_run(&options, look_at_defaults);
    cr_assert_null(failure, "%s", failure);
    cr_assert_eq(losses_of(1, &what, losses), 4); /* none of which is NaN */
    for (int i = 0; i < 4; i++) cr_assert(losses[i] < 5, "loss %d: %g", i + 1, losses[i]);
}

/* The same images, augmented in the same way, for any number of ranks; for two ranks, bit for bit. */
Test(train_data, augmented_images_do_not_depend_on_the_number_of_ranks, .timeout = 60) {
    training_run one = {.options = {"--dataset", "cifar10", "--shuffle-buffer", "10", "--batch-size", "12", "--steps",
                                    "8", "--lr", "0.01"},
                        .smooth = true};
    double whole[TRAINING_LOSSES], parts[TRAINING_LOSSES];
    write_cifar10(60, 10);
    cr_assert_eq(losses_of(1, &one, whole), 8);
    for (int nranks = 2; nranks <= 4; nranks += 2) {
        training_run some = one;
        some.options[5] = nranks == 2 ? "6" : "3";
        cr_assert_eq(losses_of(nranks, &some, parts), 8);
        for (int i = 0; i < 8; i++)
            cr_assert(fabs(whole[i] - parts[i]) < TRAINING_ROUNDING * (1 + whole[i]),
                      "step %d of %d ranks: %.10f and %.10f", i + 1, nranks, whole[i], parts[i]);
    }
    training_run lenet = one;
    lenet.smooth = false;
    lenet.options[10] = "--model", lenet.options[11] = "lenet";
    lenet.options[5] = "6";
    expect_parts(&lenet, 8);
}

/* The batch of all ranks, 13 samples in uneven parts, with crops and flips, and from streams. */
static void check_together(training_run what, int at, int steps) {
    static const char *const modes[] = {"data_parallel", "hybrid_parallel", "layerwise_parallel"};
    double whole[TRAINING_LOSSES], cut[TRAINING_LOSSES];
    cr_assert_eq(losses_of(1, &what, whole), steps);
    for (int nranks = 2; nranks <= 3; nranks++)
        for (int m = 0; m < 3; m++) {
            training_run divided = what;
            divided.options[at] = "--parallel-mode", divided.options[at + 1] = modes[m];
            cr_assert_eq(losses_of(nranks, &divided, cut), steps);
            for (int i = 0; i < steps; i++)
                cr_assert(fabs(whole[i] - cut[i]) < 1e-5 * (1 + whole[i]), "%s, %d ranks, step %d: %.10f and %.10f",
                          modes[m], nranks, i + 1, whole[i], cut[i]);
        }
}

Test(train_data, batches_of_all_ranks_do_not_depend_on_their_number_and_mode, .timeout = 60) {
    write_cifar10(60, 10);
    check_together(
        (training_run){.options = {"--dataset", "cifar10", "--shuffle-buffer", "10", "--model", "mlp", "--batch-size",
                                   "13", "--steps", "7", "--lr", "0.01", "--view", "consistent"}},
        14, 7);
    files_write_mnist(folder, 123, 31);
    pack(TUTTI_DATA_TRAIN, "train", 60);
    pack(TUTTI_DATA_TEST, "test", 3);
    check_together((training_run){.options = {OFRECORD, "--shuffle-buffer", "20", "--model", "mlp", "--batch-size",
                                              "13", "--steps", "12", "--lr", "0.01", "--view", "consistent"}},
                   22, 12);
}

/* An epoch is --repeat passes; the run resumes in the second of them. */
Test(train_data, a_resumed_run_on_augmented_images_gives_the_losses_of_one_that_never_stopped, .timeout = 60) {
    char checkpoints[FILES_PATH_BYTES];
    training_run whole = {.options = {"--dataset", "cifar10", "--model", "mlp", "--batch-size", "10", "--repeat", "3",
                                      "--lr", "0.01", "--steps", "17"}};
    training_run first = whole, second = whole;
    double a[TRAINING_LOSSES], b[TRAINING_LOSSES];
    files_join(folder, "checkpoints", checkpoints);
    write_cifar10(47, 10); /* 12 steps an epoch */
    first.options[11] = "7";
    first.options[12] = "--checkpoint-dir", first.options[13] = checkpoints;
    second.options[12] = "--resume", second.options[13] = checkpoints;
    cr_assert_eq(losses_of(1, &whole, a), 17);
    cr_assert_eq(losses_of(1, &first, b), 7);
    cr_assert_eq(losses_of(1, &second, b + 7), 10);
    expect_equal(17, a, b);
}

Test(train_data, a_hundred_classes_are_trained_with_the_bits_of_one_rank, .timeout = 60) {
    training_run what = {.options = {"--dataset", "cifar100", "--model", "mlp", "--batch-size", "20", "--steps", "12",
                                     "--lr", "0.005", "--resize", "16"}};
    double losses[TRAINING_LOSSES];
    files_write_cifar(folder, "train.bin", 2, 100, 300);
    files_write_cifar(folder, "test.bin", 2, 100, 100);
    cr_assert_eq(losses_of(2, &what, losses), 12);
    cr_assert(losses[0] > 0.8 * log(100) && losses[11] < losses[0], "losses %g to %g", losses[0], losses[11]);
    expect_parts(&what, 12);
}
