/*
 * Computes the length of a reply before any of it is built: the server first reserves room for it.
 */
#include "bootstrap/base/common.h"
#include "bootstrap/store/store_connection.h"
#include "bootstrap/store/store_reader.h"
#include "bootstrap/store/store_wire.h"

/* For all requests whose reply is a number or a state. */
enum { SHORT_REPLY_BYTES = 8 };

static size_t blob_bytes(size_t bytes) {
    return sizeof(uint64_t) + bytes;
}

static size_t get_bytes(tutti_store_hub *hub, reader *fields) {
    return blob_bytes(value_of(tutti_store_table_find(hub->table, take_bytes(fields))).bytes);
}

static size_t multi_get_bytes(tutti_store_hub *hub, reader *fields) {
    size_t bytes = 0;
    for (uint64_t left = take_u64(fields); left > 0; left--) bytes += get_bytes(hub, fields);
    return bytes;
}

/* One of the three values, depending on the key's value. */
static size_t compare_set_bytes(tutti_store_hub *hub, reader *fields) {
    size_t now = get_bytes(hub, fields), expected = take_bytes(fields).bytes, desired = take_bytes(fields).bytes;
    return tutti_max_size(now, blob_bytes(tutti_max_size(expected, desired)));
}

static size_t queue_pop_bytes(tutti_store_hub *hub, reader *fields) {
    const tutti_store_entry *entry = tutti_store_table_find(hub->table, take_bytes(fields));
    if (entry == NULL || entry->queue_length == 0) return SHORT_REPLY_BYTES;
    return SHORT_REPLY_BYTES + blob_bytes(tutti_store_table_peek(entry).bytes);
}

size_t tutti_store_reply_bytes(tutti_store_hub *hub, const uint8_t *request) {
    reader fields = {.next = request + 1};
    switch (request[0]) {
    case TUTTI_STORE_GET: return get_bytes(hub, &fields);
    case TUTTI_STORE_MULTI_GET: return multi_get_bytes(hub, &fields);
    case TUTTI_STORE_COMPARE_SET: return compare_set_bytes(hub, &fields);
    case TUTTI_STORE_QUEUE_POP: return queue_pop_bytes(hub, &fields);
    case TUTTI_STORE_CHALLENGE: return TUTTI_STORE_NONCE_BYTES + TUTTI_SHA256_BYTES;
    case TUTTI_STORE_LIST_KEYS: return SHORT_REPLY_BYTES + tutti_store_table_list_bytes(hub->table);
    default: return SHORT_REPLY_BYTES;
    }
}
