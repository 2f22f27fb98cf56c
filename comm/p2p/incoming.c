/*
 * The messages that arrive and the receives that wait for them: matching, and the records that come from peers. See
 * p2p.c for the protocol.
 *
 * A port keeps its posted receives and its unexpected messages in order of arrival. A message takes the first posted
 * receive that fits, a receive takes the first message that fits; at no time does a posted receive fit an unexpected
 * message. Messages between two ranks arrive in the order in which they were sent, so that order holds per tag.
 *
 * Requests are named by numbers that are used once: a record for a cancelled request is dropped. A message for a
 * communicator that is not open here is for one that has been closed: eager messages are dropped, announced ones
 * refused. An impossible value breaks the channel.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

#define LOCAL_BACKLOG_BYTES ((size_t)1 << 20)
#define RECORDS_AT_ONCE     256
#define LOOKS_AT_ONCE       8 /* checks of channel directories of processes that have not written to us */
#define PULLS_AT_ONCE       4
/* What a peer may have sent that we have not matched; more breaks the protocol (tutti_channel_has_credit). */
#define MOST_UNMATCHED_BYTES (UINT64_C(2) << 20)

/* -------------------------------------------------------------------------------------------- matching */

/* Puts a message (malloc'd) that no receive has asked for at the end of the unexpected list. */
static void keep(tutti_port *port, tutti_unexpected *message) {
    message->port = port;
    TAILQ_INSERT_TAIL(&port->unexpected, message, link);
}

/* Releases the cost of the kept bytes from their backlog. */
static void release_backlog(tutti_port *port, const tutti_unexpected *message) {
    if (!message->whole && message->kept_bytes == 0) return; /* an announcement without bytes has no cost */
    if (message->channel != NULL) tutti_channel_give_credit(message->channel, message->kept_bytes);
    else port->kept_bytes -= tutti_channel_cost(message->kept_bytes);
}

/* The receiver's side copies from the buffer of a send of this process. */
static void pull_local(tutti_request *receive, tutti_request *send) {
    receive->partner = send;
    send->partner = receive;
    send->message = NULL;
    receive->source = send->buffer;
    tutti_transfer_pull(receive);
}

static void take(tutti_request *request, tutti_unexpected *message) {
    tutti_port *port = request->port;
    TAILQ_REMOVE(&port->unexpected, message, link);
    tutti_match_note(request, message->source, message->tag, message->bytes);
    size_t came = tutti_min_size(message->kept_bytes, request->wanted);
    if (came > 0) memcpy(request->buffer, message->payload, came);
    release_backlog(port, message);
    if (message->whole) {
        tutti_request_received(request);
    } else if (message->sender != NULL) {
        pull_local(request, message->sender);
    } else {
        tutti_transfer_accept(request, message->channel, message->transfer, message->address, came);
    }
    free(message);
}

void tutti_incoming_receive(tutti_request *request) {
    tutti_unexpected *message;
    for (message = TAILQ_FIRST(&request->port->unexpected); message != NULL; message = TAILQ_NEXT(message, link))
        if (tutti_match_fits(request, message->source, message->tag)) {
            take(request, message);
            return;
        }
    tutti_request_move(request, TUTTI_PHASE_POSTED, &request->port->posted);
}

void tutti_incoming_drop(tutti_port *port) {
    tutti_unexpected *message;
    while ((message = TAILQ_FIRST(&port->unexpected)) != NULL) {
        if (message->sender != NULL) {
            tutti_request_fail_left(message->sender, port->rank); /* frees the message */
            continue;
        }
        TAILQ_REMOVE(&port->unexpected, message, link);
        release_backlog(port, message);
        if (!message->whole) tutti_channel_done(message->channel, message->transfer, /* taken */ false);
        free(message);
    }
}

/* ------------------------------------------------------------------------------------------ local sends */

/* Leaves the message to wait for its receive: a small one as a copy, so that the send is complete. */
static void leave_local(tutti_request *request, tutti_port *to) {
    size_t cost = tutti_channel_cost(request->bytes);
    bool copies = request->bytes <= (size_t)tutti_setting_int(TUTTI_SETTING_EAGER_BYTES) &&
                  to->kept_bytes + cost <= LOCAL_BACKLOG_BYTES;
    tutti_unexpected *message = malloc(sizeof *message + (copies ? request->bytes : 0));
    if (message == NULL) {
        tutti_request_end(request, TUTTI_ERR_MEMORY, "no memory to keep a message until its receive is posted");
        return;
    }
    *message = (tutti_unexpected){
        .source = request->port->rank, .tag = request->tag, .bytes = request->bytes, .whole = copies};
    keep(to, message);
    if (!copies) {
        message->sender = request;
        request->message = message;
        return;
    }
    if (request->bytes > 0) memcpy(message->payload, request->buffer, request->bytes);
    message->kept_bytes = request->bytes;
    to->kept_bytes += cost;
    tutti_request_end(request, TUTTI_OK, "");
}

void tutti_incoming_local(tutti_request *request, tutti_port *to) {
    tutti_request_move(request, TUTTI_PHASE_ANNOUNCED, NULL);
    if (to == NULL) {
        tutti_request_fail_left(request, request->peer);
        return;
    }
    tutti_request *receive = tutti_match_take(to, request->port->rank, request->tag);
    if (receive == NULL) {
        leave_local(request, to);
        return;
    }
    tutti_match_note(receive, request->port->rank, request->tag, request->bytes);
    pull_local(receive, request);
}

/* ---------------------------------------------------------------------------------------- records of peers
 * Each on_ function handles one kind of record; false: not possible now, or the channel is broken.
 */

/* Keeps a message of that many bytes that no receive has asked for, with its payload; NULL: no memory now, or the
 * channel is broken. */
static tutti_unexpected *keep_message(tutti_channels *channel, tutti_port *port, const tutti_record *record,
                                      uint64_t bytes) {
    size_t kept_bytes = record->payload_bytes;
    if (channel->came - channel->matched > MOST_UNMATCHED_BYTES) {
        tutti_channel_break(channel, "it sent more unmatched bytes than the limit allows");
        return NULL;
    }
    tutti_unexpected *message = malloc(sizeof *message + kept_bytes);
    if (message == NULL) return NULL;
    *message = (tutti_unexpected){
        .source = record->source, .tag = record->tag, .bytes = bytes, .channel = channel, .kept_bytes = kept_bytes};
    tutti_channel_copy(channel, record, message->payload, kept_bytes);
    keep(port, message);
    return message;
}

static bool on_eager(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (!tutti_match_port(channel, record, &port)) return false;
    tutti_waiter *waiter = port != NULL ? tutti_match_waiter(port, channel, record) : NULL;
    tutti_request *request = port != NULL ? tutti_match_take(port, record->source, record->tag) : NULL;
    if (port != NULL && waiter == NULL && request == NULL) {
        tutti_unexpected *message = keep_message(channel, port, record, record->payload_bytes);
        if (message == NULL) return false;
        message->whole = true;
        channel->came += tutti_channel_cost(record->payload_bytes);
        return true;
    }
    channel->came += tutti_channel_cost(record->payload_bytes);
    tutti_channel_give_credit(channel, record->payload_bytes);
    if (waiter != NULL) {
        tutti_channel_copy(channel, record, waiter->dst, record->payload_bytes);
        tutti_waiter_take(waiter, record);
    } else if (request != NULL) {
        tutti_match_note(request, record->source, record->tag, record->payload_bytes);
        tutti_channel_copy(channel, record, request->buffer, request->wanted);
        tutti_request_received(request);
    }
    return true;
}

static bool on_announce(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    size_t first = record->payload_bytes;
    if (!tutti_match_port(channel, record, &port)) return false;
    tutti_request *request = port != NULL ? tutti_match_take(port, record->source, record->tag) : NULL;
    if (port != NULL && request == NULL) {
        tutti_unexpected *message = keep_message(channel, port, record, record->bytes);
        if (message == NULL) return false;
        message->transfer = record->transfer;
        message->address = record->address;
        if (first > 0) channel->came += tutti_channel_cost(first);
        return true;
    }
    if (first > 0) {
        channel->came += tutti_channel_cost(first);
        tutti_channel_give_credit(channel, first);
    }
    if (request == NULL) {
        tutti_channel_done(channel, record->transfer, /* taken */ false);
        return true;
    }
    tutti_match_note(request, record->source, record->tag, record->bytes);
    size_t came = tutti_min_size(first, request->wanted);
    if (came > 0) tutti_channel_copy(channel, record, request->buffer, came);
    tutti_transfer_accept(request, channel, record->transfer, record->address, came);
    return true;
}

static bool on_clear(tutti_channels *channel, const tutti_record *record) {
    tutti_request *request = tutti_request_find(&channel->announced, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes > request->bytes || record->from >= record->bytes) {
        tutti_channel_break(channel, "it asked for more than it was offered");
        return false;
    }
    request->wanted = record->bytes;
    request->moved = record->from;
    request->answer = record->answer;
    tutti_request_move(request, TUTTI_PHASE_STREAMING, &channel->streaming);
    return true;
}

static bool on_fragment(tutti_channels *channel, const tutti_record *record) {
    tutti_request *request = tutti_request_stream(channel, record->transfer, record->bytes, record->payload_bytes);
    if (request == NULL) return !channel->broken; /* cancelled, or invalid */
    char *dst = request->buffer + request->moved;
    if (request->wanted >= TUTTI_LEAST_PAST_BYTES) tutti_channel_copy_past(channel, record, dst);
    else tutti_channel_copy(channel, record, dst, record->payload_bytes);
    tutti_request_came(request, record->payload_bytes);
    return true;
}

static bool on_done(tutti_channels *channel, const tutti_record *record) {
    tutti_request *request = tutti_request_find(&channel->announced, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes == 0) tutti_request_end(request, TUTTI_OK, "");
    else tutti_request_fail_left(request, request->peer);
    return true;
}

static bool on_broken(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (!tutti_match_port(channel, record, &port)) return false;
    if (port == NULL || tutti_notify_received_broken(channel, record, port)) return true;
    tutti_channel_break(channel, "it sent an invalid reason for a broken communicator");
    return false;
}

static bool on_left(tutti_channels *channel, const tutti_record *record) {
    tutti_port *port;
    if (!tutti_match_port(channel, record, &port)) return false;
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

/* A silent process has begun to write: finds out which one. The silent processes are checked in turn. */
static void look_for_channels(void) {
    uint64_t callers = tutti_channel_callers();
    if (TUTTI_UNLIKELY(callers != tutti_p2p.callers_seen)) {
        tutti_p2p.callers_seen = callers;
        tutti_p2p.looks_left = atomic_load_explicit(&tutti_p2p.channels, memory_order_relaxed);
    }
    tutti_channels *last = TAILQ_LAST(&tutti_p2p.unfound, tutti_channel_list), *channel = NULL;
    for (int i = 0; i < LOOKS_AT_ONCE && tutti_p2p.looks_left > 0 && channel != last; i++) {
        tutti_p2p.looks_left--;
        channel = TAILQ_FIRST(&tutti_p2p.unfound);
        tutti_incoming_read(channel);
        if (channel->theirs != NULL) continue;
        TAILQ_REMOVE(&tutti_p2p.unfound, channel, link);
        TAILQ_INSERT_TAIL(&tutti_p2p.unfound, channel, link);
    }
}

void tutti_incoming_progress(void) {
    look_for_channels();
    tutti_channels *channel;
    for (channel = TAILQ_FIRST(&tutti_p2p.found); channel != NULL; channel = TAILQ_NEXT(channel, link)) {
        if (TUTTI_UNLIKELY(channel->remote != NULL) && tutti_remote_progress(channel)) tutti_p2p.moved = true;
        tutti_incoming_read(channel);
        if (!STAILQ_EMPTY(&channel->notes) || !TAILQ_EMPTY(&channel->waiting) || !TAILQ_EMPTY(&channel->streaming))
            tutti_transfer_advance(channel);
    }
    for (int i = 0; i < PULLS_AT_ONCE && !TAILQ_EMPTY(&tutti_p2p.pulling); i++)
        tutti_transfer_pull(TAILQ_FIRST(&tutti_p2p.pulling));
}
