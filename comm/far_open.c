/*
 * How the connections of a channel to another host come and go. See far.h.
 *
 * Each side connects for what it has to send. Memory for the rings is there from the first connection on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/far_state.h"
#include "comm/peer.h"

void tutti_far_lose(tutti_channels *channel, const char *why) {
    snprintf(channel->error, sizeof channel->error, "%s", why);
    channel->gone = true;
}

/* What a peer has said that has said nothing. */
static const tutti_channel_block silence;

tutti_status tutti_far_equip(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (channel->own != NULL) return TUTTI_OK;
    far->copy = aligned_alloc(TUTTI_CACHE_LINE, sizeof *far->copy);
    far->body = malloc(TUTTI_CHANNEL_RING_BYTES);
    far->stream = malloc(TUTTI_FAR_STREAM_BYTES);
    tutti_channel_block *own = aligned_alloc(TUTTI_CACHE_LINE, sizeof *own);
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
    return TUTTI_OK;
}

tutti_pipe *tutti_far_take_pipe(tutti_channels *channel, tutti_opener **opener_at) {
    tutti_pipe *pipe = NULL;
    tutti_status status = tutti_opener_take(*opener_at, &pipe);
    if (status == TUTTI_NOT_YET) return NULL;
    *opener_at = NULL;
    if (status == TUTTI_ERR_SYSTEM || status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DIED) {
        tutti_far_lose(channel, tutti_last_error());
        return NULL;
    }
    if (status == TUTTI_OK) status = tutti_far_equip(channel);
    if (status == TUTTI_OK) return pipe;
    tutti_channel_break(channel, "%s", tutti_last_error());
    if (pipe != NULL) pipe->transport->close(pipe);
    return NULL;
}

static void start(tutti_channels *channel, const tutti_ticket *ticket, const tutti_connection *taken,
                  tutti_opener **opener_out) {
    int64_t timeout_ms = tutti_setting_int(TUTTI_SETTING_CONNECT_TIMEOUT_MS);
    if (tutti_opener_start(channel->peer->door, ticket, taken, timeout_ms, opener_out) != TUTTI_OK)
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
    far->out_ticket = far->in_ticket = (tutti_ticket){.use = TUTTI_TICKET_MESSAGES, .transport = (uint32_t)transport};
    memcpy(far->out_ticket.from, self->id, sizeof self->id);
    memcpy(far->out_ticket.to, peer->id, sizeof peer->id);
    memcpy(far->in_ticket.from, peer->id, sizeof peer->id);
    memcpy(far->in_ticket.to, self->id, sizeof self->id);
    return TUTTI_OK;
}

void tutti_far_start_out(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    start(channel, &far->out_ticket, /* taken */ NULL, &far->out_opener);
}

void tutti_far_look_for_in(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    uint64_t count = tutti_door_count();
    tutti_connection taken;
    if (count == far->door_seen) return;
    far->door_seen = count;
    if (tutti_door_take(&far->in_ticket, &taken) != TUTTI_OK) return;
    start(channel, &far->in_ticket, &taken, &far->in_opener);
}

tutti_status tutti_far_open(tutti_channels *channel) {
    struct tutti_far *far;
    TUTTI_TRY(tutti_calloc(1, sizeof *far, &far));
    channel->far = far;
    channel->probed = true; /* its memory cannot be read from here */
    channel->theirs = &silence;
    return write_tickets(channel->peer, far);
}

void tutti_far_close(tutti_channels *channel) {
    struct tutti_far *far = channel->far;
    if (far == NULL) return;
    tutti_opener_abandon(far->out_opener);
    tutti_opener_abandon(far->in_opener);
    if (far->out != NULL) far->out->transport->close(far->out);
    if (far->in != NULL) far->in->transport->close(far->in);
    free(far->copy);
    free(far->body);
    free(far->stream);
    free(channel->own);
    free(far);
    channel->own = NULL;
}
