/*
 * Matching: which receive takes which message.
 *
 * A port keeps its posted receives and its unexpected messages in order of arrival. A message takes the first
 * posted receive that fits, a receive takes the first message that fits; at no time does a posted receive fit an
 * unexpected message. Messages between two ranks arrive in the order in which they were sent, so that order holds
 * per tag.
 *
 * TUTTI_ANY_TAG matches users' tags only (>= 0), never the library's.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/p2p/p2p_state.h"

#define LOCAL_BACKLOG_BYTES ((size_t)1 << 20)

/* ------------------------------------------------------------------------------------------- receiving */

static bool fits(const tutti_request *receive, int source, int64_t tag) {
    if (receive->peer != TUTTI_ANY_SOURCE && receive->peer != source) return false;
    return receive->tag == tag || (receive->tag == TUTTI_ANY_TAG && tag >= 0);
}

tutti_request *tutti_match_posted(tutti_port *port, int source, int64_t tag) {
    tutti_request *request;
    for (request = TAILQ_FIRST(&port->posted); request != NULL; request = TAILQ_NEXT(request, state_link))
        if (fits(request, source, tag)) {
            tutti_request_move(request, TUTTI_PHASE_POSTED, NULL);
            return request;
        }
    return NULL;
}

void tutti_match_accept(tutti_request *request, int source, int64_t tag, size_t message_bytes) {
    request->source_rank = source;
    request->source_tag = tag;
    request->message_bytes = message_bytes;
    request->wanted = tutti_min_size(message_bytes, request->bytes);
}

void tutti_match_keep(tutti_port *port, tutti_unexpected *message) {
    message->port = port;
    TAILQ_INSERT_TAIL(&port->unexpected, message, link);
}

/* Releases the cost of an eager message from its backlog. */
static void release_backlog(tutti_port *port, const tutti_unexpected *message) {
    if (message->channel != NULL) tutti_channel_give_credit(message->channel, message->bytes);
    else port->kept_bytes -= tutti_channel_cost(message->bytes);
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
    tutti_match_accept(request, message->source, message->tag, message->bytes);
    if (message->whole) {
        if (request->wanted > 0) memcpy(request->buffer, message->payload, request->wanted);
        release_backlog(port, message);
        tutti_request_received(request);
    } else if (message->sender != NULL) {
        pull_local(request, message->sender);
    } else {
        tutti_transfer_accept(request, message->channel, message->transfer, message->address);
    }
    free(message);
}

void tutti_match_receive(tutti_request *request) {
    tutti_unexpected *message;
    for (message = TAILQ_FIRST(&request->port->unexpected); message != NULL; message = TAILQ_NEXT(message, link))
        if (fits(request, message->source, message->tag)) {
            take(request, message);
            return;
        }
    tutti_request_move(request, TUTTI_PHASE_POSTED, &request->port->posted);
}

void tutti_match_drop_unexpected(tutti_port *port) {
    tutti_unexpected *message;
    while ((message = TAILQ_FIRST(&port->unexpected)) != NULL) {
        if (message->sender != NULL) {
            tutti_request_fail_left(message->sender, port->rank); /* frees the message */
            continue;
        }
        TAILQ_REMOVE(&port->unexpected, message, link);
        if (message->whole) release_backlog(port, message);
        else tutti_channel_done(message->channel, message->transfer, /* taken */ false);
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
    tutti_match_keep(to, message);
    if (!copies) {
        message->sender = request;
        request->message = message;
        return;
    }
    if (request->bytes > 0) memcpy(message->payload, request->buffer, request->bytes);
    to->kept_bytes += cost;
    tutti_request_end(request, TUTTI_OK, "");
}

void tutti_match_send_local(tutti_request *request, tutti_port *to) {
    tutti_request_move(request, TUTTI_PHASE_ANNOUNCED, NULL);
    if (to == NULL) {
        tutti_request_fail_left(request, request->peer);
        return;
    }
    tutti_request *receive = tutti_match_posted(to, request->port->rank, request->tag);
    if (receive == NULL) {
        leave_local(request, to);
        return;
    }
    tutti_match_accept(receive, request->port->rank, request->tag, request->bytes);
    pull_local(receive, request);
}
