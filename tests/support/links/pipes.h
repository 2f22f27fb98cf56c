/*
 * Both ends of a pipe in one process, for the tests that every transport must pass: a body runs on a fresh pair of
 * each transport that this machine has, and on bundles (comm/net/transport/multi_socket.h) of the transports that are
 * made of sockets.
 */
#ifndef TUTTI_TESTS_PIPES_H
#define TUTTI_TESTS_PIPES_H

#include <stddef.h>

#include "comm/net/transport/transport.h"

#define PIPES_PATIENCE_MS 20000

typedef struct pipes_pair {
    const tutti_transport *transport; /* the transport of both ends */
    const tutti_transport *of;        /* the transport below: the same, or that of a bundle's lanes */
    int nlanes;
    tutti_pipe *a, *b;
} pipes_pair;

/* Returns a status; may close an end, and then sets it to NULL. */
typedef tutti_status (*pipes_body)(pipes_pair *p);

/* Runs the body on a fresh pair of each available transport; logs why the others are not available. Asserts success. */
void pipes_each(pipes_body body);
/* Calls back with each kind of pipe: `of` and `nlanes` are set. */
void pipes_each_kind(void (*each)(const pipes_pair *kind, void *context), void *context);
/* Opens a fresh pair; `of` and `nlanes` are set. Both ends open at about the same time. */
tutti_status pipes_open(pipes_pair *p);

/* Drives both ends until all posted parts are sent and received, or PIPES_PATIENCE_MS are over. */
tutti_status pipes_drive(pipes_pair *p);
/* Drives both ends until nothing moves for a moment. */
tutti_status pipes_settle(pipes_pair *p);
/* Posts one part. */
tutti_status pipes_send(tutti_pipe *pipe, const void *data, size_t bytes);

/* A pattern that depends on the place and the seed; and the check for it. */
void pipes_fill(unsigned char *data, size_t bytes, unsigned seed);
tutti_status pipes_compare(const unsigned char *data, size_t bytes, unsigned seed);

#endif
