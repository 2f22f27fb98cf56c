/*
 * Requests: how they begin, get their bytes, and end; and why they fail. See p2p_state.h for their states.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

tutti_status tutti_request_make(tutti_port *port, tutti_work *work, tutti_request **request_out) {
    tutti_request *request = TAILQ_FIRST(&tutti_p2p.spare);
    if (request != NULL) TAILQ_REMOVE(&tutti_p2p.spare, request, state_link);
    else TUTTI_TRY(tutti_calloc(1, sizeof *request, &request));
    memset(request, 0, sizeof *request);
    request->port = port;
    request->work = work;
    tutti_work_retain(work);
    TAILQ_INSERT_TAIL(&port->all, request, all_link);
    atomic_fetch_add_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
    *request_out = request;
    return TUTTI_OK;
}

void tutti_request_end(tutti_request *request, tutti_status status, const char *text) {
    if (TUTTI_UNLIKELY(request->channel != NULL && request->channel->remote != NULL))
        tutti_remote_let_go(request->channel, request);
    tutti_request_move(request, TUTTI_PHASE_ENDED, &tutti_p2p.ended);
    TAILQ_REMOVE(&request->port->all, request, all_link);
    request->status = status;
    if (status != TUTTI_OK) request->error = strdup(text);
    atomic_fetch_sub_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
}

void tutti_request_received(tutti_request *request) {
    tutti_work *work = request->work;
    work->source = request->source_rank;
    work->tag = request->source_tag;
    work->count = request->wanted / request->item_bytes;
    if (TUTTI_LIKELY(request->message_bytes <= request->bytes)) {
        tutti_request_end(request, TUTTI_OK, "");
        return;
    }
    char text[256];
    snprintf(text, sizeof text,
             "the message from rank %d with tag %lld has %zu bytes, but the receive buffer holds %zu; the rest is lost",
             request->source_rank, (long long)request->source_tag, request->message_bytes, request->bytes);
    tutti_request_end(request, TUTTI_ERR_TRUNCATED, text);
}

tutti_request *tutti_request_find(struct tutti_requests *list, uint64_t id) {
    tutti_request *request;
    for (request = TAILQ_FIRST(list); request != NULL; request = TAILQ_NEXT(request, state_link))
        if (request->id == id) return request;
    return NULL;
}

tutti_request *tutti_request_stream(tutti_channels *channel, uint64_t transfer, uint64_t offset, size_t bytes) {
    tutti_request *request = tutti_request_find(&channel->receiving, transfer);
    if (request == NULL) return NULL; /* cancelled */
    if (offset == request->moved && bytes <= request->wanted - request->moved) return request;
    tutti_channel_break(channel, "it sent a part of a message that was not asked for");
    return NULL;
}

void tutti_request_came(tutti_request *request, size_t bytes) {
    request->moved += bytes;
    if (request->moved == request->wanted) tutti_request_received(request);
}

/* --------------------------------------------------------------------------------------------- failures */

/* If a local send waits as an unexpected message, removes that message, too. */
static void withdraw(tutti_request *send) {
    TAILQ_REMOVE(&send->message->port->unexpected, send->message, link);
    free(send->message);
    send->message = NULL;
}

void tutti_request_fail(tutti_request *request, tutti_status status, const char *text) {
    if (request->message != NULL) withdraw(request);
    tutti_request *partner = request->partner;
    if (partner != NULL) {
        partner->partner = NULL;
        tutti_request_end(partner, status, text);
    } else if (request->phase == TUTTI_PHASE_PULLING) {
        tutti_channel_done(request->channel, request->answer, /* taken */ false);
    }
    tutti_request_end(request, status, text);
}

static bool is_receive(const tutti_request *request) {
    return request->phase <= TUTTI_PHASE_RECEIVING;
}

static const char *phase_text(const tutti_request *request) {
    switch (request->phase) {
    case TUTTI_PHASE_POSTED: return "no matching message has come";
    case TUTTI_PHASE_PULLING:
    case TUTTI_PHASE_RECEIVING:
    case TUTTI_PHASE_STREAMING: return "the message is in transit";
    case TUTTI_PHASE_WAITING: return "that process does not read its messages";
    case TUTTI_PHASE_ANNOUNCED: return "that process has posted no matching receive, or does not call the library";
    case TUTTI_PHASE_ENDED: break;
    }
    return "it has ended";
}

/* "send of 8 bytes to rank 1 (host h, pid 7) ...". Returns `text`. */
const char *tutti_request_describe(const tutti_request *request, char *text, size_t capacity) {
    const tutti_comm *comm = request->port->comm;
    char rank[128] = "any rank", tag[32] = "any tag", moved[64] = "";
    if (request->peer >= 0) tutti_peer_describe_rank(comm, request->peer, rank, sizeof rank);
    if (request->tag != TUTTI_ANY_TAG) snprintf(tag, sizeof tag, "tag %lld", (long long)request->tag);
    if (request->moved > 0) snprintf(moved, sizeof moved, " (%zu of %zu bytes)", request->moved, request->wanted);
    bool receives = is_receive(request);
    snprintf(text, capacity, "rank %d's %s %zu bytes %s %s with %s on communicator \"%s\": %s%s", comm->rank,
             receives ? "receive of up to" : "send of", request->bytes, receives ? "from" : "to", rank, tag, comm->name,
             phase_text(request), moved);
    return text;
}

void tutti_request_fail_left(tutti_request *request, int rank) {
    const char *name = request->port->comm->name;
    char what[512], text[768];
    tutti_request_describe(request, what, sizeof what);
    if (rank == TUTTI_ANY_SOURCE)
        snprintf(text, sizeof text, "all other ranks have destroyed communicator \"%s\"; %s", name, what);
    else snprintf(text, sizeof text, "rank %d has destroyed communicator \"%s\"; %s", rank, name, what);
    tutti_request_fail(request, TUTTI_ERR_BROKEN, text);
}
