/*
 * Both ends of a pipe in one process, for the tests that every transport must pass, whatever it is made of: a body runs on a
 * fresh pair of each transport that this machine has, and on bundles (comm/net/transport/multi_socket.h) of those that are made of
 * sockets.
 */
#ifndef TUTTI_TESTS_PIPES_H
#define TUTTI_TESTS_PIPES_H

#include <stddef.h>

#include "comm/net/transport/transport.h"

#define PIPES_PATIENCE_MS 20000

typedef struct pipes_pair {
    const tutti_transport *transport; /* the table of both ends */
    const tutti_transport *of;        /* what they are made of: that itself, or a bundle's lanes */
    int nlanes;
    tutti_pipe *a, *b;
} pipes_pair;

/* Returns a status, and may close an end, setting it to NULL. */
typedef tutti_status (*pipes_body)(pipes_pair *p);

/* The body on a fresh pair of each transport that is to be had; the others say why not. Asserts that all went well. */
void pipes_each(pipes_body body);
/* Calls back with each kind of pipe: `of` and `nlanes` are set. */
void pipes_each_kind(void (*each)(const pipes_pair *kind, void *context), void *context);
/* A fresh pair, of which `of` and `nlanes` are set; both ends open at about the same time. */
tutti_status pipes_open(pipes_pair *p);

/* Until both ends have sent and received what was posted, or PIPES_PATIENCE_MS are over. */
tutti_status pipes_drive(pipes_pair *p);
/* Until nothing moves for a moment. */
tutti_status pipes_settle(pipes_pair *p);
/* Posts one part. */
tutti_status pipes_send(tutti_pipe *pipe, const void *data, size_t bytes);

/* A pattern that depends on the place and the seed; and the check for it. */
void pipes_fill(unsigned char *data, size_t bytes, unsigned seed);
tutti_status pipes_compare(const unsigned char *data, size_t bytes, unsigned seed);

#endif
