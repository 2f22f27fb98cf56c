/*
 * Heartbeats between hosts: they detect deaths of processes on other hosts and hosts that cannot be reached.
 *
 * The first process of each host (of a communicator) has a connection to the first process of each other host. It
 * sends heartbeats twice a second, with the ids of processes of its own host that have ended. The system
 * acknowledges heartbeats even for a stopped process. If it does not for TUTTI_PEER_TIMEOUT_MS, the host is
 * considered lost. A connection that ends without a goodbye means that its process has ended. A first process that
 * leaves before others of its host continues on their behalf (heartbeat_hosts.h).
 *
 * A first process publishes the deaths it learns of in its channel directory (directory.h), where the other processes
 * of its host read them.
 *
 * Invariant: a remote process is marked as dead only here; a thread that waits for it finds the mark
 * (tutti_peer_ended).
 */
#ifndef TUTTI_HEARTBEAT_H
#define TUTTI_HEARTBEAT_H

#include "comm/shm/peer.h"

/* Starts to watch the first process of another host for a communicator, and starts the thread. Only for the first
 * process of a host. */
tutti_status tutti_heartbeat_watch(tutti_peer *remote);
/* Stops watching; the last call for a peer returns once the connection has said goodbye. */
void tutti_heartbeat_unwatch(tutti_peer *remote);
/* This process leaves the communicator and continues to watch on behalf of others (heartbeat_hosts.h). Returns once
 * the other side knows that it must no longer report the end of this process as a death. */
void tutti_heartbeat_leave(tutti_peer *remote);
/* Stop the watching that tutti_heartbeat_leave continued. The first function returns once goodbye has been said;
 * the second one is for the heartbeat thread itself. */
void tutti_heartbeat_unwatch_left(tutti_peer *remote);
void tutti_heartbeat_drop_left(tutti_peer *remote);
/* A process of this host has ended: notifies the other hosts now, not with the next heartbeat, if that is this
 * process's task. */
void tutti_heartbeat_now(void);
/* Reads the deaths that the first process of this host has learned of. Cheap if there are none. */
void tutti_heartbeat_read(tutti_peer *first);

#endif
