/*
 * Matching: which receive takes which message; and how requests fail.
 *
 * A port keeps its posted receives and its unexpected messages in order of arrival. A message takes the first
 * posted receive that fits, a receive takes the first message that fits; at no time does a posted receive fit an
 * unexpected message. Messages between two ranks arrive in the order in which they were sent, so that order holds
 * per tag.
 *
 * TUTTI_ANY_TAG matches users' tags only (>= 0), never the library's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/base/broken.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

#define LOCAL_BACKLOG_BYTES ((size_t)1 << 20)

/* --------------------------------------------------------------------------------------------- requests */

tutti_status tutti_match_request(tutti_port *port, tutti_work *work, tutti_request **request_out) {
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

void tutti_match_move(tutti_request *request, tutti_phase phase, struct tutti_requests *list) {
    if (request->list != NULL) TAILQ_REMOVE(request->list, request, state_link);
    if (list != NULL) TAILQ_INSERT_TAIL(list, request, state_link);
    request->phase = phase;
    request->list = list;
}

void tutti_match_end(tutti_request *request, tutti_status status, const char *text) {
    if (TUTTI_UNLIKELY(request->channel != NULL && request->channel->remote != NULL))
        tutti_remote_let_go(request->channel, request);
    tutti_match_move(request, TUTTI_PHASE_ENDED, &tutti_p2p.ended);
    TAILQ_REMOVE(&request->port->all, request, all_link);
    request->status = status;
    if (status != TUTTI_OK) request->error = strdup(text);
    atomic_fetch_sub_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
}

/* If a local send waits as an unexpected message, removes that message, too. */
static void withdraw(tutti_request *send) {
    TAILQ_REMOVE(&send->message->port->unexpected, send->message, link);
    free(send->message);
    send->message = NULL;
}

void tutti_match_fail(tutti_request *request, tutti_status status, const char *text) {
    if (request->message != NULL) withdraw(request);
    tutti_request *partner = request->partner;
    if (partner != NULL) {
        partner->partner = NULL;
        tutti_match_end(partner, status, text);
    } else if (request->phase == TUTTI_PHASE_PULLING) {
        tutti_transfer_done(request->channel, request->answer, /* taken */ false);
    }
    tutti_match_end(request, status, text);
}

/* ------------------------------------------------------------------------------------------- receiving */

static bool fits(const tutti_request *receive, int source, int64_t tag) {
    if (receive->peer != TUTTI_ANY_SOURCE && receive->peer != source) return false;
    return receive->tag == tag || (receive->tag == TUTTI_ANY_TAG && tag >= 0);
}

tutti_request *tutti_match_posted(tutti_port *port, int source, int64_t tag) {
    tutti_request *request;
    for (request = TAILQ_FIRST(&port->posted); request != NULL; request = TAILQ_NEXT(request, state_link))
        if (fits(request, source, tag)) {
            tutti_match_move(request, TUTTI_PHASE_POSTED, NULL);
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

void tutti_match_received(tutti_request *request) {
    tutti_work *work = request->work;
    work->source = request->source_rank;
    work->tag = request->source_tag;
    work->count = request->wanted / request->item_bytes;
    if (TUTTI_LIKELY(request->message_bytes <= request->bytes)) {
        tutti_match_end(request, TUTTI_OK, "");
        return;
    }
    char text[256];
    snprintf(text, sizeof text,
             "the message from rank %d with tag %lld has %zu bytes, but the receive buffer holds %zu; the rest is lost",
             request->source_rank, (long long)request->source_tag, request->message_bytes, request->bytes);
    tutti_match_end(request, TUTTI_ERR_TRUNCATED, text);
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
        tutti_match_received(request);
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
    tutti_match_move(request, TUTTI_PHASE_POSTED, &request->port->posted);
}

void tutti_match_drop_unexpected(tutti_port *port) {
    tutti_unexpected *message;
    while ((message = TAILQ_FIRST(&port->unexpected)) != NULL) {
        if (message->sender != NULL) {
            tutti_match_fail_left(message->sender, port->rank); /* frees the message */
            continue;
        }
        TAILQ_REMOVE(&port->unexpected, message, link);
        if (message->whole) release_backlog(port, message);
        else tutti_transfer_done(message->channel, message->transfer, /* taken */ false);
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
        tutti_match_end(request, TUTTI_ERR_MEMORY, "no memory to keep a message until its receive is posted");
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
    tutti_match_end(request, TUTTI_OK, "");
}

void tutti_match_send_local(tutti_request *request, tutti_port *to) {
    tutti_match_move(request, TUTTI_PHASE_ANNOUNCED, NULL);
    if (to == NULL) {
        tutti_match_fail_left(request, request->peer);
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

/* ------------------------------------------------------------------------------------------- coming bytes */

tutti_request *tutti_match_find(struct tutti_requests *list, uint64_t id) {
    tutti_request *request;
    for (request = TAILQ_FIRST(list); request != NULL; request = TAILQ_NEXT(request, state_link))
        if (request->id == id) return request;
    return NULL;
}

tutti_request *tutti_match_stream(tutti_channels *channel, uint64_t transfer, uint64_t offset, size_t bytes) {
    tutti_request *request = tutti_match_find(&channel->receiving, transfer);
    if (request == NULL) return NULL; /* cancelled */
    if (offset == request->moved && bytes <= request->wanted - request->moved) return request;
    tutti_channel_break(channel, "it sent a part of a message that was not asked for");
    return NULL;
}

void tutti_match_came(tutti_request *request, size_t bytes) {
    request->moved += bytes;
    if (request->moved == request->wanted) tutti_match_received(request);
}

/* --------------------------------------------------------------------------------------------- failures */

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

static void describe_rank(const tutti_comm *comm, int rank, char *text, size_t capacity) {
    if (rank < 0) snprintf(text, capacity, "any rank");
    else
        snprintf(text, capacity, "rank %d (host %s, pid %d%s)", rank, comm->members[rank].process->host,
                 (int)comm->members[rank].process->pid, tutti_comm_job_rank(comm, rank, (char[40]){0}));
}

/* "send of 8 bytes to rank 1 (host h, pid 7) ...". Returns `text`. */
const char *tutti_match_describe(const tutti_request *request, char *text, size_t capacity) {
    const tutti_comm *comm = request->port->comm;
    char rank[128], tag[32] = "any tag", moved[64] = "";
    describe_rank(comm, request->peer, rank, sizeof rank);
    if (request->tag != TUTTI_ANY_TAG) snprintf(tag, sizeof tag, "tag %lld", (long long)request->tag);
    if (request->moved > 0) snprintf(moved, sizeof moved, " (%zu of %zu bytes)", request->moved, request->wanted);
    bool receives = is_receive(request);
    snprintf(text, capacity, "rank %d's %s %zu bytes %s %s with %s on communicator \"%s\": %s%s", comm->rank,
             receives ? "receive of up to" : "send of", request->bytes, receives ? "from" : "to", rank, tag, comm->name,
             phase_text(request), moved);
    return text;
}

bool tutti_match_has_left(const tutti_port *port, int rank) {
    const tutti_page *page = port->comm->members[rank].page;
    return atomic_load_explicit(&page->departed, memory_order_acquire) != 0 ||
           atomic_load_explicit(&page->comm_id, memory_order_acquire) != port->comm_id;
}

void tutti_match_fail_left(tutti_request *request, int rank) {
    const char *name = request->port->comm->name;
    char what[512], text[768];
    tutti_match_describe(request, what, sizeof what);
    if (rank == TUTTI_ANY_SOURCE)
        snprintf(text, sizeof text, "all other ranks have destroyed communicator \"%s\"; %s", name, what);
    else snprintf(text, sizeof text, "rank %d has destroyed communicator \"%s\"; %s", rank, name, what);
    tutti_match_fail(request, TUTTI_ERR_BROKEN, text);
}

bool tutti_match_read_reason(const tutti_port *port, int rank, tutti_verdict *verdict) {
    const tutti_comm *comm = port->comm;
    tutti_broken broken;
    if (!tutti_broken_read(comm, rank, &broken)) return false;
    bool own = rank == port->rank;
    verdict->status = own ? (tutti_status)broken.status : tutti_broken_peer_status(broken.status);
    if (comm->net.hosts != NULL && comm->members[rank].page == comm->net.hosts->elsewhere)
        rank = comm->net.hosts->told_by;
    if (own) snprintf(verdict->text, sizeof verdict->text, "%s", broken.text);
    else tutti_broken_quote(broken.text, rank, verdict->text, sizeof verdict->text);
    return true;
}

bool tutti_match_check_sender(tutti_request *request) {
    /* the bytes were copied before; gcc's thread sanitizer does not support C11 fences, and warns */
    __sync_synchronize();
    int rank = request->source_rank;
    const tutti_page *page = request->port->comm->members[rank].page;
    tutti_verdict reason;
    if (tutti_match_read_reason(request->port, rank, &reason)) tutti_match_fail(request, reason.status, reason.text);
    else if (atomic_load_explicit(&page->state, memory_order_acquire) != TUTTI_PAGE_WHOLE ||
             tutti_match_has_left(request->port, rank))
        tutti_match_fail_left(request, rank);
    else return false;
    return true;
}
