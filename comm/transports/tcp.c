/*
 * TCP: a pipe is a connected stream socket (tests use UNIX ones, too).
 *
 * Calls never block. send() hands the kernel all parts in one call; what it does not take goes with progress(). Bytes come
 * straight into the caller's buffer, as many at a time as there are. A peer that says nothing any more is noticed by the
 * kernel: unanswered data (TCP_USER_TIMEOUT) and unanswered probes end the connection after TUTTI_PEER_TIMEOUT_MS. With
 * TUTTI_TCP_ZEROCOPY the kernel reads large sends from the caller's memory; these count as sent once it needs that no more.
 *
 * Invariant: what `sent` counts is the kernel's, so the caller's buffer is free; what `received` counts is in place.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/fork.h"
#include "comm/transports/transport.h"
#include "comm/transports/zerocopy.h"

#define MOST_PARTS     4
#define MOST_LINGER_NS INT64_C(2000000000)
/* Most bytes of one call. Sends and receives take turns this often: bytes that wait long inside the system have left the
 * caches when they are copied on. Between bare sockets on a fast link, exchanges
 * of 128 MiB took half the time of those with calls of 1 MiB; of 1 MiB, between 0.6 and 1.6 of it. */
#define CALL_BYTES ((size_t)256 << 10)
/* What comes after so few bytes is read with them, up to AHEAD_BYTES. */
#define AHEAD_AFTER_BYTES ((size_t)256)
#define AHEAD_BYTES       ((size_t)8 << 10)
/* Below, copying is cheaper than what the kernel does to lend memory. */
#define ZEROCOPY_BYTES ((size_t)1 << 20)

typedef struct tcp_pipe {
    tutti_pipe pipe; /* first */
    int socket;
    struct iovec parts[MOST_PARTS]; /* not sent yet: [part, nparts) */
    int part, nparts;
    char *dst;      /* where the next byte goes */
    int send_error; /* the connection takes no more; 0: it does */
    size_t handed;  /* bytes of this send that the kernel has; `sent` lacks one of them while it reads them from us */
    tutti_zerocopy zerocopy;
    size_t ahead_start, ahead_bytes; /* of `ahead`: received, and not asked for yet */
    char ahead[AHEAD_BYTES];
} tcp_pipe;

/* ----------------------------------------------------------------------------------------------- opening */

static tutti_status check(void) {
    return TUTTI_OK;
}

static tutti_status choose_congestion(int socket) {
    const char *name = tutti_setting_text(TUTTI_SETTING_TCP_CONGESTION);
    char offered[128] = "";
    if (*name == '\0' || setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0)
        return TUTTI_OK;
    int error = errno;
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "re");
    if (file != NULL && fgets(offered, sizeof offered, file) != NULL) offered[strcspn(offered, "\n")] = '\0';
    if (file != NULL) fclose(file);
    return tutti_fail(TUTTI_ERR_CONFIG, "TUTTI_TCP_CONGESTION=%s: %s; this system allows: %s", name, strerror(error),
                      offered[0] != '\0' ? offered : "it does not say what");
}

static void set_option(int socket, int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value); /* what a system lacks it works without */
}

static tutti_status tune(int socket, tutti_zerocopy *zerocopy) {
    int domain = AF_UNSPEC;
    socklen_t bytes = sizeof domain;
    if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0)
        return tutti_fail_errno(errno, "tcp: not a socket");
    if (domain != AF_INET && domain != AF_INET6) return TUTTI_OK;
    int timeout_ms = (int)tutti_min_i64(tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS), INT32_MAX);
    int probe_s = timeout_ms < 4000 ? 1 : timeout_ms / 4000;
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms);
    set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
    set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
    set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    if (tutti_setting_int(TUTTI_SETTING_TCP_ZEROCOPY) != 0) tutti_zerocopy_open(zerocopy, socket);
    return choose_congestion(socket);
}

static tutti_status tcp_open(int socket, tutti_deadline *deadline, tutti_pipe **pipe_out) {
    tcp_pipe *tcp;
    tutti_zerocopy zerocopy = {.on = false};
    (void)deadline; /* nothing is exchanged */
    tutti_status status = tune(socket, &zerocopy);
    if (status == TUTTI_OK) status = tutti_calloc(1, sizeof *tcp, &tcp);
    if (status != TUTTI_OK) {
        close(socket);
        return status;
    }
    tcp->pipe.transport = &tutti_tcp_transport;
    tcp->socket = socket;
    tutti_fork_closes(socket);
    tcp->zerocopy = zerocopy;
    tcp->pipe.movable = !zerocopy.on;
    *pipe_out = &tcp->pipe;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ moving */

static tutti_status fail(tcp_pipe *tcp, int error) {
    tutti_pipe *pipe = &tcp->pipe;
    switch (error) {
    case ECONNRESET:
    case EPIPE:
        return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED, "tcp: the other side has closed the connection (%s)",
                               strerror(error));
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED,
                               "tcp: the other side has not answered for %lld ms (TUTTI_PEER_TIMEOUT_MS): %s",
                               (long long)tutti_setting_int(TUTTI_SETTING_PEER_TIMEOUT_MS), strerror(error));
    default: return tutti_pipe_fail(pipe, TUTTI_ERR_SYSTEM, "tcp: %s", strerror(error));
    }
}

/* Not now, but perhaps soon. */
static bool is_passing(int error) {
    return error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM;
}

static void drop_sent(tcp_pipe *tcp, size_t bytes) {
    while (tcp->part < tcp->nparts && bytes >= tcp->parts[tcp->part].iov_len) bytes -= tcp->parts[tcp->part++].iov_len;
    if (bytes == 0) return;
    tcp->parts[tcp->part].iov_base = (char *)tcp->parts[tcp->part].iov_base + bytes;
    tcp->parts[tcp->part].iov_len -= bytes;
}

/* The next parts, as much as goes in one call. */
static struct msghdr next_parts(tcp_pipe *tcp, struct iovec parts[MOST_PARTS]) {
    size_t left = CALL_BYTES, count = 0;
    for (int i = tcp->part; i < tcp->nparts && left > 0; i++) {
        parts[count] = tcp->parts[i];
        parts[count].iov_len = tutti_min_size(parts[count].iov_len, left);
        left -= parts[count++].iov_len;
    }
    return (struct msghdr){.msg_iov = parts, .msg_iovlen = count};
}

/* How far the send has come: what the kernel still reads from the caller's memory has not been sent. */
static void count_sent(tcp_pipe *tcp) {
    if (TUTTI_UNLIKELY(tutti_zerocopy_busy(&tcp->zerocopy))) tutti_zerocopy_reap(&tcp->zerocopy, tcp->socket);
    tcp->pipe.sent = tcp->handed - (tutti_zerocopy_busy(&tcp->zerocopy) ? 1 : 0);
}

/* A failure is told by progress(): what the other side said last may still be there to be received. */
static tutti_status push(tcp_pipe *tcp) {
    struct iovec parts[MOST_PARTS];
    struct msghdr message = next_parts(tcp, parts);
    bool lends = tcp->zerocopy.on && tcp->pipe.to_send >= ZEROCOPY_BYTES;
    ssize_t sent = sendmsg(tcp->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (lends ? MSG_ZEROCOPY : 0));
    if (sent < 0 && lends && errno == ENOBUFS) { /* too much is lent already, or may be at all */
        lends = false;
        sent = sendmsg(tcp->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (sent < 0) {
        if (!is_passing(errno)) tcp->send_error = errno;
        return TUTTI_OK;
    }
    tcp->zerocopy.issued += lends && sent > 0;
    tcp->handed += (size_t)sent;
    tcp->pipe.bytes_out += (size_t)sent;
    drop_sent(tcp, (size_t)sent);
    count_sent(tcp);
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

/* After few bytes, a header perhaps, more are likely to be there: they come with the same call. */
static tutti_status pull(tcp_pipe *tcp) {
    size_t wanted = tutti_min_size(tcp->pipe.to_receive - tcp->pipe.received, CALL_BYTES);
    bool few = wanted <= AHEAD_AFTER_BYTES;
    ssize_t got = recv(tcp->socket, few ? tcp->ahead : tcp->dst, few ? AHEAD_BYTES : wanted, MSG_DONTWAIT);
    if (got < 0) return is_passing(errno) ? TUTTI_OK : fail(tcp, errno);
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
    if (!tutti_pipe_has_received(pipe)) TUTTI_TRY(pull(tcp));
    if (TUTTI_UNLIKELY(tcp->send_error != 0))
        return tutti_pipe_has_received(pipe) ? fail(tcp, tcp->send_error) : TUTTI_OK;
    if (tcp->handed < pipe->to_send) return push(tcp);
    if (TUTTI_UNLIKELY(!tutti_pipe_has_sent(pipe))) count_sent(tcp);
    return TUTTI_OK;
}

static tutti_status tcp_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool moves = !tutti_pipe_has_sent(pipe);
    if (!moves) pipe->sent = tcp->handed = 0;
    pipe->to_send = 0;
    tcp->part = tcp->nparts = 0;
    for (int i = 0; i < nparts; i++) {
        if (parts[i].iov_len == 0) continue;
        tcp->parts[tcp->nparts++] = parts[i];
        pipe->to_send += parts[i].iov_len;
    }
    if (TUTTI_UNLIKELY(moves)) drop_sent(tcp, tcp->handed);
    return pipe->to_send == 0 || tcp->send_error != 0 ? TUTTI_OK : push(tcp);
}

static tutti_status tcp_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    tcp->dst = dst;
    if (TUTTI_UNLIKELY(!tutti_pipe_has_received(pipe))) { /* moves */
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
    if (tcp->handed < pipe->to_send) events |= POLLOUT; /* notes of lent memory wake in any case */
    *events_out = events;
    return tcp->socket;
}

/* ------------------------------------------------------------------------------------------------ ending */

static void tcp_cancel(tutti_pipe *pipe) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (pipe == NULL) return;
    bool cut =
        (pipe->sent != 0 && !tutti_pipe_has_sent(pipe)) || (pipe->received != 0 && !tutti_pipe_has_received(pipe));
    if (cut) tutti_pipe_fail(pipe, TUTTI_ERR_ABORTED, "tcp: a transfer was cut off");
    if (tutti_zerocopy_busy(&tcp->zerocopy)) tutti_zerocopy_abort(&tcp->zerocopy, tcp->socket);
    pipe->to_send = pipe->sent = tcp->handed = 0;
    pipe->to_receive = pipe->received = 0;
}

/* A socket that is closed while it has bytes to read, or that gets some later, drops what the other side's system does not
 * have yet. So what was sent is waited for, as long as it moves or might soon. */
static void see_off(int socket) {
    char unread[4096];
    int64_t until_ns = tutti_now_ns() + MOST_LINGER_NS;
    for (;;) {
        int unsent = 0;
        ssize_t got = recv(socket, unread, sizeof unread, MSG_DONTWAIT);
        if (got > 0) continue;
        bool over = got < 0 && !is_passing(errno);
        if (over || ioctl(socket, SIOCOUTQ, &unsent) != 0 || unsent <= 1 || tutti_now_ns() >= until_ns) return;
        struct timespec pause = {.tv_nsec = 200000};
        nanosleep(&pause, NULL);
    }
}

static void tcp_close(tutti_pipe *pipe) {
    tcp_pipe *tcp = (tcp_pipe *)pipe;
    if (pipe == NULL) return;
    if (tutti_zerocopy_busy(&tcp->zerocopy)) tutti_zerocopy_abort(&tcp->zerocopy, tcp->socket);
    shutdown(tcp->socket, SHUT_WR);
    if (pipe->status == TUTTI_OK) see_off(tcp->socket);
    tutti_fork_forget(tcp->socket);
    close(tcp->socket);
    free(tcp);
}

/* ------------------------------------------------------------------------------------------------- other */

static tutti_status register_memory(void *memory, size_t bytes, void **registration_out) {
    (void)memory;
    (void)bytes;
    *registration_out = NULL; /* the kernel copies */
    return TUTTI_OK;
}

static void deregister_memory(void *registration) {
    (void)registration;
}

static void describe(char *text, size_t capacity) {
    const char *chosen = tutti_setting_text(TUTTI_SETTING_TCP_CONGESTION);
    char usual[64] = "?";
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "re");
    if (file != NULL && fgets(usual, sizeof usual, file) != NULL) usual[strcspn(usual, "\n")] = '\0';
    if (file != NULL) fclose(file);
    snprintf(text, capacity, "sockets of the system; congestion control %s", *chosen != '\0' ? chosen : usual);
}

const tutti_transport tutti_tcp_transport = {
    .name = "tcp",
    .check = check,
    .open = tcp_open,
    .send = tcp_send,
    .recv = tcp_recv,
    .progress = tcp_progress,
    .sleep_on = sleep_on,
    .cancel = tcp_cancel,
    .close = tcp_close,
    .register_memory = register_memory,
    .deregister_memory = deregister_memory,
    .describe = describe,
};
