/*
 * A folder in memory if there is one, so that thousands of files take seconds.
 */
#include "tests/fuzz/on_disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], path[128];

static void leave(void) {
    unlink(path);
    rmdir(folder);
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "/dev/shm/tutti-fuzz-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        snprintf(folder, sizeof folder, "/tmp/tutti-fuzz-XXXXXX");
        if (mkdtemp(folder) == NULL) abort();
    }
    atexit(leave);
}

const char *fuzz_write(const char *name, const uint8_t *data, size_t bytes) {
    if (folder[0] == '\0') make_folder();
    unlink(path); /* the previous one may have had another name */
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) || fclose(file) != 0) abort();
    return folder;
}

void fuzz_read_all(tutti_data_source *source) {
    tutti_data_source_details about;
    tutti_data *data;
    tutti_data_batch batch;
    if (tutti_data_source_get(source, &about) != TUTTI_OK || about.count < 1) abort();
    const size_t elements = (size_t)about.height * (size_t)about.width * (size_t)about.channels;
    if (tutti_data_create(source, &(tutti_data_op){"batch", {4}}, 1, &TUTTI_DATA_OPTIONS(.in_order = 1, .ahead = -1),
                          &data) != TUTTI_OK)
        abort();
    while (tutti_data_next(data, &batch) == TUTTI_OK && batch.count > 0)
        for (int i = 0; i < batch.count; i++) {
            if (batch.labels[i] < 0 || batch.labels[i] >= about.classes) abort();
            for (size_t e = 0; e < elements && about.type == TUTTI_UINT8; e++) {
                float pixel = batch.images[(size_t)i * elements + e];
                if (!(pixel >= 0 && pixel <= 255)) abort();
            }
        }
    tutti_data_destroy(data);
    tutti_data_source_destroy(source);
}
