/*
 * MNIST: four IDX files in a folder, under any of the names that mirrors give them.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ddp/trainer/data/dataset.h"
#include "ddp/trainer/data/idx.h"

#define PATH_BYTES 4096

/* "%s" is "train" or "t10k". */
static const char *const image_names[] = {"%s-images-idx3-ubyte.gz", "%s-images-idx3-ubyte", "%s-images.idx3-ubyte.gz",
                                          "%s-images.idx3-ubyte"};
static const char *const label_names[] = {"%s-labels-idx1-ubyte.gz", "%s-labels-idx1-ubyte", "%s-labels.idx1-ubyte.gz",
                                          "%s-labels.idx1-ubyte"};
#define NAMES 4

static tutti_status find_file(const char *folder, const char *const *names, const char *part, char *path_out) {
    for (int i = 0; i < NAMES; i++) {
        char name[64];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(name, sizeof name, names[i], part);
#pragma GCC diagnostic pop
        int length = snprintf(path_out, PATH_BYTES, "%s/%s", folder, name);
        if (length < PATH_BYTES && access(path_out, F_OK) == 0) return TUTTI_OK;
    }
    return tutti_fail(TUTTI_ERR_CONFIG,
                      "%s: no file %s-%s; copy MNIST's four files (train- and t10k-, images and labels, gzipped or "
                      "not) into it",
                      folder, part, names == image_names ? "images-idx3-ubyte[.gz]" : "labels-idx1-ubyte[.gz]");
}

static tutti_status check_labels(const char *path, const tutti_idx *labels) {
    for (int64_t i = 0; i < labels->dims[0]; i++)
        if (labels->data[i] >= TUTTI_DATASET_CLASSES)
            return tutti_fail(TUTTI_ERR_DATA, "%s: label %d at offset %lld, expected 0 to %d", path, labels->data[i],
                              (long long)(i + 8), TUTTI_DATASET_CLASSES - 1);
    return TUTTI_OK;
}

/* One half of the data. The samples own what was read, also after an error. */
static tutti_status read_part(const char *folder, const char *part, tutti_samples *samples, int64_t dims[3]) {
    char images_path[PATH_BYTES], labels_path[PATH_BYTES];
    tutti_idx images, labels;
    TUTTI_TRY(find_file(folder, image_names, part, images_path));
    TUTTI_TRY(find_file(folder, label_names, part, labels_path));
    TUTTI_TRY(tutti_idx_open(images_path, 3, &images));
    samples->images = images.data;
    TUTTI_TRY(tutti_idx_open(labels_path, 1, &labels));
    samples->labels = labels.data;
    samples->count = images.dims[0];
    if (labels.dims[0] != images.dims[0])
        return tutti_fail(TUTTI_ERR_DATA, "%s: %lld labels at offset 4, expected %lld as in %s", labels_path,
                          (long long)labels.dims[0], (long long)images.dims[0], images_path);
    memcpy(dims, images.dims, 3 * sizeof dims[0]);
    return check_labels(labels_path, &labels);
}

static tutti_status read_both(const char *folder, tutti_dataset *dataset) {
    int64_t train[3], test[3];
    TUTTI_TRY(read_part(folder, "train", &dataset->train, train));
    TUTTI_TRY(read_part(folder, "t10k", &dataset->test, test));
    if (train[1] != test[1] || train[2] != test[2])
        return tutti_fail(TUTTI_ERR_DATA, "%s: training images are %lldx%lld, test images %lldx%lld; expected one size",
                          folder, (long long)train[1], (long long)train[2], (long long)test[1], (long long)test[2]);
    if (train[1] > 1024 || train[2] > 1024)
        return tutti_fail(TUTTI_ERR_DATA, "%s: images of %lldx%lld, expected at most 1024x1024", folder,
                          (long long)train[1], (long long)train[2]);
    dataset->height = (int)train[1];
    dataset->width = (int)train[2];
    return TUTTI_OK;
}

tutti_status tutti_mnist_open(const char *folder, tutti_dataset *dataset_out) {
    tutti_dataset dataset = {.height = 0};
    snprintf(dataset.source, sizeof dataset.source, "%s", folder);
    tutti_status status = read_both(folder, &dataset);
    if (status != TUTTI_OK) {
        tutti_dataset_close(&dataset);
        return status;
    }
    *dataset_out = dataset;
    return TUTTI_OK;
}
