/*
 * Opens and closes the connections of a channel to another host. See remote_channel.h.
 *
 * A process that has something to send, or waits for the peer, makes a connection if there is none. Both processes
 * may do so at the same time; then a side sends on the connection that the peer sends on. If neither has sent yet,
 * it sends on the connection of the lower process, or on the only one that exists. Occasionally the two choose
 * differently, and each sends on a connection of its own.
 *
 * Invariant: a side always sends on the same connection, so its data stays in order. Memory for the rings exists from
 * the first connection on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/p2p/remote_state.h"
#include "comm/shm/peer.h"
#include "comm/net/transport/multi_socket.h"
#include "comm/net/verbs_only.h"

void tutti_remote_lose(tutti_channels *channel, const char *why) {
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
    remote->body = malloc(TUTTI_CHANNEL_RING_BYTES);
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
    return remote->made[maker] != NULL || remote->openers[maker] != NULL;
}

/* Returns the pipe that has been opened; NULL: not yet, or never. If it failed and no second one is
 * open or opening, the channel is then lost or broken. */
static tutti_pipe *take_pipe(tutti_channels *channel, tutti_remote_maker maker) {
    struct tutti_remote_channel *remote = channel->remote;
    tutti_pipe *pipe = NULL;
    tutti_status status = tutti_async_connect_take(remote->openers[maker], &pipe);
    if (status == TUTTI_NOT_YET) return NULL;
    remote->openers[maker] = NULL;
    if (status == TUTTI_ERR_SYSTEM || status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DIED) {
        if (!is_used(remote, maker == TUTTI_REMOTE_OURS ? TUTTI_REMOTE_THEIRS : TUTTI_REMOTE_OURS))
            tutti_remote_lose(channel, tutti_last_error());
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
    if (tutti_async_connect_start(&listener, &remote->tickets[maker], taken, timeout_ms, &remote->openers[maker]) !=
        TUTTI_OK)
        tutti_channel_break(channel, "%s", tutti_last_error());
}

/* Writes the ids of both connections. */
static tutti_status write_tickets(const tutti_peer *peer, struct tutti_remote_channel *remote) {
    tutti_peer *self;
    uint32_t mask;
    TUTTI_TRY(tutti_peer_self(&self));
    TUTTI_TRY(tutti_transports_available(&mask));
    int transport = tutti_transport_common(mask, peer->listener->transports);
    if (transport < 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "this host and %s have no transport in common%s: see TUTTI_TRANSPORT and tutti-info",
                          peer->host, mask == 0 ? " (TUTTI_TRANSPORT names shared memory only)" : "");
    tutti_conn_id *ours = &remote->tickets[TUTTI_REMOTE_OURS], *theirs = &remote->tickets[TUTTI_REMOTE_THEIRS];
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
    if (count == remote->door_seen) return;
    remote->door_seen = count;
    if (tutti_listener_take(&remote->tickets[TUTTI_REMOTE_THEIRS], taken) == TUTTI_OK)
        start(channel, TUTTI_REMOTE_THEIRS, taken);
}

void tutti_remote_connect(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (!is_used(remote, TUTTI_REMOTE_THEIRS)) look_for_theirs(channel);
    if (channel->head != remote->sent) tutti_remote_reach(channel);
    for (tutti_remote_maker maker = TUTTI_REMOTE_OURS; maker <= TUTTI_REMOTE_THEIRS; maker++) {
        if (remote->openers[maker] == NULL) continue;
        tutti_pipe *pipe = take_pipe(channel, maker);
        if (pipe == NULL) continue;
        remote->made[maker] = pipe;
        pipe->transport->recv(pipe, &remote->in_frames[maker], sizeof remote->in_frames[maker]);
    }
}

tutti_pipe *tutti_remote_choose_out(const struct tutti_remote_channel *remote) {
    const tutti_conn_id *ours = &remote->tickets[TUTTI_REMOTE_OURS];
    bool lower = memcmp(ours->from, ours->to, sizeof ours->from) < 0;
    tutti_remote_maker first = lower ? TUTTI_REMOTE_OURS : TUTTI_REMOTE_THEIRS;
    if (remote->in != NULL) return remote->in;
    return remote->made[first] != NULL ? remote->made[first] : remote->made[1 - first];
}

tutti_status tutti_remote_open(tutti_channels *channel) {
    struct tutti_remote_channel *remote;
    TUTTI_TRY(tutti_calloc(1, sizeof *remote, &remote));
    channel->remote = remote;
    channel->probed = true; /* the peer's memory cannot be read from here */
    channel->theirs = &silence.block;
    channel->their_bytes = TUTTI_CHANNEL_RING_BYTES;
    return write_tickets(channel->peer, remote);
}

void tutti_remote_close(tutti_channels *channel) {
    struct tutti_remote_channel *remote = channel->remote;
    if (remote == NULL) return;
    for (int maker = 0; maker < 2; maker++) {
        tutti_async_connect_abandon(remote->openers[maker]);
        if (remote->made[maker] != NULL) remote->made[maker]->transport->close(remote->made[maker]);
    }
    free(remote->copy);
    free(remote->body);
    free(remote->stream);
    free(channel->own);
    free(remote);
    channel->own = NULL;
}
