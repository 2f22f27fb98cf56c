/*
 * Moves bytes: writes into the rings, and copies from the sender's memory. See p2p.c for the protocol.
 *
 * Each call does a bounded amount of work. A channel's answers go first, then sends in their order, then a few
 * fragments of its streams in turn. Fragments leave part of the ring free, so that a small message overtakes a
 * large transfer.
 */
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"
#include "kernels/copy.h"

#define FRAGMENT_BYTES       ((size_t)32 << 10)
#define FRAGMENTS_AT_ONCE    8
#define STREAM_RESERVE_BYTES (TUTTI_CHANNEL_RING_BYTES / 4) /* bytes of the ring that fragments must leave free */
#define SLICE_BYTES          ((size_t)128 << 10)            /* bytes of one slice of a pull */
/* Larger messages are pulled if the receiver has them mapped. A caller that waits for the send goes on sooner by the
 * ring; in exchanges of 12 and 16 KiB, whose callers do not wait for each send, the one copy less counts more. */
#define DIRECT_BYTES         ((size_t)8 << 10)
#define DIRECT_WAITING_BYTES ((size_t)16 << 10)
/* Between ranks that share near cores, messages of these sizes are read from the peer's private memory in one piece:
 * the ring's second copy, and the switches between the slices of a pull, take time from the other ranks. Longer
 * messages are faster through the ring, and so are all messages between distant cores (1 MiB takes 165 us; by reads
 * 550). The time of the read itself does not show that: the sender's next writes to its buffer are slow then. */
#define LEAST_WHOLE_BYTES ((size_t)512 << 10)
#define MOST_WHOLE_BYTES  ((size_t)2 << 20)
/* Between ranks that share distant cores, mapped messages of these sizes are up to 2.9 times as fast through the ring:
 * the sender writes its next message into lines that its own cache still has. */
#define LEAST_FAR_BYTES ((size_t)256 << 10)
#define MOST_FAR_BYTES  ((size_t)4 << 20)

/* ----------------------------------------------------------------------------------------------- sends */

static size_t most_eager(const tutti_channels *channel) {
    size_t most = (size_t)tutti_setting_int(TUTTI_SETTING_EAGER_BYTES);
    if (channel->remote != NULL && !tutti_remote_is_straight(channel)) most /= 2;
    return tutti_min_size(most, TUTTI_LARGEST_EAGER_BYTES);
}

bool tutti_transfer_is_eager(tutti_channels *channel, const tutti_port *port, const void *src, size_t bytes,
                             bool waits) {
    bool direct = bytes > (waits ? DIRECT_WAITING_BYTES : DIRECT_BYTES) && channel->remote == NULL &&
                  tutti_heap_holds(src, bytes);
    /* On shared cores the answer to an announcement costs a turn of every rank: more than the copy that it saves. */
    if (port->comm->spins && direct) return false;
    return bytes <= most_eager(channel) && tutti_channel_has_credit(channel, bytes);
}

bool tutti_transfer_put_eager(tutti_channels *channel, const tutti_port *port, int peer, int64_t tag, const void *src,
                              size_t bytes) {
    tutti_record record = {.kind = TUTTI_RECORD_EAGER,
                           .payload_bytes = (uint32_t)bytes,
                           .comm_id = port->comm_id,
                           .source = port->rank,
                           .destination = peer,
                           .tag = tag};
    if (!tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES)) return false;
    tutti_channel_write(channel, &record, src);
    channel->sent += tutti_channel_cost(bytes);
    return true;
}

/* Bytes of the message that its announcement carries: to another host as many as it may keep. Then the answer comes
 * while these bytes are under way. Parts of 64 KiB, but neither of 32 nor of 128, made messages of 512 KiB slower. */
static size_t first_bytes(tutti_channels *channel, size_t bytes) {
    if (channel->remote == NULL || !tutti_remote_is_straight(channel)) return 0;
    size_t most = most_eager(channel);
    return bytes > most && tutti_channel_has_credit(channel, most) ? most : 0;
}

/* Writes the message or its announcement. Returns false if the channel has no room now. */
static bool put(tutti_channels *channel, tutti_request *request) {
    if (tutti_transfer_is_eager(channel, request->port, request->buffer, request->bytes, /* waits */ false)) {
        if (!tutti_transfer_put_eager(channel, request->port, request->peer, request->tag, request->buffer,
                                      request->bytes))
            return false;
        tutti_request_end(request, TUTTI_OK, "");
        return true;
    }
    size_t first = first_bytes(channel, request->bytes);
    tutti_record record = {.kind = TUTTI_RECORD_ANNOUNCE,
                           .payload_bytes = (uint32_t)first,
                           .comm_id = request->port->comm_id,
                           .source = request->port->rank,
                           .destination = request->peer,
                           .tag = request->tag,
                           .bytes = request->bytes,
                           .transfer = tutti_p2p.last_id + 1,
                           .address = (uint64_t)(uintptr_t)request->buffer};
    if (first > 0 && !tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES))
        first = record.payload_bytes = 0; /* the messages behind it must not wait for the bytes */
    if (!tutti_channel_has_room(channel, &record, TUTTI_CHANNEL_RESERVE_BYTES)) return false;
    request->id = ++tutti_p2p.last_id;
    tutti_channel_write(channel, &record, request->buffer);
    if (first > 0) channel->sent += tutti_channel_cost(first);
    tutti_request_move(request, TUTTI_PHASE_ANNOUNCED, &channel->announced);
    return true;
}

/* Starts nothing with a process that has ended: tutti_watch_check fails the requests that wait for it. */
static void send_waiting(tutti_channels *channel) {
    if (atomic_load_explicit(&channel->peer->dead, memory_order_relaxed) || channel->broken) return;
    tutti_request *request;
    while ((request = TAILQ_FIRST(&channel->waiting)) != NULL && put(channel, request)) tutti_p2p.moved = true;
}

void tutti_transfer_send(tutti_request *request) {
    tutti_channels *channel = request->port->comm->members[request->peer].process->channels;
    request->channel = channel;
    tutti_request_move(request, TUTTI_PHASE_WAITING, &channel->waiting);
    if (tutti_channel_make(channel) != TUTTI_OK) {
        tutti_request_end(request, TUTTI_ERR_MEMORY, tutti_last_error());
        return;
    }
    if (TUTTI_UNLIKELY(tutti_p2p_has_left(request->port, request->peer))) {
        tutti_request_fail_left(request, request->peer);
        return;
    }
    send_waiting(channel);
}

static void send_fragment(tutti_channels *channel, tutti_request *request) {
    size_t bytes = tutti_min_size(FRAGMENT_BYTES, request->wanted - request->moved);
    tutti_record record = {.kind = TUTTI_RECORD_FRAGMENT,
                           .payload_bytes = (uint32_t)bytes,
                           .transfer = request->answer,
                           .bytes = request->moved};
    tutti_channel_write(channel, &record, request->buffer + request->moved);
    tutti_p2p.moved = true;
    request->moved += bytes;
    if (request->moved == request->wanted) tutti_request_end(request, TUTTI_OK, "");
    else tutti_request_move(request, TUTTI_PHASE_STREAMING, &channel->streaming); /* to the end of the queue */
}

/* Streams to another host do not use the ring. */
static void stream_remote(tutti_channels *channel) {
    tutti_request *request;
    for (int i = 0; i < FRAGMENTS_AT_ONCE && (request = TAILQ_FIRST(&channel->streaming)) != NULL; i++) {
        if (!tutti_remote_can_stream(channel)) return;
        if (request->moved == request->wanted) { /* the system has all of it: no thread needs to come back */
            tutti_request_end(request, TUTTI_OK, "");
            continue;
        }
        tutti_remote_stream(channel, request);
        tutti_p2p.moved = true;
        if (request->moved < request->wanted) /* to the end of the queue */
            tutti_request_move(request, TUTTI_PHASE_STREAMING, &channel->streaming);
    }
}

static void send_fragments(tutti_channels *channel) {
    if (channel->remote != NULL) {
        stream_remote(channel);
        return;
    }
    static const tutti_record largest = {.kind = TUTTI_RECORD_FRAGMENT, .payload_bytes = FRAGMENT_BYTES};
    for (int i = 0; i < FRAGMENTS_AT_ONCE; i++) {
        tutti_request *request = TAILQ_FIRST(&channel->streaming);
        if (request == NULL || !tutti_channel_has_room(channel, &largest, STREAM_RESERVE_BYTES)) return;
        send_fragment(channel, request);
    }
}

/* -------------------------------------------------------------------------------------------- receives */

void tutti_transfer_ask(tutti_request *request, size_t came) {
    tutti_channels *channel = request->channel;
    request->id = ++tutti_p2p.last_id;
    tutti_request_move(request, TUTTI_PHASE_RECEIVING, &channel->receiving);
    tutti_channel_answer(channel, &(tutti_record){.kind = TUTTI_RECORD_CLEAR,
                                                  .transfer = request->answer,
                                                  .answer = request->id,
                                                  .bytes = request->wanted,
                                                  .from = came});
}

/* Fails a receive whose sender has broken or destroyed the communicator, and returns true: the bytes that were
 * copied from the sender's buffer may have changed before. */
static bool check_sender(tutti_request *request) {
    /* the bytes were copied before; gcc's thread sanitizer does not support C11 fences, and warns */
    __sync_synchronize();
    int rank = request->source_rank;
    const tutti_page *page = request->port->comm->members[rank].page;
    tutti_verdict reason;
    if (tutti_p2p_read_reason(request->port, rank, &reason)) tutti_request_fail(request, reason.status, reason.text);
    else if (atomic_load_explicit(&page->state, memory_order_acquire) != TUTTI_PAGE_WHOLE ||
             tutti_p2p_has_left(request->port, rank))
        tutti_request_fail_left(request, rank);
    else return false;
    return true;
}

static void finish_pull(tutti_request *request) {
    tutti_request *partner = request->partner;
    if (partner != NULL) {
        request->partner = partner->partner = NULL;
        tutti_request_end(partner, TUTTI_OK, "");
    } else {
        if (check_sender(request)) return;
        tutti_channel_done(request->channel, request->answer, /* taken */ true);
    }
    tutti_request_received(request);
}

/* Copies a part of the message; false: it cannot be read. */
static bool copy_slice(tutti_request *request, size_t bytes) {
    if (bytes == 0) return true; /* buffers may be NULL in this case */
    char *dst = request->buffer + request->moved;
    if (request->source != NULL) {
        bool overlaps = request->partner != NULL; /* within a process it may */
        bool past = request->wanted >= TUTTI_LEAST_PAST_BYTES && !overlaps;
        if (past) tutti_copy_stream(dst, request->source + request->moved, bytes);
        else memmove(dst, request->source + request->moved, bytes);
        return true;
    }
    bool last = request->moved + bytes == request->wanted;
    return tutti_peer_read(request->channel->peer, request->address + request->moved, dst, bytes) &&
           !(last && tutti_peer_ended(request->channel->peer)); /* its pid may belong to another process by now */
}

/* Over the ring two cores copy at once, if a sender thread is present; one may have come since the last slice. */
static bool is_better_streamed(const tutti_request *request) {
    tutti_channels *channel = request->channel;
    if (channel == NULL || !tutti_channel_is_attended(channel)) return false;
    if (request->source == NULL) return true;
    bool spins = request->port->comm->spins;
    if (spins || request->moved > 0 || request->wanted < LEAST_FAR_BYTES || request->wanted > MOST_FAR_BYTES)
        return false;
    return tutti_channel_is_distant(channel);
}

static bool is_read_whole(const tutti_request *request) {
    tutti_channels *channel = request->channel;
    if (channel == NULL || request->source != NULL || request->port->comm->spins || request->moved > 0) return false;
    if (request->wanted < LEAST_WHOLE_BYTES || request->wanted > MOST_WHOLE_BYTES) return false;
    return !tutti_channel_is_distant(channel);
}

void tutti_transfer_pull(tutti_request *request) {
    bool whole = is_read_whole(request);
    size_t bytes = whole ? request->wanted : tutti_min_size(SLICE_BYTES, request->wanted - request->moved);
    tutti_p2p.moved = true;
    if ((!whole && is_better_streamed(request)) || !copy_slice(request, bytes)) {
        tutti_transfer_ask(request, request->moved);
        return;
    }
    request->moved += bytes;
    if (request->moved == request->wanted) {
        finish_pull(request);
        return;
    }
    tutti_request_move(request, TUTTI_PHASE_PULLING, &tutti_p2p.pulling); /* to the end of the queue */
    /* wakes a waiting thread to continue the pull */
    tutti_channel_ring_own();
}

void tutti_transfer_accept(tutti_request *request, tutti_channels *channel, uint64_t transfer, uint64_t address,
                           size_t came) {
    request->channel = channel;
    request->answer = transfer;
    request->address = address;
    request->moved = came;
    if (request->wanted == came) {
        tutti_channel_done(channel, transfer, /* taken */ true);
        tutti_request_received(request);
        return;
    }
    request->source = tutti_peer_translate(channel->peer, address, request->message_bytes);
    if (request->source != NULL || tutti_peer_can_read(channel->peer)) tutti_transfer_pull(request);
    else tutti_transfer_ask(request, request->moved);
}

/* -------------------------------------------------------------------------------------------- progress */

void tutti_transfer_advance(tutti_channels *channel) {
    if (TUTTI_UNLIKELY(!STAILQ_EMPTY(&channel->notes))) tutti_channel_send_notes(channel);
    if (!TAILQ_EMPTY(&channel->waiting)) send_waiting(channel);
    if (!TAILQ_EMPTY(&channel->streaming)) send_fragments(channel);
}
