/*
 * Temporary folders and data sets. A failure ends the process, since nothing can be tested then.
 */
#include "tests/support/training/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "data/source.h"
#include "kernels/random.h"

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

static void write_part(const char *folder, const char *part, tutti_data_source *source) {
    const tutti_data_memory *digits = (const tutti_data_memory *)source;
    char name[64];
    size_t bytes;
    int64_t dims[3] = {source->details.count, source->details.height, source->details.width};
    uint8_t *file = files_make_idx(3, dims, digits->images, &bytes);
    snprintf(name, sizeof name, "%s-images-idx3-ubyte.gz", part);
    files_write(folder, name, true, file, bytes);
    free(file);
    file = files_make_idx(1, dims, digits->labels, &bytes);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte.gz", part);
    files_write(folder, name, true, file, bytes);
    free(file);
}

void files_write_mnist(const char *folder, int64_t train_count, int64_t test_count) {
    tutti_data_source *train, *test;
    must(tutti_data_open_digits(77, TUTTI_DATA_TRAIN, train_count, &train) == TUTTI_OK, "digits");
    must(tutti_data_open_digits(77, TUTTI_DATA_TEST, test_count, &test) == TUTTI_OK, "digits");
    write_part(folder, "train", train);
    write_part(folder, "t10k", test);
    tutti_data_source_destroy(train);
    tutti_data_source_destroy(test);
}

/* Each class has a colour and a stripe at a height of its own, with noise on top. */
static void draw_cifar(int label, int classes, uint64_t number, uint8_t *pixels) {
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < 32; y++)
            for (int x = 0; x < 32; x++) {
                uint64_t noise = tutti_random_bits(5, number, (uint64_t)((c * 32 + y) * 32 + x)) % 50;
                int stripe = y * classes / 32 == label ? 90 : 0, colour = (label >> c & 1) * 60;
                pixels[(c * 32 + y) * 32 + x] = (uint8_t)(20 + stripe + colour + (int)noise);
            }
}

void files_write_cifar(const char *folder, const char *name, int nlabels, int classes, int64_t count) {
    const size_t record = (size_t)nlabels + 3072;
    uint8_t *file = calloc((size_t)count, record);
    must(file != NULL, "cifar");
    for (int64_t i = 0; i < count; i++) {
        int label = (int)(i % classes);
        uint8_t *to = file + (size_t)i * record;
        to[nlabels - 1] = (uint8_t)label;
        if (nlabels == 2) to[0] = (uint8_t)(label / 5);
        draw_cifar(label, classes, (uint64_t)i, to + nlabels);
    }
    files_write(folder, name, false, file, (size_t)count * record);
    free(file);
}
