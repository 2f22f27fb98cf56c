/*
 * Heartbeats of a communicator over hosts: the first process of each host watches the first processes of the others.
 */
#ifndef TUTTI_HEARTBEAT_HOSTS_H
#define TUTTI_HEARTBEAT_HOSTS_H

#include "comm/base/comm.h"

/* Starts to watch the other hosts, if this rank is the first of its host. */
tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm);
/* Called when this process needs nothing of the communicator any more, before tutti_hosts_leave: stops the watching,
 * or continues it on behalf of others (heartbeat_proxy.h). */
void tutti_heartbeat_leave_hosts(tutti_comm *comm);
/* Reads which processes of other hosts have died, as found by this host's first process. Cheap if there is nothing
 * new. */
void tutti_heartbeat_read_deaths(const tutti_comm *comm);

#endif
