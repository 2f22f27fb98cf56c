/*
 * What tests of the listener share: one that is open, and tickets for links to it.
 */
#ifndef TUTTI_TESTS_AT_LISTENER_H
#define TUTTI_TESTS_AT_LISTENER_H

#include "comm/net/listener.h"

extern tutti_listener_info own_listener; /* which a test has opened */

/* From a made-up process to this one, of one lane. */
tutti_conn_id ticket_of(uint64_t comm_id);
/* What has come for the ticket; its socket is -1: nothing within that time. */
tutti_connection take_connection(const tutti_conn_id *ticket, int64_t within_ms);
int take(const tutti_conn_id *ticket, int64_t within_ms);

#endif
