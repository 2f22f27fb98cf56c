/*
 * How the connections of a channel to another host come and go. See far.h.
 *
 * Who has something to send, or waits for the peer, makes a connection if there is none. Both may do that at the same time;
 * then a side sends on the one that the peer sends on. If neither has sent yet, it is that of the lower process, or the one that
 * is there: now and then, the two choose differently, and each sends on a connection of its own.
 *
 * Invariant: a side sends on one connection for ever, so what it sends stays in order. Memory for the rings is there from the
 * first connection on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/far_state.h"
#include "comm/peer.h"
#include "comm/transports/bundle.h"
#include "comm/verbs_only.h"

void tutti_far_lose(tutti_channels *channel, const char *why) {
    snprintf(channel->error, sizeof channel->error, "%s", why);
    channel->gone = true;
}

/* What a peer has said that has said nothing. */
static const union {
    tutti_channel_block block;
    uint8_t bytes[sizeof(tutti_channel_block) + TUTTI_CHANNEL_RING_BYTES];
} silence;

tutti_status tutti_far_equip(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (channel->own != NULL) return TUTTI_OK;
    far->copy = aligned_alloc(TUTTI_CACHE_LINE, sizeof *far->copy + TUTTI_CHANNEL_RING_BYTES);
    far->body = malloc(TUTTI_CHANNEL_RING_BYTES);
    far->stream = malloc(TUTTI_FAR_STREAM_BYTES);
    tutti_channel_block *own = aligned_alloc(TUTTI_CACHE_LINE, sizeof *own + TUTTI_CHANNEL_RING_BYTES);
    if (far->copy == NULL || own == NULL || far->body == NULL || far->stream == NULL) {
        free(far->copy);
        free(far->body);
        free(far->stream);
        free(own);
        far->copy = NULL;
        far->body = far->stream = NULL;
        return tutti_fail(TUTTI_ERR_MEMORY, "no memory for messages to host %s", channel->peer->host);
    }
    memset(far->copy, 0, offsetof(tutti_channel_block, ring) + TUTTI_CACHE_LINE);
    memset(own, 0, offsetof(tutti_channel_block, ring) + TUTTI_CACHE_LINE);
    channel->own = own;
    channel->theirs = far->copy;
    channel->own_bytes = channel->their_bytes = TUTTI_CHANNEL_RING_BYTES;
    return TUTTI_OK;
}

static bool is_used(const struct tutti_far *far, tutti_far_maker maker) {
    return far->made[maker] != NULL || far->openers[maker] != NULL;
}

/* The pipe that has been opened; NULL: not yet, or never. Without a second one the channel is gone then, or broken. */
static tutti_pipe *take_pipe(tutti_channels *channel, tutti_far_maker maker) {
    struct tutti_far *far = channel->far;
    tutti_pipe *pipe = NULL;
    tutti_status status = tutti_opener_take(far->openers[maker], &pipe);
    if (status == TUTTI_NOT_YET) return NULL;
    far->openers[maker] = NULL;
    if (status == TUTTI_ERR_SYSTEM || status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DIED) {
        if (!is_used(far, maker == TUTTI_FAR_OURS ? TUTTI_FAR_THEIRS : TUTTI_FAR_OURS))
            tutti_far_lose(channel, tutti_last_error());
        return NULL;
    }
    if (status == TUTTI_OK && tutti_verbs_only_admit(channel->peer, pipe) != TUTTI_OK) {
        pipe = NULL;
        status = TUTTI_ERR_UNSUPPORTED;
    }
    if (status == TUTTI_OK) status = tutti_far_equip(channel);
    if (status == TUTTI_OK) return pipe;
    tutti_channel_break(channel, "%s", tutti_last_error());
    if (pipe != NULL) pipe->transport->close(pipe);
    return NULL;
}

static void start(tutti_channels *channel, tutti_far_maker maker, const tutti_connection *taken) {
    struct tutti_far *far = channel->far;
    int64_t timeout_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS);
    tutti_door_card door = *channel->peer->door;
    door.transports &= tutti_verbs_only_mask(channel->peer); /* so there is no other to turn to */
    if (tutti_opener_start(&door, &far->tickets[maker], taken, timeout_ms, &far->openers[maker]) != TUTTI_OK)
        tutti_channel_break(channel, "%s", tutti_last_error());
}

/* The tickets of both connections. */
static tutti_status write_tickets(const tutti_peer *peer, struct tutti_far *far) {
    tutti_peer *self;
    uint32_t mask;
    TUTTI_TRY(tutti_peer_self(&self));
    TUTTI_TRY(tutti_transports_available(&mask));
    int transport = tutti_transport_common(mask, peer->door->transports);
    if (transport < 0)
        return tutti_fail(TUTTI_ERR_UNSUPPORTED,
                          "this host and %s have no transport in common%s: see TUTTI_TRANSPORT and tutti-info",
                          peer->host, mask == 0 ? " (TUTTI_TRANSPORT names shared memory only)" : "");
    tutti_ticket *ours = &far->tickets[TUTTI_FAR_OURS], *theirs = &far->tickets[TUTTI_FAR_THEIRS];
    *ours = *theirs = (tutti_ticket){.use = TUTTI_TICKET_MESSAGES,
                                     .transport = (uint32_t)transport,
                                     .lanes = tutti_bundle_lanes(tutti_transports[transport])};
    memcpy(ours->from, self->id, sizeof self->id);
    memcpy(ours->to, peer->id, sizeof peer->id);
    memcpy(theirs->from, peer->id, sizeof peer->id);
    memcpy(theirs->to, self->id, sizeof self->id);
    return TUTTI_OK;
}

bool tutti_far_is_used(const tutti_channels *channel) {
    return is_used(channel->far, TUTTI_FAR_OURS) || is_used(channel->far, TUTTI_FAR_THEIRS);
}

bool tutti_far_is_open(const tutti_channels *channel) {
    return channel->far->made[TUTTI_FAR_OURS] != NULL || channel->far->made[TUTTI_FAR_THEIRS] != NULL;
}

const tutti_pipe *tutti_far_not_by(const tutti_channels *channel, const tutti_transport *transport) {
    for (tutti_far_maker maker = TUTTI_FAR_OURS; channel->far != NULL && maker <= TUTTI_FAR_THEIRS; maker++) {
        const tutti_pipe *made = channel->far->made[maker];
        if (made != NULL && made->transport != transport) return made;
    }
    return NULL;
}

void tutti_far_reach(tutti_channels *channel) {
    if (!tutti_far_is_used(channel)) start(channel, TUTTI_FAR_OURS, /* taken */ NULL);
}

/* Has the peer connected? */
static void look_for_theirs(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    uint64_t count = tutti_door_count();
    tutti_connection taken[TUTTI_LANES_MOST];
    if (count == far->door_seen) return;
    far->door_seen = count;
    if (tutti_door_take(&far->tickets[TUTTI_FAR_THEIRS], taken) == TUTTI_OK) start(channel, TUTTI_FAR_THEIRS, taken);
}

void tutti_far_connect(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (!is_used(far, TUTTI_FAR_THEIRS)) look_for_theirs(channel);
    if (channel->head != far->sent) tutti_far_reach(channel);
    for (tutti_far_maker maker = TUTTI_FAR_OURS; maker <= TUTTI_FAR_THEIRS; maker++) {
        if (far->openers[maker] == NULL) continue;
        tutti_pipe *pipe = take_pipe(channel, maker);
        if (pipe == NULL) continue;
        far->made[maker] = pipe;
        pipe->transport->recv(pipe, &far->in_frames[maker], sizeof far->in_frames[maker]);
    }
}

tutti_pipe *tutti_far_choose_out(const struct tutti_far *far) {
    const tutti_ticket *ours = &far->tickets[TUTTI_FAR_OURS];
    bool lower = memcmp(ours->from, ours->to, sizeof ours->from) < 0;
    tutti_far_maker first = lower ? TUTTI_FAR_OURS : TUTTI_FAR_THEIRS;
    if (far->in != NULL) return far->in;
    return far->made[first] != NULL ? far->made[first] : far->made[1 - first];
}

tutti_status tutti_far_open(tutti_channels *channel) {
    struct tutti_far *far;
    TUTTI_TRY(tutti_calloc(1, sizeof *far, &far));
    channel->far = far;
    channel->probed = true; /* its memory cannot be read from here */
    channel->theirs = &silence.block;
    channel->their_bytes = TUTTI_CHANNEL_RING_BYTES;
    return write_tickets(channel->peer, far);
}

void tutti_far_close(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (far == NULL) return;
    for (int maker = 0; maker < 2; maker++) {
        tutti_opener_abandon(far->openers[maker]);
        if (far->made[maker] != NULL) far->made[maker]->transport->close(far->made[maker]);
    }
    free(far->copy);
    free(far->body);
    free(far->stream);
    free(channel->own);
    free(far);
    channel->own = NULL;
}
