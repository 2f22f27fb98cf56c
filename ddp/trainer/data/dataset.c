/*
 * Where the data comes from.
 */
#include "ddp/trainer/data/dataset.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DIGITS_SEED  UINT64_C(20240229)
#define DIGITS_TRAIN 20000
#define DIGITS_TEST  4000

static bool is_folder(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* A folder that the user named: it must be there. */
static tutti_status open_named(const char *folder, const char *named_by, tutti_dataset *dataset_out) {
    if (!is_folder(folder))
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "%s=%s is no folder; give the folder that holds train-images-idx3-ubyte.gz and the other "
                          "three files of MNIST, or leave it out to train on drawn digits",
                          named_by, folder);
    return tutti_mnist_open(folder, dataset_out);
}

tutti_status tutti_dataset_open(const char *folder, tutti_dataset *dataset_out) {
    static const char *const usual_folders[] = {"../shared/data/mnist", "data/mnist"};
    if (folder != NULL) return open_named(folder, "--data", dataset_out);
    const char *variable = getenv("TUTTI_DATA");
    if (variable != NULL && variable[0] != '\0') return open_named(variable, "TUTTI_DATA", dataset_out);
    for (size_t i = 0; i < sizeof usual_folders / sizeof usual_folders[0]; i++)
        if (is_folder(usual_folders[i])) return tutti_mnist_open(usual_folders[i], dataset_out);
    return tutti_digits_draw(DIGITS_SEED, DIGITS_TRAIN, DIGITS_TEST, dataset_out);
}

void tutti_dataset_close(tutti_dataset *dataset) {
    tutti_samples *both[] = {&dataset->train, &dataset->test};
    for (size_t i = 0; i < 2; i++) {
        free(both[i]->images);
        free(both[i]->labels);
        *both[i] = (tutti_samples){.count = 0};
    }
}
