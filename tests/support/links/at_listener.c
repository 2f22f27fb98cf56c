/*
 * Tickets and connections for tests of the listener. See at_listener.h.
 */
#include "tests/support/links/at_listener.h"

#include <poll.h>
#include <string.h>

#include "bootstrap/base/deadline.h"

tutti_listener_info own_listener;

tutti_conn_id ticket_of(uint64_t comm_id) {
    tutti_conn_id ticket;
    memset(&ticket, 0, sizeof ticket);
    memset(ticket.from, 7, sizeof ticket.from);
    memcpy(ticket.to, own_listener.process, sizeof ticket.to);
    ticket.comm_id = comm_id;
    ticket.use = TUTTI_CONN_LINK;
    ticket.lanes = 1;
    return ticket;
}

tutti_connection take_connection(const tutti_conn_id *ticket, int64_t within_ms) {
    tutti_connection got = {.socket = -1};
    tutti_deadline deadline = tutti_deadline_after_ms(within_ms);
    while (tutti_listener_take(ticket, &got) == TUTTI_NOT_YET && !tutti_deadline_passed(&deadline))
        poll(&(struct pollfd){.fd = tutti_listener_notify_fd(), .events = POLLIN}, 1, 1);
    return got;
}

int take(const tutti_conn_id *ticket, int64_t within_ms) {
    return take_connection(ticket, within_ms).socket;
}
