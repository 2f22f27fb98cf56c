/*
 * The buffers of the store's connections.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/store/store_connection.h"

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
