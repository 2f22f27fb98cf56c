/*
 * Seals of small frames on a proved connection: a MAC, under the connection's own key, of which side sends, the how-manieth
 * of its frames it is, and the frame. So nobody else can make, change, repeat, reorder or turn back a frame unnoticed. It
 * hides nothing.
 */
#ifndef TUTTI_SEAL_H
#define TUTTI_SEAL_H

#include "bootstrap/base/hmac.h"
#include "comm/transports/transport.h"

#define TUTTI_SEAL_BYTES TUTTI_SHA256_BYTES

/* Of the number-th frame, counted from 0, that this side sends (`ours`), or that the other one does. */
void tutti_seal_make(const tutti_connection *connection, bool ours, uint64_t number, const void *frame, size_t bytes,
                     uint8_t seal_out[TUTTI_SEAL_BYTES]);
/* Is it the other side's seal of its number-th frame? */
bool tutti_seal_check(const tutti_connection *connection, uint64_t number, const void *frame, size_t bytes,
                      const uint8_t seal[TUTTI_SEAL_BYTES]);

#endif
