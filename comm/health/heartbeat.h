/*
 * Heartbeats between hosts: they detect deaths of processes on other hosts and hosts that cannot be reached.
 *
 * The first process of each host (of a communicator) has a connection to the first process of each other host. It
 * sends heartbeats twice a second, with the ids of processes of its own host that have ended. The system
 * acknowledges heartbeats even for a stopped process. If it does not for TUTTI_PEER_TIMEOUT_MS, the host is
 * considered lost. A connection that ends without a goodbye means that its process has ended.
 *
 * If a first process leaves the communicator while other processes of its host are still in it, these rely on it to
 * learn of deaths on other hosts, and other hosts rely on it to learn of theirs. So it continues its heartbeats on
 * their behalf until the last of them has left or died. If it ends before that, each process detects deaths only
 * through its own connections.
 *
 * A first process publishes the deaths it learns of in its channel directory (peer.h), where the other processes
 * of its host read them.
 *
 * Invariant: a remote process is marked as dead only in heartbeat.c; a thread that waits for it finds the mark
 * (tutti_peer_ended).
 */
#ifndef TUTTI_HEARTBEAT_H
#define TUTTI_HEARTBEAT_H

#include "comm/base/comm.h"

/* Starts to watch the other hosts, if this rank is the first of its host. */
tutti_status tutti_heartbeat_watch_hosts(tutti_comm *comm);
/* Called when this process needs nothing of the communicator any more, before tutti_hosts_leave: stops the watching,
 * or continues it on behalf of others. */
void tutti_heartbeat_leave_hosts(tutti_comm *comm);
/* Reads which processes of other hosts have died, as found by this host's first process. Cheap if there is nothing
 * new. */
void tutti_heartbeat_read_deaths(const tutti_comm *comm);
/* A process of this host has ended: notifies the other hosts now, not with the next heartbeat, if that is this
 * process's task. */
void tutti_heartbeat_now(void);

#endif
