/*
 * Seals of small frames on a proved connection: a MAC, under the connection's own key, of which side sends, the how-manieth
 * of its frames it is, and the frame. So nobody else can make, change, repeat, reorder or turn back a frame unnoticed. It
 * hides nothing.
 */
#ifndef TUTTI_FRAME_MAC_H
#define TUTTI_FRAME_MAC_H

#include "bootstrap/base/hmac.h"
#include "comm/net/transport/transport.h"

#define TUTTI_FRAME_MAC_BYTES TUTTI_SHA256_BYTES

/* Of the number-th frame, counted from 0, that this side sends (`ours`), or that the other one does. */
void tutti_frame_mac_make(const tutti_connection *connection, bool ours, uint64_t number, const void *frame,
                          size_t bytes, uint8_t seal_out[TUTTI_FRAME_MAC_BYTES]);
/* Is it the other side's MAC of its number-th frame? */
bool tutti_frame_mac_check(const tutti_connection *connection, uint64_t number, const void *frame, size_t bytes,
                           const uint8_t seal[TUTTI_FRAME_MAC_BYTES]);

#endif
