/*
 * One TCP connection: see wire.h. Sockets do not block; a rank that cannot go on spins, yields the core or sleeps in
 * poll.
 */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return -1;
}

/* Returns a socket that is bound (listening) or connected, with the first address that works. */
static int open_socket(const char *address, int port, int listening) {
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listening ? AI_PASSIVE : 0}, *found = NULL;
    snprintf(service, sizeof service, "%d", port);
    errno = EINVAL;
    if (getaddrinfo(address, service, &hints, &found) != 0) return -1;
    int fd = -1, on = 1;
    for (struct addrinfo *next = found; next != NULL && fd < 0; next = next->ai_next) {
        fd = socket(next->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        int status = listening ? bind(fd, next->ai_addr, next->ai_addrlen) | listen(fd, 64)
                               : connect(fd, next->ai_addr, next->ai_addrlen);
        if (status == 0) continue;
        int saved = errno;
        close(fd);
        errno = saved;
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

int wire_set_congestion(int fd, const char *congestion) {
    if (congestion == NULL || *congestion == '\0') return 0;
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) == 0) return 0;
    return fail(congestion);
}

static int set_up(int fd, const char *congestion) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (wire_set_congestion(fd, congestion) == 0) return fd;
    close(fd);
    return -1;
}

int wire_listen(const char *address, int port) {
    int fd = open_socket(address, port, 1);
    return fd >= 0 ? fd : fail("listen");
}

int wire_accept(int listener, const char *congestion) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    return fd >= 0 ? set_up(fd, congestion) : fail("accept");
}

int wire_connect(const char *address, int port, int patience_ms, const char *congestion) {
    int fd;
    while ((fd = open_socket(address, port, 0)) < 0 && patience_ms > 0) {
        usleep(10000);
        patience_ms -= 10;
    }
    return fd >= 0 ? set_up(fd, congestion) : fail("connect");
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static void pause_for(int fd, wire_wait wait, int sending, int receiving) {
    if (wait == WIRE_YIELD) sched_yield();
    if (wait != WIRE_SLEEP) return;
    struct pollfd one = {.fd = fd, .events = (short)((sending ? POLLOUT : 0) | (receiving ? POLLIN : 0))};
    poll(&one, 1, -1);
}

/* Adds the bytes that one call moved to *done; returns whether it moved any, or -1. */
static int count_moved(ssize_t moved, size_t *done) {
    if (moved > 0) {
        *done += (size_t)moved;
        return 1;
    }
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (moved == 0) errno = ECONNRESET;
    return fail("the connection ended");
}

int wire_exchange(int fd, const wire_job *job) {
    size_t sent = 0, received = 0;
    while (sent < job->send_bytes || received < job->recv_bytes) {
        int out = 0, in = 0;
        if (sent < job->send_bytes)
            out = count_moved(send(fd, (const char *)job->src + sent, least(job->send_bytes - sent, job->piece),
                                   MSG_NOSIGNAL | MSG_DONTWAIT),
                              &sent);
        if (received < job->recv_bytes && out >= 0)
            in = count_moved(
                recv(fd, (char *)job->dst + received, least(job->recv_bytes - received, job->piece), MSG_DONTWAIT),
                &received);
        if (out < 0 || in < 0) return -1;
        if (out == 0 && in == 0) pause_for(fd, job->wait, sent < job->send_bytes, received < job->recv_bytes);
    }
    return 0;
}
