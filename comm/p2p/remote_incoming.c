/*
 * The frames that come from another host: bytes of the peer's ring, which incoming.c then reads like a mapped ring,
 * and parts of streams, which go to the buffers of receives. See remote_channel.h.
 */
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "comm/p2p/remote_state.h"

#define PARTS_AT_ONCE 16 /* incoming parts of frames: then other channels have a turn */
/* Between distant cores, messages of 128 KiB to 4 MiB take 0.85 to 0.95 of the time that they take without this pause,
 * between near ones the same; with 15 us, 64 KiB to 1 MiB between near ones are a tenth slower. */
#define BETWEEN_POLLS_NS 4000
#define MANY_BYTES       ((size_t)64 << 10)

static _Atomic uint32_t *word_at(tutti_channel_block *block, uint64_t at) {
    return (_Atomic uint32_t *)(void *)(block->ring + (at & (TUTTI_CHANNEL_RING_BYTES - 1)));
}

/* Receives the ring's bytes of a frame into their place; false: all of them have come. */
static bool receive_ring(struct tutti_remote_channel *remote, const tutti_remote_frame *f) {
    if (remote->in_put == f->bytes) return false;
    size_t offset = (remote->came + remote->in_put) & (TUTTI_CHANNEL_RING_BYTES - 1);
    size_t bytes = tutti_min_size(f->bytes - remote->in_put, TUTTI_CHANNEL_RING_BYTES - offset);
    remote->in_put += bytes;
    remote->in->transport->recv(remote->in, remote->copy->ring + offset, bytes);
    return true;
}

/* Copies the frame's first line, except for the word that marks the record as present. */
static void copy_lead(struct tutti_remote_channel *remote, const tutti_remote_frame *f) {
    size_t offset = remote->came & (TUTTI_CHANNEL_RING_BYTES - 1);
    memcpy(remote->copy->ring + offset + sizeof(uint32_t), f->lead + sizeof(uint32_t),
           sizeof f->lead - sizeof(uint32_t));
}

static bool begin_ring(struct tutti_remote_channel *remote, const tutti_remote_frame *f) {
    copy_lead(remote, f);
    remote->in_put = sizeof f->lead;
    return receive_ring(remote, f);
}

/* Makes the bytes that have come visible: the end mark first, the first word last (pairs with tutti_channel_peek). */
static void take_ring(struct tutti_remote_channel *remote, const tutti_remote_frame *f) {
    uint32_t kind;
    memcpy(&kind, f->lead, sizeof kind);
    atomic_store_explicit(word_at(remote->copy, remote->came + f->bytes), 0, memory_order_relaxed);
    atomic_store_explicit(word_at(remote->copy, remote->came), kind, memory_order_release);
    remote->came += f->bytes;
}

/* Returns true if the peer can have sent such a frame. The peer must not overwrite what has not been read. */
static bool is_possible(const tutti_channels *channel, const tutti_remote_frame *f) {
    uint64_t unread = tutti_remote_unread(channel);
    if (f->magic == TUTTI_REMOTE_FRAME_MAGIC && f->transfer != 0)
        return f->bytes > 0 && f->bytes <= TUTTI_REMOTE_STREAM_BYTES;
    return f->magic == TUTTI_REMOTE_FRAME_MAGIC && f->bytes % TUTTI_CACHE_LINE == 0 &&
           f->bytes <= TUTTI_CHANNEL_RING_BYTES - TUTTI_CACHE_LINE - unread;
}

static bool begin_stream(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = tutti_remote_in_frame(remote);
    tutti_request *request = tutti_request_stream(channel, f->transfer, f->offset, f->bytes);
    bool straight = request != NULL && remote->in->movable;
    remote->in_request = straight ? request : NULL;
    remote->in_bytes = f->bytes;
    remote->in->transport->recv(remote->in, straight ? request->buffer + request->moved : remote->body, f->bytes);
    return true;
}

/* If the frame is one message, or the first part of one, that is the next to be read, and its receive waits, receives
 * its bytes into that receive's buffer instead of the ring, and requests the rest. */
static bool begin_straight(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = tutti_remote_in_frame(remote);
    tutti_record record;
    memcpy(&record, f->lead, sizeof record);
    bool first = record.kind == TUTTI_RECORD_ANNOUNCE && record.payload_bytes < record.bytes;
    bool alone = (first || record.kind == TUTTI_RECORD_EAGER) && record.payload_bytes > TUTTI_RECORD_TINY_BYTES &&
                 f->bytes == sizeof record + tutti_align_up(record.payload_bytes, TUTTI_CACHE_LINE);
    if (!alone || remote->came != channel->tail || !remote->in->movable) return false;
    char *dst = tutti_match_claim(channel, &record, &remote->in_request, &remote->in_waiter);
    if (dst == NULL) return false;
    remote->in_straight = true;
    remote->in_dropped = false;
    remote->in_bytes = record.payload_bytes;
    remote->in->transport->recv(remote->in, dst, remote->in_bytes);
    if (first) tutti_transfer_ask(remote->in_request, remote->in_bytes);
    return true;
}

/* Receives the bytes that follow a frame's header; false: none follow. */
static bool begin_body(tutti_channels *channel) {
    const tutti_remote_frame *f = tutti_remote_in_frame(channel->remote);
    if (f->transfer != 0) return begin_stream(channel);
    return f->bytes != 0 && (begin_straight(channel) || begin_ring(channel->remote, f));
}

static void take_stream(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = tutti_remote_in_frame(remote);
    tutti_request *request = remote->in_request;
    remote->in_request = NULL;
    if (request == NULL) {
        request = tutti_request_stream(channel, f->transfer, f->offset, f->bytes);
        if (request != NULL) memcpy(request->buffer + request->moved, remote->body, f->bytes);
    }
    if (request != NULL) tutti_request_came(request, f->bytes);
}

static void take_news(struct tutti_remote_channel *remote) {
    const tutti_remote_frame *f = tutti_remote_in_frame(remote);
    atomic_store_explicit(&remote->copy->tail, f->tail, memory_order_release);
    atomic_store_explicit(&remote->copy->matched, f->matched, memory_order_relaxed);
}

/* Puts a message that its receive left into the ring, for another receive. */
static void put_into_ring(struct tutti_remote_channel *remote, const tutti_remote_frame *f) {
    size_t offset = (remote->came + sizeof f->lead) & (TUTTI_CHANNEL_RING_BYTES - 1);
    size_t first = tutti_min_size(remote->in_bytes, TUTTI_CHANNEL_RING_BYTES - offset);
    copy_lead(remote, f);
    memcpy(remote->copy->ring + offset, remote->body, first);
    memcpy(remote->copy->ring, remote->body + first, remote->in_bytes - first);
    take_ring(remote, f);
}

/* Ends the receive that has got the frame's message. A thread that polls the ring's next word notices it. */
static void end_straight(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = tutti_remote_in_frame(remote);
    tutti_request *request = remote->in_request;
    tutti_waiter *waiter = remote->in_waiter;
    remote->in_request = NULL;
    remote->in_waiter = NULL;
    if (request == NULL && waiter == NULL && !remote->in_dropped) {
        put_into_ring(remote, f);
        return;
    }
    if (request != NULL) tutti_request_came(request, remote->in_bytes);
    if (waiter != NULL) {
        tutti_record record;
        memcpy(&record, f->lead, sizeof record);
        tutti_waiter_take(waiter, &record);
    }
    take_ring(remote, f);
    tutti_channel_pass(channel, f->bytes);
    channel->came += tutti_channel_cost(remote->in_bytes);
    tutti_channel_give_credit(channel, remote->in_bytes);
}

/* Receives the header of the next frame, after what is left of this one. */
static void next_frame(struct tutti_remote_channel *remote, size_t padding) {
    char *to = (char *)tutti_remote_in_frame(remote) - padding;
    remote->in->transport->recv(remote->in, to, padding + sizeof(tutti_remote_frame));
}

/* Takes the requested bytes, which have come: a frame's header, or its body. Returns true if more of the frame, or
 * of its stream, must be on its way. */
static bool take_part(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = tutti_remote_in_frame(remote);
    if (!remote->in_body) {
        if (!is_possible(channel, f)) {
            tutti_channel_break(channel, "it sent an invalid frame");
            return false;
        }
        take_news(remote);
        remote->in_body = begin_body(channel);
        if (remote->in_body) return true;
    } else if (f->transfer == 0 && !remote->in_straight && receive_ring(remote, f)) {
        return true;
    }
    bool stream = f->transfer != 0;
    size_t padding = remote->in_straight ? f->bytes - sizeof(tutti_record) - remote->in_bytes : 0;
    if (stream) take_stream(channel);
    else if (remote->in_straight) end_straight(channel);
    else if (f->bytes != 0) take_ring(remote, f);
    remote->in_body = remote->in_straight = false;
    next_frame(remote, padding);
    return stream;
}

/* Lets the connection receive; returns true if bytes came. While many bytes of a frame are missing, a socket is polled
 * only now and then: each poll takes its lock and lines from the core that handles the packets. */
static bool poll_in(struct tutti_remote_channel *remote) {
    tutti_pipe *in = remote->in;
    bool paced = remote->in_body && tutti_transport_can(in->transport, TUTTI_TRANSPORT_SOCKETS);
    uint64_t now = paced ? tutti_ticks() : 0, before = in->bytes_in;
    if (paced && tutti_ticks_to_ns(now - remote->polled_at) < BETWEEN_POLLS_NS) return false;
    in->transport->progress(in);
    remote->polled_at = paced && in->to_receive - in->received > MANY_BYTES ? now : 0;
    return in->bytes_in != before;
}

static bool take_frames(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    bool moved = false, looks = true;
    for (int parts = 0; parts < PARTS_AT_ONCE && !channel->broken; parts++) {
        if (looks && !tutti_pipe_has_received(remote->in)) moved = poll_in(remote) || moved;
        if (!tutti_pipe_has_received(remote->in) || remote->in->status != TUTTI_OK) break;
        looks = take_part(channel);
        moved = true;
    }
    return moved;
}

/* The connection on which the first bytes come. */
static tutti_pipe *find_in(struct tutti_remote_channel *remote) {
    for (int maker = 0; maker < 2; maker++) {
        tutti_pipe *pipe = remote->made[maker];
        if (pipe != NULL && pipe->received == 0) pipe->transport->progress(pipe);
        if (pipe != NULL && pipe->received > 0) return pipe;
    }
    return NULL;
}

static bool drive_in(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (remote->in == NULL) remote->in = find_in(remote);
    return remote->in != NULL && take_frames(channel);
}

bool tutti_remote_progress(tutti_channels *channel) {
    bool moved = false;
    if (!channel->broken && !channel->gone) {
        moved = tutti_remote_drive_out(channel);
        moved = drive_in(channel) || moved;
        tutti_remote_note_failures(channel);
    }
    tutti_remote_count_busy(channel);
    return moved;
}
