/*
 * Logs which transport connects which hosts, and why no better one was chosen.
 *
 * TUTTI_LOG=info: the first rank of each host logs, for each new communicator over several hosts, which transport
 * leads to which hosts. TUTTI_LOG=debug: each connection logs the addresses of its two ends.
 */
#ifndef TUTTI_ROUTE_LOG_H
#define TUTTI_ROUTE_LOG_H

#include "comm/base/comm.h"
#include "comm/net/listener.h"

/* Logs the transports of a communicator over several hosts. */
void tutti_route_log_hosts(const tutti_comm *comm);
/* Logs an authenticated connection, which is about to be opened as its connection id says. */
void tutti_route_log_connection(const tutti_conn_id *conn_id, int socket);

#endif
