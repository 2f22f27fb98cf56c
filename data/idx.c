/*
 * IDX: two zero bytes, the element type, the number of dimensions; each dimension as a big-endian uint32; the
 * elements. zlib reads gzipped and plain files alike.
 */
#include "data/idx.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#define TYPE_UNSIGNED_BYTE 0x08
#define READ_BYTES         (1 << 20)
#define GZIP_TRAILER_BYTES 8 /* checksum and length */

/* A byte of a gzipped file unpacks to at most 1032 bytes: so the file's size limits the sizes in its header. */
#define MOST_PER_BYTE INT64_C(1032)
#define MOST_EXTENT   INT64_C(0x7fffffff)
#define MOST_BYTES    (INT64_MAX / 2)

typedef struct reader {
    const char *path;
    gzFile file;
    int64_t offset;
} reader;

/* Reports that the file ends at offset `at`. */
static tutti_status fail_truncated(const reader *from, int64_t at, int64_t expected) {
    return tutti_fail(TUTTI_ERR_DATA,
                      "%s: truncated at offset %lld%s, expected %lld bytes in all; fetch the file again", from->path,
                      (long long)at, gzdirect(from->file) ? "" : " of what is packed in it", (long long)expected);
}

static tutti_status fail_read(const reader *from, int64_t wanted) {
    int error = Z_OK;
    const char *text = gzerror(from->file, &error);
    if (error == Z_ERRNO)
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s: reading at offset %lld: %s", from->path, (long long)from->offset,
                          strerror(errno));
    if (error != Z_OK && error != Z_STREAM_END && error != Z_BUF_ERROR)
        return tutti_fail(TUTTI_ERR_DATA, "%s: damaged gzip data at offset %lld (%s); fetch the file again", from->path,
                          (long long)from->offset, text);
    return fail_truncated(from, from->offset, from->offset + wanted);
}

static tutti_status read_all(reader *from, uint8_t *dst, int64_t bytes) {
    while (bytes > 0) {
        int got = gzread(from->file, dst, (unsigned)(bytes < READ_BYTES ? bytes : READ_BYTES));
        if (got <= 0) return fail_read(from, bytes);
        dst += got;
        bytes -= got;
        from->offset += got;
    }
    return TUTTI_OK;
}

/* Checks, before memory is allocated, that the file can have so much data. */
static tutti_status check_claim(const reader *from, int64_t bytes, int64_t file_bytes) {
    if (gzdirect(from->file)) {
        if (file_bytes - from->offset < bytes) return fail_truncated(from, file_bytes, from->offset + bytes);
    } else if (bytes / MOST_PER_BYTE > file_bytes) {
        return tutti_fail(TUTTI_ERR_DATA,
                          "%s: truncated or damaged: its header promises %lld bytes of data, the packed file has %lld "
                          "bytes; fetch the file again",
                          from->path, (long long)bytes, (long long)file_bytes);
    }
    return TUTTI_OK;
}

static tutti_status read_header(reader *from, int ndims, int64_t file_bytes, tutti_idx *idx, int64_t *bytes_out) {
    uint8_t magic[4], extent[4];
    TUTTI_TRY(read_all(from, magic, sizeof magic));
    if (magic[0] != 0 || magic[1] != 0 || magic[2] != TYPE_UNSIGNED_BYTE || magic[3] != ndims)
        return tutti_fail(TUTTI_ERR_DATA,
                          "%s: not the expected IDX file: at offset 0 expected 00 00 %02x %02x (unsigned bytes, %d "
                          "dimensions), found %02x %02x %02x %02x",
                          from->path, TYPE_UNSIGNED_BYTE, ndims, ndims, magic[0], magic[1], magic[2], magic[3]);
    int64_t bytes = 1;
    for (int i = 0; i < ndims; i++) {
        int64_t offset = from->offset;
        TUTTI_TRY(read_all(from, extent, sizeof extent));
        int64_t dim = (int64_t)extent[0] << 24 | extent[1] << 16 | extent[2] << 8 | extent[3];
        if (dim == 0 || dim > MOST_EXTENT)
            return tutti_fail(TUTTI_ERR_DATA, "%s: at offset %lld dimension %d is %lld, expected 1 to %lld", from->path,
                              (long long)offset, i, (long long)dim, (long long)MOST_EXTENT);
        idx->dims[i] = dim;
        bytes = dim > MOST_BYTES / bytes ? MOST_BYTES : bytes * dim; /* check_claim rejects that */
    }
    idx->ndims = ndims;
    *bytes_out = bytes;
    return check_claim(from, bytes, file_bytes);
}

static tutti_status read_file(reader *from, int ndims, int64_t file_bytes, tutti_idx *idx) {
    int64_t bytes = 0;
    TUTTI_TRY(read_header(from, ndims, file_bytes, idx, &bytes));
    idx->data = malloc((size_t)bytes);
    if (idx->data == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for its %lld bytes", from->path, (long long)bytes);
    TUTTI_TRY(read_all(from, idx->data, bytes));
    uint8_t extra;
    int error = Z_OK, got = gzread(from->file, &extra, 1); /* also reads the gzip trailer and checks its checksum */
    gzerror(from->file, &error);
    if (got < 0 || (got == 0 && error != Z_OK && error != Z_STREAM_END)) return fail_read(from, GZIP_TRAILER_BYTES);
    if (got > 0)
        return tutti_fail(TUTTI_ERR_DATA, "%s: expected the end of the file at offset %lld, as its dimensions say",
                          from->path, (long long)from->offset);
    return TUTTI_OK;
}

tutti_status tutti_idx_open(const char *path, int ndims, tutti_idx *idx_out) {
    reader from = {.path = path};
    struct stat about;
    if (stat(path, &about) != 0) return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    from.file = gzopen(path, "rb");
    if (from.file == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    tutti_idx idx = {.data = NULL};
    tutti_status status = read_file(&from, ndims, about.st_size, &idx);
    gzclose(from.file);
    if (status != TUTTI_OK) {
        tutti_idx_close(&idx);
        return status;
    }
    *idx_out = idx;
    return TUTTI_OK;
}

void tutti_idx_close(tutti_idx *idx) {
    free(idx->data);
    idx->data = NULL;
}
