/*
 * Files in the safetensors format (huggingface/safetensors): eight bytes with the header's length, a JSON header
 * with each tensor's type, shape and position, the tensors. Supported here: float32 tensors, and the header's
 * "__metadata__", a map of strings.
 */
#ifndef TUTTI_TRAINER_SAFETENSORS_H
#define TUTTI_TRAINER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <tutti/tutti.h>

#define TUTTI_SAFETENSORS_NAME_BYTES 128
#define TUTTI_SAFETENSORS_DIMS       8

typedef struct tutti_safetensors_entry {
    char name[TUTTI_SAFETENSORS_NAME_BYTES];
    int ndims;
    int64_t dims[TUTTI_SAFETENSORS_DIMS];
    size_t count;
    int64_t offset; /* offset of its first byte in the file */
    float *data;    /* tutti_safetensors_write: the caller's; tutti_safetensors_read: in the file's memory */
} tutti_safetensors_entry;

typedef struct tutti_safetensors_text {
    char key[TUTTI_SAFETENSORS_NAME_BYTES], value[TUTTI_SAFETENSORS_NAME_BYTES];
} tutti_safetensors_text;

/* The content of a file. */
typedef struct tutti_safetensors {
    tutti_safetensors_entry *entries;
    int nentries;
    tutti_safetensors_text *texts; /* "__metadata__" */
    int ntexts;
    const char *path; /* path of an open file, the caller's; fd is its descriptor, below 0: none */
    int fd;
    void *memory; /* memory of the tensors, or NULL; freed by close */
} tutti_safetensors;

/* Makes the header. The tensors follow it in the order of the entries, whose offsets are filled in. The caller
 * frees the header. Names and texts must not need JSON escapes. */
tutti_status tutti_safetensors_make_header(tutti_safetensors *content, char **header_out, size_t *bytes_out);

/* Renames a file that has been written and synced to its final name, and syncs the folder. */
tutti_status tutti_safetensors_rename(const char *temporary, const char *path);

/* Writes to a temporary name beside `path`, syncs it, renames it, and syncs the folder: a reader sees the old
 * file or the whole new one. */
tutti_status tutti_safetensors_write(const char *path, tutti_safetensors *content);

/* Reads the header, and keeps the file open for its tensors. `path` must stay valid until close. A foreign or
 * truncated file fails with TUTTI_ERR_DATA; the error gives name, offset and what was expected. */
tutti_status tutti_safetensors_open(const char *path, tutti_safetensors *content_out);
/* As tutti_safetensors_open, and reads all tensors. */
tutti_status tutti_safetensors_read(const char *path, tutti_safetensors *content_out);
void tutti_safetensors_close(tutti_safetensors *content);

/* NULL: not found. */
const tutti_safetensors_entry *tutti_safetensors_find(const tutti_safetensors *content, const char *name);
const char *tutti_safetensors_text_of(const tutti_safetensors *content, const char *key);

#endif
