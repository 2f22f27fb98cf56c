/*
 * One TCP connection, as fast as one thread can use it: the reference for the libraries' transfers over a network.
 * Functions return -1 after a line on standard error.
 */
#ifndef BENCH_PEERS_WIRE_H
#define BENCH_PEERS_WIRE_H

#include <stddef.h>

/* Returns a listening socket; address NULL: all addresses. */
int wire_listen(const char *address, int port);
/* Returns the next connection. congestion: name of a congestion control, or NULL for the system's choice; here and
 * below. */
int wire_accept(int listener, const char *congestion);
/* Retries for patience_ms. */
int wire_connect(const char *address, int port, int patience_ms, const char *congestion);

/* Changes the congestion control of a connection. */
int wire_set_congestion(int fd, const char *congestion);

typedef enum wire_wait { WIRE_SPIN, WIRE_YIELD, WIRE_SLEEP } wire_wait;

/* Sends and receives at the same time, as far as the socket permits, up to `piece` bytes per call. */
typedef struct wire_job {
    const void *src;
    void *dst;
    size_t send_bytes, recv_bytes, piece;
    wire_wait wait;
} wire_job;
int wire_exchange(int fd, const wire_job *job);

#endif
