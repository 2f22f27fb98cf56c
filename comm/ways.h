/*
 * By which ways bytes go to the ranks of other hosts, told in the log: what was chosen, and why nothing better.
 *
 * TUTTI_LOG=info: the first rank of each host says, for a communicator that has come over several hosts, which transport
 * leads to which hosts. TUTTI_LOG=debug: each connection says between which addresses it goes.
 */
#ifndef TUTTI_WAYS_H
#define TUTTI_WAYS_H

#include "comm/comm.h"
#include "comm/door.h"

/* Of a communicator over several hosts. */
void tutti_ways_tell(const tutti_comm *comm);
/* Of a connection that has proved itself, and becomes what its ticket says. */
void tutti_ways_tell_connection(const tutti_ticket *ticket, int socket);

#endif
