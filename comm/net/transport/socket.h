/*
 * What the transports over sockets (tcp, tls) have in common: how a connection is set up, what its errors mean, what of a
 * send is left, and how it ends.
 */
#ifndef TUTTI_SOCKET_H
#define TUTTI_SOCKET_H

#include "comm/net/transport/transport.h"

#define TUTTI_SOCKET_PARTS 4
/* Most bytes of one call: sends and receives take turns this often. Bytes that wait long inside the system have left the caches
 * when they are copied on: between bare sockets on a fast link, exchanges of 128 MiB took half the time of those with calls of
 * 1 MiB. BBR also slows down for good once a call has left bytes waiting, since only connections whose program has nothing more to
 * send escape its estimate of the network (Cardwell and others, BBR, ACM Queue 2016: application-limited samples). With calls of
 * 96 KiB, exchanges between two hosts of one machine took half the time of those with 256 KiB, whatever their size; with reno 15 %
 * more. */
#define TUTTI_SOCKET_CALL_BYTES       ((size_t)256 << 10)
#define TUTTI_SOCKET_PACED_CALL_BYTES ((size_t)96 << 10)

/* Of a send: what has not been sent yet, all[first] to all[count - 1]. */
typedef struct tutti_socket_parts {
    struct iovec all[TUTTI_SOCKET_PARTS];
    int first, count;
} tutti_socket_parts;

/* Takes the parts that are not empty; gives their bytes. */
size_t tutti_socket_parts_set(tutti_socket_parts *parts, const struct iovec *given, int ngiven);
/* So many more bytes of them have been sent. */
void tutti_socket_parts_drop(tutti_socket_parts *parts, size_t bytes);

/* Timeouts, probes and congestion control, as the settings say, where it is a TCP connection; others are left as they are. */
tutti_status tutti_socket_tune(int socket);
/* Which of the two holds for this connection. */
size_t tutti_socket_call_bytes(int socket);
/* Not now, but perhaps soon. */
bool tutti_socket_is_passing(int error);
/* Marks the pipe as useless, with what the error of its socket means. */
tutti_status tutti_socket_fail(tutti_pipe *pipe, int error);
/* Nothing can be sent any more. That is told to who comes with nothing to be received (`receives`, before he received): what
 * the other side said last may still be there. Of a lane its bundle tells. */
tutti_status tutti_socket_fail_send(tutti_pipe *pipe, int error, bool receives);
/* Ends the connection: what was sent is waited for, if that is wanted, as long as it moves or might soon. */
void tutti_socket_close(int socket, bool see_off);

/* For transports whose bytes the kernel copies: there is nothing to make known. */
tutti_status tutti_socket_register_memory(void *memory, size_t bytes, void **registration_out);
void tutti_socket_deregister_memory(void *registration);
/* The congestion control that is in use, and how many sockets lead to a peer, for tutti-info. */
void tutti_socket_manner(char *text, size_t capacity);

#endif
