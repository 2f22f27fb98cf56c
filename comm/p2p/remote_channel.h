/*
 * Channels to processes of other hosts: the same rings and records as between processes of one host (channel.h),
 * mirrored over pipes.
 *
 *     A's ring  -- frames { bytes of the ring } -->  B's copy of A's ring, read like a mapped ring
 *     a stream  -- frames { transfer, bytes } ---->  the buffer of the receive: not through the ring
 *
 * Nor does a frame that is one eager message take the ring, if its receive waits when its header comes: copying its
 * bytes twice, into the ring and out of it, took a sixth of the time of 32 KiB. A receive that is given up
 * meanwhile leaves the message to the next one, by the ring. The same holds for an announcement with the first bytes
 * of its message, whose receive then requests the rest at once.
 *
 * Each frame carries an acknowledgement, which is how far its sender has read the other ring. An acknowledgement
 * gets a frame of its own only if nothing else goes in that direction. Earlier, it was sent ahead of the answer to
 * each message of 32 KiB, which made that answer 6 us slower.
 *
 * Both directions share a connection, so that an answer carries the acknowledgement of what it answers. The process
 * that has something to send makes the connection, on a thread of its own, and does not wait for it. Records
 * written to the ring meanwhile are sent as soon as the connection exists.
 *
 * Invariant: all of a frame has come before its first record becomes visible.
 */
#ifndef TUTTI_REMOTE_H
#define TUTTI_REMOTE_H

#include "comm/p2p/channel.h"

struct tutti_pipe;
struct tutti_transport;
struct tutti_waiter;

/* A part of this size and its header are sent by one call of tcp. Between near cores, messages of 512 KiB to 32 MiB
 * took 1.1 to 1.25 times as long with parts of 252 KiB, longer ones than 512 KiB twice as long with parts of 1020. */
#define TUTTI_REMOTE_STREAM_BYTES ((size_t)508 << 10)

/* Makes a channel a remote channel, without rings at first: of thousands of peers only some exchange messages. */
tutti_status tutti_remote_open(tutti_channels *channel);
/* Allocates its two rings. */
tutti_status tutti_remote_equip(tutti_channels *channel);
void tutti_remote_close(tutti_channels *channel);
/* Moves the data that can move; returns true if something moved. A permanent failure breaks the channel. A peer
 * that has closed is `gone` once all data it sent has been read. */
bool tutti_remote_progress(tutti_channels *channel);
/* Sends the bytes just written to our ring, if that is possible now. */
void tutti_remote_flush(tutti_channels *channel);
/* Sends a record straight from the caller's memory: its line, which has been written at the ring's head, and its
 * payload; the record takes `span` bytes of the ring. False: not possible now. In both cases the caller then
 * advances the head. After true, unless the system has taken all of the record (tutti_remote_has_straight), the
 * caller copies the payload into the ring and has the rest sent from there (tutti_remote_send_rest). */
bool tutti_remote_send_straight(tutti_channels *channel, const void *payload, size_t bytes, size_t span);
bool tutti_remote_has_straight(const tutti_channels *channel);
void tutti_remote_send_rest(tutti_channels *channel, size_t span);
/* Bytes of the peer's ring that have come and have not been read: whole records, if the peer follows the protocol. */
uint64_t tutti_remote_unread(const tutti_channels *channel);
/* Returns true if there is a connection to send on. */
bool tutti_remote_is_open(const tutti_channels *channel);
/* Returns true if messages need not take the ring: the connection's buffers can be moved. */
bool tutti_remote_is_straight(const tutti_channels *channel);
/* Returns true if either side has a connection or is making one. */
bool tutti_remote_is_used(const tutti_channels *channel);
/* Returns one of its connections that does not use this transport; NULL: there is none. */
const struct tutti_pipe *tutti_remote_not_by(const tutti_channels *channel, const struct tutti_transport *transport);
/* Connects if there is no connection yet: a connection reports the peer's end. */
void tutti_remote_reach(tutti_channels *channel);
/* Returns whether a part of a stream can be sent now. Then tutti_remote_stream sends up to TUTTI_REMOTE_STREAM_BYTES
 * of the bytes that the request has left. */
bool tutti_remote_can_stream(const tutti_channels *channel);
void tutti_remote_stream(tutti_channels *channel, struct tutti_request *request);
/* The request ends: its buffer is no longer used. A frame that is being sent or received continues without it. */
void tutti_remote_let_go(tutti_channels *channel, const struct tutti_request *request);
/* The same for a receive that waits no longer. Another receive gets its message. Nothing, if no message was coming. */
void tutti_remote_leave_waiter(struct tutti_waiter *waiter);
/* Returns true if the system has not taken all bytes. Their sender may not wait: another thread must drive them. */
bool tutti_remote_is_busy(const tutti_channels *channel);

#endif
