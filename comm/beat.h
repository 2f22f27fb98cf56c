/*
 * Heartbeats between hosts: who has died there, and whether a host can still be reached.
 *
 * The first process of each host (of a communicator) has a connection with the first one of each other host. On it go beats,
 * twice a second, with the processes of the own host that have ended. The system acknowledges beats even for a process that
 * is stopped; if it does not for TUTTI_PEER_TIMEOUT_MS, the host has vanished. A connection that ends without a goodbye is
 * the end of its process. A first process that leaves before others of its host goes on for them (wards.h).
 *
 * What a first process learns it leaves in its lobby (channel.h), where the other processes of its host read it.
 *
 * Invariant: a process is marked as dead here only; who waits for it finds the mark (tutti_peer_ended).
 */
#ifndef TUTTI_BEAT_H
#define TUTTI_BEAT_H

#include "comm/peer.h"

/* Begins, for a communicator, to watch the first process of another host; starts the thread. `first` processes only. */
tutti_status tutti_beat_watch(tutti_peer *far);
/* Ends it; the last one returns when the connection has said goodbye. */
void tutti_beat_unwatch(tutti_peer *far);
/* This process leaves the communicator, and goes on to watch for others (wards.h): returns when the other side has been told
 * that this one's end is no death any more. */
void tutti_beat_leave(tutti_peer *far);
/* Ends what tutti_beat_leave has left; the first one returns when goodbye has been said, the second one is for the thread of
 * heartbeats itself. */
void tutti_beat_unwatch_left(tutti_peer *far);
void tutti_beat_drop_left(tutti_peer *far);
/* A process of this host has ended: tells the other hosts now, not with the next beat, if that is this process's task. */
void tutti_beat_hurry(void);
/* Reads what the first process of this host has learned. Cheap when that is nothing. */
void tutti_beat_read(tutti_peer *first);

#endif
