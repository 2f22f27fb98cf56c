/*
 * Rings that are mirrored over pipes. See remote_channel.h.
 */
#include <string.h>

#include "comm/p2p/remote_state.h"

#define FRAME_MAGIC   UINT32_C(0x74746672)
#define LOOKS_PER_OUT 8
#define PARTS_AT_ONCE 16 /* incoming parts of frames: then other channels have a turn */
#define NEWS_BYTES                                                                                                     \
    (TUTTI_CHANNEL_RING_BYTES / 4) /* read of the ring since the last acknowledgement: it then gets a frame */

/* -------------------------------------------------------------------------------------------- our ring */

/* Begins a frame. All frames carry the acknowledgement. */
static tutti_remote_frame *start_frame(tutti_channels *channel, size_t bytes) {
    struct tutti_remote_channel *remote = channel->remote;
    remote->told_tail = channel->tail;
    remote->told_matched = channel->matched;
    remote->out_frame = (tutti_remote_frame){
        .magic = FRAME_MAGIC, .bytes = (uint32_t)bytes, .tail = remote->told_tail, .matched = remote->told_matched};
    return &remote->out_frame;
}

/* Sends a part of the ring, after the header that has been made for it. */
static void send_part(tutti_channels *channel, uint64_t at, size_t bytes) {
    struct tutti_remote_channel *remote = channel->remote;
    size_t offset = at & (TUTTI_CHANNEL_RING_BYTES - 1);
    size_t first = tutti_min_size(bytes, TUTTI_CHANNEL_RING_BYTES - offset);
    struct iovec parts[3] = {{.iov_base = &remote->out_frame, .iov_len = offsetof(tutti_remote_frame, lead)},
                             {.iov_base = channel->own->ring + offset, .iov_len = first},
                             {.iov_base = channel->own->ring, .iov_len = bytes - first}};
    remote->out->transport->send(remote->out, parts, first < bytes ? 3 : 2);
}

/* Sends the bytes of the ring that the peer has not been sent. */
static bool send_ring(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    size_t bytes = channel->head - remote->sent;
    if (bytes == 0 || !tutti_pipe_has_sent(remote->out)) return false;
    start_frame(channel, bytes);
    send_part(channel, remote->sent, bytes);
    remote->sent = channel->head;
    return true;
}

bool tutti_remote_send_straight(tutti_channels *channel, const void *payload, size_t bytes, size_t span) {
    static const char padding[TUTTI_CACHE_LINE];
    struct tutti_remote_channel *remote = channel->remote;
    if (!tutti_remote_can_stream(channel) || !remote->out->movable) return false;
    const uint8_t *line = channel->own->ring + (channel->head & (TUTTI_CHANNEL_RING_BYTES - 1));
    struct iovec parts[4] = {{.iov_base = start_frame(channel, span), .iov_len = offsetof(tutti_remote_frame, lead)},
                             /* line, payload and padding are only read */
                             {.iov_base = (void *)(uintptr_t)line, .iov_len = TUTTI_CACHE_LINE},
                             {.iov_base = (void *)(uintptr_t)payload, .iov_len = bytes},
                             {.iov_base = (void *)(uintptr_t)padding, .iov_len = span - TUTTI_CACHE_LINE - bytes}};
    remote->out->transport->send(remote->out, parts, 4);
    remote->sent = channel->head + span;
    return true;
}

bool tutti_remote_has_straight(const tutti_channels *channel) {
    return tutti_pipe_has_sent(channel->remote->out);
}

void tutti_remote_send_rest(tutti_channels *channel, size_t span) {
    send_part(channel, channel->remote->sent - span, span);
}

/* The frame that is being read. */
static tutti_remote_frame *in_frame(struct tutti_remote_channel *remote) {
    return &remote
                ->in_frames[remote->in == remote->made[TUTTI_REMOTE_THEIRS] ? TUTTI_REMOTE_THEIRS : TUTTI_REMOTE_OURS];
}

/* Bytes that still have to be given to the pipe count as pending: a thread must come back for them. */
static void count_busy(tutti_channels *channel) {
    bool busy = tutti_remote_is_busy(channel);
    if (busy != channel->busy) atomic_fetch_add_explicit(&tutti_p2p.pending, busy ? 1 : -1, memory_order_relaxed);
    channel->busy = busy;
}

bool tutti_remote_can_stream(const tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    return remote->out != NULL && remote->out->status == TUTTI_OK && tutti_pipe_has_sent(remote->out) &&
           channel->head == remote->sent;
}

static void send_stream(struct tutti_remote_channel *remote, const char *data) {
    struct iovec parts[2] = {{.iov_base = &remote->out_frame, .iov_len = sizeof remote->out_frame},
                             {.iov_base = (char *)(uintptr_t)data, .iov_len = remote->out_frame.bytes}}; /* only read */
    remote->out->transport->send(remote->out, parts, 2);
}

void tutti_remote_stream(tutti_channels *channel, tutti_request *request) {
    struct tutti_remote_channel *remote = channel->remote;
    const char *data = request->buffer + request->moved;
    tutti_remote_frame *frame =
        start_frame(channel, tutti_min_size(TUTTI_REMOTE_STREAM_BYTES, request->wanted - request->moved));
    frame->transfer = request->answer;
    frame->offset = request->moved;
    remote->out_request = remote->out->movable ? request : NULL;
    send_stream(remote, remote->out->movable ? data : memcpy(remote->stream, data, frame->bytes));
    request->moved += frame->bytes;
    count_busy(channel);
}

void tutti_remote_let_go(tutti_channels *channel, const tutti_request *request) {
    struct tutti_remote_channel *remote = channel->remote;
    if (remote->out_request == request) {
        remote->out_request = NULL;
        const char *data = request->buffer + remote->out_frame.offset;
        if (!tutti_pipe_has_sent(remote->out))
            send_stream(remote, memcpy(remote->stream, data, remote->out_frame.bytes));
    }
    if (remote->in_request == request) {
        remote->in_request = NULL;
        if (!tutti_pipe_has_received(remote->in))
            remote->in->transport->recv(remote->in, remote->body, in_frame(remote)->bytes);
    }
}

static bool owes_news(const tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    return channel->tail - remote->told_tail >= NEWS_BYTES || channel->matched - remote->told_matched >= NEWS_BYTES;
}

/* Sends an acknowledgement only if nothing else goes that would carry it. */
static void tell_news(tutti_channels *channel) {
    tutti_pipe *out = channel->remote->out;
    if (!owes_news(channel) || !tutti_pipe_has_sent(out)) return;
    struct iovec part = {.iov_base = start_frame(channel, 0), .iov_len = sizeof(tutti_remote_frame)};
    out->transport->send(out, &part, 1);
}

static bool drive_out(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (remote->out == NULL) {
        if (channel->head != remote->sent || owes_news(channel)) remote->out = tutti_remote_choose_out(remote);
        if (remote->out == NULL) return false;
    }
    /* If the peer sends on another connection, nothing comes on this one; but it may fail. */
    bool looks = remote->out != remote->in && remote->looks++ % LOOKS_PER_OUT == 0;
    if (looks || !tutti_pipe_has_sent(remote->out)) remote->out->transport->progress(remote->out);
    bool moved = send_ring(channel);
    tell_news(channel);
    return moved;
}

/* ------------------------------------------------------------------------------------------ their ring */

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
static bool begin_ring(struct tutti_remote_channel *remote, const tutti_remote_frame *f) {
    size_t offset = remote->came & (TUTTI_CHANNEL_RING_BYTES - 1);
    memcpy(remote->copy->ring + offset + sizeof(uint32_t), f->lead + sizeof(uint32_t),
           sizeof f->lead - sizeof(uint32_t));
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

uint64_t tutti_remote_unread(const tutti_channels *channel) {
    return channel->remote->came - channel->tail;
}

/* Returns true if the peer can have sent such a frame. The peer must not overwrite what has not been read. */
static bool is_possible(const tutti_channels *channel, const tutti_remote_frame *f) {
    uint64_t unread = tutti_remote_unread(channel);
    if (f->magic == FRAME_MAGIC && f->transfer != 0) return f->bytes > 0 && f->bytes <= TUTTI_REMOTE_STREAM_BYTES;
    return f->magic == FRAME_MAGIC && f->bytes % TUTTI_CACHE_LINE == 0 &&
           f->bytes <= TUTTI_CHANNEL_RING_BYTES - TUTTI_CACHE_LINE - unread;
}

static bool begin_stream(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = in_frame(remote);
    tutti_request *request = tutti_incoming_stream(channel, f->transfer, f->offset, f->bytes);
    bool straight = request != NULL && remote->in->movable;
    remote->in_request = straight ? request : NULL;
    remote->in->transport->recv(remote->in, straight ? request->buffer + request->moved : remote->body, f->bytes);
    return true;
}

/* Receives the bytes that follow a frame's header; false: none follow. */
static bool begin_body(tutti_channels *channel) {
    const tutti_remote_frame *f = in_frame(channel->remote);
    if (f->transfer != 0) return begin_stream(channel);
    return f->bytes != 0 && begin_ring(channel->remote, f);
}

static void take_stream(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = in_frame(remote);
    tutti_request *request = remote->in_request;
    remote->in_request = NULL;
    if (request == NULL) {
        request = tutti_incoming_stream(channel, f->transfer, f->offset, f->bytes);
        if (request != NULL) memcpy(request->buffer + request->moved, remote->body, f->bytes);
    }
    if (request != NULL) tutti_incoming_came(request, f->bytes);
}

static void take_news(struct tutti_remote_channel *remote) {
    const tutti_remote_frame *f = in_frame(remote);
    atomic_store_explicit(&remote->copy->tail, f->tail, memory_order_release);
    atomic_store_explicit(&remote->copy->matched, f->matched, memory_order_relaxed);
}

static void next_frame(struct tutti_remote_channel *remote) {
    remote->in->transport->recv(remote->in, in_frame(remote), sizeof(tutti_remote_frame));
}

/* Takes the requested bytes, which have come: a frame's header, or its body. Returns true if more of the frame, or
 * of its stream, must be on its way. */
static bool take_part(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    const tutti_remote_frame *f = in_frame(remote);
    if (!remote->in_body) {
        if (!is_possible(channel, f)) {
            tutti_channel_break(channel, "it sent an invalid frame");
            return false;
        }
        take_news(remote);
        remote->in_body = begin_body(channel);
        if (remote->in_body) return true;
    } else if (f->transfer == 0 && receive_ring(remote, f)) {
        return true;
    }
    bool stream = f->transfer != 0;
    remote->in_body = false;
    if (stream) take_stream(channel);
    else if (f->bytes != 0) take_ring(remote, f);
    next_frame(remote);
    return stream;
}

static bool take_frames(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    bool moved = false, looks = true;
    for (int parts = 0; parts < PARTS_AT_ONCE && !channel->broken; parts++) {
        if (looks && !tutti_pipe_has_received(remote->in)) remote->in->transport->progress(remote->in);
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

/* ----------------------------------------------------------------------------------------------- both */

static bool has_failed(const tutti_pipe *pipe) {
    return pipe != NULL && pipe->status != TUTTI_OK;
}

/* Returns the failed pipe that means the end. Data that the peer sent before is still read: while nothing has come,
 * it may be on the other connection, or on one that is being opened. */
static const tutti_pipe *find_lost(const struct tutti_remote_channel *remote) {
    bool waits_to_send = remote->out != NULL && !tutti_pipe_has_sent(remote->out);
    if (remote->in != NULL)
        return has_failed(remote->in) ? remote->in : has_failed(remote->out) && waits_to_send ? remote->out : NULL;
    const tutti_pipe *lost = NULL;
    for (int maker = 0; maker < 2; maker++) {
        if (remote->openers[maker] != NULL) return NULL;
        if (has_failed(remote->made[maker])) lost = remote->made[maker];
        else if (remote->made[maker] != NULL) return NULL;
    }
    return lost;
}

static void note_failures(tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    if (channel->broken || channel->gone || remote->came != channel->tail) return;
    const tutti_pipe *lost = find_lost(remote);
    if (lost != NULL) tutti_remote_lose(channel, lost->error);
}

bool tutti_remote_progress(tutti_channels *channel) {
    bool moved = false;
    if (!channel->broken && !channel->gone) {
        tutti_remote_connect(channel);
        moved = drive_out(channel);
        moved = drive_in(channel) || moved;
        note_failures(channel);
    }
    count_busy(channel);
    return moved;
}

void tutti_remote_flush(tutti_channels *channel) {
    if (!channel->broken && !channel->gone) {
        tutti_remote_connect(channel);
        drive_out(channel);
    }
    count_busy(channel);
}

bool tutti_remote_is_busy(const tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    return !channel->broken && !channel->gone &&
           (channel->head != remote->sent || (remote->out != NULL && !tutti_pipe_has_sent(remote->out)));
}
