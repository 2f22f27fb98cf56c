/*
 * Sockets and a server for the store's tests.
 */
#include "tests/support/stores/wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/store/store.h"

enum { LIMIT_MS = 20000 };

int wire_connect(int port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Port 0: any. */
static int listen_at(int port, int *port_out) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        if (fd >= 0) close(fd);
        return -1;
    }
    *port_out = ntohs(address.sin_port);
    return fd;
}

int wire_listen(int *port_out) {
    return listen_at(0, port_out);
}

/* The first of the ports that the system assigns. */
static int first_given_port(void) {
    int first = 32768;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (file == NULL) return first;
    if (fscanf(file, "%d", &first) != 1 || first < 2048) first = 32768;
    fclose(file);
    return first;
}

int wire_free_port(void) {
    enum { LOWEST = 1024, TRIES = 1000 };
    static unsigned state;
    int span = first_given_port() - LOWEST, port;
    if (state == 0) state = (unsigned)getpid() * 2654435761U + (unsigned)time(NULL);
    for (int i = 0; i < TRIES; i++) {
        int fd = listen_at(LOWEST + rand_r(&state) % span, &port);
        if (fd < 0) continue;
        close(fd);
        return port;
    }
    return -1;
}

static bool wait_for(int fd, short events, int ms) {
    struct pollfd item = {.fd = fd, .events = events};
    return poll(&item, 1, ms) > 0;
}

bool wire_send(int fd, const void *data, size_t bytes) {
    const char *next = data;
    while (bytes > 0) {
        if (!wait_for(fd, POLLOUT, LIMIT_MS)) return false;
        ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (sent < 0) return false;
        next += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

bool wire_receive(int fd, void *data, size_t bytes) {
    char *next = data;
    while (bytes > 0) {
        if (!wait_for(fd, POLLIN, LIMIT_MS)) return false;
        ssize_t got = recv(fd, next, bytes, 0);
        if (got <= 0) return false;
        next += got;
        bytes -= (size_t)got;
    }
    return true;
}

bool wire_closes(int fd) {
    char scrap[4096];
    while (wait_for(fd, POLLIN, LIMIT_MS))
        if (recv(fd, scrap, sizeof scrap, 0) <= 0) return true;
    return false;
}

bool wire_silent(int fd, int ms) {
    return !wait_for(fd, POLLIN, ms);
}

bool wire_talk(int fd, const void *request, size_t bytes, const void *reply, size_t reply_bytes) {
    char got[4096];
    return reply_bytes <= sizeof got && wire_send(fd, request, bytes) && wire_receive(fd, got, reply_bytes) &&
           memcmp(got, reply, reply_bytes) == 0;
}

int wire_port;
static tutti_store_server *wire_server;

void wire_server_start(void) {
    wire_port = 0;
    if (tutti_store_server_start("127.0.0.1", 0, NULL, &wire_server) == TUTTI_OK)
        wire_port = tutti_store_server_port(wire_server);
}

void wire_server_stop(void) {
    tutti_store_server_stop(wire_server);
    wire_server = NULL;
}

int wire_join(void) {
    int fd = wire_connect(wire_port);
    if (fd < 0 || wire_send(fd, BYTES(VALIDATE))) return fd;
    close(fd);
    return -1;
}
