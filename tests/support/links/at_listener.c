/*
 * Connection ids and connections for tests of the listener. See at_listener.h.
 */
#include "tests/support/links/at_listener.h"

#include <poll.h>
#include <string.h>

#include "bootstrap/base/deadline.h"

tutti_listener_info own_listener;

tutti_conn_id conn_id_of(uint64_t comm_id) {
    tutti_conn_id conn_id;
    memset(&conn_id, 0, sizeof conn_id);
    memset(conn_id.from, 7, sizeof conn_id.from);
    memcpy(conn_id.to, own_listener.process, sizeof conn_id.to);
    conn_id.comm_id = comm_id;
    conn_id.use = TUTTI_CONN_LINK;
    conn_id.lanes = 1;
    return conn_id;
}

tutti_connection take_connection(const tutti_conn_id *conn_id, int64_t within_ms) {
    tutti_connection got = {.socket = -1};
    tutti_deadline deadline = tutti_deadline_after_ms(within_ms);
    while (tutti_listener_take(conn_id, &got) == TUTTI_NOT_YET && !tutti_deadline_passed(&deadline))
        poll(&(struct pollfd){.fd = tutti_listener_notify_fd(), .events = POLLIN}, 1, 1);
    return got;
}

int take(const tutti_conn_id *conn_id, int64_t within_ms) {
    return take_connection(conn_id, within_ms).socket;
}
