/*
 * Writer of safetensors files.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ddp/trainer/checkpoint/safetensors.h"

#define PATH_BYTES   4096
#define LENGTH_BYTES 8
#define ALIGN_BYTES  8 /* the header is padded with blanks to align the tensors */

/* Offsets count from the end of the header. */
static void write_header(FILE *file, const tutti_safetensors *content) {
    const char *comma = "";
    fputs("{", file);
    if (content->ntexts > 0) {
        fputs("\"__metadata__\":{", file);
        for (int i = 0; i < content->ntexts; i++)
            fprintf(file, "%s\"%s\":\"%s\"", i > 0 ? "," : "", content->texts[i].key, content->texts[i].value);
        fputs("}", file);
        comma = ",";
    }
    size_t offset = 0;
    for (int i = 0; i < content->nentries; i++, comma = ",") {
        const tutti_safetensors_entry *entry = &content->entries[i];
        size_t end = offset + entry->count * sizeof(float);
        fprintf(file, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", comma, entry->name);
        for (int d = 0; d < entry->ndims; d++) fprintf(file, "%s%lld", d > 0 ? "," : "", (long long)entry->dims[d]);
        fprintf(file, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    fputs("}", file);
}

tutti_status tutti_safetensors_make_header(tutti_safetensors *content, char **header_out, size_t *bytes_out) {
    char *header = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&header, &bytes);
    if (memory == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the header");
    fwrite((char[LENGTH_BYTES]){0}, 1, LENGTH_BYTES, memory);
    write_header(memory, content);
    for (long written = ftell(memory); written % ALIGN_BYTES != 0; written++) fputc(' ', memory);
    if (fclose(memory) != 0) {
        free(header);
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the header");
    }
    for (int i = 0; i < LENGTH_BYTES; i++) header[i] = (char)((uint64_t)(bytes - LENGTH_BYTES) >> (8 * i) & 255);
    int64_t offset = (int64_t)bytes;
    for (int i = 0; i < content->nentries; i++) {
        content->entries[i].offset = offset;
        offset += (int64_t)(content->entries[i].count * sizeof(float));
    }
    *header_out = header, *bytes_out = bytes;
    return TUTTI_OK;
}

static tutti_status write_content(FILE *file, tutti_safetensors *content) {
    char *header;
    size_t bytes;
    TUTTI_TRY(tutti_safetensors_make_header(content, &header, &bytes));
    fwrite(header, 1, bytes, file);
    free(header);
    for (int i = 0; i < content->nentries; i++)
        fwrite(content->entries[i].data, sizeof(float), content->entries[i].count, file);
    if (fflush(file) != 0 || ferror(file) || fsync(fileno(file)) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s", strerror(errno));
    return TUTTI_OK;
}

/* Makes the new name survive a crash. Some file systems cannot sync a folder; that is ignored. */
static void sync_folder_of(const char *path) {
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) *slash = '\0';
    int fd = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

tutti_status tutti_safetensors_rename(const char *temporary, const char *path) {
    if (rename(temporary, path) != 0)
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s cannot be renamed to its final name: %s", temporary, strerror(errno));
    sync_folder_of(path);
    return TUTTI_OK;
}

tutti_status tutti_safetensors_write(const char *path, tutti_safetensors *content) {
    char temporary[PATH_BYTES];
    if (snprintf(temporary, sizeof temporary, "%s.%d.tmp", path, (int)getpid()) >= PATH_BYTES)
        return tutti_fail(TUTTI_ERR_CONFIG, "%s: the path is too long", path);
    FILE *file = fopen(temporary, "wbe");
    if (file == NULL) return tutti_fail(TUTTI_ERR_SYSTEM, "%s: cannot be written: %s", temporary, strerror(errno));
    tutti_status status = write_content(file, content);
    if (fclose(file) != 0 && status == TUTTI_OK) status = tutti_fail(TUTTI_ERR_SYSTEM, "%s", strerror(errno));
    if (status == TUTTI_OK) status = tutti_safetensors_rename(temporary, path);
    if (status != TUTTI_OK) {
        unlink(temporary);
        return tutti_fail(status, "%s: writing failed: %s", path, tutti_last_error());
    }
    return TUTTI_OK;
}
