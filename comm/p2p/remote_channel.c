/*
 * The connections of a channel to another host, and the frames that are sent. See remote_channel.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/net/transport/multi_socket.h"
#include "comm/p2p/remote_state.h"
#include "comm/shm/peer.h"

#define LOOKS_PER_OUT 8
#define NEWS_BYTES                                                                                                     \
    (TUTTI_CHANNEL_RING_BYTES / 4) /* read of the ring since the last acknowledgement: it then gets a frame */

/* ------------------------------------------------------------------------------------- the connections
 * A process that has something to send, or waits for the peer, makes a connection if there is none. Both processes
 * may do so at the same time; then a side sends on the connection that the peer sends on. If neither has sent yet,
 * it sends on the connection of the lower process, or on the only one that exists. Occasionally the two choose
 * differently, and each sends on a connection of its own.
 *
 * Invariant: a side always sends on the same connection, so its data stays in order. Memory for the rings exists from
 * the first connection on.
 */

/* The peer has ended, or can no longer be reached. Its host reports whether it has died (heartbeat.h). */
static void lose(tutti_channels *channel, const char *why) {
    snprintf(channel->error, sizeof channel->error, "%s", why);
    channel->gone = true;
}

/* The block of a peer that has sent nothing. */
static const union {
    tutti_channel_block block;
    uint8_t bytes[sizeof(tutti_channel_block) + TUTTI_CHANNEL_RING_BYTES];
} silence;

tutti_status tutti_remote_equip(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (channel->own != NULL) return TUTTI_OK;
    remote->copy = aligned_alloc(TUTTI_CACHE_LINE, sizeof *remote->copy + TUTTI_CHANNEL_RING_BYTES);
    remote->body = malloc(TUTTI_REMOTE_STREAM_BYTES);
    remote->stream = malloc(TUTTI_REMOTE_STREAM_BYTES);
    tutti_channel_block *own = aligned_alloc(TUTTI_CACHE_LINE, sizeof *own + TUTTI_CHANNEL_RING_BYTES);
    if (remote->copy == NULL || own == NULL || remote->body == NULL || remote->stream == NULL) {
        free(remote->copy);
        free(remote->body);
        free(remote->stream);
        free(own);
        remote->copy = NULL;
        remote->body = remote->stream = NULL;
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for messages to host %s", channel->peer->host);
    }
    memset(remote->copy, 0, offsetof(tutti_channel_block, ring) + TUTTI_CACHE_LINE);
    memset(own, 0, offsetof(tutti_channel_block, ring) + TUTTI_CACHE_LINE);
    channel->own = own;
    channel->theirs = remote->copy;
    channel->own_bytes = channel->their_bytes = TUTTI_CHANNEL_RING_BYTES;
    return TUTTI_OK;
}

static bool is_used(const struct tutti_remote_channel *remote, tutti_remote_maker maker) {
    return remote->made[maker] != NULL || remote->attempts[maker] != NULL;
}

/* Returns the pipe that has been opened; NULL: not yet, or never, which may lose or break the channel. */
static tutti_pipe *take_pipe(tutti_channels *channel, tutti_remote_maker maker) {
    struct tutti_remote_channel *remote = channel->remote;
    tutti_pipe *pipe = NULL;
    tutti_status status = tutti_async_connect_take(remote->attempts[maker], &pipe);
    if (status == TUTTI_NOT_YET) return NULL;
    remote->attempts[maker] = NULL;
    if (status == TUTTI_ERR_SYSTEM || status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DIED) {
        if (!is_used(remote, maker == TUTTI_REMOTE_OURS ? TUTTI_REMOTE_THEIRS : TUTTI_REMOTE_OURS))
            lose(channel, tutti_last_error());
        return NULL;
    }
    if (status == TUTTI_OK && tutti_verbs_only_admit(channel->peer, pipe) != TUTTI_OK) {
        pipe = NULL;
        status = TUTTI_ERR_UNSUPPORTED;
    }
    if (status == TUTTI_OK) status = tutti_remote_equip(channel);
    if (status == TUTTI_OK) return pipe;
    tutti_channel_break(channel, "%s", tutti_last_error());
    if (pipe != NULL) pipe->transport->close(pipe);
    return NULL;
}

static void start(tutti_channels *channel, tutti_remote_maker maker, const tutti_connection *taken) {
    struct tutti_remote_channel *remote = channel->remote;
    int64_t timeout_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS);
    tutti_listener_info listener = *channel->peer->listener;
    listener.transports &= tutti_verbs_only_mask(channel->peer); /* excludes a fallback to other transports */
    if (tutti_async_connect_start(&listener, &remote->conn_ids[maker], taken, timeout_ms, &remote->attempts[maker]) !=
        TUTTI_OK)
        tutti_channel_break(channel, "%s", tutti_last_error());
}

/* Writes the ids of both connections. */
static tutti_status write_conn_ids(const tutti_peer *peer, struct tutti_remote_channel *remote) {
    tutti_peer *self;
    uint32_t mask;
    TUTTI_TRY(tutti_peer_self(&self));
    TUTTI_TRY(tutti_transports_available(&mask));
    int transport = tutti_transport_common(mask, peer->listener->transports);
    if (transport < 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "this host and %s have no transport in common%s: see TUTTI_TRANSPORT and tutti-info",
                          peer->host, mask == 0 ? " (TUTTI_TRANSPORT names shared memory only)" : "");
    tutti_conn_id *ours = &remote->conn_ids[TUTTI_REMOTE_OURS], *theirs = &remote->conn_ids[TUTTI_REMOTE_THEIRS];
    *ours = *theirs = (tutti_conn_id){.use = TUTTI_CONN_MESSAGES,
                                      .transport = (uint32_t)transport,
                                      .lanes = tutti_multi_socket_lanes(tutti_transports[transport])};
    memcpy(ours->from, self->id, sizeof self->id);
    memcpy(ours->to, peer->id, sizeof peer->id);
    memcpy(theirs->from, peer->id, sizeof peer->id);
    memcpy(theirs->to, self->id, sizeof self->id);
    return TUTTI_OK;
}

bool tutti_remote_is_used(const tutti_channels *channel) {
    return is_used(channel->remote, TUTTI_REMOTE_OURS) || is_used(channel->remote, TUTTI_REMOTE_THEIRS);
}

bool tutti_remote_is_open(const tutti_channels *channel) {
    return channel->remote->made[TUTTI_REMOTE_OURS] != NULL || channel->remote->made[TUTTI_REMOTE_THEIRS] != NULL;
}

bool tutti_remote_is_straight(const tutti_channels *channel) {
    return channel->remote->out != NULL && channel->remote->out->movable;
}

const tutti_pipe *tutti_remote_not_by(const tutti_channels *channel, const tutti_transport *transport) {
    for (tutti_remote_maker maker = TUTTI_REMOTE_OURS; channel->remote != NULL && maker <= TUTTI_REMOTE_THEIRS;
         maker++) {
        const tutti_pipe *made = channel->remote->made[maker];
        if (made != NULL && made->transport != transport) return made;
    }
    return NULL;
}

void tutti_remote_reach(tutti_channels *channel) {
    if (!tutti_remote_is_used(channel)) start(channel, TUTTI_REMOTE_OURS, /* taken */ NULL);
}

/* Checks whether the peer has connected. */
static void look_for_theirs(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    uint64_t count = tutti_listener_count();
    tutti_connection taken[TUTTI_LANES_MOST];
    if (count == remote->arrivals_seen) return;
    remote->arrivals_seen = count;
    if (tutti_listener_take(&remote->conn_ids[TUTTI_REMOTE_THEIRS], taken) == TUTTI_OK)
        start(channel, TUTTI_REMOTE_THEIRS, taken);
}

/* Takes connections that have been made, and makes one if there is data to send and no connection. */
static void connect_if_needed(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (!is_used(remote, TUTTI_REMOTE_THEIRS)) look_for_theirs(channel);
    if (channel->head != remote->sent) tutti_remote_reach(channel);
    for (tutti_remote_maker maker = TUTTI_REMOTE_OURS; maker <= TUTTI_REMOTE_THEIRS; maker++) {
        if (remote->attempts[maker] == NULL) continue;
        tutti_pipe *pipe = take_pipe(channel, maker);
        if (pipe == NULL) continue;
        pipe->messages = true;
        remote->made[maker] = pipe;
        pipe->transport->recv(pipe, &remote->in_frames[maker].frame, sizeof remote->in_frames[maker].frame);
    }
}

/* Chooses the connection to send on; NULL: there is none yet. */
static tutti_pipe *choose_out(const struct tutti_remote_channel *remote) {
    const tutti_conn_id *ours = &remote->conn_ids[TUTTI_REMOTE_OURS];
    bool lower = memcmp(ours->from, ours->to, sizeof ours->from) < 0;
    tutti_remote_maker first = lower ? TUTTI_REMOTE_OURS : TUTTI_REMOTE_THEIRS;
    if (remote->in != NULL) return remote->in;
    return remote->made[first] != NULL ? remote->made[first] : remote->made[1 - first];
}

tutti_status tutti_remote_open(tutti_channels *channel) {
    struct tutti_remote_channel *remote;
    TUTTI_TRY(tutti_calloc(1, sizeof *remote, &remote));
    channel->remote = remote;
    channel->theirs = &silence.block;
    channel->their_bytes = TUTTI_CHANNEL_RING_BYTES;
    return write_conn_ids(channel->peer, remote);
}

void tutti_remote_close(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (remote == NULL) return;
    for (int maker = 0; maker < 2; maker++) {
        tutti_async_connect_abandon(remote->attempts[maker]);
        if (remote->made[maker] != NULL) remote->made[maker]->transport->close(remote->made[maker]);
    }
    free(remote->copy);
    free(remote->body);
    free(remote->stream);
    free(channel->own);
    free(remote);
    channel->own = NULL;
}

/* -------------------------------------------------------------------------------------------- our ring */

/* Begins a frame. All frames carry the acknowledgement. */
static tutti_remote_frame *start_frame(tutti_channels *channel, size_t bytes) {
    struct tutti_remote_channel *remote = channel->remote;
    remote->sent_tail = channel->tail;
    remote->sent_matched = channel->matched;
    remote->out_frame = (tutti_remote_frame){.magic = TUTTI_REMOTE_FRAME_MAGIC,
                                             .bytes = (uint32_t)bytes,
                                             .tail = remote->sent_tail,
                                             .matched = remote->sent_matched};
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

void tutti_remote_count_busy(tutti_channels *channel) {
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
    /* Half of it where a part is copied first: the copy of the next one begins sooner. */
    size_t most = remote->out->movable ? TUTTI_REMOTE_STREAM_BYTES : TUTTI_REMOTE_STREAM_BYTES / 2;
    tutti_remote_frame *frame = start_frame(channel, tutti_min_size(most, request->wanted - request->moved));
    frame->transfer = request->answer;
    frame->offset = request->moved;
    remote->out_request = remote->out->movable ? request : NULL;
    send_stream(remote, remote->out->movable ? data : memcpy(remote->stream, data, frame->bytes));
    request->moved += frame->bytes;
    tutti_remote_count_busy(channel);
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
        remote->in_dropped = remote->in_straight;
        if (!tutti_pipe_has_received(remote->in))
            remote->in->transport->recv(remote->in, remote->body, remote->in_bytes);
    }
}

void tutti_remote_leave_waiter(tutti_waiter *waiter) {
    struct tutti_remote_channel *remote = waiter->channel->remote;
    if (remote->in_waiter != waiter) return;
    remote->in_waiter = NULL;
    memcpy(remote->body, waiter->dst, remote->in->received);
    if (!tutti_pipe_has_received(remote->in)) remote->in->transport->recv(remote->in, remote->body, remote->in_bytes);
}

static bool owes_news(const tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    return channel->tail - remote->sent_tail >= NEWS_BYTES || channel->matched - remote->sent_matched >= NEWS_BYTES;
}

/* Sends an acknowledgement only if nothing else goes that would carry it. */
static void tell_news(tutti_channels *channel) {
    tutti_pipe *out = channel->remote->out;
    if (!owes_news(channel) || !tutti_pipe_has_sent(out)) return;
    struct iovec part = {.iov_base = start_frame(channel, 0), .iov_len = sizeof(tutti_remote_frame)};
    out->transport->send(out, &part, 1);
}

bool tutti_remote_drive_out(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    connect_if_needed(channel);
    if (remote->out == NULL) {
        if (channel->head != remote->sent || owes_news(channel)) remote->out = choose_out(remote);
        if (remote->out == NULL) return false;
    }
    /* If the peer sends on another connection, nothing comes on this one; but it may fail. */
    bool looks = remote->out != remote->in && remote->looks++ % LOOKS_PER_OUT == 0;
    if (looks || !tutti_pipe_has_sent(remote->out)) remote->out->transport->progress(remote->out);
    bool moved = send_ring(channel);
    tell_news(channel);
    return moved;
}

/* --------------------------------------------------------------------------------------------- failures */

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
        if (remote->attempts[maker] != NULL) return NULL;
        if (has_failed(remote->made[maker])) lost = remote->made[maker];
        else if (remote->made[maker] != NULL) return NULL;
    }
    return lost;
}

void tutti_remote_note_failures(tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    if (channel->broken || channel->gone || remote->came != channel->tail) return;
    const tutti_pipe *lost = find_lost(remote);
    if (lost != NULL) lose(channel, lost->error);
}

void tutti_remote_flush(tutti_channels *channel) {
    if (!channel->broken && !channel->gone) tutti_remote_drive_out(channel);
    tutti_remote_count_busy(channel);
}

bool tutti_remote_is_busy(const tutti_channels *channel) {
    const struct tutti_remote_channel *remote = channel->remote;
    return !channel->broken && !channel->gone &&
           (channel->head != remote->sent || (remote->out != NULL && !tutti_pipe_has_sent(remote->out)));
}

uint64_t tutti_remote_unread(const tutti_channels *channel) {
    return channel->remote->came - channel->tail;
}
