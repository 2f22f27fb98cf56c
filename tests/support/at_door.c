/*
 * Tickets and connections for tests of the door. See at_door.h.
 */
#include "tests/support/at_door.h"

#include <poll.h>
#include <string.h>

#include "bootstrap/base/deadline.h"

tutti_door_card card;

tutti_ticket ticket_of(uint64_t comm_id) {
    tutti_ticket ticket;
    memset(&ticket, 0, sizeof ticket);
    memset(ticket.from, 7, sizeof ticket.from);
    memcpy(ticket.to, card.process, sizeof ticket.to);
    ticket.comm_id = comm_id;
    ticket.use = TUTTI_TICKET_LINK;
    ticket.lanes = 1;
    return ticket;
}

tutti_connection take_connection(const tutti_ticket *ticket, int64_t within_ms) {
    tutti_connection got = {.socket = -1};
    tutti_deadline deadline = tutti_deadline_after_ms(within_ms);
    while (tutti_door_take(ticket, &got) == TUTTI_NOT_YET && !tutti_deadline_passed(&deadline))
        poll(&(struct pollfd){.fd = tutti_door_bell(), .events = POLLIN}, 1, 1);
    return got;
}

int take(const tutti_ticket *ticket, int64_t within_ms) {
    return take_connection(ticket, within_ms).socket;
}
