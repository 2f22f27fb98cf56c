/*
 * Two processes with a pipe of the transport "verbs" between them, for tests and measurements in the VM (rdma-vm).
 *
 * One serves, the other joins it by TCP; that socket becomes the pipe. Every wait has a limit.
 */
#ifndef TUTTI_TEST_RDMA_PAIR_H
#define TUTTI_TEST_RDMA_PAIR_H

#include "comm/net/transport/verbs.h"

typedef struct rdma_pair {
    bool first;   /* this side serves */
    int listener; /* its */
    const char *address;
    int port;
    tutti_pipe *pipe;
    bool restless;           /* only polls, and never naps, however long it waits */
    unsigned char *out, *in; /* for messages */
} rdma_pair;

/* Parses "serve PORT" or "join ADDRESS PORT". Returns the number of arguments used, 0 if they are wrong. */
int rdma_pair_read(rdma_pair *pair, int argc, char **argv);
/* Meets the other side and opens a new pipe. */
tutti_status rdma_pair_open(rdma_pair *pair);
/* The socket alone. */
tutti_status rdma_pair_meet(rdma_pair *pair, int *socket_out);
void rdma_pair_close(rdma_pair *pair);

/* Start an operation, and drive it until done. */
tutti_status rdma_pair_send(rdma_pair *pair, const void *src, size_t bytes);
tutti_status rdma_pair_recv(rdma_pair *pair, void *dst, size_t bytes);
/* Drives what is in progress until it is done, for at most limit_ms. */
tutti_status rdma_pair_finish(rdma_pair *pair, int limit_ms);

#endif
