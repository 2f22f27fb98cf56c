/*
 * By which ways bytes go to the ranks of other hosts, told in the log: what was chosen, and why nothing better.
 *
 * TUTTI_LOG=info: the first rank of each host says, for a communicator that has come over several hosts, which transport
 * leads to which hosts. TUTTI_LOG=debug: each connection says between which addresses it goes.
 */
#ifndef TUTTI_ROUTE_LOG_H
#define TUTTI_ROUTE_LOG_H

#include "comm/base/comm.h"
#include "comm/net/listener.h"

/* Of a communicator over several hosts. */
void tutti_route_log_hosts(const tutti_comm *comm);
/* Of a connection that has proved itself, and becomes what its ticket says. */
void tutti_route_log_connection(const tutti_conn_id *ticket, int socket);

#endif
