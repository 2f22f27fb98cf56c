/*
 * The trainer's data: IDX files (good, truncated, foreign), MNIST folders, drawn digits, permutations and shards.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ddp/trainer/data/dataset.h"
#include "ddp/trainer/data/idx.h"
#include "ddp/trainer/data/shard.h"
#include "kernels/kernels.h"
#include "tests/support/files.h"

static char folder[FILES_PATH_BYTES];

static void make_folder(void) {
    files_make_folder(folder);
}

static void remove_folder(void) {
    files_remove(folder);
}

TestSuite(idx, .init = make_folder, .fini = remove_folder);
TestSuite(mnist, .init = make_folder, .fini = remove_folder);

#define expect_error(status, expected, ...)                                                                            \
    do {                                                                                                               \
        const char *parts_[] = {__VA_ARGS__};                                                                          \
        cr_assert_eq((status), (expected), "no such error: %s", tutti_last_error());                                   \
        for (size_t part_ = 0; part_ < sizeof parts_ / sizeof *parts_; part_++)                                        \
            cr_assert_not_null(strstr(tutti_last_error(), parts_[part_]), "\"%s\" lacks \"%s\"", tutti_last_error(),   \
                               parts_[part_]);                                                                         \
    } while (0)

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
Test(idx, a_file_with_little_more_than_its_header_says_what_it_should_have) {
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

Test(mnist, a_folder_is_read_under_any_of_the_mirrors_names) {
    char from[FILES_PATH_BYTES], to[FILES_PATH_BYTES];
    tutti_dataset dataset;
    files_write_mnist(folder, 30, 20);
    files_join(folder, "t10k-labels-idx1-ubyte.gz", from);
    files_join(folder, "t10k-labels.idx1-ubyte", to); /* gzipped all the same */
    cr_assert_eq(rename(from, to), 0);
    cr_assert_eq(tutti_dataset_open(folder, &dataset), TUTTI_OK, "%s", tutti_last_error());
    cr_assert(dataset.train.count == 30 && dataset.test.count == 20 && dataset.height == 28 && dataset.width == 28);
    tutti_dataset drawn;
    cr_assert_eq(tutti_digits_draw(77, 30, 20, &drawn), TUTTI_OK);
    cr_assert_arr_eq(dataset.train.images, drawn.train.images, 30 * 28 * 28);
    cr_assert_arr_eq(dataset.test.labels, drawn.test.labels, 20);
    tutti_dataset_close(&dataset), tutti_dataset_close(&drawn);
}

Test(mnist, what_does_not_fit_together_is_an_error_that_names_the_file) {
    tutti_dataset dataset;
    uint8_t labels[31] = {0};
    files_write_mnist(folder, 30, 20);
    rewrite("train-labels-idx1-ubyte.gz", 1, (int64_t[]){31}, labels);
    expect_error(tutti_dataset_open(folder, &dataset), TUTTI_ERR_DATA, "train-labels", "31 labels", "expected 30");
    labels[17] = 10;
    rewrite("train-labels-idx1-ubyte.gz", 1, (int64_t[]){30}, labels);
    expect_error(tutti_dataset_open(folder, &dataset), TUTTI_ERR_DATA, "train-labels", "label 10 at offset 25",
                 "expected 0 to 9");
}

Test(mnist, a_missing_folder_or_file_says_what_to_do) {
    tutti_dataset dataset;
    char path[FILES_PATH_BYTES];
    expect_error(tutti_dataset_open("/no/such/folder", &dataset), TUTTI_ERR_CONFIG, "--data=/no/such/folder",
                 "give the folder");
    setenv("TUTTI_DATA", "/no/such/folder", 1);
    expect_error(tutti_dataset_open(NULL, &dataset), TUTTI_ERR_CONFIG, "TUTTI_DATA=/no/such/folder");
    files_write_mnist(folder, 3, 2);
    files_join(folder, "t10k-images-idx3-ubyte.gz", path);
    unlink(path);
    expect_error(tutti_dataset_open(folder, &dataset), TUTTI_ERR_CONFIG, folder, "no file t10k-images", "copy");
}

Test(mnist, without_an_option_the_variable_then_the_usual_folder_then_digits_are_taken) {
    tutti_dataset dataset;
    cr_assert_eq(chdir(folder), 0);
    unsetenv("TUTTI_DATA");
    cr_assert_eq(tutti_dataset_open(NULL, &dataset), TUTTI_OK);
    cr_assert_str_eq(dataset.source, "synthetic digits");
    tutti_dataset_close(&dataset);
    cr_assert_eq(system("mkdir -p data/mnist"), 0);
    files_write_mnist("data/mnist", 3, 2);
    cr_assert_eq(tutti_dataset_open(NULL, &dataset), TUTTI_OK);
    cr_assert_str_eq(dataset.source, "data/mnist");
    tutti_dataset_close(&dataset);
    files_write_mnist(folder, 4, 2);
    setenv("TUTTI_DATA", folder, 1);
    cr_assert_eq(tutti_dataset_open(NULL, &dataset), TUTTI_OK);
    cr_assert_eq(dataset.train.count, 4);
    tutti_dataset_close(&dataset);
    files_remove("data");
}

/* ---------------------------------------------------------------------------------------------- digits */

Test(digits, are_the_same_for_a_seed_and_all_classes_come_with_ink) {
    enum { COUNT = 400 };
    tutti_dataset a, b, other;
    int seen[TUTTI_DATASET_CLASSES] = {0};
    cr_assert_eq(tutti_digits_draw(1, COUNT, 10, &a), TUTTI_OK);
    cr_assert_eq(tutti_digits_draw(1, COUNT, 10, &b), TUTTI_OK);
    cr_assert_eq(tutti_digits_draw(2, COUNT, 10, &other), TUTTI_OK);
    cr_assert_arr_eq(a.train.images, b.train.images, COUNT * 784);
    cr_assert_arr_eq(a.train.labels, b.train.labels, COUNT);
    cr_assert_neq(memcmp(a.train.images, other.train.images, COUNT * 784), 0);
    for (int i = 0; i < COUNT; i++) {
        int bright = 0;
        for (int p = 0; p < 784; p++) bright += a.train.images[i * 784 + p] > 128;
        cr_assert(bright > 15 && bright < 350, "digit %d: %d bright pixels", a.train.labels[i], bright);
        seen[a.train.labels[i]]++;
    }
    for (int c = 0; c < TUTTI_DATASET_CLASSES; c++) cr_assert(seen[c] > 10, "class %d: %d times", c, seen[c]);
    tutti_dataset_close(&a), tutti_dataset_close(&b), tutti_dataset_close(&other);
}

Test(dataset, a_batch_holds_the_images_as_floats_from_0_to_1) {
    uint8_t images[] = {0, 255, 51, 102, 10, 20}, labels[] = {4, 7, 1};
    uint32_t indices[] = {2, 0, 1, 0};
    float batch[8];
    uint8_t batch_labels[4];
    tutti_gather_args args = {images, labels, indices, 2, 4, batch, batch_labels};
    tutti_samples_gather(&args);
    const float expected[] = {10 / 255.0f, 20 / 255.0f, 0, 1, 0.2f, 0.4f, 0, 1};
    for (int i = 0; i < 8; i++) cr_assert_float_eq(batch[i], expected[i], 1e-7);
    cr_assert_arr_eq(batch_labels, ((uint8_t[]){1, 4, 7, 4}), 4);
}

/* ---------------------------------------------------------------------------------------------- shards */

/* How often each sample is drawn in one epoch by all ranks together. */
static void count_draws(int64_t count, int nranks, int batch, int64_t epoch, int *draws) {
    memset(draws, 0, (size_t)count * sizeof *draws);
    for (int rank = 0; rank < nranks; rank++) {
        tutti_shard shard;
        cr_assert_eq(tutti_shard_init(&shard, count, rank, nranks, batch, 9), TUTTI_OK);
        for (int64_t k = 0; k < tutti_shard_batches(&shard); k++) {
            const uint32_t *indices = tutti_shard_batch(&shard, epoch, k);
            for (int i = 0; i < batch; i++) {
                cr_assert(indices[i] < count);
                draws[indices[i]]++;
            }
        }
        tutti_shard_fini(&shard);
    }
}

Test(shard, ranks_are_disjoint_and_cover_all_but_the_incomplete_batch) {
    static const int cases[][3] = {{60, 1, 60}, {61, 3, 10}, {101, 4, 5}, {7, 7, 1}, {64, 2, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int count = cases[i][0], global = cases[i][1] * cases[i][2], once = 0, draws[128];
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            count_draws(count, cases[i][1], cases[i][2], epoch, draws);
            once = 0;
            for (int s = 0; s < count; s++) {
                cr_assert(draws[s] <= 1);
                once += draws[s];
            }
            cr_assert_eq(once, count / global * global);
        }
    }
}

Test(shard, a_global_batch_does_not_depend_on_the_number_of_ranks) {
    tutti_shard whole, half[2];
    cr_assert_eq(tutti_shard_init(&whole, 103, 0, 1, 10, 4), TUTTI_OK);
    for (int r = 0; r < 2; r++) cr_assert_eq(tutti_shard_init(&half[r], 103, r, 2, 5, 4), TUTTI_OK);
    for (int64_t epoch = 0; epoch < 2; epoch++)
        for (int64_t k = 0; k < 10; k++) {
            const uint32_t *all = tutti_shard_batch(&whole, epoch, k);
            for (int r = 0; r < 2; r++)
                cr_assert_arr_eq(tutti_shard_batch(&half[r], epoch, k), all + 5 * r, 5 * sizeof *all);
        }
    tutti_shard_fini(&whole), tutti_shard_fini(&half[0]), tutti_shard_fini(&half[1]);
}

Test(shard, epochs_and_seeds_give_different_orders_that_repeat) {
    tutti_shard a, b;
    uint32_t first[50], second[50];
    cr_assert_eq(tutti_shard_init(&a, 50, 0, 1, 50, 4), TUTTI_OK);
    cr_assert_eq(tutti_shard_init(&b, 50, 0, 1, 50, 5), TUTTI_OK);
    memcpy(first, tutti_shard_batch(&a, 0, 0), sizeof first);
    memcpy(second, tutti_shard_batch(&a, 1, 0), sizeof second);
    cr_assert_neq(memcmp(first, second, sizeof first), 0);
    cr_assert_neq(memcmp(first, tutti_shard_batch(&b, 0, 0), sizeof first), 0);
    cr_assert_arr_eq(first, tutti_shard_batch(&a, 0, 0), sizeof first);
    tutti_shard_fini(&a), tutti_shard_fini(&b);
}

Test(shard, evaluation_ranges_cover_everything_once) {
    static const int64_t counts[] = {0, 1, 3, 10, 10000, 10007};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int nranks = 1; nranks < 9; nranks++) {
            int64_t at = 0, first, end;
            for (int rank = 0; rank < nranks; rank++) {
                tutti_shard_range(counts[i], rank, nranks, &first, &end);
                cr_assert(first == at && end >= first && end - first <= counts[i] / nranks + 1);
                at = end;
            }
            cr_assert_eq(at, counts[i]);
        }
}

Test(shard, fewer_samples_than_a_batch_is_an_error) {
    tutti_shard shard;
    expect_error(tutti_shard_init(&shard, 99, 0, 2, 50, 1), TUTTI_ERR_CONFIG, "99", "2 ranks times 50",
                 "lower --batch-size");
}
