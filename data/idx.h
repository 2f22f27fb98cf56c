/*
 * Reader of IDX files (MNIST's format), plain or gzipped.
 */
#ifndef TUTTI_DATA_IDX_H
#define TUTTI_DATA_IDX_H

#include <stdint.h>

#include <tutti/tutti.h>

#define TUTTI_IDX_DIMS 4

/* Unsigned bytes, row-major. */
typedef struct tutti_idx {
    int ndims;
    int64_t dims[TUTTI_IDX_DIMS];
    uint8_t *data; /* owned; free with tutti_idx_close */
} tutti_idx;

/* Reads a file of unsigned bytes in `ndims` dimensions. Its first bytes, not its name, show whether it is gzipped.
 * Fails with TUTTI_ERR_DATA for a file of another format, or one that is truncated or too long; the error names the
 * file, the offset and what was expected there. Offsets are those of the unpacked file. */
tutti_status tutti_idx_open(const char *path, int ndims, tutti_idx *idx_out);
void tutti_idx_close(tutti_idx *idx);

#endif
