/*
 * Writes records, for tutti-ofrecord: lists are packed, as protobuf's own writers do.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "data/ofrecord.h"

#define TAG(number) ((uint8_t)((number) << 3 | 2)) /* a field of bytes */

static void put(tutti_ofrecord_message *message, const void *data, size_t bytes) {
    if (message->bytes + bytes > message->capacity) {
        size_t capacity = 2 * (message->bytes + bytes);
        uint8_t *grown = realloc(message->data, capacity);
        message->failed = message->failed || grown == NULL;
        if (grown == NULL) return;
        message->data = grown;
        message->capacity = capacity;
    }
    if (bytes > 0) memcpy(message->data + message->bytes, data, bytes);
    message->bytes += bytes;
}

static size_t varint(uint64_t value, uint8_t bytes_out[10]) {
    size_t count = 0;
    for (; value >= 0x80; value >>= 7) bytes_out[count++] = (uint8_t)(value | 0x80);
    bytes_out[count++] = (uint8_t)value;
    return count;
}

static size_t varint_bytes(uint64_t value) {
    uint8_t bytes[10];
    return varint(value, bytes);
}

static void put_length(tutti_ofrecord_message *message, uint8_t tag, size_t length) {
    uint8_t bytes[11] = {tag};
    put(message, bytes, 1 + varint(length, bytes + 1));
}

static size_t field_bytes(size_t length) {
    return 1 + varint_bytes(length) + length;
}

/* Writes all that precedes a list's values of `bytes` bytes. */
static void put_entry(tutti_ofrecord_message *message, const char *name, tutti_ofrecord_kind kind, size_t bytes) {
    const size_t name_bytes = strlen(name), list = field_bytes(bytes), feature = field_bytes(list);
    put_length(message, TAG(1), field_bytes(name_bytes) + field_bytes(feature));
    put_length(message, TAG(1), name_bytes);
    put(message, name, name_bytes);
    put_length(message, TAG(2), feature);
    put_length(message, TAG(kind), list);
    put_length(message, TAG(1), bytes);
}

void tutti_ofrecord_put_floats(tutti_ofrecord_message *message, const char *name, const float *values, size_t count) {
    put_entry(message, name, TUTTI_OFRECORD_FLOAT, count * sizeof *values);
    put(message, values, count * sizeof *values);
}

void tutti_ofrecord_put_bytes(tutti_ofrecord_message *message, const char *name, const void *data, size_t bytes) {
    put_entry(message, name, TUTTI_OFRECORD_BYTES, bytes);
    put(message, data, bytes);
}

void tutti_ofrecord_put_integers(tutti_ofrecord_message *message, const char *name, tutti_ofrecord_kind kind,
                                 const int64_t *values, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes += varint_bytes((uint64_t)values[i]);
    put_entry(message, name, kind, bytes);
    for (size_t i = 0; i < count; i++) {
        uint8_t coded[10];
        put(message, coded, varint((uint64_t)values[i], coded));
    }
}

tutti_status tutti_ofrecord_write(FILE *to, const char *path, tutti_ofrecord_message *message) {
    uint8_t header[8];
    if (message->failed) return tutti_fail(TUTTI_ERR_MEMORY, "%s: no memory for a record", path);
    for (int i = 0; i < 8; i++) header[i] = (uint8_t)((uint64_t)message->bytes >> (8 * i));
    if (fwrite(header, 1, sizeof header, to) != sizeof header ||
        fwrite(message->data, 1, message->bytes, to) != message->bytes)
        return tutti_fail(TUTTI_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    message->bytes = 0;
    return TUTTI_OK;
}

tutti_status tutti_ofrecord_part_path(const char *folder, const char *prefix, int digits, int number, char *path_out,
                                      size_t capacity) {
    if (snprintf(path_out, capacity, "%s/%s%0*d", folder, prefix, digits > 0 ? digits : 1, number) < (int)capacity)
        return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_ARGUMENT, "%.200s...: the path is too long", folder);
}
