/*
 * Scans a client's input before any of it is trusted; grows and shrinks its buffers.
 *
 * A table gives the fields of each op. The first request is scanned field by field as its bytes arrive, and never
 * from the start again; lengths and counts are checked against their bounds as soon as they are known, so a client
 * cannot make the server hold more than it has really sent.
 */
#include "bootstrap/store/store_connection.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/store/store_wire.h"

typedef struct request_shape {
    const char *fields; /* k key, v value, 4 uint32, 8 int64 */
    bool counted;       /* a uint64 count comes first; the fields are repeated that many times */
} request_shape;

static const request_shape shapes[TUTTI_STORE_OP_COUNT] = {
    [TUTTI_STORE_VALIDATE] = {.fields = "4"},
    [TUTTI_STORE_SET] = {.fields = "kv"},
    [TUTTI_STORE_COMPARE_SET] = {.fields = "kvv"},
    [TUTTI_STORE_GET] = {.fields = "k"},
    [TUTTI_STORE_ADD] = {.fields = "k8"},
    [TUTTI_STORE_CHECK] = {.fields = "k", .counted = true},
    [TUTTI_STORE_WAIT] = {.fields = "k", .counted = true},
    [TUTTI_STORE_GETNUMKEYS] = {.fields = ""},
    [TUTTI_STORE_DELETE_KEY] = {.fields = "k"},
    [TUTTI_STORE_APPEND] = {.fields = "kv"},
    [TUTTI_STORE_MULTI_GET] = {.fields = "k", .counted = true},
    [TUTTI_STORE_MULTI_SET] = {.fields = "kv", .counted = true},
    [TUTTI_STORE_CANCEL_WAIT] = {.fields = ""},
    [TUTTI_STORE_PING] = {.fields = "4"},
    [TUTTI_STORE_QUEUE_PUSH] = {.fields = "kv"},
    [TUTTI_STORE_QUEUE_POP] = {.fields = "k"},
    [TUTTI_STORE_QUEUE_LEN] = {.fields = "k"},
    [TUTTI_STORE_LIST_KEYS] = {.fields = ""},
    [TUTTI_STORE_BARRIER] = {.fields = "k8"},
    [TUTTI_STORE_CHALLENGE] = {.fields = "v"},
    [TUTTI_STORE_PROVE] = {.fields = "v"},
};

/* Length of the field that begins at data[0..have); 0: not known yet. */
static tutti_status field_bytes(char field, const uint8_t *data, size_t have, size_t *bytes_out) {
    if (field == '4' || field == '8') {
        *bytes_out = (size_t)(field - '0');
        return TUTTI_OK;
    }
    *bytes_out = 0;
    uint64_t length;
    if (have < sizeof length) return TUTTI_OK;
    memcpy(&length, data, sizeof length);
    uint64_t most = field == 'k' ? TUTTI_STORE_MOST_KEY_BYTES : TUTTI_STORE_MOST_VALUE_BYTES;
    if (length > most)
        return tutti_fail(TUTTI_ERR_DATA, "a %s of %llu bytes", field == 'k' ? "key" : "value",
                          (unsigned long long)length);
    *bytes_out = sizeof length + length;
    return TUTTI_OK;
}

static tutti_status begin_scan(const tutti_store_connection *from, uint8_t op, tutti_store_scan *scan) {
    if (op >= TUTTI_STORE_OP_COUNT || shapes[op].fields == NULL)
        return tutti_fail(TUTTI_ERR_DATA, "unknown request %u", op);
    if ((op == TUTTI_STORE_VALIDATE) == from->validated)
        return tutti_fail(TUTTI_ERR_DATA, "the magic number must come first, and once");
    *scan = (tutti_store_scan){.at = 1, .repeats = 1, .counted = !shapes[op].counted};
    return TUTTI_OK;
}

tutti_status tutti_store_scan_request(const tutti_store_connection *from, tutti_store_scan *scan, bool *whole_out) {
    const uint8_t *data = from->in.data + from->in.start;
    size_t have = tutti_store_buffer_used(&from->in);
    *whole_out = false;
    if (have == 0) return TUTTI_OK;
    if (scan->at == 0) TUTTI_TRY(begin_scan(from, data[0], scan));
    const char *fields = shapes[data[0]].fields;
    if (!scan->counted) {
        if (have - scan->at < sizeof scan->repeats) return TUTTI_OK;
        memcpy(&scan->repeats, data + scan->at, sizeof scan->repeats);
        if (scan->repeats > TUTTI_STORE_MOST_KEYS)
            return tutti_fail(TUTTI_ERR_DATA, "a request with %llu keys", (unsigned long long)scan->repeats);
        scan->at += sizeof scan->repeats;
        scan->counted = true;
    }
    while (scan->repeats > 0) {
        if (fields[scan->field] == '\0') {
            scan->field = 0;
            scan->repeats--;
            continue;
        }
        size_t bytes;
        TUTTI_TRY(field_bytes(fields[scan->field], data + scan->at, have - scan->at, &bytes));
        if (scan->at + bytes > TUTTI_STORE_MOST_REQUEST_BYTES)
            return tutti_fail(TUTTI_ERR_DATA, "a request of more than %llu bytes",
                              (unsigned long long)TUTTI_STORE_MOST_REQUEST_BYTES);
        if (bytes == 0 || have - scan->at < bytes) return TUTTI_OK;
        scan->at += bytes;
        scan->field++;
    }
    *whole_out = true;
    return TUTTI_OK;
}

/* The missing bytes of the current field are known once its length has arrived. */
size_t tutti_store_scan_missing(const tutti_store_connection *from) {
    const tutti_store_scan *scan = &from->scan;
    const uint8_t *data = from->in.data + from->in.start;
    size_t have = tutti_store_buffer_used(&from->in), bytes = 0;
    if (have == 0 || scan->at == 0 || !scan->counted || scan->repeats == 0) return 1;
    char field = shapes[data[0]].fields[scan->field];
    if (field == '\0' || field_bytes(field, data + scan->at, have - scan->at, &bytes) != TUTTI_OK || bytes == 0)
        return 1;
    return scan->at + bytes > have ? scan->at + bytes - have : 1;
}

/* ------------------------------------------------------------------------------------------------------ buffers */

enum { MOST_SLACK = 16 << 20 };

size_t tutti_store_buffer_grown(const tutti_store_buffer *buffer, size_t bytes) {
    if (buffer->capacity - buffer->end >= bytes) return buffer->capacity;
    size_t used = tutti_store_buffer_used(buffer);
    return tutti_max_size(used + bytes, tutti_min_size(2 * buffer->capacity, used + MOST_SLACK));
}

static tutti_status resize(tutti_store_buffer *buffer, size_t capacity) {
    size_t used = tutti_store_buffer_used(buffer);
    if (buffer->start > 0 && used > 0) memmove(buffer->data, buffer->data + buffer->start, used);
    buffer->start = 0;
    buffer->end = used;
    uint8_t *data = realloc(buffer->data, capacity); /* moves a long buffer without copying it */
    if (data == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a buffer of %zu bytes", capacity);
    buffer->data = data;
    buffer->capacity = capacity;
    return TUTTI_OK;
}

tutti_status tutti_store_buffer_reserve(tutti_store_buffer *buffer, size_t bytes) {
    size_t capacity = tutti_store_buffer_grown(buffer, bytes);
    return capacity == buffer->capacity ? TUTTI_OK : resize(buffer, capacity);
}

void tutti_store_buffer_free(tutti_store_buffer *buffer) {
    free(buffer->data);
    *buffer = (tutti_store_buffer){0};
}

void tutti_store_buffer_consume(tutti_store_buffer *buffer, size_t bytes) {
    buffer->start += bytes;
    if (buffer->start == buffer->end) tutti_store_buffer_free(buffer);
}

void tutti_store_buffer_trim(tutti_store_buffer *buffer) {
    size_t used = tutti_store_buffer_used(buffer);
    if (used == 0) tutti_store_buffer_free(buffer);
    else if (used <= buffer->capacity / 4) (void)resize(buffer, used);
}
