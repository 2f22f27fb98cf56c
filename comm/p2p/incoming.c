/*
 * Handles the records that come from a peer. See p2p.c for the protocol.
 *
 * Requests are named by numbers that are used once: a record for a cancelled request is dropped. A message for a
 * communicator that is not open here is for one that has been closed: eager messages are dropped, announced ones
 * refused. An impossible value breaks the channel.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/p2p/p2p_state.h"

#define RECORDS_AT_ONCE 256
/* A peer may have sent this many bytes that we have not matched; more breaks the protocol. See
 * tutti_channel_has_credit. */
#define MOST_UNMATCHED_BYTES (UINT64_C(2) << 20)

/* Each on_ function handles one kind of record; false: not possible now, or the channel is broken. */

/* Finds the rank's port; *port_out is NULL if its communicator is closed. False: the record names a wrong source. */
static bool find_port(tutti_channels *channel, const tutti_record *record, tutti_port **port_out) {
    tutti_port *port = tutti_p2p_port(record->comm_id, record->destination);
    *port_out = port;
    if (port == NULL) return true;
    const tutti_comm *comm = port->comm;
    if (record->source >= 0 && record->source < comm->nranks && comm->members[record->source].process == channel->peer)
        return true;
    tutti_channel_break(channel, "it sent a message as rank %d of \"%s\", which is not a rank of that process",
                        record->source, comm->name);
    return false;
}

static tutti_unexpected *new_message(tutti_channels *channel, const tutti_record *record, size_t payload_bytes) {
    tutti_unexpected *message = malloc(sizeof *message + payload_bytes);
    if (message == NULL) return NULL;
    *message =
        (tutti_unexpected){.source = record->source, .tag = record->tag, .bytes = record->bytes, .channel = channel};
    return message;
}

/* Keeps an eager message that no receive has asked for; false: no memory now. */
static bool keep_eager(tutti_channels *channel, tutti_port *port, const tutti_record *record) {
    if (channel->came - channel->matched > MOST_UNMATCHED_BYTES) {
        tutti_channel_break(channel, "it sent more unmatched bytes than the limit allows");
        return false;
    }
    tutti_unexpected *message = new_message(channel, record, record->bytes);
    if (message == NULL) return false;
    message->whole = true;
    tutti_channel_copy(channel, record, message->payload, record->bytes);
    channel->came += tutti_channel_cost(record->bytes);
    tutti_match_keep(port, message);
    return true;
}

static bool on_eager(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (record->bytes != record->payload_bytes) {
        tutti_channel_break(channel, "it sent an eager message with a wrong length");
        return false;
    }
    if (!find_port(channel, record, &port)) return false;
    tutti_request *request = port != NULL ? tutti_match_posted(port, record->source, record->tag) : NULL;
    if (port != NULL && request == NULL) return keep_eager(channel, port, record);
    channel->came += tutti_channel_cost(record->bytes);
    tutti_channel_give_credit(channel, record->bytes);
    if (request == NULL) return true;
    tutti_match_accept(request, record->source, record->tag, record->bytes);
    tutti_channel_copy(channel, record, request->buffer, request->wanted);
    tutti_match_received(request);
    return true;
}

static bool on_announce(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (!find_port(channel, record, &port)) return false;
    if (port == NULL) {
        tutti_transfer_done(channel, record->transfer, /* taken */ false);
        return true;
    }
    tutti_request *request = tutti_match_posted(port, record->source, record->tag);
    if (request != NULL) {
        tutti_match_accept(request, record->source, record->tag, record->bytes);
        tutti_transfer_accept(request, channel, record->transfer, record->address);
        return true;
    }
    tutti_unexpected *message = new_message(channel, record, 0);
    if (message == NULL) return false;
    message->transfer = record->transfer;
    message->address = record->address;
    tutti_match_keep(port, message);
    return true;
}

static tutti_request *find_request(struct tutti_requests *list, uint64_t id) {
    tutti_request *request;
    for (request = TAILQ_FIRST(list); request != NULL; request = TAILQ_NEXT(request, state_link))
        if (request->id == id) return request;
    return NULL;
}

static bool on_clear(tutti_channels *channel, const tutti_record *record) {
    tutti_request *request = find_request(&channel->announced, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes > request->bytes || record->from >= record->bytes) {
        tutti_channel_break(channel, "it asked for more than it was offered");
        return false;
    }
    request->wanted = record->bytes;
    request->moved = record->from;
    request->answer = record->answer;
    tutti_match_move(request, TUTTI_PHASE_STREAMING, &channel->streaming);
    return true;
}

tutti_request *tutti_incoming_stream(tutti_channels *channel, uint64_t transfer, uint64_t offset, size_t bytes) {
    tutti_request *request = find_request(&channel->receiving, transfer);
    if (request == NULL) return NULL; /* cancelled */
    if (offset == request->moved && bytes <= request->wanted - request->moved) return request;
    tutti_channel_break(channel, "it sent a part of a message that was not asked for");
    return NULL;
}

void tutti_incoming_came(tutti_request *request, size_t bytes) {
    request->moved += bytes;
    if (request->moved == request->wanted) tutti_match_received(request);
}

static bool on_fragment(tutti_channels *channel, const tutti_record *record) {
    tutti_request *request = find_request(&channel->receiving, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes != request->moved || record->payload_bytes > request->wanted - request->moved) {
        tutti_channel_break(channel, "it sent a part of a message that was not asked for");
        return false;
    }
    tutti_channel_copy(channel, record, request->buffer + request->moved, record->payload_bytes);
    tutti_incoming_came(request, record->payload_bytes);
    return true;
}

static bool on_done(tutti_channels *channel, const tutti_record *record) {
    tutti_request *request = find_request(&channel->announced, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes == 0) tutti_match_end(request, TUTTI_OK, "");
    else tutti_watch_fail_left(request, request->peer);
    return true;
}

static bool on_broken(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (!find_port(channel, record, &port)) return false;
    if (port == NULL || tutti_notify_received_broken(channel, record, port)) return true;
    tutti_channel_break(channel, "it sent an invalid reason for a broken communicator");
    return false;
}

static bool on_left(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (!find_port(channel, record, &port)) return false;
    if (port != NULL) port->left[record->source] = true; /* all data it sent has been read */
    return true;
}

static bool handle(tutti_channels *channel, const tutti_record *record) {
    switch ((tutti_record_kind)record->kind) {
    case TUTTI_RECORD_EAGER: return on_eager(channel, record);
    case TUTTI_RECORD_ANNOUNCE: return on_announce(channel, record);
    case TUTTI_RECORD_CLEAR: return on_clear(channel, record);
    case TUTTI_RECORD_FRAGMENT: return on_fragment(channel, record);
    case TUTTI_RECORD_DONE: return on_done(channel, record);
    case TUTTI_RECORD_BROKEN: return on_broken(channel, record);
    case TUTTI_RECORD_LEFT: return on_left(channel, record);
    case TUTTI_RECORD_END: break;
    }
    return false;
}

bool tutti_incoming_read(tutti_channels *channel) {
    if (channel->theirs == NULL) {
        if (!tutti_channel_find(channel)) return true;
        TAILQ_REMOVE(&tutti_p2p.unfound, channel, link);
        TAILQ_INSERT_TAIL(&tutti_p2p.found, channel, link);
    }
    tutti_record record;
    for (int i = 0; i < RECORDS_AT_ONCE; i++) {
        if (!tutti_channel_peek(channel, &record) || !tutti_channel_is_whole(channel, &record)) return true;
        if (!handle(channel, &record)) return channel->broken;
        tutti_channel_skip(channel, &record);
        tutti_p2p.moved = true;
    }
    return false;
}
