/*
 * Heartbeats on behalf of others: the first process of a host leaves a communicator while other processes of its
 * host are still in it. They rely on it to learn of deaths on other hosts, and other hosts rely on it to learn of
 * theirs. So it continues its heartbeats (heartbeat.h) until the last of them has left or died. If it ends before
 * that, each process detects deaths only through its own connections.
 */
#ifndef TUTTI_HEARTBEAT_PROXY_H
#define TUTTI_HEARTBEAT_PROXY_H

#include "comm/base/comm.h"

/* For a communicator over hosts that this process leaves and in which it watches the first processes of other
 * hosts: takes over the watching. Returns false if all processes of this host have left the communicator or an
 * allocation fails; the caller must then end the watching. */
bool tutti_heartbeat_proxy_take(const tutti_comm *comm);
/* Stops watching for communicators that all processes of this host have left. Any thread but the heartbeat thread
 * may call it: it waits until goodbye has been said. */
void tutti_heartbeat_proxy_release(void);
/* The same for the heartbeat thread itself, after it has sent all deaths. */
void tutti_heartbeat_proxy_release_now(void);

#endif
