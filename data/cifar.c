/*
 * CIFAR-10 and CIFAR-100, binary version: records of a label (CIFAR-100: coarse, then fine) and 1024 bytes each of
 * R, G and B. Files stay open; a sample is read when it is needed, from the page cache, which all ranks of a host
 * share.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/source.h"

#define SIDE        32
#define PIXELS      (SIDE * SIDE)
#define CHANNELS    3
#define MOST_FILES  5
#define MOST_LABELS 2
#define PATH_BYTES  4096

typedef struct cifar_file {
    int fd;
    int64_t records;
    char *path;
} cifar_file;

typedef struct cifar_source {
    tutti_data_source base;
    int nlabels, label; /* bytes before the pixels, and the index of the label among them */
    cifar_file files[MOST_FILES];
    int nfiles;
} cifar_source;

static int64_t record_bytes(const cifar_source *source) {
    return source->nlabels + CHANNELS * PIXELS;
}

static void close_cifar(tutti_data_source *base) {
    cifar_source *source = (cifar_source *)base;
    for (int i = 0; i < source->nfiles; i++) {
        close(source->files[i].fd);
        free(source->files[i].path);
    }
    free(source);
}

/* Reads `bytes` bytes at `offset`, which existed when the file was opened. */
static tutti_status read_at(const cifar_file *file, int64_t offset, void *dst, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file->fd, (char *)dst + done, bytes - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return tutti_fail(TUTTI_ERR_SYSTEM, "%s: reading at offset %lld: %s", file->path, (long long)offset,
                              strerror(errno));
        if (got == 0)
            return tutti_fail(TUTTI_ERR_DATA, "%s: ends at offset %lld, and was longer when it was opened", file->path,
                              (long long)(offset + (int64_t)done));
        done += (size_t)got;
    }
    return TUTTI_OK;
}

static tutti_status check_label(const cifar_source *source, const cifar_file *file, int64_t record, int label) {
    if (label < source->base.details.classes) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA,
                      "%s: label %d at offset %lld, expected 0 to %d: not the binary version of CIFAR-%d, or damaged",
                      file->path, label, (long long)(record * record_bytes(source) + source->label),
                      source->base.details.classes - 1, source->nlabels == 1 ? 10 : 100);
}

static tutti_status read_cifar(tutti_data_source *base, int64_t index, void *image, int32_t *label) {
    const cifar_source *source = (const cifar_source *)base;
    const cifar_file *file = source->files;
    uint8_t record[MOST_LABELS + CHANNELS * PIXELS], *to = image;
    for (; index >= file->records; file++) index -= file->records;
    TUTTI_TRY(read_at(file, index * record_bytes(source), record, (size_t)record_bytes(source)));
    *label = record[source->label];
    TUTTI_TRY(check_label(source, file, index, *label));
    const uint8_t *red = record + source->nlabels;
    for (int p = 0; p < PIXELS; p++, to += CHANNELS) {
        to[0] = red[p];
        to[1] = red[p + PIXELS];
        to[2] = red[p + 2 * PIXELS];
    }
    return TUTTI_OK;
}

static const tutti_data_source_row cifar_row = {.read = read_cifar, .close = close_cifar};

/* Detects files of another format at the beginning, not in the middle of an epoch. */
static tutti_status check_labels(const cifar_source *source, const cifar_file *file) {
    for (int64_t r = 0; r < file->records; r++) {
        uint8_t label;
        TUTTI_TRY(read_at(file, r * record_bytes(source) + source->label, &label, 1));
        TUTTI_TRY(check_label(source, file, r, label));
    }
    return TUTTI_OK;
}

static tutti_status check_file(const cifar_source *source, cifar_file *file) {
    struct stat about;
    const int64_t one = record_bytes(source);
    if (fstat(file->fd, &about) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", file->path, strerror(errno));
    if (!S_ISREG(about.st_mode)) return tutti_fail(TUTTI_ERR_DATA, "%s: not a regular file", file->path);
    file->records = about.st_size / one;
    if (about.st_size == 0 || about.st_size % one != 0)
        return tutti_fail(
            TUTTI_ERR_DATA,
            "%s: ends at offset %lld, in record %lld, expected a multiple of %lld bytes: truncated, or not the "
            "binary version of CIFAR-%d; fetch the file again",
            file->path, (long long)about.st_size, (long long)file->records, (long long)one,
            source->nlabels == 1 ? 10 : 100);
    return check_labels(source, file);
}

/* Sets *found_out to false where the file does not exist. */
static tutti_status add_file(cifar_source *source, const char *folder, const char *name, bool *found_out) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= PATH_BYTES)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "%.200s...: the path is too long", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *found_out = fd >= 0;
    if (fd < 0 && errno == ENOENT) return TUTTI_OK;
    if (fd < 0) return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    cifar_file *file = &source->files[source->nfiles++];
    *file = (cifar_file){.fd = fd, .path = strdup(path)};
    if (file->path == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a path");
    TUTTI_TRY(check_file(source, file));
    source->base.details.count += file->records;
    return TUTTI_OK;
}

/* Adds batches 1 to n; a gap means that a file was not copied. */
static tutti_status add_batches(cifar_source *source, const char *folder) {
    bool found, ended = false;
    for (int i = 1; i <= MOST_FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", i);
        TUTTI_TRY(add_file(source, folder, name, &found));
        if (found && ended)
            return tutti_fail(TUTTI_ERR_CONFIG, "%s: there is a %s, but none before it; copy all data_batch_*.bin",
                              folder, name);
        ended = ended || !found;
    }
    return TUTTI_OK;
}

static tutti_status add_files(cifar_source *source, const char *folder, tutti_data_part part) {
    bool found = true;
    const char *name = source->nlabels == 2       ? part == TUTTI_DATA_TRAIN ? "train.bin" : "test.bin"
                       : part == TUTTI_DATA_TRAIN ? "data_batch_1.bin"
                                                  : "test_batch.bin";
    if (source->nlabels == 1 && part == TUTTI_DATA_TRAIN) TUTTI_TRY(add_batches(source, folder));
    else TUTTI_TRY(add_file(source, folder, name, &found));
    if (source->nfiles > 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_CONFIG, "%s: no file %s; give the folder that holds the binary version of CIFAR-%d",
                      folder, name, source->nlabels == 1 ? 10 : 100);
}

static tutti_status open_cifar(const char *folder, tutti_data_part part, int nlabels, int label, int classes,
                               tutti_data_source **source_out) {
    cifar_source *source;
    if (folder == NULL || source_out == NULL || (unsigned)part > TUTTI_DATA_TEST)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "CIFAR: folder and source must not be NULL, and part be train or test");
    TUTTI_TRY(tutti_data_source_new(&cifar_row, sizeof *source, &source));
    source->nlabels = nlabels;
    source->label = label;
    source->base.details = (tutti_data_source_details){
        .height = SIDE, .width = SIDE, .channels = CHANNELS, .type = TUTTI_UINT8, .classes = classes};
    snprintf(source->base.name, sizeof source->base.name, "%s", folder);
    tutti_status status = add_files(source, folder, part);
    if (status != TUTTI_OK) {
        close_cifar(&source->base);
        return status;
    }
    *source_out = &source->base;
    return TUTTI_OK;
}

tutti_status tutti_data_open_cifar10(const char *folder, tutti_data_part part, tutti_data_source **source_out) {
    return open_cifar(folder, part, 1, 0, 10, source_out);
}

tutti_status tutti_data_open_cifar100(const char *folder, tutti_data_part part, tutti_data_cifar100_labels labels,
                                      tutti_data_source **source_out) {
    if ((unsigned)labels > TUTTI_DATA_COARSE)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_data_open_cifar100: labels are fine or coarse, not %d",
                          (int)labels);
    return open_cifar(folder, part, 2, labels == TUTTI_DATA_FINE ? 1 : 0, labels == TUTTI_DATA_FINE ? 100 : 20,
                      source_out);
}
