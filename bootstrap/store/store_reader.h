/*
 * Reads the fields of a complete request one after the other, without going back.
 */
#ifndef TUTTI_BOOTSTRAP_STORE_READER_H
#define TUTTI_BOOTSTRAP_STORE_READER_H

#include <stdint.h>
#include <string.h>

#include "bootstrap/store/store_table.h"

typedef struct reader {
    const uint8_t *next;
} reader;

static inline uint64_t take_u64(reader *fields) {
    uint64_t value;
    memcpy(&value, fields->next, sizeof value);
    fields->next += sizeof value;
    return value;
}

static inline uint32_t take_u32(reader *fields) {
    uint32_t value;
    memcpy(&value, fields->next, sizeof value);
    fields->next += sizeof value;
    return value;
}

static inline tutti_store_bytes take_bytes(reader *fields) {
    size_t bytes = take_u64(fields);
    tutti_store_bytes taken = {fields->next, bytes};
    fields->next += bytes;
    return taken;
}

static inline tutti_store_bytes value_of(const tutti_store_entry *entry) {
    if (entry == NULL || !entry->has_value) return (tutti_store_bytes){NULL, 0};
    return (tutti_store_bytes){entry->value, entry->value_bytes};
}

#endif
