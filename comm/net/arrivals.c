/*
 * The authenticated connections that have not been taken yet, by ticket. See listener.h.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/net/listener_state.h"

#define MOST_ARRIVED 4096 /* unit: pipes */
#define LONGEST_S    600  /* for which a connection waits to be taken */

typedef struct arrival {
    tutti_conn_id ticket;
    tutti_connection connection;
    int64_t since_ns;
} arrival;

/* Under TUTTI_LOCK_LISTENER, except bell_fd once it is set. */
static int bell_fd = -1;
static arrival *arrivals; /* oldest first */
static int narrivals, arrivals_capacity;
static _Atomic uint64_t arrived; /* in total */

void tutti_arrivals_open(void) {
    if (bell_fd < 0) bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

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

void tutti_arrivals_add(const tutti_conn_id *ticket, const tutti_connection *connection) {
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

void tutti_arrivals_prune(void) {
    int64_t now_ns = tutti_now_ns();
    tutti_lock(TUTTI_LOCK_LISTENER);
    for (int i = narrivals - 1; i >= 0; i--) {
        char byte;
        bool gone = recv(arrivals[i].connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
        if (gone || now_ns - arrivals[i].since_ns > LONGEST_S * TUTTI_NS_PER_S) drop_arrival(i);
    }
    tutti_unlock(TUTTI_LOCK_LISTENER);
}

bool tutti_arrivals_take(const tutti_conn_id *ticket, tutti_connection *connections_out) {
    bool complete = has_all_lanes(ticket);
    for (uint32_t lane = 0; complete && lane < ticket->lanes; lane++) {
        int index = find_lane(ticket, lane);
        connections_out[lane] = arrivals[index].connection;
        remove_arrival(index);
    }
    return complete;
}

int tutti_listener_notify_fd(void) {
    return bell_fd;
}
