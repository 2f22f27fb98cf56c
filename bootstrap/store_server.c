/*
 * The store's server: one thread, one epoll, non-blocking sockets.
 *
 * A turn of the loop takes the ready sockets, reads at most one piece from each, carries out whole requests
 * (store_requests.c), then flushes all connections that got a reply. No client can hold up another: who sends
 * slowly just fills his own buffer, who does not read his replies is not read from. A connection that breaks the
 * protocol is closed, and so is one that has not shown the magic number for a while.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/status.h"
#include "bootstrap/store.h"
#include "bootstrap/store_connection.h"

enum {
    READ_BYTES = 64 << 10,
    KEEP_BYTES = 64 << 10, /* an empty buffer above this gives its memory back */
    EVENTS_PER_TURN = 64,
    SWEEP_MS = 1000,
    PAUSE_MS = 100, /* without file descriptors nobody is accepted for so long */
    STRANGER_MS = 30000
};

struct tutti_store_server {
    int listen_fd, epoll_fd, stop_fd;
    int port;
    pthread_t thread;
    bool has_thread;
    /* The rest belongs to the thread. */
    tutti_store_hub hub;
    tutti_store_connection *connections, *dead;
    int nstrangers; /* connections without the magic number, at the last sweep or newer */
    bool paused;
};

/* ------------------------------------------------------------------------------------------- buffers */

tutti_status tutti_store_buffer_reserve(tutti_store_buffer *buffer, size_t bytes) {
    if (buffer->capacity - buffer->end >= bytes) return TUTTI_OK;
    size_t used = tutti_store_buffer_used(buffer);
    size_t capacity = tutti_max_size(used + bytes, tutti_min_size(2 * buffer->capacity, used + (16 << 20)));
    uint8_t *data = malloc(capacity);
    if (data == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for a buffer of %zu bytes", capacity);
    if (used > 0) memcpy(data, buffer->data + buffer->start, used);
    free(buffer->data);
    *buffer = (tutti_store_buffer){.data = data, .end = used, .capacity = capacity};
    return TUTTI_OK;
}

void tutti_store_buffer_consume(tutti_store_buffer *buffer, size_t bytes) {
    buffer->start += bytes;
    if (buffer->start < buffer->end) return;
    buffer->start = buffer->end = 0;
    if (buffer->capacity <= KEEP_BYTES) return;
    free(buffer->data);
    *buffer = (tutti_store_buffer){0};
}

/* --------------------------------------------------------------------------------------- connections */

/* A process that was forked meanwhile holds the socket too: closing alone would neither take it out of epoll nor
 * tell the other side. */
static void end_socket(const tutti_store_server *server, int fd) {
    epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

static void bury(tutti_store_server *server, tutti_store_connection *connection) {
    if (connection->fd < 0) return;
    tutti_store_requests_unwait(&server->hub, connection);
    end_socket(server, connection->fd);
    connection->fd = -1;
    if (connection->previous != NULL) connection->previous->next = connection->next;
    else server->connections = connection->next;
    if (connection->next != NULL) connection->next->previous = connection->previous;
    connection->next = server->dead; /* freed after the turn: an event in hand may still name it */
    server->dead = connection;
}

static void free_dead(tutti_store_server *server) {
    while (server->dead != NULL) {
        tutti_store_connection *connection = server->dead;
        server->dead = connection->next;
        free(connection->in.data);
        free(connection->out.data);
        free(connection);
    }
}

/* Everything readable while the client takes its replies, everything writable while there are some. */
static void watch(tutti_store_server *server, tutti_store_connection *connection) {
    size_t waiting = tutti_store_buffer_used(&connection->out);
    uint32_t events = (waiting < TUTTI_STORE_OUTPUT_LIMIT ? EPOLLIN : 0u) | (waiting > 0 ? EPOLLOUT : 0u);
    if (events == connection->events) return;
    connection->events = events;
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) != 0) connection->failed = true;
}

static void flush(tutti_store_server *server, tutti_store_connection *connection) {
    tutti_store_buffer *out = &connection->out;
    while (!connection->failed && tutti_store_buffer_used(out) > 0) {
        ssize_t sent = send(connection->fd, out->data + out->start, tutti_store_buffer_used(out), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (sent < 0) connection->failed = true;
        else tutti_store_buffer_consume(out, (size_t)sent);
    }
    if (!connection->failed) watch(server, connection);
    if (connection->failed) bury(server, connection);
}

static void run_requests(tutti_store_server *server, tutti_store_connection *connection) {
    if (tutti_store_requests_run(&server->hub, connection) == TUTTI_OK) return;
    tutti_log(TUTTI_LOG_INFO, "store: closes a connection: %s", tutti_last_error());
    connection->failed = true;
}

static void flush_dirty(tutti_store_server *server) {
    while (server->hub.dirty != NULL) {
        tutti_store_connection *connection = server->hub.dirty;
        server->hub.dirty = connection->next_dirty;
        connection->dirty = false;
        if (connection->fd < 0) continue;
        flush(server, connection);
        if (connection->fd < 0 || tutti_store_buffer_used(&connection->out) > 0) continue;
        run_requests(server, connection); /* what had to wait for room in the output; may make it dirty again */
        if (connection->failed) bury(server, connection);
    }
}

static void receive(tutti_store_server *server, tutti_store_connection *connection) {
    tutti_store_buffer *in = &connection->in;
    if (tutti_store_buffer_reserve(in, READ_BYTES) != TUTTI_OK) {
        connection->failed = true;
        return;
    }
    ssize_t got = recv(connection->fd, in->data + in->end, in->capacity - in->end, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
        connection->failed = true;
        return;
    }
    in->end += (size_t)got;
    run_requests(server, connection);
}

static void serve(tutti_store_server *server, tutti_store_connection *connection, uint32_t events) {
    if (connection->fd < 0) return;
    if (events & EPOLLOUT) {
        flush(server, connection);
        if (connection->fd < 0) return;
        run_requests(server, connection); /* what had to wait for room in the output */
    }
    if (!connection->failed && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(server, connection);
    if (connection->failed) bury(server, connection);
}

static void set_socket_options(int fd) {
    int on = 1, idle_s = 60, interval_s = 10, probes = 6; /* a machine that vanished is noticed after two minutes */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static void welcome(tutti_store_server *server, int fd) {
    set_socket_options(fd);
    tutti_store_connection *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (connection == NULL || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(connection);
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->events = EPOLLIN;
    connection->opened_ns = tutti_now_ns();
    connection->next = server->connections;
    if (connection->next != NULL) connection->next->previous = connection;
    server->connections = connection;
    server->nstrangers++;
}

static void watch_listener(tutti_store_server *server, bool on) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data.ptr = &server->listen_fd};
    epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->listen_fd, &event);
    server->paused = !on;
}

static void accept_all(tutti_store_server *server) {
    for (;;) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            welcome(server, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            tutti_log(TUTTI_LOG_WARN, "store: cannot accept a connection (%s), tries again; raise 'ulimit -n'?",
                      strerror(errno));
            watch_listener(server, false);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* Closes who has connected long ago and still not shown the magic number. */
static void sweep(tutti_store_server *server) {
    if (server->paused) watch_listener(server, true);
    int64_t now_ns = tutti_now_ns();
    server->nstrangers = 0;
    for (tutti_store_connection *connection = server->connections, *next; connection != NULL; connection = next) {
        next = connection->next;
        if (connection->validated) continue;
        if (now_ns - connection->opened_ns > STRANGER_MS * TUTTI_NS_PER_MS) bury(server, connection);
        else server->nstrangers++;
    }
}

/* ----------------------------------------------------------------------------------------------- loop */

static void *serve_all(void *argument) {
    tutti_store_server *server = argument;
    int64_t swept_ns = tutti_now_ns();
    for (;;) {
        struct epoll_event events[EVENTS_PER_TURN];
        int timeout_ms = server->paused ? PAUSE_MS : server->nstrangers > 0 ? SWEEP_MS : -1;
        int nevents = epoll_wait(server->epoll_fd, events, EVENTS_PER_TURN, timeout_ms);
        for (int i = 0; i < nevents; i++) {
            void *who = events[i].data.ptr;
            if (who == &server->stop_fd) return NULL;
            if (who == &server->listen_fd) accept_all(server);
            else serve(server, who, events[i].events);
        }
        flush_dirty(server);
        if (timeout_ms >= 0 && tutti_now_ns() - swept_ns >= timeout_ms * TUTTI_NS_PER_MS) {
            sweep(server);
            swept_ns = tutti_now_ns();
        }
        free_dead(server);
    }
}

static tutti_status start_thread(tutti_store_server *server) {
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&server->thread, NULL, serve_all, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return tutti_fail_errno(error, "cannot start the store's thread");
    server->has_thread = true;
    return TUTTI_OK;
}

static tutti_status add_to_epoll(tutti_store_server *server, int *fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = fd};
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, *fd, &event) != 0) return tutti_fail_errno(errno, "epoll_ctl");
    return TUTTI_OK;
}

static tutti_status open_server(tutti_store_server *server, int listen_fd) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    server->listen_fd = listen_fd;
    int flags = fcntl(listen_fd, F_GETFL);
    if (flags < 0 || fcntl(listen_fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return tutti_fail_errno(errno, "the store's socket");
    if (getsockname(listen_fd, (struct sockaddr *)&address, &bytes) != 0)
        return tutti_fail_errno(errno, "the store's socket");
    server->port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                       : ((struct sockaddr_in *)&address)->sin_port);
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (server->epoll_fd < 0) return tutti_fail_errno(errno, "epoll_create1");
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->stop_fd < 0) return tutti_fail_errno(errno, "eventfd");
    TUTTI_TRY(tutti_store_table_create(&server->hub.table));
    TUTTI_TRY(add_to_epoll(server, &server->stop_fd));
    TUTTI_TRY(add_to_epoll(server, &server->listen_fd));
    return start_thread(server);
}

tutti_status tutti_store_server_adopt(int listen_fd, const char *secret, tutti_store_server **server_out) {
    tutti_store_server *server;
    TUTTI_TRY(tutti_calloc(1, sizeof *server, &server));
    server->listen_fd = server->epoll_fd = server->stop_fd = -1;
    server->hub.secret = tutti_store_secret_of(secret);
    tutti_status status = open_server(server, listen_fd);
    if (status != TUTTI_OK) {
        server->listen_fd = -1; /* still the caller's */
        tutti_store_server_stop(server);
        return status;
    }
    *server_out = server;
    return TUTTI_OK;
}

tutti_status tutti_store_server_start(const char *address, int port, const char *secret,
                                      tutti_store_server **server_out) {
    int listen_fd = -1;
    TUTTI_TRY(tutti_store_listen(address, port, &listen_fd));
    tutti_status status = tutti_store_server_adopt(listen_fd, secret, server_out);
    if (status != TUTTI_OK) close(listen_fd);
    return status;
}

int tutti_store_server_port(const tutti_store_server *server) {
    return server->port;
}

void tutti_store_server_stop(tutti_store_server *server) {
    if (server == NULL) return;
    if (server->has_thread) {
        eventfd_write(server->stop_fd, 1);
        pthread_join(server->thread, NULL);
    }
    while (server->connections != NULL) bury(server, server->connections);
    free_dead(server);
    tutti_store_table_destroy(server->hub.table);
    if (server->listen_fd >= 0) end_socket(server, server->listen_fd);
    if (server->epoll_fd >= 0) close(server->epoll_fd);
    if (server->stop_fd >= 0) close(server->stop_fd);
    explicit_bzero(&server->hub.secret, sizeof server->hub.secret);
    free(server);
}
