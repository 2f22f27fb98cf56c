/*
 * The store's server: one thread, one epoll, non-blocking sockets.
 *
 * A turn of the loop takes the ready sockets, reads at most one piece from each, carries out complete requests
 * (store_requests.c), flushes all connections that got a reply, and then continues connections that had to wait for
 * memory (store_budget.h). No client can block another: a slow sender only fills its own buffer, and a client that
 * does not read its replies is not read from. Processes of other users of this host are refused (store_peer.h). A
 * connection is closed if it violates the protocol, if it has not shown the magic number within a time limit, or if
 * that is needed to serve others (store_crowd.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "bootstrap/store/secret.h"
#include "bootstrap/store/store.h"
#include "bootstrap/store/store_connection.h"
#include "bootstrap/store/store_crowd.h"
#include "bootstrap/store/store_peer.h"

enum {
    READ_BYTES = 64 << 10,
    EVENTS_PER_TURN = 64,
    ACCEPTS_PER_TURN = 32, /* fewer than EVENTS_PER_TURN, so that new clients are served before more are accepted */
    SWEEP_MS = 1000,
    PAUSE_MS = 100, /* how long accepting pauses when there are no file descriptors */
    UNVERIFIED_MS = 30000
};

struct tutti_store_server {
    int listen_fd, epoll_fd, stop_fd;
    int port;
    pthread_t thread;
    bool has_thread;
    bool others; /* other users of this host may connect */
    /* The fields below belong to the thread. */
    tutti_store_peers *peers;
    tutti_store_hub hub;
    tutti_store_crowd crowd;
    tutti_store_connection *connections, *dead;
    int nunverified; /* connections without the magic number, at the last sweep or newer */
    bool paused;
    uint64_t nrefused, ndropped, npaused; /* for the log */
};

/* --------------------------------------------------------------------------------------- connections */

/* A process forked meanwhile holds the socket, too: closing alone would not end the connection for the other side. */
static void end_socket(const tutti_store_server *server, int fd) {
    epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

static void close_connection(tutti_store_server *server, tutti_store_connection *connection) {
    if (connection->fd < 0) return;
    tutti_store_requests_unwait(&server->hub, connection);
    tutti_store_budget_leave(&server->hub.budget, connection);
    tutti_store_crowd_leave(&server->crowd, connection);
    end_socket(server, connection->fd);
    connection->fd = -1;
    tutti_store_buffer_free(&connection->in);
    tutti_store_buffer_free(&connection->out);
    if (connection->previous != NULL) connection->previous->next = connection->next;
    else server->connections = connection->next;
    if (connection->next != NULL) connection->next->previous = connection->previous;
    connection->next = server->dead; /* freed after the turn: a pending event may still refer to it */
    server->dead = connection;
}

static void free_dead(tutti_store_server *server) {
    while (server->dead != NULL) {
        tutti_store_connection *connection = server->dead;
        server->dead = connection->next;
        free(connection);
    }
}

/* Returns true for the first event of a kind, and then less often the more there are: at powers of two. */
static bool is_worth_a_line(uint64_t count) {
    return (count & (count - 1)) == 0;
}

/* Closes a connection that has not violated the protocol, and logs it. */
static void drop(tutti_store_server *server, tutti_store_connection *connection, const char *why) {
    uint64_t count = ++server->ndropped;
    bool own = tutti_store_is_own(connection);
    close_connection(server, connection);
    if (is_worth_a_line(count))
        tutti_log(TUTTI_LOG_WARN, "store: has closed %llu connections to serve others; the last one%s %s",
                  (unsigned long long)count, own ? ", of this user," : "", why);
}

/* Watches for input while the connection may continue, and for room to send while it has output. */
static void watch(tutti_store_server *server, tutti_store_connection *connection) {
    bool reads = tutti_store_budget_may_go_on(&server->hub.budget, connection);
    uint32_t events = (reads ? EPOLLIN : 0u) | (tutti_store_buffer_used(&connection->out) > 0 ? EPOLLOUT : 0u);
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
        if (sent < 0) {
            connection->failed = true;
        } else {
            tutti_store_buffer_consume(out, (size_t)sent);
            tutti_store_budget_move(connection, (size_t)sent);
        }
    }
    tutti_store_budget_settle(&server->hub.budget, connection);
    if (!connection->failed) watch(server, connection);
    if (connection->failed) close_connection(server, connection);
}

/* Closes the foreign, or own, connection whose waits take the most memory. */
static void drop_waiter(tutti_store_server *server, bool foreign) {
    tutti_store_connection *most = NULL;
    for (tutti_store_connection *connection = server->connections; connection != NULL; connection = connection->next)
        if (connection->foreign == foreign && (most == NULL || connection->nwaiters > most->nwaiters))
            most = connection;
    if (most != NULL) drop(server, most, "waited for the most keys, and all connections together waited for too many");
}

static void run_requests(tutti_store_server *server, tutti_store_connection *connection) {
    tutti_store_hub *hub = &server->hub;
    bool again = true;
    while (again && !connection->failed) {
        if (tutti_store_requests_run(hub, connection) != TUTTI_OK) {
            tutti_log(TUTTI_LOG_INFO, "store: closes a connection: %s", tutti_last_error());
            connection->failed = true;
        }
        tutti_store_buffer_trim(&connection->in);
        tutti_store_budget_settle(&hub->budget, connection);
        again = tutti_store_crowd_update(&server->crowd, &hub->budget, connection);
    }
}

static void flush_dirty(tutti_store_server *server) {
    while (server->hub.dirty != NULL) {
        tutti_store_connection *connection = server->hub.dirty;
        server->hub.dirty = connection->next_dirty;
        connection->dirty = false;
        if (connection->fd < 0) continue;
        flush(server, connection);
        if (connection->fd < 0 || tutti_store_buffer_used(&connection->out) > 0) continue;
        run_requests(server, connection); /* requests that waited for room in the output; may make it dirty again */
        if (!connection->failed) watch(server, connection);
        if (connection->failed) close_connection(server, connection);
    }
}

/* How much to read at a time: a short request and the bytes behind it; of a long request at most what is certainly
 * missing, so that little is read behind its end, and at most as much as was received already. */
static size_t bytes_to_read(const tutti_store_connection *connection) {
    size_t missing = tutti_store_scan_missing(connection), have = tutti_store_buffer_used(&connection->in);
    return tutti_max_size(READ_BYTES, tutti_min_size(missing, have));
}

static void receive(tutti_store_server *server, tutti_store_connection *connection) {
    tutti_store_budget *budget = &server->hub.budget;
    tutti_store_buffer *in = &connection->in;
    size_t bytes = bytes_to_read(connection);
    connection->reads_next =
        !tutti_store_budget_ask(budget, connection, tutti_store_buffer_grown(in, bytes) + connection->out.capacity);
    if (connection->reads_next) {
        watch(server, connection);
        return;
    }
    if (tutti_store_buffer_reserve(in, bytes) != TUTTI_OK) {
        connection->failed = true;
        return;
    }
    ssize_t got = recv(connection->fd, in->data + in->end, bytes, 0);
    if (got > 0) {
        in->end += (size_t)got;
        tutti_store_budget_move(connection, (size_t)got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
        connection->failed = true;
        return;
    }
    run_requests(server, connection);
    if (!connection->failed) watch(server, connection);
}

static void serve(tutti_store_server *server, tutti_store_connection *connection, uint32_t events) {
    if (connection->fd < 0) return;
    if (events & EPOLLOUT) {
        flush(server, connection);
        if (connection->fd < 0) return;
        run_requests(server, connection); /* requests that waited for room in the output */
    }
    bool goes_on = tutti_store_budget_may_go_on(&server->hub.budget, connection);
    if (!connection->failed && goes_on && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(server, connection);
    else if (events & (EPOLLHUP | EPOLLERR)) connection->failed = true;
    else if (!connection->failed) watch(server, connection);
    if (connection->failed) close_connection(server, connection);
}

static void make_room_for_waiters(tutti_store_server *server) {
    const tutti_store_budget *budget = &server->hub.budget;
    while (budget->foreign.waiters > TUTTI_STORE_WAITERS_POOL_BYTES) drop_waiter(server, true);
    while (budget->own.waiters > TUTTI_STORE_WAITERS_POOL_BYTES) drop_waiter(server, false);
}

/* Returns true when the client has closed the connection. recv cannot tell, since unread input may precede the end. */
static bool has_gone(const tutti_store_connection *connection) {
    struct pollfd look = {.fd = connection->fd, .events = POLLRDHUP};
    return poll(&look, 1, 0) > 0;
}

/* Continues connections that waited for memory, now that others have released some. At most one of them gets much,
 * which takes time: the function then returns true, and more may continue after the sockets that are ready. */
static bool go_on(tutti_store_server *server) {
    tutti_store_budget *budget = &server->hub.budget;
    bool much = false;
    flush_dirty(server); /* updates their sums */
    make_room_for_waiters(server);
    while (!much) {
        tutti_store_connection *connection = tutti_store_budget_next(budget);
        if (connection == NULL) return false;
        if (!connection->reads_next && has_gone(connection)) { /* nothing would receive the reply */
            close_connection(server, connection);
            continue;
        }
        much = connection->share.granted > TUTTI_STORE_SMALL_BYTES;
        if (connection->reads_next) receive(server, connection);
        else run_requests(server, connection);
        if (!connection->failed) watch(server, connection);
        if (connection->failed) close_connection(server, connection);
        flush_dirty(server);
    }
    return true;
}

static void set_socket_options(int fd) {
    int on = 1, idle_s = 60, interval_s = 10, probes = 6; /* detects a vanished machine after two minutes */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Determines which user has connected; returns false when the connection is refused. A client that has already
 * closed it may belong to any user, and loses nothing. */
static bool may_enter(tutti_store_server *server, int fd, const struct sockaddr_storage *address, bool *own_out) {
    uid_t user = 0;
    tutti_store_peer peer = tutti_store_peers_look(server->peers, fd, address, &user);
    *own_out = peer == TUTTI_STORE_PEER_OWN;
    if (peer == TUTTI_STORE_PEER_GONE) return false;
    if ((peer != TUTTI_STORE_PEER_OTHER && peer != TUTTI_STORE_PEER_HIDDEN) || server->others) return true;
    uint64_t count = ++server->nrefused;
    if (!is_worth_a_line(count)) return false;
    char user_text[60] = "whose user is unknown (address translation?)";
    if (peer == TUTTI_STORE_PEER_OTHER) snprintf(user_text, sizeof user_text, "of user %u, not %u", user, geteuid());
    tutti_log(
        TUTTI_LOG_WARN,
        "store: has refused %llu connections to port %d from processes of this host; the last one %s; to let other "
        "users in, set TUTTI_SECRET and TUTTI_OTHER_USERS=1 for the launcher and all ranks",
        (unsigned long long)count, server->port, user_text);
    return false;
}

static void welcome(tutti_store_server *server, int fd, const struct sockaddr_storage *address) {
    bool own;
    if (!may_enter(server, fd, address, &own)) {
        close(fd);
        return;
    }
    set_socket_options(fd);
    tutti_store_connection *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (connection != NULL) connection->local_user = own;
    if (connection == NULL || tutti_store_crowd_join(&server->crowd, connection, address) != TUTTI_OK) {
        free(connection);
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->events = EPOLLIN;
    connection->opened_ns = connection->active_ns = tutti_now_ns();
    connection->next = server->connections;
    if (connection->next != NULL) connection->next->previous = connection;
    server->connections = connection;
    server->nunverified++;
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        close_connection(server, connection);
        return;
    }
    tutti_store_connection *victim;
    tutti_store_crowd_learn(&server->crowd, connection);
    while ((victim = tutti_store_crowd_victim(&server->crowd, server->connections, connection)) != NULL)
        drop(server, victim,
             victim->validated ? "was idle, and its address had the most connections"
                               : "had not sent the magic number yet");
    if (connection->fd >= 0) serve(server, connection, EPOLLIN); /* usually its first request has already arrived */
}

static void watch_listener(tutti_store_server *server, bool on) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0u, .data.ptr = &server->listen_fd};
    epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->listen_fd, &event);
    server->paused = !on;
}

/* Resources for another connection are exhausted: closes a foreign connection, or else stops accepting for a while. */
static void make_room(tutti_store_server *server, int error) {
    tutti_store_connection *victim = NULL;
    if (error == EMFILE || error == ENFILE)
        victim = tutti_store_crowd_victim(&server->crowd, server->connections, NULL);
    if (victim != NULL) {
        drop(server, victim, "held a descriptor while none was free; raise 'ulimit -n'");
        return;
    }
    if (is_worth_a_line(++server->npaused))
        tutti_log(TUTTI_LOG_WARN, "store: cannot accept a connection (%s), retrying; raise 'ulimit -n' if it is low",
                  strerror(error));
    watch_listener(server, false);
}

static void accept_some(tutti_store_server *server) {
    for (int i = 0; i < ACCEPTS_PER_TURN && !server->paused; i++) {
        struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
        socklen_t bytes = sizeof address;
        int fd = accept4(server->listen_fd, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) welcome(server, fd, &address);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) make_room(server, errno);
        else if (errno != EINTR && errno != ECONNABORTED) return;
    }
}

/* Closes connections that have been open too long without the magic number, and those that keep others waiting. */
static void sweep(tutti_store_server *server) {
    if (server->paused) watch_listener(server, true);
    int64_t now_ns = tutti_now_ns();
    server->nunverified = 0;
    for (tutti_store_connection *connection = server->connections, *next; connection != NULL; connection = next) {
        next = connection->next;
        bool strange = !connection->validated;
        if (strange && now_ns - connection->opened_ns > UNVERIFIED_MS * TUTTI_NS_PER_MS)
            close_connection(server, connection);
        else if (tutti_store_budget_is_stalled(&server->hub.budget, connection, now_ns))
            drop(server, connection, "did not read its replies or finish its request while others waited for memory");
        else server->nunverified += strange;
    }
}

/* ----------------------------------------------------------------------------------------------- loop */

static void *serve_all(void *argument) {
    tutti_store_server *server = argument;
    int64_t swept_ns = tutti_now_ns();
    bool more = false;
    for (;;) {
        struct epoll_event events[EVENTS_PER_TURN];
        bool sweeps = server->paused || server->nunverified > 0 || tutti_store_budget_is_short(&server->hub.budget);
        int sweep_ms = server->paused ? PAUSE_MS : SWEEP_MS;
        int nevents = epoll_wait(server->epoll_fd, events, EVENTS_PER_TURN, more ? 0 : sweeps ? sweep_ms : -1);
        for (int i = 0; i < nevents; i++) {
            void *source = events[i].data.ptr;
            if (source == &server->stop_fd) return NULL;
            if (source == &server->listen_fd) accept_some(server);
            else serve(server, source, events[i].events);
        }
        if (sweeps && tutti_now_ns() - swept_ns >= sweep_ms * TUTTI_NS_PER_MS) {
            sweep(server);
            swept_ns = tutti_now_ns();
        }
        more = go_on(server);
        free_dead(server);
    }
}

static tutti_status start_thread(tutti_store_server *server) {
    int error = tutti_thread_start(TUTTI_THREAD_STORE, serve_all, server, &server->thread);
    if (error != 0) return tutti_fail_errno(error, "cannot start the store's thread");
    server->has_thread = true;
    return TUTTI_OK;
}

static tutti_status add_to_epoll(tutti_store_server *server, int *fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = fd};
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, *fd, &event) != 0) return tutti_fail_errno(errno, "epoll_ctl");
    return TUTTI_OK;
}

/* As between ranks (local_bootstrap.c): users other than this one need a secret, which both sides prove. */
static tutti_status choose_others(tutti_store_server *server) {
    char secret[TUTTI_SECRET_BYTES];
    bool set = false;
    if (tutti_setting_int(TUTTI_SETTING_OTHER_USERS) != 0) TUTTI_TRY(tutti_secret_get(secret, sizeof secret, &set));
    server->others = set;
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
    TUTTI_TRY(choose_others(server));
    TUTTI_TRY(tutti_store_peers_open(listen_fd, &server->peers));
    TUTTI_TRY(tutti_store_crowd_open(&server->crowd));
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
        server->listen_fd = -1; /* still belongs to the caller */
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
    while (server->connections != NULL) close_connection(server, server->connections);
    free_dead(server);
    tutti_store_table_destroy(server->hub.table);
    tutti_store_peers_close(server->peers);
    if (server->listen_fd >= 0) end_socket(server, server->listen_fd);
    if (server->epoll_fd >= 0) close(server->epoll_fd);
    if (server->stop_fd >= 0) close(server->stop_fd);
    explicit_bzero(&server->hub.secret, sizeof server->hub.secret);
    free(server);
}
