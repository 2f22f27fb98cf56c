/*
 * Temporary folders and data sets. Failures end the process: nothing can be tested then.
 */
#include "tests/support/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "ddp/trainer/data/dataset.h"

#define IDX_HEADER_BYTES(ndims) (4 + 4 * (size_t)(ndims))

static void must(bool good, const char *what) {
    if (good) return;
    perror(what);
    abort();
}

void files_join(const char *folder, const char *name, char *path_out) {
    must(snprintf(path_out, FILES_PATH_BYTES, "%s/%s", folder, name) < FILES_PATH_BYTES, "path");
}

void files_make_folder(char *path_out) {
    const char *base = getenv("TMPDIR");
    files_join(base != NULL ? base : "/tmp", "tutti-test-XXXXXX", path_out);
    must(mkdtemp(path_out) != NULL, path_out);
}

void files_remove(const char *folder) {
    DIR *listing = opendir(folder);
    if (listing == NULL) return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char path[FILES_PATH_BYTES];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        files_join(folder, entry->d_name, path);
        if (unlink(path) != 0) files_remove(path);
    }
    closedir(listing);
    rmdir(folder);
}

void files_write(const char *folder, const char *name, bool gzipped, const void *data, size_t bytes) {
    char path[FILES_PATH_BYTES];
    files_join(folder, name, path);
    gzFile file = gzopen(path, gzipped ? "wb6" : "wbT"); /* T: no compression, no gzip header */
    must(file != NULL, path);
    must(gzwrite(file, data, (unsigned)bytes) == (int)bytes, path);
    must(gzclose(file) == Z_OK, path);
}

uint8_t *files_read(const char *path, size_t *bytes_out) {
    struct stat about;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    must(fstat(fileno(file), &about) == 0, path);
    uint8_t *data = calloc((size_t)about.st_size + 1, 1);
    must(data != NULL && fread(data, 1, (size_t)about.st_size, file) == (size_t)about.st_size, path);
    fclose(file);
    *bytes_out = (size_t)about.st_size;
    return data;
}

uint8_t *files_make_idx(int ndims, const int64_t *dims, const uint8_t *data, size_t *bytes_out) {
    size_t count = 1;
    for (int i = 0; i < ndims; i++) count *= (size_t)dims[i];
    uint8_t *file = calloc(IDX_HEADER_BYTES(ndims) + count, 1);
    must(file != NULL, "idx");
    file[2] = 0x08;
    file[3] = (uint8_t)ndims;
    for (int i = 0; i < ndims; i++)
        for (int b = 0; b < 4; b++) file[4 + 4 * i + b] = (uint8_t)(dims[i] >> (8 * (3 - b)));
    if (count > 0) memcpy(file + IDX_HEADER_BYTES(ndims), data, count);
    *bytes_out = IDX_HEADER_BYTES(ndims) + count;
    return file;
}

static void write_part(const char *folder, const char *part, const tutti_dataset *dataset,
                       const tutti_samples *samples) {
    char name[64];
    size_t bytes;
    int64_t dims[3] = {samples->count, dataset->height, dataset->width};
    uint8_t *file = files_make_idx(3, dims, samples->images, &bytes);
    snprintf(name, sizeof name, "%s-images-idx3-ubyte.gz", part);
    files_write(folder, name, true, file, bytes);
    free(file);
    file = files_make_idx(1, dims, samples->labels, &bytes);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte.gz", part);
    files_write(folder, name, true, file, bytes);
    free(file);
}

void files_write_mnist(const char *folder, int64_t train_count, int64_t test_count) {
    tutti_dataset dataset;
    must(tutti_digits_draw(77, train_count, test_count, &dataset) == TUTTI_OK, "digits");
    write_part(folder, "train", &dataset, &dataset.train);
    write_part(folder, "t10k", &dataset, &dataset.test);
    tutti_dataset_close(&dataset);
}
