/*
 * Uncompressed files under zlib's names. See zlib.h.
 */
#include "zlib.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain_file {
    FILE *file;
    int error;
    const char *words;
};

static int is_gzipped(FILE *file) {
    int first = getc(file), second = getc(file);
    rewind(file);
    return first == 0x1f && second == 0x8b;
}

gzFile gzopen(const char *path, const char *mode) {
    gzFile made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->words = "";
    made->file = fopen(path, mode[0] == 'w' ? "wb" : "rb");
    if (made->file == NULL) {
        free(made);
        return NULL;
    }
    if (mode[0] == 'r' && is_gzipped(made->file)) {
        made->error = Z_DATA_ERROR;
        made->words = "the file is gzipped, and this build has no zlib; unpack it";
    }
    return made;
}

int gzread(gzFile file, void *data, unsigned bytes) {
    if (file->error != Z_OK) return -1;
    size_t got = fread(data, 1, bytes, file->file);
    if (got < bytes && ferror(file->file)) {
        file->error = Z_ERRNO;
        file->words = strerror(errno);
        return -1;
    }
    return (int)got;
}

int gzwrite(gzFile file, const void *data, unsigned bytes) {
    return (int)fwrite(data, 1, bytes, file->file);
}

int gzdirect(gzFile file) {
    (void)file;
    return 1;
}

int gzclose(gzFile file) {
    int failed = fclose(file->file);
    free(file);
    return failed ? Z_ERRNO : Z_OK;
}

const char *gzerror(gzFile file, int *error_out) {
    *error_out = file->error;
    return file->words;
}
