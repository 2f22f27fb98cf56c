/*
 * MACs of small frames on an authenticated connection. The MAC is computed with the connection's own key over the
 * sending side, the number of the frame in that direction, and the frame. So no third party can forge, change,
 * repeat, reorder or reflect a frame unnoticed. Frames are not encrypted.
 */
#ifndef TUTTI_FRAME_MAC_H
#define TUTTI_FRAME_MAC_H

#include "bootstrap/base/hmac.h"
#include "comm/net/transport/transport.h"

#define TUTTI_FRAME_MAC_BYTES TUTTI_SHA256_BYTES

/* The MAC of frame `number`, counted from 0, of those that this side sends (`ours`), or the other side. */
void tutti_frame_mac_make(const tutti_connection *connection, bool ours, uint64_t number, const void *frame,
                          size_t bytes, uint8_t mac_out[TUTTI_FRAME_MAC_BYTES]);
/* Returns whether `mac` is the other side's MAC of its frame `number`. */
bool tutti_frame_mac_check(const tutti_connection *connection, uint64_t number, const void *frame, size_t bytes,
                           const uint8_t mac[TUTTI_FRAME_MAC_BYTES]);

#endif
