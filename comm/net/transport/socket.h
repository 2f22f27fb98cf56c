/*
 * The common part of the transports over sockets (tcp, tls): how a connection is set up, what its errors mean,
 * which bytes of a send are left, and how it ends.
 */
#ifndef TUTTI_SOCKET_H
#define TUTTI_SOCKET_H

#include "comm/net/transport/transport.h"

#define TUTTI_SOCKET_PARTS 4
/* Most bytes of one call; sends and receives alternate after each call. Bytes that wait long in the kernel have
 * left the caches when they are copied on: between bare sockets on a fast link, exchanges of 128 MiB took half the
 * time of those with calls of 1 MiB. BBR also slows down permanently once a call has left bytes waiting, since only
 * connections whose program has nothing more to send are excluded from its estimate of the network (Cardwell and
 * others, BBR, ACM Queue 2016: application-limited samples). With calls of 96 KiB, exchanges between two hosts of
 * one machine took half the time of those with 256 KiB, whatever their size; with reno 15 % more. A message that goes
 * alone is faster in calls of up to 512 KiB, with both: in 0.8 of the time (bench/compare_hosts). */
#define TUTTI_SOCKET_CALL_BYTES         ((size_t)256 << 10)
#define TUTTI_SOCKET_PACED_CALL_BYTES   ((size_t)96 << 10)
#define TUTTI_SOCKET_MESSAGE_CALL_BYTES ((size_t)512 << 10)

/* The unsent parts of a send: all[first] to all[count - 1]. */
typedef struct tutti_socket_parts {
    struct iovec all[TUTTI_SOCKET_PARTS];
    int first, count;
} tutti_socket_parts;

/* Copies the parts that are not empty; returns their bytes. */
size_t tutti_socket_parts_set(tutti_socket_parts *parts, const struct iovec *given, int ngiven);
/* Drops `bytes` bytes that have been sent. */
void tutti_socket_parts_drop(tutti_socket_parts *parts, size_t bytes);

/* Sets timeouts, probes and congestion control from the settings on a TCP connection; leaves other sockets alone. */
tutti_status tutti_socket_tune(int socket);
/* Which of the two limits applies to this connection. */
size_t tutti_socket_call_bytes(int socket);
/* True for errors that may pass soon. */
bool tutti_socket_is_passing(int error);
/* Marks the pipe as failed, with the meaning of its socket's error. */
tutti_status tutti_socket_fail(tutti_pipe *pipe, int error);
/* Nothing can be sent any more. Fails the pipe only if no receive was under way before this call (`receives`), since
 * bytes that the other side sent last may still arrive. Never fails a lane: its multi-socket pipe does. */
tutti_status tutti_socket_fail_send(tutti_pipe *pipe, int error, bool receives);
/* Ends the connection. With see_off it first waits for sent bytes to arrive, while they move or might move soon. */
void tutti_socket_close(int socket, bool see_off);

/* For tutti-info: the congestion control in use, and the number of sockets per peer. */
void tutti_socket_manner(char *text, size_t capacity);

#endif
