/*
 * TCP: a pipe is a connected stream socket (tests also use UNIX ones).
 *
 * Calls never block. send() hands all parts to the kernel in one call; progress() sends what the kernel did not
 * take. Bytes are received directly into the caller's buffer, as many per call as have arrived. The kernel detects
 * a peer that stopped answering: unanswered data (TCP_USER_TIMEOUT) and unanswered probes end the connection after
 * TUTTI_PEER_TIMEOUT_MS.
 *
 * Invariant: bytes counted by `sent` are the kernel's, so the caller's buffer is free; bytes counted by `received`
 * are in place.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/base/fork.h"
#include "comm/net/transport/socket.h"

/* A receive of at most this many bytes also reads the bytes after it, up to AHEAD_BYTES. */
#define AHEAD_AFTER_BYTES ((size_t)256)
#define AHEAD_BYTES       ((size_t)40 << 10)
/* A send of at most this many bytes is packed into one buffer. */
#define FEW_BYTES ((size_t)4608)

typedef struct tcp_pipe {
    tutti_pipe pipe; /* first */
    int socket;
    size_t call_bytes; /* most bytes of a system call */
    tutti_socket_parts parts;
    char *dst;                       /* where the next byte goes */
    int send_error;                  /* errno after which the connection accepts no more bytes; 0: it does */
    size_t ahead_start, ahead_bytes; /* in `ahead`: received and not requested yet */
    char ahead[AHEAD_BYTES];
} tcp_pipe;

/* ----------------------------------------------------------------------------------------------- opening */

static tutti_status check(void) {
    return TUTTI_OK;
}

static tutti_status tcp_open(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out) {
    int socket = connection->socket;
    tcp_pipe *tcp;
    (void)deadline; /* nothing is exchanged */
    tutti_status status = tutti_socket_tune(socket);
    if (status == TUTTI_OK) status = tutti_calloc(1, sizeof *tcp, &tcp);
    if (status != TUTTI_OK) {
        close(socket);
        return status;
    }
    tcp->pipe.transport = &tutti_tcp_transport;
    tcp->socket = socket;
    tcp->call_bytes = tutti_socket_call_bytes(socket);
    tutti_fork_closes(socket);
    tcp->pipe.lane = connection->lane;
    tcp->pipe.movable = true;
    *pipe_out = &tcp->pipe;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ moving */

/* Most bytes of a call, while `other` bytes are left in the other direction; see socket.h. */
static size_t most_bytes(const tcp_pipe *tcp, size_t other) {
    return tcp->pipe.messages && other <= tcp->call_bytes ? TUTTI_SOCKET_MESSAGE_CALL_BYTES : tcp->call_bytes;
}

/* The next parts, up to the bytes of one call. */
static struct msghdr next_parts(const tutti_socket_parts *parts, size_t most, struct iovec next[TUTTI_SOCKET_PARTS]) {
    size_t left = most, count = 0;
    for (int i = parts->first; i < parts->count && left > 0; i++) {
        next[count] = parts->all[i];
        next[count].iov_len = tutti_min_size(next[count].iov_len, left);
        left -= next[count++].iov_len;
    }
    return (struct msghdr){.msg_iov = next, .msg_iovlen = count};
}

/* Sends few bytes from one buffer: a list of parts costs the kernel more than packing them costs this process. */
static ssize_t send_few(const tcp_pipe *tcp) {
    const tutti_socket_parts *parts = &tcp->parts;
    char all[FEW_BYTES];
    size_t bytes = 0;
    for (int i = parts->first; i < parts->count; i++) {
        memcpy(all + bytes, parts->all[i].iov_base, parts->all[i].iov_len);
        bytes += parts->all[i].iov_len;
    }
    return send(tcp->socket, all, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t send_parts(const tcp_pipe *tcp) {
    struct iovec next[TUTTI_SOCKET_PARTS];
    struct msghdr message = next_parts(&tcp->parts, most_bytes(tcp, tcp->pipe.to_receive - tcp->pipe.received), next);
    return sendmsg(tcp->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* progress() reports a failure, since bytes that the other side sent last may still be there to receive. */
static tutti_status push(tcp_pipe *tcp) {
    bool few = tcp->pipe.to_send - tcp->pipe.sent <= FEW_BYTES;
    ssize_t sent = few ? send_few(tcp) : send_parts(tcp);
    if (sent < 0) {
        if (!tutti_socket_is_passing(errno)) tcp->send_error = errno;
        return TUTTI_OK;
    }
    tcp->pipe.sent += (size_t)sent;
    tcp->pipe.bytes_out += (size_t)sent;
    tutti_socket_parts_drop(&tcp->parts, (size_t)sent);
    return TUTTI_OK;
}

static void count_received(tcp_pipe *tcp, size_t bytes) {
    tcp->dst += bytes;
    tcp->pipe.received += bytes;
    tcp->pipe.bytes_in += bytes;
}

static void take_ahead(tcp_pipe *tcp) {
    size_t bytes = tutti_min_size(tcp->pipe.to_receive - tcp->pipe.received, tcp->ahead_bytes);
    memcpy(tcp->dst, tcp->ahead + tcp->ahead_start, bytes);
    tcp->ahead_start += bytes;
    tcp->ahead_bytes -= bytes;
    count_received(tcp, bytes);
}

/* After few bytes, a header perhaps, more have probably arrived: the same call reads them. */
static tutti_status pull(tcp_pipe *tcp) {
    size_t most = most_bytes(tcp, tcp->pipe.to_send - tcp->pipe.sent);
    size_t wanted = tutti_min_size(tcp->pipe.to_receive - tcp->pipe.received, most);
    bool few = wanted <= AHEAD_AFTER_BYTES;
    ssize_t got = recv(tcp->socket, few ? tcp->ahead : tcp->dst, few ? AHEAD_BYTES : wanted, MSG_DONTWAIT);
    if (got < 0) return tutti_socket_is_passing(errno) ? TUTTI_OK : tutti_socket_fail(&tcp->pipe, errno);
    if (got == 0)
        return tutti_pipe_fail(&tcp->pipe, TUTTI_ERR_PEER_DIED, "tcp: the other side has closed the connection");
    if (few) {
        tcp->ahead_start = 0;
        tcp->ahead_bytes = (size_t)got;
        take_ahead(tcp);
    } else {
        count_received(tcp, (size_t)got);
    }
    return TUTTI_OK;
}

static tutti_status tcp_progress(tutti_pipe *pipe) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool receives = !tutti_pipe_has_received(pipe);
    if (receives) TUTTI_TRY(pull(tcp));
    if (TUTTI_UNLIKELY(tcp->send_error != 0)) return tutti_socket_fail_send(pipe, tcp->send_error, receives);
    return tutti_pipe_has_sent(pipe) ? TUTTI_OK : push(tcp);
}

static tutti_status tcp_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool moves = !tutti_pipe_has_sent(pipe);
    if (!moves) pipe->sent = 0;
    pipe->to_send = tutti_socket_parts_set(&tcp->parts, parts, nparts);
    if (TUTTI_UNLIKELY(moves)) tutti_socket_parts_drop(&tcp->parts, pipe->sent);
    return pipe->to_send == 0 || tcp->send_error != 0 ? TUTTI_OK : push(tcp);
}

static tutti_status tcp_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    tcp->dst = dst;
    if (TUTTI_UNLIKELY(!tutti_pipe_has_received(pipe))) { /* the receive moves to a new buffer */
        tcp->dst += pipe->received;
        return TUTTI_OK;
    }
    pipe->received = 0;
    pipe->to_receive = bytes;
    if (tcp->ahead_bytes > 0 && bytes > 0) take_ahead(tcp);
    return TUTTI_OK;
}

static int sleep_on(tutti_pipe *pipe, short *events_out) {
    const tcp_pipe *tcp = (tcp_pipe *)pipe;
    short events = 0;
    if (!tutti_pipe_has_received(pipe)) events |= POLLIN;
    if (!tutti_pipe_has_sent(pipe)) events |= POLLOUT;
    *events_out = events;
    return tcp->socket;
}

/* ------------------------------------------------------------------------------------------------ ending */

static void tcp_cancel(tutti_pipe *pipe) {
    if (pipe == NULL) return;
    bool cut =
        (pipe->sent != 0 && !tutti_pipe_has_sent(pipe)) || (pipe->received != 0 && !tutti_pipe_has_received(pipe));
    if (cut) tutti_pipe_fail(pipe, TUTTI_ERR_ABORTED, "tcp: a transfer was cut off");
    pipe->to_send = pipe->sent = 0;
    pipe->to_receive = pipe->received = 0;
}

static void tcp_close(tutti_pipe *pipe) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (pipe == NULL) return;
    tutti_socket_close(tcp->socket, /* see_off */ pipe->status == TUTTI_OK);
    free(tcp);
}

/* ------------------------------------------------------------------------------------------------- other */

static void describe(char *text, size_t capacity) {
    char manner[128];
    tutti_socket_manner(manner, sizeof manner);
    snprintf(text, capacity, "kernel sockets; %s", manner);
}

const tutti_transport tutti_tcp_transport = {
    .name = "tcp",
    .capabilities = TUTTI_TRANSPORT_EVERYWHERE | TUTTI_TRANSPORT_SOCKETS,
    .check = check,
    .open = tcp_open,
    .send = tcp_send,
    .recv = tcp_recv,
    .progress = tcp_progress,
    .sleep_on = sleep_on,
    .cancel = tcp_cancel,
    .close = tcp_close,
    .describe = describe,
};
