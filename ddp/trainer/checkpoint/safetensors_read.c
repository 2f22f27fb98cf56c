/*
 * Reader of safetensors files. The header is JSON of one fixed shape, so it is read by recursive descent, and
 * anything unexpected is an error with its offset. Every number from the file is bounded before it is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/trainer/checkpoint/safetensors.h"

#define HEADER_BYTES_MOST (16 << 20)
#define LENGTH_BYTES      8

typedef struct parser {
    const char *path, *text;
    size_t at, bytes; /* position in the header, and its size */
    size_t data_bytes;
    tutti_safetensors *content;
} parser;

static tutti_status fail_expected(const parser *p, const char *expected) {
    return tutti_fail(TUTTI_ERR_DATA,
                      "%s: at offset %zu of the file expected %s; the file is not a checkpoint, or it is damaged",
                      p->path, p->at + LENGTH_BYTES, expected);
}

static void skip_blanks(parser *p) {
    while (p->at < p->bytes && strchr(" \t\r\n", p->text[p->at]) != NULL) p->at++;
}

/* Consumes `character` if it comes next. */
static bool take(parser *p, char character) {
    skip_blanks(p);
    if (p->at >= p->bytes || p->text[p->at] != character) return false;
    p->at++;
    return true;
}

static tutti_status expect(parser *p, char character) {
    char name[] = {'\'', character, '\'', '\0'};
    return take(p, character) ? TUTTI_OK : fail_expected(p, name);
}

static tutti_status read_text(parser *p, char text_out[TUTTI_SAFETENSORS_NAME_BYTES]) {
    TUTTI_TRY(expect(p, '"'));
    size_t count = 0;
    for (; p->at < p->bytes && p->text[p->at] != '"'; p->at++) {
        if (p->text[p->at] == '\\') return fail_expected(p, "a text without escapes");
        if (count + 1 == TUTTI_SAFETENSORS_NAME_BYTES) return fail_expected(p, "a shorter text");
        text_out[count++] = p->text[p->at];
    }
    text_out[count] = '\0';
    return expect(p, '"');
}

static tutti_status read_number(parser *p, int64_t *number_out) {
    skip_blanks(p);
    int64_t number = 0;
    size_t start = p->at;
    for (; p->at < p->bytes && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++) {
        if (number > INT64_C(1) << 50) return fail_expected(p, "a smaller number");
        number = number * 10 + (p->text[p->at] - '0');
    }
    if (p->at == start) return fail_expected(p, "a number");
    *number_out = number;
    return TUTTI_OK;
}

/* "[n, n, ...]", up to `most` numbers. */
static tutti_status read_numbers(parser *p, int most, int64_t *numbers_out, int *count_out) {
    int count = 0;
    TUTTI_TRY(expect(p, '['));
    if (!take(p, ']')) {
        do {
            if (count == most) return fail_expected(p, "fewer numbers");
            TUTTI_TRY(read_number(p, &numbers_out[count++]));
        } while (take(p, ','));
        TUTTI_TRY(expect(p, ']'));
    }
    *count_out = count;
    return TUTTI_OK;
}

static tutti_status read_metadata(parser *p) {
    TUTTI_TRY(expect(p, '{'));
    if (take(p, '}')) return TUTTI_OK;
    do {
        tutti_safetensors *content = p->content;
        void *more = realloc(content->texts, (size_t)(content->ntexts + 1) * sizeof *content->texts);
        if (more == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for its header", p->path);
        content->texts = more;
        tutti_safetensors_text *text = &content->texts[content->ntexts];
        TUTTI_TRY(read_text(p, text->key));
        TUTTI_TRY(expect(p, ':'));
        TUTTI_TRY(read_text(p, text->value));
        content->ntexts++;
    } while (take(p, ','));
    return expect(p, '}');
}

/* Checks that the tensor's data lies in the file and fits its shape. */
static tutti_status place_entry(const parser *p, const int64_t offsets[2], tutti_safetensors_entry *entry) {
    int64_t count = 1, most = (int64_t)(p->data_bytes / sizeof(float));
    for (int d = 0; d < entry->ndims; d++) {
        if (entry->dims[d] > 0 && count > most / entry->dims[d]) return fail_expected(p, "a shape that fits the file");
        count *= entry->dims[d];
    }
    if (offsets[0] > offsets[1] || offsets[1] > (int64_t)p->data_bytes || offsets[0] % (int64_t)sizeof(float) != 0 ||
        offsets[1] - offsets[0] != count * (int64_t)sizeof(float))
        return fail_expected(p, "data_offsets that fit the shape and the file");
    entry->count = (size_t)count;
    entry->offset = (int64_t)(LENGTH_BYTES + p->bytes) + offsets[0];
    return TUTTI_OK;
}

static tutti_status read_entry(parser *p, tutti_safetensors_entry *entry) {
    int64_t offsets[2] = {0, 0};
    int noffsets = 0;
    bool typed = false;
    TUTTI_TRY(expect(p, '{'));
    do {
        char key[TUTTI_SAFETENSORS_NAME_BYTES];
        TUTTI_TRY(read_text(p, key));
        TUTTI_TRY(expect(p, ':'));
        if (strcmp(key, "dtype") == 0) {
            TUTTI_TRY(read_text(p, key));
            if (strcmp(key, "F32") != 0) return fail_expected(p, "the type F32");
            typed = true;
        } else if (strcmp(key, "shape") == 0) {
            TUTTI_TRY(read_numbers(p, TUTTI_SAFETENSORS_DIMS, entry->dims, &entry->ndims));
        } else if (strcmp(key, "data_offsets") == 0) {
            TUTTI_TRY(read_numbers(p, 2, offsets, &noffsets));
        } else {
            return fail_expected(p, "dtype, shape or data_offsets");
        }
    } while (take(p, ','));
    TUTTI_TRY(expect(p, '}'));
    if (!typed || noffsets != 2) return fail_expected(p, "dtype, shape and data_offsets");
    return place_entry(p, offsets, entry);
}

static tutti_status read_header(parser *p) {
    tutti_safetensors *content = p->content;
    TUTTI_TRY(expect(p, '{'));
    if (take(p, '}')) return TUTTI_OK;
    do {
        tutti_safetensors_entry entry = {.ndims = 0};
        TUTTI_TRY(read_text(p, entry.name));
        TUTTI_TRY(expect(p, ':'));
        if (strcmp(entry.name, "__metadata__") == 0) {
            TUTTI_TRY(read_metadata(p));
            continue;
        }
        TUTTI_TRY(read_entry(p, &entry));
        void *more = realloc(content->entries, (size_t)(content->nentries + 1) * sizeof *content->entries);
        if (more == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for its header", p->path);
        content->entries = more;
        content->entries[content->nentries++] = entry;
    } while (take(p, ','));
    return expect(p, '}');
}

static int by_name(const void *a, const void *b) {
    const tutti_safetensors_entry *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int by_place(const void *a, const void *b) {
    const tutti_safetensors_entry *const *left = a, *const *right = b;
    if ((*left)->offset != (*right)->offset) return (*left)->offset < (*right)->offset ? -1 : 1;
    return ((*left)->count > (*right)->count) - ((*left)->count < (*right)->count);
}

/* Checks that no name occurs twice, and that the tensors follow each other without gaps or overlaps to the end of
 * the file, as the format requires, so that nothing is hidden in a file. `sorted` has room for all entries. */
static tutti_status check_whole(const parser *p, const tutti_safetensors_entry **sorted) {
    const tutti_safetensors *content = p->content;
    size_t count = (size_t)content->nentries, place = 0;
    for (size_t i = 0; i < count; i++) sorted[i] = &content->entries[i];
    qsort(sorted, count, sizeof *sorted, by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return tutti_fail(TUTTI_ERR_DATA, "%s: tensor %s occurs twice, expected once; the file is damaged", p->path,
                              sorted[i]->name);
    qsort(sorted, count, sizeof *sorted, by_place);
    for (size_t i = 0; i < count; i++) {
        size_t start = (size_t)sorted[i]->offset - LENGTH_BYTES - p->bytes;
        if (start != place)
            return tutti_fail(TUTTI_ERR_DATA,
                              "%s: tensor %s begins at byte %zu of the data, expected at %zu, where the previous one "
                              "ends; the file is damaged",
                              p->path, sorted[i]->name, start, place);
        place += sorted[i]->count * sizeof(float);
    }
    if (place == p->data_bytes) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_DATA, "%s: %zu bytes follow the last tensor, expected none; the file is damaged",
                      p->path, p->data_bytes - place);
}

static tutti_status read_all(parser *p) {
    TUTTI_TRY(read_header(p));
    skip_blanks(p);
    if (p->at != p->bytes) return fail_expected(p, "the end of the header");
    const tutti_safetensors_entry **sorted = malloc(((size_t)p->content->nentries + 1) * sizeof *sorted);
    if (sorted == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for its header", p->path);
    tutti_status status = check_whole(p, sorted);
    free(sorted);
    return status;
}

static tutti_status read_file(const char *path, int64_t file_bytes, tutti_safetensors *content) {
    uint8_t length[LENGTH_BYTES];
    uint64_t header_bytes = 0;
    if (pread(content->fd, length, sizeof length, 0) != sizeof length)
        return tutti_fail(TUTTI_ERR_DATA, "%s: truncated at offset %lld, expected 8 bytes with the header's length",
                          path, (long long)file_bytes);
    for (int i = 0; i < LENGTH_BYTES; i++) header_bytes |= (uint64_t)length[i] << (8 * i);
    if (header_bytes > HEADER_BYTES_MOST || (int64_t)header_bytes > file_bytes - LENGTH_BYTES)
        return tutti_fail(TUTTI_ERR_DATA,
                          "%s: at offset 0 the header's length is %llu, expected at most %lld; the file is not in the "
                          "safetensors format, or it is truncated",
                          path, (unsigned long long)header_bytes, (long long)(file_bytes - LENGTH_BYTES));
    size_t data_bytes = (size_t)file_bytes - LENGTH_BYTES - (size_t)header_bytes;
    char *header = malloc((size_t)header_bytes + 1);
    tutti_status status = TUTTI_OK;
    if (header == NULL)
        status = tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for its header, %llu bytes", path,
                            (unsigned long long)header_bytes);
    else if (pread(content->fd, header, header_bytes, LENGTH_BYTES) != (ssize_t)header_bytes)
        status = tutti_fail(TUTTI_ERR_SYSTEM, "%s: its header of %llu bytes cannot be read: %s", path,
                            (unsigned long long)header_bytes, strerror(errno));
    parser p = {.path = path, .text = header, .bytes = header_bytes, .data_bytes = data_bytes, .content = content};
    if (status == TUTTI_OK) status = read_all(&p);
    free(header);
    return status;
}

tutti_status tutti_safetensors_open(const char *path, tutti_safetensors *content_out) {
    struct stat about;
    tutti_safetensors content = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (content.fd < 0) return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    tutti_status status = fstat(content.fd, &about) != 0 ? tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno))
                                                         : read_file(path, about.st_size, &content);
    if (status != TUTTI_OK) {
        tutti_safetensors_close(&content);
        return status;
    }
    *content_out = content;
    return TUTTI_OK;
}

static tutti_status read_tensors(tutti_safetensors *content) {
    size_t bytes = 0;
    for (int i = 0; i < content->nentries; i++) bytes += content->entries[i].count * sizeof(float);
    char *next = content->memory = malloc(bytes + 1);
    if (next == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for its %zu bytes", content->path, bytes);
    for (int i = 0; i < content->nentries; i++) {
        tutti_safetensors_entry *entry = &content->entries[i];
        const size_t some = entry->count * sizeof(float);
        entry->data = (void *)next;
        if (pread(content->fd, next, some, entry->offset) != (ssize_t)some)
            return tutti_fail(TUTTI_ERR_SYSTEM, "%s: tensor %s cannot be read whole: %s", content->path, entry->name,
                              strerror(errno));
        next += some;
    }
    return TUTTI_OK;
}

tutti_status tutti_safetensors_read(const char *path, tutti_safetensors *content_out) {
    tutti_safetensors content;
    TUTTI_TRY(tutti_safetensors_open(path, &content));
    const tutti_status status = read_tensors(&content);
    if (status == TUTTI_OK) *content_out = content;
    else tutti_safetensors_close(&content);
    return status;
}

void tutti_safetensors_close(tutti_safetensors *content) {
    free(content->entries);
    free(content->texts);
    free(content->memory);
    if (content->path != NULL && content->fd >= 0) close(content->fd);
    *content = (tutti_safetensors){.fd = -1};
}

const tutti_safetensors_entry *tutti_safetensors_find(const tutti_safetensors *content, const char *name) {
    for (int i = 0; i < content->nentries; i++)
        if (strcmp(content->entries[i].name, name) == 0) return &content->entries[i];
    return NULL;
}

const char *tutti_safetensors_text_of(const tutti_safetensors *content, const char *key) {
    for (int i = 0; i < content->ntexts; i++)
        if (strcmp(content->texts[i].key, key) == 0) return content->texts[i].value;
    return NULL;
}
