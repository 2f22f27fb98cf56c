/*
 * Files in the safetensors format (huggingface/safetensors): eight bytes with the header's length, a JSON header with
 * each tensor's type, shape and place, the tensors. Read and written here: float32 tensors, and the header's
 * "__metadata__", a map of texts.
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
    float *data; /* writing: the caller's; reading: in the file's memory */
    size_t count;
} tutti_safetensors_entry;

typedef struct tutti_safetensors_text {
    char key[TUTTI_SAFETENSORS_NAME_BYTES], value[TUTTI_SAFETENSORS_NAME_BYTES];
} tutti_safetensors_text;

/* A file's content. */
typedef struct tutti_safetensors {
    tutti_safetensors_entry *entries;
    int nentries;
    tutti_safetensors_text *texts; /* "__metadata__" */
    int ntexts;
    void *memory; /* of the tensors, or NULL; freed by close */
} tutti_safetensors;

/* Writes to a temporary name beside `path`, syncs it, renames it, and syncs the folder: whoever looks sees the old
 * file or the whole new one. Names and texts must need no JSON escapes. */
tutti_status tutti_safetensors_write(const char *path, const tutti_safetensors *content);

/* A foreign or truncated file is TUTTI_ERR_DATA with name, offset and what was expected. */
tutti_status tutti_safetensors_read(const char *path, tutti_safetensors *content_out);
void tutti_safetensors_close(tutti_safetensors *content);

/* NULL: not there. */
const tutti_safetensors_entry *tutti_safetensors_find(const tutti_safetensors *content, const char *name);
const char *tutti_safetensors_text_of(const tutti_safetensors *content, const char *key);

#endif
