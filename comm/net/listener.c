/*
 * The listener's addresses, and the authenticated connections that have not been taken yet. See listener.h.
 *
 * It listens on each chosen address separately, at one port, so that no connection can arrive over an interface
 * that the job may not use. accept.c answers; this file keeps the authenticated connections, by ticket.
 */
#include "comm/net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/machine/interfaces.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"
#include "comm/net/listener_state.h"
#include "comm/net/transport/transport.h"
#include "comm/shm/peer.h"

#define MOST_ARRIVED 4096 /* unit: pipes */
#define LONGEST_S    600  /* for which a connection waits to be taken */
#define PORT_TRIES   16
#define ADVERTISED   "advertised" /* in the place of an interface's name */

typedef struct arrival {
    tutti_conn_id ticket;
    tutti_connection connection;
    int64_t since_ns;
} arrival;

/* Under TUTTI_LOCK_LISTENER, except bell_fd once it is set. */
static bool opened;
static tutti_listener_info own_card;
static int bell_fd = -1;
static arrival *arrivals; /* oldest first */
static int narrivals, arrivals_capacity;
static _Atomic uint64_t arrived; /* in total */

/* --------------------------------------------------------------------------------------------- listening */

unsigned tutti_listener_sockaddr(const tutti_listener_address *address, uint16_t port,
                                 struct sockaddr_storage *address_out) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    memset(address_out, 0, sizeof *address_out);
    if (memcmp(address->bytes, mapped, sizeof mapped) == 0) {
        struct sockaddr_in *four = (struct sockaddr_in *)address_out;
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        memcpy(&four->sin_addr, address->bytes + sizeof mapped, sizeof four->sin_addr);
        return sizeof *four;
    }
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address_out;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    six->sin6_scope_id = address->scope;
    memcpy(&six->sin6_addr, address->bytes, sizeof six->sin6_addr);
    return sizeof *six;
}

tutti_listener_endpoint tutti_listener_called(int fd, bool by_this_side) {
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct sockaddr_storage name;
    socklen_t bytes = sizeof name;
    tutti_listener_endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint);
    memset(&name, 0, sizeof name);
    int error = by_this_side ? getpeername(fd, (struct sockaddr *)&name, &bytes)
                             : getsockname(fd, (struct sockaddr *)&name, &bytes);
    if (error != 0) return endpoint; /* the connection is broken: the next message fails */
    if (name.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)&name;
        memcpy(endpoint.address, mapped, sizeof mapped);
        memcpy(endpoint.address + sizeof mapped, &four->sin_addr, sizeof four->sin_addr);
        endpoint.port = ntohs(four->sin_port);
    } else {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&name;
        memcpy(endpoint.address, &six->sin6_addr, sizeof endpoint.address);
        endpoint.port = ntohs(six->sin6_port);
    }
    return endpoint;
}

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
static tutti_status advertise(tutti_listener_info *card) {
    const char *text = tutti_setting_text(TUTTI_SETTING_ADVERTISE);
    tutti_listener_address address;
    memset(&address, 0, sizeof address);
    if (*text == '\0') return TUTTI_OK;
    if (!tutti_address_read(text, address.bytes))
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "TUTTI_ADVERTISE=%.80s is not an address: expected the IPv4 or IPv6 address at which other hosts "
                          "reach this one, such as 192.168.1.12",
                          text);
    for (int i = 0; i < card->naddresses; i++)
        if (memcmp(card->addresses[i].bytes, address.bytes, sizeof address.bytes) == 0) return TUTTI_OK;
    snprintf(address.interface, sizeof address.interface, ADVERTISED);
    if (card->naddresses == TUTTI_LISTENER_ADDRESSES) card->naddresses--; /* the least of this host's */
    memmove(card->addresses + 1, card->addresses, card->naddresses * sizeof card->addresses[0]);
    card->addresses[0] = address;
    card->naddresses++;
    return TUTTI_OK;
}

/* Set before the listener's thread starts. */
static struct {
    bool set;
    uint8_t address[16];
    uint16_t port;
} advertised;

bool tutti_listener_is_advertised(const tutti_listener_endpoint *called) {
    return advertised.set && called->port == advertised.port &&
           memcmp(called->address, advertised.address, sizeof advertised.address) == 0;
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
static int listen_everywhere(const port_range *ports, tutti_listener_info *card, int fds[TUTTI_LISTENER_ADDRESSES]) {
    int error = EADDRNOTAVAIL;
    for (int attempt = 0; attempt < ports->count; attempt++) {
        tutti_listener_info tried = *card;
        bool taken = false;
        tried.naddresses = 0;
        tried.port = (uint16_t)(ports->first > 0 ? ports->first + attempt : 0);
        for (int i = 0; i < card->naddresses && !taken; i++) {
            int fd = listen_at(&card->addresses[i], &tried.port);
            if (fd < 0) error = errno;
            taken = fd < 0 && error == EADDRINUSE; /* the first address's port is taken here: start over */
            if (fd < 0) continue;
            fds[tried.naddresses] = fd;
            tried.addresses[tried.naddresses++] = card->addresses[i];
        }
        if (!taken && tried.naddresses > 0) {
            *card = tried;
            return 0;
        }
        while (tried.naddresses > 0) close(fds[--tried.naddresses]);
        if (!taken) return error;
    }
    return error;
}

static tutti_status list_addresses(tutti_listener_info *card) {
    tutti_interface found[TUTTI_LISTENER_ADDRESSES];
    int count = 0;
    TUTTI_TRY(tutti_interfaces_list(found, TUTTI_LISTENER_ADDRESSES, &count));
    for (int i = 0; i < count; i++) {
        tutti_listener_address *address = &card->addresses[i];
        memcpy(address->bytes, found[i].address, sizeof address->bytes);
        memcpy(address->interface, found[i].name, sizeof address->interface);
        address->scope = found[i].scope;
        address->speed_mbit = found[i].speed_mbit;
    }
    card->naddresses = (uint16_t)count;
    return TUTTI_OK;
}

/* Lock held. A host without a network cannot be reached by others; jobs on this host alone still work. */
static tutti_status open_door(void) {
    tutti_peer *self;
    tutti_listener_info card;
    int fds[TUTTI_LISTENER_ADDRESSES];
    memset(&card, 0, sizeof card);
    TUTTI_TRY(tutti_peer_self(&self));
    memcpy(card.process, self->id, sizeof card.process);
    port_range ports;
    TUTTI_TRY(tutti_transports_available(&card.transports));
    TUTTI_TRY(read_ports(&ports));
    tutti_status status = list_addresses(&card);
    if (status == TUTTI_ERR_CONFIG) return status;
    int error = status == TUTTI_OK ? listen_everywhere(&ports, &card, fds) : 0;
    if (error == EADDRINUSE && ports.first > 0)
        return tutti_fail(TUTTI_ERR_CONFIG,
                          "TUTTI_PORTS=%.80s: all %d ports are in use on this host; give at least one for each of its "
                          "ranks",
                          tutti_setting_text(TUTTI_SETTING_PORTS), ports.count);
    if (error != 0) status = tutti_fail_errno(error, "cannot listen at any address of this host");
    if (status == TUTTI_OK) {
        const int nlisteners = card.naddresses;
        bell_fd = bell_fd >= 0 ? bell_fd : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        status = advertise(&card);
        if (status != TUTTI_OK) {
            for (int i = 0; i < nlisteners; i++) close(fds[i]);
            return status;
        }
        advertised.set = strcmp(card.addresses[0].interface, ADVERTISED) == 0;
        advertised.port = card.port;
        memcpy(advertised.address, card.addresses[0].bytes, sizeof advertised.address);
        TUTTI_TRY(tutti_listener_serve(fds, nlisteners, card.process));
    } else {
        card.port = card.naddresses = 0;
        snprintf(card.why, sizeof card.why, "%.95s", tutti_last_error());
    }
    own_card = card;
    opened = true;
    return TUTTI_OK;
}

tutti_status tutti_listener_open(tutti_listener_info *card_out) {
    tutti_fork_watch();
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    tutti_lock(TUTTI_LOCK_LISTENER);
    tutti_status status = opened ? TUTTI_OK : open_door();
    if (status == TUTTI_OK) *card_out = own_card;
    tutti_unlock(TUTTI_LOCK_LISTENER);
    return status;
}

/* ---------------------------------------------------------------------------------------------- arrivals */

static void remove_arrival(int index) {
    narrivals--;
    memmove(arrivals + index, arrivals + index + 1, (size_t)(narrivals - index) * sizeof arrivals[0]);
}

static int find_arrival(const tutti_conn_id *ticket) {
    for (int i = 0; i < narrivals; i++)
        if (memcmp(&arrivals[i].ticket, ticket, sizeof *ticket) == 0) return i;
    return -1;
}

static int find_lane(const tutti_conn_id *ticket, uint32_t lane) {
    tutti_conn_id one = *ticket;
    one.lane = lane;
    return find_arrival(&one);
}

/* The last lane arrives last, so it is checked first. */
static bool has_all_lanes(const tutti_conn_id *ticket) {
    uint32_t lane = ticket->lanes;
    while (lane > 0 && find_lane(ticket, lane - 1) >= 0) lane--;
    return ticket->lanes > 0 && lane == 0;
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

void tutti_listener_arrived(const tutti_conn_id *ticket, const tutti_connection *connection) {
    uint64_t one = 1;
    tutti_lock(TUTTI_LOCK_LISTENER);
    int earlier = find_arrival(ticket);
    if (earlier >= 0) drop_arrival(earlier); /* its sender has tried again, and has given up the earlier one */
    bool kept = make_place();
    if (kept)
        arrivals[narrivals++] = (arrival){.ticket = *ticket, .connection = *connection, .since_ns = tutti_now_ns()};
    tutti_unlock(TUTTI_LOCK_LISTENER);
    atomic_fetch_add_explicit(&arrived, 1, memory_order_release); /* pairs with _count */
    if (!kept) close(connection->socket);
    (void)!write(bell_fd, &one, sizeof one);
}

uint64_t tutti_listener_count(void) {
    return atomic_load_explicit(&arrived, memory_order_acquire);
}

void tutti_listener_prune(void) {
    int64_t now_ns = tutti_now_ns();
    tutti_lock(TUTTI_LOCK_LISTENER);
    for (int i = narrivals - 1; i >= 0; i--) {
        char byte;
        bool gone = recv(arrivals[i].connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
        if (gone || now_ns - arrivals[i].since_ns > LONGEST_S * TUTTI_NS_PER_S) drop_arrival(i);
    }
    tutti_unlock(TUTTI_LOCK_LISTENER);
}

tutti_status tutti_listener_take(const tutti_conn_id *ticket, tutti_connection *connections_out) {
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    tutti_lock(TUTTI_LOCK_LISTENER);
    bool listens = own_card.port != 0;
    bool complete = has_all_lanes(ticket);
    for (uint32_t lane = 0; complete && lane < ticket->lanes; lane++) {
        int index = find_lane(ticket, lane);
        connections_out[lane] = arrivals[index].connection;
        remove_arrival(index);
    }
    tutti_unlock(TUTTI_LOCK_LISTENER);
    if (!listens) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "this process accepts no connections: %s", own_card.why);
    return complete ? TUTTI_OK : TUTTI_NOT_YET;
}

int tutti_listener_notify_fd(void) {
    return bell_fd;
}

/* The thread must not outlive this code, or read what the process frees at exit. */
__attribute__((destructor)) static void close_door(void) {
    if (!tutti_forked()) tutti_listener_serve_end();
}
