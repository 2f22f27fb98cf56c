/*
 * Channels to processes of other hosts: the same rings and records as between processes of one host (channel.h), mirrored
 * over pipes.
 *
 *     A's ring  -- frames { bytes of the ring } -->  B's copy of A's ring, read like a mapped one
 *     a stream  -- frames { transfer, bytes } ---->  where that receive wants them: not by the ring
 *
 * Each frame carries the news, how far its sender has read the other ring; they get one of their own only where nothing else
 * goes that way. Before, they went ahead of the answer to each message of 32 KiB, which took 6 us longer for it.
 *
 * Both directions share a connection, so that an answer carries the acknowledgement of what it answers. The one who has
 * something to send makes it, on a thread of its own: nobody waits for it. What is written to the ring meanwhile goes out as
 * soon as it is there.
 *
 * Invariant: all of a frame is in the copy before its first record can be seen.
 */
#ifndef TUTTI_REMOTE_H
#define TUTTI_REMOTE_H

#include "comm/p2p/channel.h"

struct tutti_pipe;
struct tutti_transport;

#define TUTTI_REMOTE_STREAM_BYTES (TUTTI_CHANNEL_RING_BYTES - ((size_t)4 << 10)) /* with its header in one call of tcp */

/* Makes a channel one to a far peer, as yet without rings: of thousands of peers only some ever get or send a message. */
tutti_status tutti_remote_open(tutti_channels *channel);
/* Gives it its two rings. */
tutti_status tutti_remote_equip(tutti_channels *channel);
void tutti_remote_close(tutti_channels *channel);
/* Moves what can be moved; true when something did. What cannot be mended breaks the channel; a peer that has closed is
 * `gone` once all that it sent has been read. */
bool tutti_remote_progress(tutti_channels *channel);
/* Sends what has just been written to our ring, if that is possible now. */
void tutti_remote_flush(tutti_channels *channel);
/* Sends a record straight from the caller's memory: its line, which has been written at the ring's head, and its payload; all of
 * it takes `span` bytes of the ring. False: not now. Then the caller advances the head; and unless the system has all of it
 * (tutti_remote_has_straight), he copies the payload into the ring and has the rest sent from there. */
bool tutti_remote_send_straight(tutti_channels *channel, const void *payload, size_t bytes, size_t span);
bool tutti_remote_has_straight(const tutti_channels *channel);
void tutti_remote_send_rest(tutti_channels *channel, size_t span);
/* Bytes of the peer's ring that have come and have not been read: whole records, if it keeps to the rules. */
uint64_t tutti_remote_unread(const tutti_channels *channel);
/* Have we a connection to send on? */
bool tutti_remote_is_open(const tutti_channels *channel);
/* Is there a connection of either side, or will there soon be one? */
bool tutti_remote_is_used(const tutti_channels *channel);
/* One of its connections that is not of this transport; NULL: there is none. */
const struct tutti_pipe *tutti_remote_not_by(const tutti_channels *channel, const struct tutti_transport *transport);
/* Connects if that has not been done: so one hears of the peer's end. */
void tutti_remote_reach(tutti_channels *channel);
/* May a part of a stream be sent now? Then sends up to TUTTI_REMOTE_STREAM_BYTES of what the request has left. */
bool tutti_remote_can_stream(const tutti_channels *channel);
void tutti_remote_stream(tutti_channels *channel, struct tutti_request *request);
/* The request ends: its buffer is not looked at any more. A frame that is under way goes on without it. */
void tutti_remote_let_go(tutti_channels *channel, const struct tutti_request *request);
/* Is there something that the system has not taken yet? Who has sent it may long have gone on: somebody must drive it. */
bool tutti_remote_is_busy(const tutti_channels *channel);

#endif
