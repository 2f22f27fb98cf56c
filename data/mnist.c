/*
 * MNIST: four IDX files in a folder, under any of the names that mirrors use.
 */
#include <stdio.h>
#include <unistd.h>

#include "data/idx.h"
#include "data/source.h"

#define CLASSES    10
#define MOST_SIDE  1024
#define PATH_BYTES 4096

/* "%s" stands for "train" or "t10k". */
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
        if (labels->data[i] >= CLASSES)
            return tutti_fail(TUTTI_ERR_DATA, "%s: label %d at offset %lld, expected 0 to %d", path, labels->data[i],
                              (long long)(i + 8), CLASSES - 1);
    return TUTTI_OK;
}

/* The source owns what was read, also after an error. */
static tutti_status read_part(const char *folder, const char *part, tutti_data_memory *source) {
    char images_path[PATH_BYTES], labels_path[PATH_BYTES];
    tutti_data_source_details *about = &source->base.details;
    tutti_idx images, labels;
    TUTTI_TRY(find_file(folder, image_names, part, images_path));
    TUTTI_TRY(find_file(folder, label_names, part, labels_path));
    TUTTI_TRY(tutti_idx_open(images_path, 3, &images));
    source->images = images.data;
    TUTTI_TRY(tutti_idx_open(labels_path, 1, &labels));
    source->labels = labels.data;
    if (labels.dims[0] != images.dims[0])
        return tutti_fail(TUTTI_ERR_DATA, "%s: %lld labels at offset 4, expected %lld as in %s", labels_path,
                          (long long)labels.dims[0], (long long)images.dims[0], images_path);
    if (images.dims[1] > MOST_SIDE || images.dims[2] > MOST_SIDE)
        return tutti_fail(TUTTI_ERR_DATA, "%s: at offset 8 images of %lldx%lld, expected at most %dx%d", images_path,
                          (long long)images.dims[1], (long long)images.dims[2], MOST_SIDE, MOST_SIDE);
    *about = (tutti_data_source_details){.height = (int)images.dims[1],
                                         .width = (int)images.dims[2],
                                         .channels = 1,
                                         .type = TUTTI_UINT8,
                                         .classes = CLASSES,
                                         .count = images.dims[0]};
    return check_labels(labels_path, &labels);
}

tutti_status tutti_data_open_mnist(const char *folder, tutti_data_part part, tutti_data_source **source_out) {
    tutti_data_memory *source;
    if (folder == NULL || source_out == NULL || (unsigned)part > TUTTI_DATA_TEST)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "MNIST: folder and source must not be NULL, and part be train or test");
    TUTTI_TRY(tutti_data_source_new(&tutti_data_memory_row, sizeof *source, &source));
    snprintf(source->base.name, sizeof source->base.name, "%s", folder);
    tutti_status status = read_part(folder, part == TUTTI_DATA_TRAIN ? "train" : "t10k", source);
    if (status != TUTTI_OK) {
        tutti_data_source_destroy(&source->base);
        return status;
    }
    *source_out = &source->base;
    return TUTTI_OK;
}
