/*
 * Shared by tests of the listener: an open listener, and connection ids for links to it.
 */
#ifndef TUTTI_TESTS_AT_LISTENER_H
#define TUTTI_TESTS_AT_LISTENER_H

#include "comm/net/listener.h"

extern tutti_listener_info own_listener; /* opened by the test */

/* A connection id from a made-up process to this one, for one lane. */
tutti_conn_id conn_id_of(uint64_t comm_id);
/* The connection that has arrived for the connection id; its socket is -1 if none arrived within that time. */
tutti_connection take_connection(const tutti_conn_id *conn_id, int64_t within_ms);
int take(const tutti_conn_id *conn_id, int64_t within_ms);

#endif
