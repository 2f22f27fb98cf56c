/*
 * Heartbeats between hosts: who has died there, and whether a host can still be reached.
 *
 * The first process of each host (of a communicator) has a connection with the first one of each other host. On it go heartbeats,
 * twice a second, with the processes of the own host that have ended. The system acknowledges heartbeats even for a process that
 * is stopped; if it does not for TUTTI_PEER_TIMEOUT_MS, the host has vanished. A connection that ends without a goodbye is
 * the end of its process. A first process that leaves before others of its host goes on for them (heartbeat_proxy.h).
 *
 * What a first process learns it leaves in its channel directory (channel.h), where the other processes of its host read it.
 *
 * Invariant: a process is marked as dead here only; who waits for it finds the mark (tutti_peer_ended).
 */
#ifndef TUTTI_HEARTBEAT_H
#define TUTTI_HEARTBEAT_H

#include "comm/shm/peer.h"

/* Begins, for a communicator, to watch the first process of another host; starts the thread. `first` processes only. */
tutti_status tutti_heartbeat_watch(tutti_peer *remote);
/* Ends it; the last one returns when the connection has said goodbye. */
void tutti_heartbeat_unwatch(tutti_peer *remote);
/* This process leaves the communicator, and goes on to watch for others (heartbeat_proxy.h): returns when the other side has been told
 * that this one's end is no death any more. */
void tutti_heartbeat_leave(tutti_peer *remote);
/* Ends what tutti_heartbeat_leave has left; the first one returns when goodbye has been said, the second one is for the thread of
 * heartbeats itself. */
void tutti_heartbeat_unwatch_left(tutti_peer *remote);
void tutti_heartbeat_drop_left(tutti_peer *remote);
/* A process of this host has ended: tells the other hosts now, not with the next heartbeat, if that is this process's task. */
void tutti_heartbeat_now(void);
/* Reads what the first process of this host has learned. Cheap when that is nothing. */
void tutti_heartbeat_read(tutti_peer *first);

#endif
