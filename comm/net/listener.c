/*
 * The listener's addresses; its thread, which accepts connections and authenticates each; and those that have succeeded
 * and wait to be taken. See listener.h.
 *
 *   accept -> HELLO (its bytes arrive) -> PROOF (answer sent; its bytes arrive) -> kept, or closed
 *
 * The thread waits for all of them at once, with epoll. Unauthenticated connections have a few seconds. If there are
 * too many, the oldest of those that have sent nothing is closed, so that a flood of bare connections cannot keep out
 * a process that knows the key.
 *
 * It listens on each chosen address separately, at one port, so that no connection can arrive over an interface
 * that the job may not use.
 *
 * Invariant: at most MOST_PENDING unauthenticated connections are kept, each for PENDING_MS at most.
 */
#include "comm/net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "bootstrap/machine/interfaces.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"
#include "comm/net/listener_state.h"
#include "comm/net/transport/transport.h"
#include "comm/shm/peer.h"

#define PORT_TRIES   16
#define ADVERTISED   "advertised" /* in the place of an interface's name */
#define MOST_PENDING 128
#define PENDING_MS   3000
#define PRUNE_MS     5000
#define MOST_EVENTS  32
#define MOST_ARRIVED 4096 /* unit: pipes */
#define LONGEST_S    600  /* for which a connection waits to be taken */

/* Under TUTTI_LOCK_LISTENER. */
static bool opened;
static tutti_listener_info own_info;

/* ------------------------------------------------------------------------------------------ arrived connections
 * The authenticated connections that have not been taken yet, by connection id.
 */

typedef struct arrival {
    tutti_conn_id conn_id;
    tutti_connection connection;
    int64_t since_ns;
} arrival;

/* Under TUTTI_LOCK_LISTENER, except bell_fd once it is set. */
static int bell_fd = -1;
static arrival *arrivals; /* oldest first */
static int narrivals, arrivals_capacity;
static _Atomic uint64_t arrived; /* in total */

/* With TUTTI_LOCK_LISTENER held, before the first connection arrives. */
static void open_bell(void) {
    if (bell_fd < 0) bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static void remove_arrival(int index) {
    narrivals--;
    memmove(arrivals + index, arrivals + index + 1, (size_t)(narrivals - index) * sizeof arrivals[0]);
}

static int find_arrival(const tutti_conn_id *conn_id) {
    for (int i = 0; i < narrivals; i++)
        if (memcmp(&arrivals[i].conn_id, conn_id, sizeof *conn_id) == 0) return i;
    return -1;
}

static int find_lane(const tutti_conn_id *conn_id, uint32_t lane) {
    tutti_conn_id one = *conn_id;
    one.lane = lane;
    return find_arrival(&one);
}

/* The last lane arrives last, so it is checked first. */
static bool has_all_lanes(const tutti_conn_id *conn_id) {
    uint32_t lane = conn_id->lanes;
    while (lane > 0 && find_lane(conn_id, lane - 1) >= 0) lane--;
    return conn_id->lanes > 0 && lane == 0;
}

static void drop_arrival(int index) {
    close(arrivals[index].connection.socket);
    remove_arrival(index);
}

static bool make_place(void) {
    if (narrivals == MOST_ARRIVED * (int)tutti_setting_int(TUTTI_SETTING_TCP_SOCKETS)) drop_arrival(0);
    if (narrivals < arrivals_capacity) return true;
    int capacity = arrivals_capacity == 0 ? 16 : 2 * arrivals_capacity;
    arrival *more = realloc(arrivals, (size_t)capacity * sizeof *more);
    if (more == NULL) return false;
    arrivals = more;
    arrivals_capacity = capacity;
    return true;
}

/* Takes over the connection. */
static void add_arrival(const tutti_conn_id *conn_id, const tutti_connection *connection) {
    uint64_t one = 1;
    tutti_lock(TUTTI_LOCK_LISTENER);
    int earlier = find_arrival(conn_id);
    if (earlier >= 0) drop_arrival(earlier); /* its sender has tried again, and has given up the earlier one */
    bool kept = make_place();
    if (kept)
        arrivals[narrivals++] = (arrival){.conn_id = *conn_id, .connection = *connection, .since_ns = tutti_now_ns()};
    tutti_unlock(TUTTI_LOCK_LISTENER);
    atomic_fetch_add_explicit(&arrived, 1, memory_order_release); /* pairs with _count */
    if (!kept) close(connection->socket);
    (void)!write(bell_fd, &one, sizeof one);
}

uint64_t tutti_listener_count(void) {
    return atomic_load_explicit(&arrived, memory_order_acquire);
}

/* Closes connections whose other side has closed, and those that were not taken for very long. */
static void prune_arrivals(void) {
    int64_t now_ns = tutti_now_ns();
    tutti_lock(TUTTI_LOCK_LISTENER);
    for (int i = narrivals - 1; i >= 0; i--) {
        char byte;
        bool gone = recv(arrivals[i].connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
        if (gone || now_ns - arrivals[i].since_ns > LONGEST_S * TUTTI_NS_PER_S) drop_arrival(i);
    }
    tutti_unlock(TUTTI_LOCK_LISTENER);
}

/* Returns the connections of all lanes of that id; false: not all have arrived. With TUTTI_LOCK_LISTENER held. */
static bool take_arrivals(const tutti_conn_id *conn_id, tutti_connection *connections_out) {
    bool complete = has_all_lanes(conn_id);
    for (uint32_t lane = 0; complete && lane < conn_id->lanes; lane++) {
        int index = find_lane(conn_id, lane);
        connections_out[lane] = arrivals[index].connection;
        remove_arrival(index);
    }
    return complete;
}

int tutti_listener_notify_fd(void) {
    return bell_fd;
}

/* ------------------------------------------------------------------------------ addresses, and the thread */

/* Set before the listener's thread starts. */
static struct {
    bool set;
    uint8_t address[16];
    uint16_t port;
} advertised;

/* Whether this is TUTTI_ADVERTISE's address with this process's port, which passes connections on to this process. */
static bool is_advertised(const tutti_listener_endpoint *called) {
    return advertised.set && called->port == advertised.port &&
           memcmp(called->address, advertised.address, sizeof advertised.address) == 0;
}

typedef enum watched_kind { STOP, LISTENER, HELLO, PROOF } watched_kind;

/* A descriptor that epoll watches. */
typedef struct watched {
    watched_kind kind;
    int fd;
    int64_t born_ns;
    size_t got; /* bytes received of the message that is due */
    tutti_listener_hello hello;
    tutti_listener_proof proof, expected;
    uint8_t key[TUTTI_CONNECTION_KEY_BYTES]; /* of the connection, once it is authenticated */
} watched;

typedef struct server {
    int epoll_fd, stop_fd;
    uint8_t self[16];
    watched stop, listeners[TUTTI_LISTENER_ADDRESSES];
    int nlisteners;
    watched *pending[MOST_PENDING];
    int npending;
    uint64_t refused;
    pthread_t thread;
} server;

static _Atomic(server *) running; /* set once the thread runs, cleared after it has ended */

/* ----------------------------------------------------------------------- unauthenticated connections */

static void drop(server *s, int index) {
    if (s->pending[index]->fd >= 0) close(s->pending[index]->fd); /* removes it from epoll, too */
    explicit_bzero(s->pending[index], sizeof *s->pending[index]);
    free(s->pending[index]);
    s->pending[index] = s->pending[--s->npending];
}

static int index_of(const server *s, const watched *caller) {
    int index = 0;
    while (s->pending[index] != caller) index++;
    return index;
}

/* A peer that tries all of our addresses at once closes all but one of its connections before it proves anything. */
static bool is_spare(const watched *caller) {
    return caller->kind == PROOF || caller->got == 0;
}

/* Logs the refusal, but the less often the more refusals there are. */
static void refuse(server *s, watched *caller, const char *why) {
    char peer[TUTTI_ADDRESS_TEXT_BYTES];
    uint64_t count = ++s->refused;
    if (count <= 8 || (count & (count - 1)) == 0) {
        tutti_address_of_peer(caller->fd, peer);
        tutti_log(TUTTI_LOG_WARN, "refused connection %llu, from %s: %s", (unsigned long long)count, peer, why);
    }
    drop(s, index_of(s, caller));
}

/* Refuses the oldest connection of those that have sent nothing, else the oldest. */
static void make_room(server *s) {
    int oldest = 0;
    for (int i = 1; i < s->npending; i++) {
        const watched *a = s->pending[i], *b = s->pending[oldest];
        bool a_silent = a->kind == HELLO && a->got == 0, b_silent = b->kind == HELLO && b->got == 0;
        if (a_silent != b_silent ? a_silent : a->born_ns < b->born_ns) oldest = i;
    }
    refuse(s, s->pending[oldest], "too many other connections arrived before it had authenticated itself");
}

static void accept_one(server *s, const watched *listener) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        if (full && s->npending > 0) make_room(s);
        else if (full) tutti_nap(10 * TUTTI_NS_PER_MS);
        return;
    }
    if (s->npending == MOST_PENDING) make_room(s);
    watched *caller = calloc(1, sizeof *caller);
    if (caller != NULL) *caller = (watched){.kind = HELLO, .fd = fd, .born_ns = tutti_now_ns()};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = caller};
    if (caller == NULL || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(caller);
        close(fd);
        return;
    }
    s->pending[s->npending++] = caller;
}

/* Sends the whole message: a few bytes always fit into the buffer of a new connection. */
static bool send_message(int fd, const void *message, size_t bytes) {
    return send(fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void answer_hello(server *s, watched *caller) {
    tutti_listener_reply reply;
    const tutti_listener_endpoint here = is_advertised(&caller->hello.called)
                                             ? caller->hello.called
                                             : tutti_listener_called(caller->fd, /* by_this_side */ false);
    if (tutti_listener_answer(&caller->hello, s->self, &here, &reply, &caller->expected, caller->key) != TUTTI_OK) {
        refuse(s, caller, tutti_last_error());
    } else if (!send_message(caller->fd, &reply, sizeof reply)) {
        refuse(s, caller, "it did not receive the answer");
    } else if (reply.verdict != TUTTI_LISTENER_ACCEPTED) {
        refuse(s, caller, tutti_listener_verdict_text((tutti_listener_verdict)reply.verdict));
    } else {
        caller->kind = PROOF;
        caller->got = 0;
    }
}

static void check_proof(server *s, watched *caller) {
    tutti_listener_accepted welcome = {.magic = TUTTI_LISTENER_MAGIC, .verdict = TUTTI_LISTENER_ACCEPTED};
    bool proved = tutti_hmac_equal(caller->proof.mac, caller->expected.mac, sizeof caller->expected.mac);
    if (!proved) welcome.verdict = TUTTI_LISTENER_UNPROVED;
    bool heard = send_message(caller->fd, &welcome, sizeof welcome);
    if (!proved || !heard) {
        refuse(s, caller, proved ? "it closed the connection before the answer" : "its proof is wrong");
        return;
    }
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, caller->fd, NULL);
    tutti_connection connection = {.socket = caller->fd};
    memcpy(connection.key, caller->key, sizeof connection.key);
    add_arrival(&caller->hello.conn_id, &connection);
    caller->fd = -1;
    drop(s, index_of(s, caller));
}

static void hear(server *s, watched *caller) {
    bool hello = caller->kind == HELLO;
    char *message = hello ? (char *)&caller->hello : (char *)&caller->proof;
    size_t bytes = hello ? sizeof caller->hello : sizeof caller->proof;
    ssize_t got = recv(caller->fd, message + caller->got, bytes - caller->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (got == 0 && is_spare(caller)) drop(s, index_of(s, caller));
        else refuse(s, caller, "it closed the connection before it had authenticated itself");
        return;
    }
    caller->got += (size_t)got;
    /* Garbage is refused at once. */
    bool wrong = hello && caller->got >= sizeof caller->hello.magic && caller->hello.magic != TUTTI_LISTENER_MAGIC;
    if (wrong) refuse(s, caller, tutti_listener_verdict_text(TUTTI_LISTENER_GARBAGE));
    else if (caller->got == bytes && hello) answer_hello(s, caller);
    else if (caller->got == bytes) check_proof(s, caller);
}

/* ------------------------------------------------------------------------------------------------ thread */

static void expire(server *s) {
    int64_t now_ns = tutti_now_ns();
    for (int i = s->npending - 1; i >= 0; i--)
        if (now_ns - s->pending[i]->born_ns > PENDING_MS * TUTTI_NS_PER_MS)
            refuse(s, s->pending[i], "it took too long to authenticate itself");
}

static void *serve(void *argument) {
    server *s = argument;
    struct epoll_event events[MOST_EVENTS];
    int64_t pruned_ns = tutti_now_ns();
    for (;;) {
        int count = epoll_wait(s->epoll_fd, events, MOST_EVENTS, s->npending > 0 ? PENDING_MS / 8 : PRUNE_MS);
        for (int i = 0; i < count; i++) {
            watched *w = events[i].data.ptr;
            if (w->kind == STOP) return NULL;
            if (w->kind == LISTENER) continue;
            hear(s, w);
        }
        /* Last: accepting a connection may close one of those handled above. */
        for (int i = 0; i < count; i++)
            for (int l = 0; l < s->nlisteners; l++)
                if (events[i].data.ptr == &s->listeners[l]) accept_one(s, &s->listeners[l]);
        expire(s);
        if (tutti_now_ns() - pruned_ns < PRUNE_MS * TUTTI_NS_PER_MS) continue;
        pruned_ns = tutti_now_ns();
        prune_arrivals();
    }
}

static void destroy(server *s) {
    while (s->npending > 0) drop(s, s->npending - 1);
    for (int i = 0; i < s->nlisteners; i++) close(s->listeners[i].fd);
    if (s->stop_fd >= 0) close(s->stop_fd);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    free(s);
}

static bool watch(server *s, watched *w) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = w};
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, w->fd, &event) == 0;
}

/* Starts the thread that answers on these listening sockets, and takes them over. */
static tutti_status start_server(const int *listeners, int nlisteners, const uint8_t self[16]) {
    server *s;
    tutti_status status = tutti_calloc(1, sizeof *s, &s);
    if (status != TUTTI_OK) {
        for (int i = 0; i < nlisteners; i++) close(listeners[i]);
        return status;
    }
    memcpy(s->self, self, sizeof s->self);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->stop = (watched){.kind = STOP, .fd = s->stop_fd};
    bool ready = s->epoll_fd >= 0 && s->stop_fd >= 0 && watch(s, &s->stop);
    for (int i = 0; i < nlisteners; i++) {
        s->listeners[s->nlisteners++] = (watched){.kind = LISTENER, .fd = listeners[i]};
        ready = ready && watch(s, &s->listeners[i]);
    }
    int error = ready ? tutti_thread_start(TUTTI_THREAD_LISTENER, serve, s, &s->thread) : errno;
    if (error != 0) {
        destroy(s);
        return tutti_fail_errno(error, "cannot start the thread that answers connections of other hosts");
    }
    running = s;
    return TUTTI_OK;
}

/* Stops the thread, and waits for it. */
static void stop_server(void) {
    server *s = running;
    uint64_t one = 1;
    if (s == NULL || write(s->stop_fd, &one, sizeof one) != sizeof one) return;
    pthread_join(s->thread, NULL);
    running = NULL;
    destroy(s);
}

/* --------------------------------------------------------------------------------------------- listening */

/* The ports of TUTTI_PORTS; first 0: any. */
typedef struct port_range {
    int first, count;
} port_range;

static tutti_status read_ports(port_range *range_out) {
    const char *text = tutti_setting_text(TUTTI_SETTING_PORTS);
    char *end;
    *range_out = (port_range){.first = 0, .count = PORT_TRIES};
    if (*text == '\0') return TUTTI_OK;
    const long first = strtol(text, &end, 10);
    const long last = *end == '-' && end[1] != '\0' ? strtol(end + 1, &end, 10) : first;
    if (end == text || *end != '\0' || first < 1 || last < first || last > UINT16_MAX)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "TUTTI_PORTS=%.80s: expected two ports from 1 to 65535, the first and the last, such as "
                          "20000-20031",
                          text);
    *range_out = (port_range){.first = (int)first, .count = (int)(last - first + 1)};
    return TUTTI_OK;
}

/* Adds the address of TUTTI_ADVERTISE before those of this host, which may not be reached from outside. */
static tutti_status advertise(tutti_listener_info *info) {
    const char *text = tutti_setting_text(TUTTI_SETTING_ADVERTISE);
    tutti_listener_address address;
    memset(&address, 0, sizeof address);
    if (*text == '\0') return TUTTI_OK;
    if (!tutti_address_read(text, address.bytes))
        return tutti_fail(
            TUTTI_ERR_CONFIG,
            "TUTTI_ADVERTISE=%.80s is not an address: expected the IPv4 or IPv6 address at which other hosts "
            "reach this one, such as 192.168.1.12",
            text);
    for (int i = 0; i < info->naddresses; i++)
        if (memcmp(info->addresses[i].bytes, address.bytes, sizeof address.bytes) == 0) return TUTTI_OK;
    snprintf(address.interface, sizeof address.interface, ADVERTISED);
    if (info->naddresses == TUTTI_LISTENER_ADDRESSES) info->naddresses--; /* the least of this host's */
    memmove(info->addresses + 1, info->addresses, info->naddresses * sizeof info->addresses[0]);
    info->addresses[0] = address;
    info->naddresses++;
    return TUTTI_OK;
}

/* Returns a socket that listens at the address, or -1; port 0 takes any port and stores it. */
static int listen_at(const tutti_listener_address *address, uint16_t *port) {
    struct sockaddr_storage name;
    socklen_t bytes = tutti_listener_sockaddr(address, *port, &name);
    int one = 1, fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    /* A given port may still have connections of an earlier job that are closed; never one that is listened at. */
    if (*port != 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (name.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&name, bytes) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &bytes) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *port = ntohs(name.ss_family == AF_INET ? ((struct sockaddr_in *)&name)->sin_port
                                            : ((struct sockaddr_in6 *)&name)->sin6_port);
    return fd;
}

/* Listens at all addresses that the system permits, at one port; keeps only these addresses in the listener info. */
static int listen_everywhere(const port_range *ports, tutti_listener_info *info, int fds[TUTTI_LISTENER_ADDRESSES]) {
    int error = EADDRNOTAVAIL;
    for (int attempt = 0; attempt < ports->count; attempt++) {
        tutti_listener_info tried = *info;
        bool taken = false;
        tried.naddresses = 0;
        tried.port = (uint16_t)(ports->first > 0 ? ports->first + attempt : 0);
        for (int i = 0; i < info->naddresses && !taken; i++) {
            int fd = listen_at(&info->addresses[i], &tried.port);
            if (fd < 0) error = errno;
            taken = fd < 0 && error == EADDRINUSE; /* the first address's port is taken here: start over */
            if (fd < 0) continue;
            fds[tried.naddresses] = fd;
            tried.addresses[tried.naddresses++] = info->addresses[i];
        }
        if (!taken && tried.naddresses > 0) {
            *info = tried;
            return 0;
        }
        while (tried.naddresses > 0) close(fds[--tried.naddresses]);
        if (!taken) return error;
    }
    return error;
}

static tutti_status list_addresses(tutti_listener_info *info) {
    tutti_interface found[TUTTI_LISTENER_ADDRESSES];
    int count = 0;
    TUTTI_TRY(tutti_interfaces_list(found, TUTTI_LISTENER_ADDRESSES, &count));
    for (int i = 0; i < count; i++) {
        tutti_listener_address *address = &info->addresses[i];
        memcpy(address->bytes, found[i].address, sizeof address->bytes);
        memcpy(address->interface, found[i].name, sizeof address->interface);
        address->scope = found[i].scope;
        address->speed_mbit = found[i].speed_mbit;
    }
    info->naddresses = (uint16_t)count;
    return TUTTI_OK;
}

/* Lock held. A host without a network cannot be reached by others; jobs on this host alone still work. */
static tutti_status start_listening(void) {
    tutti_peer *self;
    tutti_listener_info info;
    int fds[TUTTI_LISTENER_ADDRESSES];
    memset(&info, 0, sizeof info);
    TUTTI_TRY(tutti_peer_self(&self));
    memcpy(info.process, self->id, sizeof info.process);
    port_range ports;
    TUTTI_TRY(tutti_transports_available(&info.transports));
    TUTTI_TRY(read_ports(&ports));
    tutti_status status = list_addresses(&info);
    if (status == TUTTI_ERR_CONFIG) return status;
    int error = status == TUTTI_OK ? listen_everywhere(&ports, &info, fds) : 0;
    if (error == EADDRINUSE && ports.first > 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "TUTTI_PORTS=%.80s: all %d ports are in use on this host; give at least one for each of its "
                          "ranks",
                          tutti_setting_text(TUTTI_SETTING_PORTS), ports.count);
    if (error != 0) status = tutti_fail_errno(error, "cannot listen at any address of this host");
    if (status == TUTTI_OK) {
        const int nlisteners = info.naddresses;
        open_bell();
        status = advertise(&info);
        if (status != TUTTI_OK) {
            for (int i = 0; i < nlisteners; i++) close(fds[i]);
            return status;
        }
        advertised.set = strcmp(info.addresses[0].interface, ADVERTISED) == 0;
        advertised.port = info.port;
        memcpy(advertised.address, info.addresses[0].bytes, sizeof advertised.address);
        TUTTI_TRY(start_server(fds, nlisteners, info.process));
    } else {
        info.port = info.naddresses = 0;
        snprintf(info.why, sizeof info.why, "%.95s", tutti_last_error());
    }
    own_info = info;
    opened = true;
    return TUTTI_OK;
}

tutti_status tutti_listener_open(tutti_listener_info *info_out) {
    tutti_fork_watch();
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    tutti_lock(TUTTI_LOCK_LISTENER);
    tutti_status status = opened ? TUTTI_OK : start_listening();
    if (status == TUTTI_OK) *info_out = own_info;
    tutti_unlock(TUTTI_LOCK_LISTENER);
    return status;
}

tutti_status tutti_listener_take(const tutti_conn_id *conn_id, tutti_connection *connections_out) {
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    tutti_lock(TUTTI_LOCK_LISTENER);
    bool listens = own_info.port != 0;
    bool complete = take_arrivals(conn_id, connections_out);
    tutti_unlock(TUTTI_LOCK_LISTENER);
    if (!listens) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "this process accepts no connections: %s", own_info.why);
    return complete ? TUTTI_OK : TUTTI_NOT_YET;
}

/* The thread must not outlive this code, or read what the process frees at exit. */
__attribute__((destructor)) static void stop_listening(void) {
    if (!tutti_forked()) stop_server();
}
