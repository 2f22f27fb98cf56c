/*
 * MACs of small frames. See frame_mac.h.
 */
#include "comm/net/frame_mac.h"

#include <endian.h>

void tutti_frame_mac_make(const tutti_connection *connection, bool ours, uint64_t number, const void *frame,
                          size_t bytes, uint8_t mac_out[TUTTI_FRAME_MAC_BYTES]) {
    bool by_caller = ours == connection->called;
    uint64_t counted = htole64(number);
    tutti_hmac mac;
    tutti_hmac_init(&mac, connection->key, sizeof connection->key);
    tutti_hmac_update(&mac, by_caller ? "frame c" : "frame d", 7);
    tutti_hmac_update(&mac, &counted, sizeof counted);
    tutti_hmac_update(&mac, frame, bytes);
    tutti_hmac_final(&mac, mac_out);
}

bool tutti_frame_mac_check(const tutti_connection *connection, uint64_t number, const void *frame, size_t bytes,
                           const uint8_t mac[TUTTI_FRAME_MAC_BYTES]) {
    uint8_t expected[TUTTI_FRAME_MAC_BYTES];
    tutti_frame_mac_make(connection, /* ours */ false, number, frame, bytes, expected);
    return tutti_hmac_equal(expected, mac, sizeof expected);
}
