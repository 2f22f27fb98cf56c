/*
 * Moving bytes: what a channel's records mean, streams, and copies from mapped memory. See p2p.c for the protocol.
 *
 * Each call does a bounded amount of work. A channel's answers go first, then sends in their order, then a few
 * fragments of its streams in turn, for which part of the ring stays free, so that a small message overtakes a large
 * transfer. Requests are named by numbers that are used once: what comes for one that has been cancelled is dropped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/heap.h"
#include "comm/p2p_state.h"

#define FRAGMENT_BYTES       ((size_t)32 << 10)
#define FRAGMENTS_AT_ONCE    4
#define STREAM_RESERVE_BYTES (TUTTI_CHANNEL_RING_BYTES / 4) /* of the ring, not for fragments */
#define LARGEST_EAGER_BYTES  (TUTTI_CHANNEL_RING_BYTES / 4)
#define SLICE_BYTES          ((size_t)128 << 10) /* of a pull */
#define PULLS_AT_ONCE        4
#define RECORDS_AT_ONCE      256
#define LOOKS_AT_ONCE        8 /* at lobbies of processes that have not written to us */
/* A peer may have sent this much that we have not matched before it breaks the rules; see tutti_channel_has_credit. */
#define MOST_UNMATCHED_BYTES (UINT64_C(2) << 20)

/* --------------------------------------------------------------------------------------------- answers */

/* Sends an answer, or keeps it until there is room. */
static void answer(tutti_channels *channel, const tutti_record *record)
{
    if (STAILQ_EMPTY(&channel->notes) && tutti_channel_has_room(channel, record, 0)) {
        tutti_channel_write(channel, record, NULL);
        return;
    }
    tutti_note *note = malloc(sizeof *note);
    if (note == NULL) {
        tutti_channel_break(channel, "no memory for an answer");
        return;
    }
    note->record = *record;
    STAILQ_INSERT_TAIL(&channel->notes, note, link);
    atomic_fetch_add_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
}

static void send_notes(tutti_channels *channel)
{
    tutti_note *note;
    while ((note = STAILQ_FIRST(&channel->notes)) != NULL && tutti_channel_has_room(channel, &note->record, 0)) {
        tutti_channel_write(channel, &note->record, NULL);
        STAILQ_REMOVE_HEAD(&channel->notes, link);
        atomic_fetch_sub_explicit(&tutti_p2p.pending, 1, memory_order_relaxed);
        free(note);
    }
}

void tutti_transfer_done(tutti_channels *channel, uint64_t transfer, bool taken)
{
    answer(channel, &(tutti_record){.kind = TUTTI_RECORD_DONE, .transfer = transfer, .bytes = taken ? 0 : 1});
}

/* ----------------------------------------------------------------------------------------------- sends */

static size_t eager_bytes(void)
{
    return tutti_min_size((size_t)tutti_setting_int(TUTTI_SETTING_EAGER_BYTES), LARGEST_EAGER_BYTES);
}

/* Writes the message or its announcement; false: there is no room now. */
static bool put(tutti_channels *channel, tutti_request *request)
{
    tutti_record record = {.kind = TUTTI_RECORD_ANNOUNCE,
                           .comm_id = request->port->comm_id,
                           .source = request->port->rank,
                           .destination = request->peer,
                           .tag = request->tag,
                           .bytes = request->bytes};
    if (request->bytes <= eager_bytes() && tutti_channel_has_credit(channel, request->bytes)) {
        record.kind = TUTTI_RECORD_EAGER;
        record.payload_bytes = (uint32_t)request->bytes;
        if (!tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES)) return false;
        tutti_channel_write(channel, &record, request->buffer);
        channel->sent += tutti_channel_cost(request->bytes);
        tutti_match_end(request, TUTTI_OK, "");
        return true;
    }
    if (!tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES)) return false;
    record.transfer = request->id = ++tutti_p2p.last_id;
    record.address = tutti_heap_holds(request->buffer, request->bytes) ? (uint64_t)(uintptr_t)request->buffer : 0;
    tutti_channel_write(channel, &record, NULL);
    tutti_match_move(request, TUTTI_PHASE_ANNOUNCED, &channel->announced);
    return true;
}

/* Nothing is begun with a process that has ended: tutti_watch_check fails what waits for it. */
static void send_waiting(tutti_channels *channel)
{
    if (atomic_load_explicit(&channel->peer->dead, memory_order_relaxed) || channel->broken) return;
    tutti_request *request;
    while ((request = TAILQ_FIRST(&channel->waiting)) != NULL && put(channel, request)) tutti_p2p.moved = true;
}

void tutti_transfer_send(tutti_request *request)
{
    tutti_channels *channel = request->port->comm->members[request->peer].process->channels;
    request->channel = channel;
    tutti_match_move(request, TUTTI_PHASE_WAITING, &channel->waiting);
    if (tutti_channel_make(channel) != TUTTI_OK) {
        tutti_match_end(request, TUTTI_ERR_MEMORY, tutti_last_error());
        return;
    }
    if (TUTTI_UNLIKELY(tutti_watch_has_left(request->port, request->peer))) {
        tutti_watch_desert(request, request->peer);
        return;
    }
    send_waiting(channel);
}

static void send_fragment(tutti_channels *channel, tutti_request *request)
{
    size_t bytes = tutti_min_size(FRAGMENT_BYTES, request->wanted - request->moved);
    tutti_record record = {.kind = TUTTI_RECORD_FRAGMENT,
                           .payload_bytes = (uint32_t)bytes,
                           .transfer = request->answer,
                           .bytes = request->moved};
    tutti_channel_write(channel, &record, request->buffer + request->moved);
    tutti_p2p.moved = true;
    request->moved += bytes;
    if (request->moved == request->wanted)
        tutti_match_end(request, TUTTI_OK, "");
    else
        tutti_match_move(request, TUTTI_PHASE_STREAMING, &channel->streaming); /* to the end of the line */
}

static void send_fragments(tutti_channels *channel)
{
    static const tutti_record largest = {.kind = TUTTI_RECORD_FRAGMENT, .payload_bytes = FRAGMENT_BYTES};
    for (int i = 0; i < FRAGMENTS_AT_ONCE; i++) {
        tutti_request *request = TAILQ_FIRST(&channel->streaming);
        if (request == NULL || !tutti_channel_has_room(channel, &largest, STREAM_RESERVE_BYTES)) return;
        send_fragment(channel, request);
    }
}

/* -------------------------------------------------------------------------------------------- receives */

static void finish_pull(tutti_request *request)
{
    tutti_request *partner = request->partner;
    if (partner != NULL) {
        request->partner = partner->partner = NULL;
        tutti_match_end(partner, TUTTI_OK, "");
    } else {
        if (tutti_watch_distrust(request)) return;
        tutti_transfer_done(request->channel, request->answer, /* taken */ true);
    }
    tutti_match_received(request);
}

static void pull_slice(tutti_request *request)
{
    size_t bytes = tutti_min_size(SLICE_BYTES, request->wanted - request->moved);
    if (bytes > 0) memmove(request->buffer + request->moved, request->source + request->moved, bytes);
    request->moved += bytes;
    tutti_p2p.moved = true;
    if (request->moved == request->wanted)
        finish_pull(request);
    else
        tutti_match_move(request, TUTTI_PHASE_PULLING, &tutti_p2p.pulling); /* to the end of the line */
}

void tutti_transfer_pull(tutti_request *request, const char *source)
{
    request->source = source;
    pull_slice(request);
}

void tutti_transfer_accept(tutti_request *request, tutti_channels *channel, uint64_t transfer, uint64_t address)
{
    request->channel = channel;
    request->answer = transfer;
    if (request->wanted == 0) {
        tutti_transfer_done(channel, transfer, /* taken */ true);
        tutti_match_received(request);
    } else if (address != 0) {
        const char *source = tutti_peer_translate(channel->peer, address, request->message_bytes);
        if (source != NULL) {
            tutti_transfer_pull(request, source);
            return;
        }
        tutti_channel_break(channel, "it announced a message outside of its heap");
        tutti_match_end(request, TUTTI_ERR_DATA, channel->error);
    } else {
        request->id = ++tutti_p2p.last_id;
        tutti_match_move(request, TUTTI_PHASE_RECEIVING, &channel->receiving);
        answer(channel,
               &(tutti_record){
                   .kind = TUTTI_RECORD_CLEAR, .transfer = transfer, .answer = request->id, .bytes = request->wanted});
    }
}

/* --------------------------------------------------------------------------------------------- reading
 * Each on_ function handles one kind of record; false: not now, or the channel is broken. */

/* The rank's port, NULL in *port_out when its communicator is closed; false: the record is a lie. */
static bool find_port(tutti_channels *channel, const tutti_record *record, tutti_port **port_out)
{
    tutti_port *port = tutti_p2p_port(record->comm_id, record->destination);
    *port_out = port;
    if (port == NULL) return true;
    const tutti_comm *comm = port->comm;
    if (record->source >= 0 && record->source < comm->nranks && comm->members[record->source].process == channel->peer)
        return true;
    tutti_channel_break(channel, "it sent a message in the name of rank %d of \"%s\"", record->source, comm->name);
    return false;
}

static tutti_message *new_message(tutti_channels *channel, const tutti_record *record, size_t payload_bytes)
{
    tutti_message *message = malloc(sizeof *message + payload_bytes);
    if (message == NULL) return NULL;
    *message =
        (tutti_message){.source = record->source, .tag = record->tag, .bytes = record->bytes, .channel = channel};
    return message;
}

/* Keeps an eager message that nobody has asked for; false: no memory now. */
static bool keep_eager(tutti_channels *channel, tutti_port *port, const tutti_record *record)
{
    if (channel->came - channel->matched > MOST_UNMATCHED_BYTES) {
        tutti_channel_break(channel, "it sent more than it was allowed to");
        return false;
    }
    tutti_message *message = new_message(channel, record, record->bytes);
    if (message == NULL) return false;
    message->whole = true;
    tutti_channel_copy(channel, record, message->payload, record->bytes);
    channel->came += tutti_channel_cost(record->bytes);
    tutti_match_keep(port, message);
    return true;
}

static bool on_eager(tutti_channels *channel, const tutti_record *record)
{
    tutti_port *port;
    if (record->bytes != record->payload_bytes) {
        tutti_channel_break(channel, "it sent a message of a wrong length");
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

static bool on_announce(tutti_channels *channel, const tutti_record *record)
{
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
    tutti_message *message = new_message(channel, record, 0);
    if (message == NULL) return false;
    message->transfer = record->transfer;
    message->address = record->address;
    tutti_match_keep(port, message);
    return true;
}

static tutti_request *find_request(struct tutti_requests *list, uint64_t id)
{
    tutti_request *request;
    TAILQ_FOREACH (request, list, state_link)
        if (request->id == id) return request;
    return NULL;
}

static bool on_clear(tutti_channels *channel, const tutti_record *record)
{
    tutti_request *request = find_request(&channel->announced, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes == 0 || record->bytes > request->bytes) {
        tutti_channel_break(channel, "it asked for more than it was offered");
        return false;
    }
    request->wanted = record->bytes;
    request->answer = record->answer;
    tutti_match_move(request, TUTTI_PHASE_STREAMING, &channel->streaming);
    return true;
}

static bool on_fragment(tutti_channels *channel, const tutti_record *record)
{
    tutti_request *request = find_request(&channel->receiving, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes != request->moved || record->payload_bytes > request->wanted - request->moved) {
        tutti_channel_break(channel, "it sent a part of a message that was not asked for");
        return false;
    }
    tutti_channel_copy(channel, record, request->buffer + request->moved, record->payload_bytes);
    request->moved += record->payload_bytes;
    if (request->moved == request->wanted) tutti_match_received(request);
    return true;
}

static bool on_done(tutti_channels *channel, const tutti_record *record)
{
    tutti_request *request = find_request(&channel->announced, record->transfer);
    if (request == NULL) return true; /* cancelled */
    if (record->bytes == 0)
        tutti_match_end(request, TUTTI_OK, "");
    else
        tutti_watch_desert(request, request->peer);
    return true;
}

static bool handle(tutti_channels *channel, const tutti_record *record)
{
    switch ((tutti_record_kind)record->kind) {
    case TUTTI_RECORD_EAGER: return on_eager(channel, record);
    case TUTTI_RECORD_ANNOUNCE: return on_announce(channel, record);
    case TUTTI_RECORD_CLEAR: return on_clear(channel, record);
    case TUTTI_RECORD_FRAGMENT: return on_fragment(channel, record);
    case TUTTI_RECORD_DONE: return on_done(channel, record);
    case TUTTI_RECORD_END: break;
    }
    return false;
}

bool tutti_transfer_read(tutti_channels *channel)
{
    if (channel->theirs == NULL) {
        if (!tutti_channel_find(channel)) return true;
        TAILQ_REMOVE(&tutti_p2p.unfound, channel, link);
        TAILQ_INSERT_TAIL(&tutti_p2p.found, channel, link);
    }
    tutti_record record;
    for (int i = 0; i < RECORDS_AT_ONCE; i++) {
        if (!tutti_channel_peek(channel, &record)) return true;
        if (!handle(channel, &record)) return channel->broken;
        tutti_channel_skip(channel, &record);
        tutti_p2p.moved = true;
    }
    return false;
}

/* -------------------------------------------------------------------------------------------- progress */

/* Looks whether some of the processes that are silent so far have begun to write; they take turns. */
static void look_for_channels(void)
{
    tutti_channels *last = TAILQ_LAST(&tutti_p2p.unfound, tutti_channel_list), *channel = NULL;
    for (int i = 0; i < LOOKS_AT_ONCE && channel != last; i++) {
        channel = TAILQ_FIRST(&tutti_p2p.unfound);
        tutti_transfer_read(channel);
        if (channel->theirs != NULL) continue;
        TAILQ_REMOVE(&tutti_p2p.unfound, channel, link);
        TAILQ_INSERT_TAIL(&tutti_p2p.unfound, channel, link);
    }
}

void tutti_transfer_progress(void)
{
    look_for_channels();
    tutti_channels *channel;
    TAILQ_FOREACH (channel, &tutti_p2p.found, link) {
        tutti_transfer_read(channel);
        if (TUTTI_UNLIKELY(!STAILQ_EMPTY(&channel->notes))) send_notes(channel);
        if (!TAILQ_EMPTY(&channel->waiting)) send_waiting(channel);
        if (!TAILQ_EMPTY(&channel->streaming)) send_fragments(channel);
    }
    for (int i = 0; i < PULLS_AT_ONCE && !TAILQ_EMPTY(&tutti_p2p.pulling); i++)
        pull_slice(TAILQ_FIRST(&tutti_p2p.pulling));
}
