/*
 * Who stays behind: the first process of a host leaves a communicator, and others of its host are still in it. They rely on it
 * to hear of deaths elsewhere, and other hosts to hear of theirs. So it goes on with its heartbeats (heartbeat.h) until the last of
 * them has left or died. If it ends before that, each hears by its own connections only.
 */
#ifndef TUTTI_HEARTBEAT_PROXY_H
#define TUTTI_HEARTBEAT_PROXY_H

#include "comm/base/comm.h"

/* For a communicator over hosts that this process leaves, and in which it watches the first processes of other hosts: takes
 * the watching over. False: all of this host have gone, or there is no memory; the watching is still the caller's. */
bool tutti_heartbeat_proxy_take(const tutti_comm *comm);
/* Stops to watch for those of whom all have gone. Any thread but that of the heartbeats: waits until that has been said. */
void tutti_heartbeat_proxy_release(void);
/* The same by the heartbeats themselves, after they have told of all deaths. */
void tutti_heartbeat_proxy_release_now(void);

#endif
