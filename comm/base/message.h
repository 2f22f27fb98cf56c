/*
 * A point-to-point call.
 */
#ifndef TUTTI_MESSAGE_H
#define TUTTI_MESSAGE_H

#include "comm/base/comm.h"

/* Instead of a GPU's index: the buffers are host memory. */
#define TUTTI_PLACE_HOST (-1)

typedef struct tutti_message {
    bool sends;
    const void *src;
    void *dst;
    size_t bytes, item_bytes;
    int peer;
    int64_t tag;
    int64_t timeout_ms; /* 0: the communicator's timeout */
    tutti_received *received;
    int gpu; /* GPU that holds the buffer; TUTTI_PLACE_HOST */
    void *stream;
} tutti_message;

#endif
