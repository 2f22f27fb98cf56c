/*
 * A file of records, read from start to end; one record at a time is in memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/ofrecord.h"

#define HEADER_BYTES 8

tutti_status tutti_ofrecord_file_open(const char *path, tutti_ofrecord_file *file_out) {
    struct stat about;
    tutti_ofrecord_file file = {.path = strdup(path), .stream = fopen(path, "rbe")};
    tutti_status status = TUTTI_OK;
    if (file.path == NULL) status = tutti_fail(TUTTI_ERR_MEMORY, "no memory for a path");
    else if (file.stream == NULL || fstat(fileno(file.stream), &about) != 0)
        status = tutti_fail(errno == ENOENT ? TUTTI_ERR_CONFIG : TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(about.st_mode)) status = tutti_fail(TUTTI_ERR_DATA, "%s: not a regular file", path);
    if (status != TUTTI_OK) {
        tutti_ofrecord_file_close(&file);
        return status;
    }
    file.bytes = about.st_size;
    *file_out = file;
    return TUTTI_OK;
}

void tutti_ofrecord_file_close(tutti_ofrecord_file *file) {
    if (file->stream != NULL) fclose(file->stream);
    free(file->path);
    free(file->memory);
    *file = (tutti_ofrecord_file){.stream = NULL};
}

tutti_status tutti_ofrecord_file_blame(const tutti_ofrecord_file *file, tutti_status status, int64_t offset) {
    return tutti_fail(status, "%s: record %lld at offset %lld: %s", file->path, (long long)file->record,
                      (long long)offset, tutti_last_error());
}

static tutti_status fail_here(const tutti_ofrecord_file *file, const char *words) {
    tutti_fail(TUTTI_ERR_DATA, "%s", words);
    return tutti_ofrecord_file_blame(file, TUTTI_ERR_DATA, file->offset);
}

static tutti_status read_exactly(tutti_ofrecord_file *file, void *dst, size_t bytes) {
    if (fread(dst, 1, bytes, file->stream) == bytes) return TUTTI_OK;
    if (ferror(file->stream)) {
        tutti_fail(TUTTI_ERR_SYSTEM, "%s", strerror(errno));
        return tutti_ofrecord_file_blame(file, TUTTI_ERR_SYSTEM, file->offset);
    }
    return fail_here(file, "the file ends here, and was longer when it was opened");
}

/* Reads the length of the next record, which is completely in the file; 0: the end. */
static tutti_status read_length(tutti_ofrecord_file *file, int64_t *length_out) {
    const int64_t left = file->bytes - file->offset;
    uint8_t header[HEADER_BYTES];
    uint64_t length = 0;
    char words[256];
    *length_out = 0;
    if (left == 0) return TUTTI_OK;
    if (left < HEADER_BYTES) {
        snprintf(words, sizeof words,
                 "truncated: the file ends %lld bytes later, in the length of a record; fetch it again",
                 (long long)left);
        return fail_here(file, words);
    }
    TUTTI_TRY(read_exactly(file, header, sizeof header));
    for (int i = 0; i < HEADER_BYTES; i++) length |= (uint64_t)header[i] << (8 * i);
    if (length == 0 || length > INT64_MAX) {
        snprintf(words, sizeof words, "its length is %lld, expected 1 or more: not an OFRecord file, or damaged",
                 (long long)length);
        return fail_here(file, words);
    }
    if ((int64_t)length > left - HEADER_BYTES) {
        snprintf(words, sizeof words,
                 "truncated, damaged, or not an OFRecord file: its length is %lld, and the file has %lld bytes left",
                 (long long)length, (long long)(left - HEADER_BYTES));
        return fail_here(file, words);
    }
    *length_out = (int64_t)length;
    return TUTTI_OK;
}

static void count_record(tutti_ofrecord_file *file, int64_t length) {
    file->offset += HEADER_BYTES + length;
    file->record++;
}

tutti_status tutti_ofrecord_file_next(tutti_ofrecord_file *file, tutti_ofrecord_span *record_out) {
    int64_t length;
    *record_out = (tutti_ofrecord_span){NULL, 0};
    TUTTI_TRY(read_length(file, &length));
    if (length == 0) return TUTTI_OK;
    if ((size_t)length > file->capacity) {
        uint8_t *memory = realloc(file->memory, (size_t)length);
        if (memory == NULL)
            return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for record %lld of %lld bytes", file->path,
                              (long long)file->record, (long long)length);
        file->memory = memory;
        file->capacity = (size_t)length;
    }
    TUTTI_TRY(read_exactly(file, file->memory, (size_t)length));
    count_record(file, length);
    *record_out = (tutti_ofrecord_span){file->memory, (size_t)length};
    return TUTTI_OK;
}

tutti_status tutti_ofrecord_file_skip(tutti_ofrecord_file *file, bool *end_out) {
    int64_t length;
    TUTTI_TRY(read_length(file, &length));
    *end_out = length == 0;
    if (length == 0) return TUTTI_OK;
    if (fseeko(file->stream, length, SEEK_CUR) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", file->path, strerror(errno));
    count_record(file, length);
    return TUTTI_OK;
}
