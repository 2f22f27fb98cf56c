/*
 * Sources: IDX files (good, truncated, foreign), MNIST folders, CIFAR, drawn digits; and which of them the trainer
 * takes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/idx.h"
#include "data/source.h"
#include "ddp/trainer/input.h"
#include "ddp/trainer/program/arguments.h"
#include "tests/data/check.h"
#include "tests/support/training/files.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(idx, .init = make_folder, .fini = remove_folder);
TestSuite(cifar, .init = make_folder, .fini = remove_folder);
TestSuite(input, .init = make_folder, .fini = remove_folder);
TestSuite(mnist, .init = make_folder, .fini = remove_folder);

/* ------------------------------------------------------------------------------------------------- IDX */

/* 3 images of 2x5 whose bytes count up. */
static uint8_t *sample_idx(size_t *bytes_out) {
    int64_t dims[] = {3, 2, 5};
    uint8_t data[30];
    for (int i = 0; i < 30; i++) data[i] = (uint8_t)(i * 7);
    return files_make_idx(3, dims, data, bytes_out);
}

static tutti_status open_bytes(bool gzipped, const void *data, size_t bytes, tutti_idx *idx) {
    char path[FILES_PATH_BYTES];
    files_write(folder, "file", gzipped, data, bytes);
    files_join(folder, "file", path);
    return tutti_idx_open(path, 3, idx);
}

Test(idx, plain_and_gzipped_files_read_alike_whatever_their_name) {
    size_t bytes;
    uint8_t *file = sample_idx(&bytes);
    for (int gzipped = 0; gzipped < 2; gzipped++) {
        tutti_idx idx;
        cr_assert_eq(open_bytes(gzipped, file, bytes, &idx), TUTTI_OK, "%s", tutti_last_error());
        cr_assert(idx.ndims == 3 && idx.dims[0] == 3 && idx.dims[1] == 2 && idx.dims[2] == 5);
        cr_assert_arr_eq(idx.data, file + 16, 30);
        tutti_idx_close(&idx);
    }
    free(file);
}

Test(idx, a_file_cut_anywhere_is_an_error_with_the_offset) {
    size_t bytes;
    uint8_t *file = sample_idx(&bytes);
    for (int gzipped = 0; gzipped < 2; gzipped++)
        for (size_t kept = 0; kept < bytes; kept++) {
            tutti_idx idx;
            char offset[32];
            tutti_status status = open_bytes(gzipped, file, kept, &idx);
            snprintf(offset, sizeof offset, "offset %zu", kept);
            expect_error(status, TUTTI_ERR_DATA, folder, "truncated", offset,
                         kept < 4    ? "expected 4 bytes in all"
                         : kept < 16 ? "expected"
                                     : "expected 46 bytes in all");
        }
    free(file);
}

/* MNIST's training images have 47040016 bytes. */
Test(idx, a_file_with_little_more_than_its_header_is_an_error_with_the_expected_size) {
    static const uint8_t header[1000] = {0, 0, 8, 3, 0, 0, 0xea, 0x60, 0, 0, 0, 28, 0, 0, 0, 28};
    tutti_idx idx;
    expect_error(open_bytes(false, header, sizeof header, &idx), TUTTI_ERR_DATA, folder, "truncated at offset 1000",
                 "expected 47040016 bytes in all");
    expect_error(open_bytes(true, header, sizeof header, &idx), TUTTI_ERR_DATA, folder, "truncated",
                 "its header promises 47040000 bytes");
    static const uint8_t endless[16] = {0, 0, 8, 3, 0x7f, 0, 0, 0, 0x7f, 0, 0, 0, 0x7f, 0, 0, 0};
    expect_error(open_bytes(true, endless, sizeof endless, &idx), TUTTI_ERR_DATA, "truncated or damaged");
    expect_error(open_bytes(false, endless, sizeof endless, &idx), TUTTI_ERR_DATA, "truncated at offset 16");
}

Test(idx, a_gzip_stream_cut_or_damaged_anywhere_is_an_error) {
    size_t bytes, packed_bytes;
    char path[FILES_PATH_BYTES];
    tutti_idx idx;
    uint8_t *file = sample_idx(&bytes);
    files_write(folder, "whole", true, file, bytes);
    files_join(folder, "whole", path);
    uint8_t *packed = files_read(path, &packed_bytes);
    for (size_t kept = 0; kept < packed_bytes; kept++)
        expect_error(open_bytes(false, packed, kept, &idx), TUTTI_ERR_DATA, folder, "offset");
    for (size_t at = packed_bytes - 8; at < packed_bytes; at++) { /* checksum and length */
        packed[at] ^= 0x55;
        expect_error(open_bytes(false, packed, packed_bytes, &idx), TUTTI_ERR_DATA, folder, "offset");
        packed[at] ^= 0x55;
    }
    free(packed), free(file);
}

Test(idx, a_foreign_file_is_named_with_what_was_expected) {
    static const char *const foreign[] = {"\x89PNG\r\n\x1a\n0000", "hello, world", "\0\0\x0d\x03 floats",
                                          "\0\0\x08\x01 labels"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        tutti_idx idx;
        expect_error(open_bytes(false, foreign[i], 12, &idx), TUTTI_ERR_DATA, folder, "at offset 0",
                     "expected 00 00 08 03", "found");
    }
}

Test(idx, bytes_behind_the_data_and_claims_beyond_the_file_are_errors) {
    size_t bytes;
    tutti_idx idx;
    uint8_t *file = sample_idx(&bytes);
    uint8_t longer[64] = {0};
    memcpy(longer, file, bytes);
    expect_error(open_bytes(true, longer, bytes + 1, &idx), TUTTI_ERR_DATA, "end of the file at offset 46");
    memset(file + 4, 0xff, 12);
    expect_error(open_bytes(true, file, bytes, &idx), TUTTI_ERR_DATA, "at offset 4", "dimension 0 is 4294967295");
    memset(file + 4, 0, 4);
    expect_error(open_bytes(false, file, bytes, &idx), TUTTI_ERR_DATA, "at offset 4", "dimension 0 is 0");
    free(file);
}

/* ----------------------------------------------------------------------------------------------- MNIST */

static void rewrite(const char *name, int ndims, const int64_t *dims, const uint8_t *data) {
    size_t bytes;
    uint8_t *file = files_make_idx(ndims, dims, data, &bytes);
    files_write(folder, name, true, file, bytes);
    free(file);
}

static const uint8_t *images_of(const tutti_data_source *source) {
    return ((const tutti_data_memory *)source)->images;
}

static const uint8_t *labels_of(const tutti_data_source *source) {
    return ((const tutti_data_memory *)source)->labels;
}

Test(mnist, a_folder_is_read_under_any_of_the_mirrors_names) {
    char from[FILES_PATH_BYTES], to[FILES_PATH_BYTES];
    tutti_data_source *train, *test, *drawn;
    tutti_data_source_details about;
    files_write_mnist(folder, 30, 20);
    files_join(folder, "t10k-labels-idx1-ubyte.gz", from);
    files_join(folder, "t10k-labels.idx1-ubyte", to); /* gzipped all the same */
    cr_assert_eq(rename(from, to), 0);
    expect_ok(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, &train));
    expect_ok(tutti_data_open_mnist(folder, TUTTI_DATA_TEST, &test));
    expect_ok(tutti_data_source_get(train, &about));
    cr_assert(about.count == 30 && about.height == 28 && about.width == 28 && about.channels == 1 &&
              about.classes == 10);
    cr_assert(about.type == TUTTI_UINT8 && strcmp(about.name, folder) == 0);
    expect_ok(tutti_data_source_get(test, &about));
    cr_assert_eq(about.count, 20);
    expect_ok(tutti_data_open_digits(77, TUTTI_DATA_TRAIN, 30, &drawn));
    cr_assert_arr_eq(images_of(train), images_of(drawn), 30 * 28 * 28);
    tutti_data_source_destroy(drawn);
    expect_ok(tutti_data_open_digits(77, TUTTI_DATA_TEST, 20, &drawn));
    cr_assert_arr_eq(labels_of(test), labels_of(drawn), 20);
    tutti_data_source_destroy(drawn), tutti_data_source_destroy(train), tutti_data_source_destroy(test);
}

Test(mnist, files_that_do_not_match_are_an_error_that_names_the_file) {
    tutti_data_source *source;
    uint8_t labels[31] = {0};
    files_write_mnist(folder, 30, 20);
    rewrite("train-labels-idx1-ubyte.gz", 1, (int64_t[]){31}, labels);
    expect_error(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, &source), TUTTI_ERR_DATA, "train-labels", "31 labels",
                 "expected 30");
    labels[17] = 10;
    rewrite("train-labels-idx1-ubyte.gz", 1, (int64_t[]){30}, labels);
    expect_error(tutti_data_open_mnist(folder, TUTTI_DATA_TRAIN, &source), TUTTI_ERR_DATA, "train-labels",
                 "label 10 at offset 25", "expected 0 to 9");
}

/* ----------------------------------------------------------------------------------------------- CIFAR */

static void check_cifar(tutti_data_source *source, int nlabels, int label, int64_t count, const char *const *names) {
    tutti_data *data;
    tutti_data_batch batch;
    int64_t at = 0;
    expect_ok(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.in_order = 1), &data));
    for (; *names != NULL; names++) {
        char path[FILES_PATH_BYTES];
        size_t bytes;
        const size_t record = (size_t)nlabels + 3072;
        files_join(folder, *names, path);
        uint8_t *file = files_read(path, &bytes);
        for (size_t r = 0; r < bytes / record; r++, at++) {
            if (at % 32 == 0) expect_ok(tutti_data_next(data, &batch));
            const float *image = batch.images + at % 32 * 3072;
            cr_assert_eq(batch.labels[at % 32], file[r * record + (size_t)label]);
            for (size_t p = 0; p < 1024; p++)
                for (size_t c = 0; c < 3; c++)
                    cr_assert_eq(image[p * 3 + c], file[r * record + (size_t)nlabels + c * 1024 + p]);
        }
        free(file);
    }
    cr_assert_eq(at, count);
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

Test(cifar, all_its_files_are_read_in_order_and_planes_become_pixels) {
    tutti_data_source *source;
    files_write_cifar(folder, "data_batch_1.bin", 1, 10, 33);
    files_write_cifar(folder, "data_batch_2.bin", 1, 7, 20);
    files_write_cifar(folder, "test_batch.bin", 1, 10, 9);
    files_write_cifar(folder, "train.bin", 2, 100, 120);
    files_write_cifar(folder, "test.bin", 2, 100, 40);
    expect_ok(tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, &source));
    check_cifar(source, 1, 0, 53, (const char *const[]){"data_batch_1.bin", "data_batch_2.bin", NULL});
    expect_ok(tutti_data_open_cifar10(folder, TUTTI_DATA_TEST, &source));
    check_cifar(source, 1, 0, 9, (const char *const[]){"test_batch.bin", NULL});
    expect_ok(tutti_data_open_cifar100(folder, TUTTI_DATA_TRAIN, TUTTI_DATA_FINE, &source));
    check_cifar(source, 2, 1, 120, (const char *const[]){"train.bin", NULL});
    expect_ok(tutti_data_open_cifar100(folder, TUTTI_DATA_TEST, TUTTI_DATA_COARSE, &source));
    check_cifar(source, 2, 0, 40, (const char *const[]){"test.bin", NULL});
}

Test(cifar, a_file_cut_anywhere_is_an_error_with_the_offset) {
    char path[FILES_PATH_BYTES], offset[32];
    size_t bytes;
    files_write_cifar(folder, "whole", 1, 10, 2);
    files_join(folder, "whole", path);
    uint8_t *file = files_read(path, &bytes);
    for (size_t kept = 0; kept < bytes; kept++) {
        tutti_data_source *source;
        if (kept == 3073) continue; /* a file of one record */
        files_write(folder, "test_batch.bin", false, file, kept);
        snprintf(offset, sizeof offset, "offset %zu", kept);
        expect_error(tutti_data_open_cifar10(folder, TUTTI_DATA_TEST, &source), TUTTI_ERR_DATA, "test_batch.bin",
                     offset, "truncated");
    }
    free(file);
}

Test(cifar, foreign_missing_and_shrinking_files_are_named) {
    tutti_data_source *source;
    tutti_data *data;
    tutti_data_batch batch;
    char path[FILES_PATH_BYTES];
    expect_error(tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, &source), TUTTI_ERR_CONFIG, folder,
                 "data_batch_1.bin", "binary version of CIFAR-10");
    expect_error(tutti_data_open_cifar100(folder, TUTTI_DATA_TEST, TUTTI_DATA_FINE, &source), TUTTI_ERR_CONFIG,
                 "test.bin", "CIFAR-100");
    files_write_cifar(folder, "data_batch_2.bin", 1, 10, 3);
    expect_error(tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, &source), TUTTI_ERR_CONFIG, "data_batch_2.bin",
                 "none before it");
    files_write_cifar(folder, "data_batch_1.bin", 1, 14, 12);
    expect_error(tutti_data_open_cifar10(folder, TUTTI_DATA_TRAIN, &source), TUTTI_ERR_DATA, "data_batch_1.bin",
                 "label 10 at offset 30730", "expected 0 to 9");
    files_write_cifar(folder, "train.bin", 1, 10, 3074); /* a CIFAR-10 file: its pixels are read as labels */
    expect_error(tutti_data_open_cifar100(folder, TUTTI_DATA_TRAIN, TUTTI_DATA_FINE, &source), TUTTI_ERR_DATA,
                 "train.bin", "not the binary version of CIFAR-100");
    files_write_cifar(folder, "test_batch.bin", 1, 10, 9);
    expect_ok(tutti_data_open_cifar10(folder, TUTTI_DATA_TEST, &source));
    expect_ok(tutti_data_create(source, NULL, 0, &TUTTI_DATA_OPTIONS(.in_order = 1), &data));
    files_join(folder, "test_batch.bin", path);
    cr_assert_eq(truncate(path, 2 * 3073 + 5), 0);
    expect_error(tutti_data_next(data, &batch), TUTTI_ERR_DATA, "test_batch.bin", "ends at offset 6151");
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}

/* ------------------------------------------------------------------------------------------- the trainer's */

static tutti_status open_input(tutti_input *input, int count, char **options) {
    char *argv[16] = {"tutti-train"};
    static tutti_arguments arguments;
    static tutti_arguments_settings settings;
    memcpy(argv + 1, options, (size_t)count * sizeof *argv);
    TUTTI_TRY(tutti_arguments_parse(count + 1, argv, &arguments));
    TUTTI_TRY(tutti_arguments_fill(&arguments, &settings));
    TUTTI_TRY(tutti_input_open(input, &settings.data));
    const int batch = (int)arguments.batch_size;
    return tutti_input_start(input, &(tutti_input_division){.nranks = 1, .batch = batch, .rows = batch},
                             (uint64_t)arguments.seed);
}

#define OPEN(input, ...)                                                                                               \
    open_input(input, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

Test(input, a_missing_folder_or_file_is_an_error_with_advice) {
    tutti_input input;
    char path[FILES_PATH_BYTES];
    expect_error(OPEN(&input, "--data", "/no/such/folder"), TUTTI_ERR_CONFIG, "--data=/no/such/folder",
                 "give the folder");
    setenv("TUTTI_DATA", "/no/such/folder", 1);
    expect_error(OPEN(&input, "--batch-size", "1"), TUTTI_ERR_CONFIG, "TUTTI_DATA=/no/such/folder");
    unsetenv("TUTTI_DATA");
    cr_assert_eq(chdir(folder), 0);
    expect_error(OPEN(&input, "--dataset", "cifar10"), TUTTI_ERR_CONFIG, "--dataset cifar10", "--data DIR");
    expect_error(OPEN(&input, "--dataset", "digits", "--data", folder), TUTTI_ERR_CONFIG, "leave out --data");
    expect_error(OPEN(&input, "--dataset", "ofrecord", "--data", folder), TUTTI_ERR_CONFIG, "give --blob twice");
    expect_error(OPEN(&input, "--dataset", "ofrecord", "--data", folder, "--blob", "a:1:int8", "--blob", "b:2,:int8"),
                 TUTTI_ERR_CONFIG, "--blob b:2,:int8", "NAME:SHAPE:TYPE");
    expect_error(OPEN(&input, "--dataset", "ofrecord", "--data", folder, "--blob", "a:1:int8", "--blob", "b:2:half"),
                 TUTTI_ERR_CONFIG, "--blob b:2:half", "float32");
    files_write_mnist(folder, 3, 2);
    files_join(folder, "t10k-images-idx3-ubyte.gz", path);
    unlink(path);
    expect_error(OPEN(&input, "--data", folder), TUTTI_ERR_CONFIG, folder, "no file t10k-images", "copy");
    tutti_input_close(&input);
}

Test(input, without_an_option_the_variable_then_the_usual_folder_then_digits_are_taken) {
    tutti_input input;
    cr_assert_eq(chdir(folder), 0);
    unsetenv("TUTTI_DATA");
    expect_ok(OPEN(&input, "--batch-size", "2"));
    cr_assert(input.drawn && input.train_count == 20000 && input.test_count == 4000);
    cr_assert_str_eq(input.name, "synthetic digits");
    tutti_input_close(&input);
    cr_assert_eq(system("mkdir -p data/mnist"), 0);
    files_write_mnist("data/mnist", 3, 2);
    expect_ok(OPEN(&input, "--batch-size", "2"));
    cr_assert_str_eq(input.name, "data/mnist");
    cr_assert(!input.drawn);
    tutti_input_close(&input);
    files_write_mnist(folder, 4, 2);
    setenv("TUTTI_DATA", folder, 1);
    expect_ok(OPEN(&input, "--batch-size", "2"));
    cr_assert_eq(input.train_count, 4);
    tutti_input_close(&input);
    expect_ok(OPEN(&input, "--dataset", "digits"));
    cr_assert(input.drawn);
    tutti_input_close(&input);
    files_remove("data");
}

Test(input, fewer_samples_than_a_batch_is_an_error) {
    tutti_input input;
    files_write_mnist(folder, 99, 2);
    expect_error(OPEN(&input, "--data", folder, "--batch-size", "100"), TUTTI_ERR_CONFIG, "99", "1 ranks times 100",
                 "lower --batch-size");
    tutti_input_close(&input);
}

/* Tests read each image once, unchanged; an epoch has --repeat passes; --resize and --no-augment have their effect. */
Test(input, training_images_of_cifar_are_augmented_and_those_of_tests_are_not) {
    tutti_input input;
    tutti_data_batch batch;
    float plain[9 * 3072];
    files_write_cifar(folder, "data_batch_1.bin", 1, 10, 9);
    files_write_cifar(folder, "test_batch.bin", 1, 10, 9);
    expect_ok(OPEN(&input, "--dataset", "cifar10", "--data", folder, "--batch-size", "3", "--repeat", "2"));
    cr_assert(input.batches == 6 && input.details.classes == 10 && input.details.channels == 3);
    int count = 0;
    for (tutti_data_batch test; tutti_data_next(input.test, &test) == TUTTI_OK && test.count > 0; count += test.count)
        memcpy(plain + count * 3072, test.images, (size_t)test.count * 3072 * sizeof *plain);
    cr_assert_eq(count, 9);
    float least = 0;
    for (int i = 0; i < 9 * 3072; i++) least = plain[i] < least ? plain[i] : least;
    cr_assert_lt(least, -1); /* normalized: not from 0 to 1 */
    int same = 0;
    for (int k = 0; k < 6; k++) {
        expect_ok(tutti_input_next(&input, &batch));
        cr_assert(batch.pass == k / 3 && batch.number == k % 3);
        for (int i = 0; i < 3; i++)
            same += memcmp(batch.images + i * 3072, plain + batch.indices[i] * 3072, 3072 * 4) == 0;
    }
    cr_assert_lt(same, 6, "%d of 18 images are not augmented", same);
    expect_ok(tutti_input_seek(&input, input.train, 3, 4));
    expect_ok(tutti_input_next(&input, &batch));
    cr_assert(batch.pass == 7 && batch.number == 1);
    tutti_input_close(&input);
    expect_ok(
        OPEN(&input, "--dataset", "cifar10", "--data", folder, "--batch-size", "9", "--no-augment", "--no-shuffle"));
    expect_ok(tutti_input_next(&input, &batch));
    cr_assert_arr_eq(batch.images, plain, sizeof plain);
    tutti_input_close(&input);
    expect_ok(OPEN(&input, "--dataset", "cifar10", "--data", folder, "--batch-size", "9", "--resize", "40"));
    cr_assert(input.details.height == 40 && input.details.width == 40);
    tutti_input_close(&input);
}

/* ---------------------------------------------------------------------------------------------- digits */

Test(digits, are_the_same_for_a_seed_and_all_classes_come_with_ink) {
    enum { COUNT = 400, CLASSES = 10 };
    tutti_data_source *a, *b, *other;
    int seen[CLASSES] = {0};
    expect_ok(tutti_data_open_digits(1, TUTTI_DATA_TRAIN, COUNT, &a));
    expect_ok(tutti_data_open_digits(1, TUTTI_DATA_TRAIN, COUNT, &b));
    expect_ok(tutti_data_open_digits(2, TUTTI_DATA_TRAIN, COUNT, &other));
    cr_assert_arr_eq(images_of(a), images_of(b), COUNT * 784);
    cr_assert_arr_eq(labels_of(a), labels_of(b), COUNT);
    cr_assert_neq(memcmp(images_of(a), images_of(other), COUNT * 784), 0);
    for (int i = 0; i < COUNT; i++) {
        int bright = 0;
        for (int p = 0; p < 784; p++) bright += images_of(a)[i * 784 + p] > 128;
        cr_assert(bright > 15 && bright < 350, "digit %d: %d bright pixels", labels_of(a)[i], bright);
        seen[labels_of(a)[i]]++;
    }
    for (int c = 0; c < CLASSES; c++) cr_assert(seen[c] > 10, "class %d: %d times", c, seen[c]);
    tutti_data_source_destroy(a), tutti_data_source_destroy(b), tutti_data_source_destroy(other);
}

Test(digits, a_batch_of_the_trainer_holds_their_pixels_as_floats_from_0_to_1) {
    tutti_input input;
    tutti_data_batch batch;
    expect_ok(OPEN(&input, "--dataset", "digits", "--batch-size", "7"));
    expect_ok(tutti_input_next(&input, &batch));
    for (int i = 0; i < 7; i++) {
        cr_assert_eq(batch.labels[i], labels_of(input.train_source)[batch.indices[i]]);
        for (int p = 0; p < 784; p++)
            cr_assert_eq(batch.images[i * 784 + p],
                         (float)images_of(input.train_source)[batch.indices[i] * 784 + p] * (1.0f / 255));
    }
    tutti_input_close(&input);
}
