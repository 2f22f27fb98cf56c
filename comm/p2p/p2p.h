/*
 * Point to point, on one host and between hosts (remote_channel.h): a state machine, no algorithm. It belongs to the process; whoever
 * waits for anything in this library drives it.
 */
#ifndef TUTTI_P2P_H
#define TUTTI_P2P_H

#include "comm/base/comm.h"
#include "comm/base/queue.h"

struct tutti_transport;

/* Tags of the library's own messages; users' tags are >= 0. */
enum { TUTTI_TAG_ACQUAINT = -2, TUTTI_TAG_GROUP = -16 };

/* Starts a send or receive; never waits. The work ends when it is complete. Arguments have been checked by the
 * caller, except that tags below 0 are the library's. */
tutti_status tutti_p2p_send(tutti_comm *comm, const void *src, size_t bytes, int peer, int64_t tag, tutti_work *work);
/* item_bytes: size of an element, for the count that the work reports. */
tutti_status tutti_p2p_recv(tutti_comm *comm, void *dst, size_t bytes, size_t item_bytes, int peer, int64_t tag,
                            tutti_work *work);

/* The short way of a blocking call, for a small message when nothing else is in line: no work, no request. Waits some
 * microseconds at most. TUTTI_OK: done; TUTTI_NOT_YET: take the long way. */
tutti_status tutti_p2p_send_now(tutti_comm *comm, const void *src, size_t bytes, int peer, int64_t tag);
tutti_status tutti_p2p_recv_now(tutti_comm *comm, void *dst, size_t bytes, int peer, int64_t tag,
                                tutti_received *received_out);

/* Moves some of what can be moved; never blocks. Cheap when nothing is under way. Any thread may call it. True when it
 * moved something: who waits should come again soon. */
bool tutti_p2p_progress(void);
/* The same, after other threads that are at it, instead of leaving it to them. */
bool tutti_p2p_progress_in_turn(void);
/* Are there sends or receives in this process that have not completed? */
bool tutti_p2p_pending(void);
/* The communicator appears (all members known) and goes. Creation ends with a meeting of all its ranks after open, so
 * a message for a communicator that is not open here is for one that has been closed. */
tutti_status tutti_p2p_open(tutti_comm *comm);
void tutti_p2p_close(tutti_comm *comm);
/* The communicator is broken: ranks of other hosts that wait for messages of this one are told so, once. Without locks. */
void tutti_p2p_notify_broken(tutti_comm *comm);
/* The communicator is closed, and its processes stay known (heartbeat_proxy.h): what was sent to those of other hosts is on its way, and
 * connections that nobody else uses have ended, when this returns. Without locks. */
void tutti_p2p_see_off(const tutti_comm *comm);
/* Of messages to a process of another host: a transport by which one of its connections goes, other than this one, and why;
 * NULL: there is no such connection. */
const struct tutti_transport *tutti_p2p_not_by(const struct tutti_peer *peer, const struct tutti_transport *transport,
                                               char *why, size_t capacity);
/* The peer's mapping is about to go: frees peer->channels. Called without locks held. */
void tutti_p2p_forget(struct tutti_peer *peer);

#endif
