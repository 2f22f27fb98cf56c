/*
 * Which receive a message is for: posted ones (requests), and those of threads that wait without one (immediate.c).
 */
#include "comm/p2p/p2p_state.h"

static bool is_wanted_tag(int64_t wanted, int64_t tag) {
    return wanted == tag || (wanted == TUTTI_ANY_TAG && tag >= 0);
}

bool tutti_match_fits(const tutti_request *receive, int source, int64_t tag) {
    return (receive->peer == TUTTI_ANY_SOURCE || receive->peer == source) && is_wanted_tag(receive->tag, tag);
}

static tutti_request *find_posted(const tutti_port *port, int source, int64_t tag) {
    tutti_request *request = TAILQ_FIRST(&port->posted);
    while (request != NULL && !tutti_match_fits(request, source, tag)) request = TAILQ_NEXT(request, state_link);
    return request;
}

tutti_request *tutti_match_take(const tutti_port *port, int source, int64_t tag) {
    tutti_request *request = find_posted(port, source, tag);
    if (request != NULL) tutti_request_move(request, TUTTI_PHASE_POSTED, NULL);
    return request;
}

void tutti_match_note(tutti_request *request, int source, int64_t tag, size_t message_bytes) {
    request->source_rank = source;
    request->source_tag = tag;
    request->message_bytes = message_bytes;
    request->wanted = tutti_min_size(message_bytes, request->bytes);
}

bool tutti_match_port(tutti_channels *channel, const tutti_record *record, tutti_port **port_out) {
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

bool tutti_waiter_fits(const tutti_waiter *r, const tutti_record *record) {
    return record->kind == TUTTI_RECORD_EAGER && record->comm_id == r->port->comm_id &&
           record->destination == r->port->rank && record->source == r->peer && is_wanted_tag(r->tag, record->tag) &&
           record->payload_bytes <= r->bytes;
}

bool tutti_waiter_is_next(const tutti_waiter *r) {
    return r->port != NULL && r->channel != NULL && r->channel->theirs != NULL && TAILQ_EMPTY(&r->port->posted) &&
           TAILQ_EMPTY(&r->port->unexpected);
}

static bool is_for_waiter(const tutti_waiter *waiter, const tutti_channels *channel, const tutti_record *record) {
    bool claimed = atomic_load_explicit(&waiter->claimed, memory_order_relaxed);
    return !claimed && !waiter->taken && waiter->channel == channel && tutti_waiter_is_next(waiter) &&
           tutti_waiter_fits(waiter, record);
}

tutti_waiter *tutti_match_waiter(const tutti_port *port, const tutti_channels *channel, const tutti_record *record) {
    tutti_waiter *waiter = port->waiter;
    return waiter != NULL && is_for_waiter(waiter, channel, record) ? waiter : NULL;
}

char *tutti_match_claim(tutti_channels *channel, const tutti_record *record, tutti_request **request_out,
                        tutti_waiter **waiter_out) {
    tutti_port *port;
    if (!tutti_match_port(channel, record, &port) || port == NULL) return NULL;
    *waiter_out = tutti_match_waiter(port, channel, record);
    if (*waiter_out != NULL) {
        atomic_store_explicit(&port->waiter->claimed, true, memory_order_relaxed);
        return port->waiter->dst;
    }
    bool announced = record->kind == TUTTI_RECORD_ANNOUNCE;
    uint64_t bytes = announced ? record->bytes : record->payload_bytes;
    tutti_request *request = find_posted(port, record->source, record->tag);
    if (request == NULL || bytes > request->bytes) return NULL;
    request->channel = channel;
    if (announced) request->answer = record->transfer;
    else request->id = ++tutti_p2p.last_id;
    tutti_match_note(request, record->source, record->tag, bytes);
    tutti_request_move(request, TUTTI_PHASE_RECEIVING, &channel->receiving);
    *request_out = request;
    return request->buffer;
}
