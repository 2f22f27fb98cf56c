/*
 * Seals of small frames. See seal.h.
 */
#include "comm/seal.h"

#include <endian.h>

void tutti_seal_make(const tutti_connection *connection, bool ours, uint64_t number, const void *frame, size_t bytes,
                     uint8_t seal_out[TUTTI_SEAL_BYTES]) {
    bool by_caller = ours == connection->called;
    uint64_t counted = htole64(number);
    tutti_hmac mac;
    tutti_hmac_init(&mac, connection->key, sizeof connection->key);
    tutti_hmac_update(&mac, by_caller ? "seal c" : "seal d", 6);
    tutti_hmac_update(&mac, &counted, sizeof counted);
    tutti_hmac_update(&mac, frame, bytes);
    tutti_hmac_final(&mac, seal_out);
}

bool tutti_seal_check(const tutti_connection *connection, uint64_t number, const void *frame, size_t bytes,
                      const uint8_t seal[TUTTI_SEAL_BYTES]) {
    uint8_t expected[TUTTI_SEAL_BYTES];
    tutti_seal_make(connection, /* ours */ false, number, frame, bytes, expected);
    return tutti_hmac_equal(expected, seal, sizeof expected);
}
