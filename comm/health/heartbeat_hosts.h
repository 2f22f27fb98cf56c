/*
 * Heartbeats of a communicator over hosts: the first process of each host watches the first processes of the others.
 *
 * If it leaves the communicator while other processes of its host are still in it, these rely on it to learn of deaths
 * on other hosts, and other hosts rely on it to learn of theirs. So it continues its heartbeats (heartbeat.h) on their
 * behalf until the last of them has left or died. If it ends before that, each process detects deaths only through its
 * own connections.
 */
#ifndef TUTTI_HEARTBEAT_HOSTS_H
#define TUTTI_HEARTBEAT_HOSTS_H

#include "comm/base/comm.h"

/* Starts to watch the other hosts, if this rank is the first of its host. */
tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm);
/* Called when this process needs nothing of the communicator any more, before tutti_hosts_leave: stops the watching,
 * or continues it on behalf of others. */
void tutti_heartbeat_leave_hosts(tutti_comm *comm);
/* Reads which processes of other hosts have died, as found by this host's first process. Cheap if there is nothing
 * new. */
void tutti_heartbeat_read_deaths(const tutti_comm *comm);
/* For the heartbeat thread, after it has sent all deaths: stops watching for communicators that all processes of this
 * host have left. */
void tutti_heartbeat_hosts_release(void);

#endif
