/*
 * A pipe whose other end is an input: it delivers the input in pieces of at most a given number of bytes, and then
 * ends. Bytes sent on it are dropped at once, or kept as an example of an input.
 */
#ifndef TUTTI_TESTS_CANNED_H
#define TUTTI_TESTS_CANNED_H

#include "comm/net/transport/transport.h"

typedef struct canned_pipe {
    tutti_pipe pipe; /* first */
    const uint8_t *next;
    size_t left, piece;
    bool waits; /* where nothing is left, more will come: the pipe does not end */
    bool ahead; /* recv delivers what has come, as tcp does with bytes that it has read ahead */
    char *dst;
    uint8_t *kept; /* buffer for sent bytes; NULL: they are dropped */
    size_t kept_bytes, kept_most;
} canned_pipe;

canned_pipe canned_of(const uint8_t *data, size_t bytes, size_t piece);

#endif
