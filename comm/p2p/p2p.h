/*
 * Point to point, on one host and between hosts (remote_channel.h): a state machine, not an algorithm. Each process
 * has one state machine; every thread that waits in this library drives it.
 */
#ifndef TUTTI_P2P_H
#define TUTTI_P2P_H

#include "comm/base/comm.h"
#include "comm/base/op.h"
#include "comm/queue/queue.h"

struct tutti_transport;

/* Tags of the library's own messages; users' tags are >= 0. */
enum { TUTTI_TAG_ACQUAINT = -2, TUTTI_TAG_GROUP = -16 };

/* Starts a send or receive; never waits. The work ends when the transfer is complete. The caller has checked the
 * arguments; tags below 0 are the library's. */
tutti_status tutti_p2p_send(tutti_comm *comm, const void *src, size_t bytes, int peer, int64_t tag, tutti_work *work);
/* item_bytes: size of one element, for the count that the work reports. */
tutti_status tutti_p2p_recv(tutti_comm *comm, void *dst, size_t bytes, size_t item_bytes, int peer, int64_t tag,
                            tutti_work *work);

/* Starts a message with a work of its own, a part of `whole` if that is not NULL; the caller has a reference to it. */
tutti_status tutti_p2p_start(tutti_comm *comm, const tutti_message *message, tutti_work *whole, tutti_work **work_out);

/* The short path of a blocking call, for a small message when nothing else is queued: without a work or a request.
 * Waits for some microseconds at most. Returns TUTTI_OK when the call is done, TUTTI_NOT_YET when the caller must take
 * the long path. */
tutti_status tutti_p2p_send_now(tutti_comm *comm, const void *src, size_t bytes, int peer, int64_t tag);
tutti_status tutti_p2p_recv_now(tutti_comm *comm, void *dst, size_t bytes, int peer, int64_t tag,
                                tutti_received *received_out);

/* Moves some of the data that can move; never blocks. Cheap when nothing is pending. Any thread may call it.
 * Returns true if something moved: a thread that waits should call again soon. */
bool tutti_p2p_progress(void);
/* The same, but waits for other threads that are making progress instead of leaving the work to them. */
bool tutti_p2p_progress_in_turn(void);
/* Returns true if this process has sends or receives that have not completed. */
bool tutti_p2p_pending(void);
/* Opens a communicator whose members are all known, and closes it. Creation ends with a meeting of all its ranks
 * after open, so a message for a communicator that is not open here is for one that has been closed. */
tutti_status tutti_p2p_open(tutti_comm *comm);
void tutti_p2p_close(tutti_comm *comm);
/* The communicator is broken: sends a notice, once, to ranks of other hosts that wait for this rank's messages. The
 * caller must hold no locks. */
void tutti_p2p_notify_broken(tutti_comm *comm);
/* Breaks the communicator and notifies other hosts. Any thread may call it, except one that runs an operation of the
 * communicator. */
tutti_status tutti_comm_give_up(tutti_comm *comm, tutti_status status);
/* The same for the thread that runs an operation of the communicator. */
tutti_status tutti_comm_give_up_running(tutti_comm *comm, tutti_status status);
/* The communicator is closed, and its processes stay known (heartbeat.h). When this returns, the data sent to other
 * hosts is on its way, and connections that no other communicator uses have ended. Must be called without locks. */
void tutti_p2p_see_off(const tutti_comm *comm);
/* Messages to a process of another host: returns the transport of one of its connections that is not `transport`,
 * and writes the reason to `why`. Returns NULL if no connection qualifies. */
const struct tutti_transport *tutti_p2p_not_by(const struct tutti_peer *peer, const struct tutti_transport *transport,
                                               char *why, size_t capacity);
/* The peer's mapping is about to be removed: frees peer->channels. Must be called without locks. */
void tutti_p2p_forget(struct tutti_peer *peer);

#endif
