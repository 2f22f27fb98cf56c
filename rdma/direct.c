/*
 * Large messages: the receiver grants its buffer, the sender writes into it.
 *
 *   receiver   state: "positions p..q to this address, with these keys"
 *   sender     pieces: cut into one share per lane; the last write of each share carries immediate data
 *   receiver   a completion on each lane: only that proves that the adapter has put all bytes in place
 */
#include <string.h>

#include "rdma/stream.h"

enum {
    /* Usually a grant is already under way; but a caller that sleeps between two looks must not wait for many. */
    LOOKS_BEFORE_WAITING = 4,
    SHARE_LEAST_BYTES = 1 << 16 /* least bytes that make one more lane worthwhile */
};
#define AHEAD_BYTES ((size_t)1 << 18) /* least bytes of a request by the ring */

/* ---------------------------------------------------------------------------------------------------- sending */

/* Bytes granted by the peer from the next byte to send on, 0: none. *address_out 0: by the ring. */
static size_t granted_now(tutti_rdma_stream *stream, uint64_t *address_out) {
    tutti_rdma_ring_state *state = &stream->peer_state;
    uint64_t position = stream->out_position;
    tutti_rdma_ring_read_state(&stream->in->state, state);
    if (position < state->granted_at || position - state->granted_at >= state->granted_bytes) return 0;
    *address_out = state->address != 0 ? state->address + (position - state->granted_at) : 0;
    return state->granted_bytes - (position - state->granted_at);
}

/* False: the part, the grant or the registered range of the part is exhausted, or enough pieces are posted. */
static bool post_next(tutti_rdma_stream *stream) {
    uint64_t address;
    if (stream->pieces_posted - stream->pieces_done == TUTTI_RDMA_STREAM_PIECES) return false;
    for (int i = 0; i < stream->nlanes; i++)
        if (!tutti_rdma_lane_has_room(&stream->lanes[i], 1)) return false;
    size_t left = tutti_rdma_parts_left(&stream->parts);
    if (left == 0) return false;
    const char *here = tutti_rdma_parts_here(&stream->parts), *end = stream->source.address + stream->source.bytes;
    if (here < stream->source.address || here >= end) return false;
    size_t granted = granted_now(stream, &address);
    if (granted == 0 || address == 0) return false;
    size_t bytes =
        tutti_min_size(tutti_min_size(left, granted), tutti_min_size((size_t)(end - here), stream->piece_bytes));
    tutti_rdma_piece *piece = tutti_rdma_piece_at(stream, stream->pieces_posted);
    int nlanes = (int)tutti_min_size((size_t)stream->nlanes, tutti_max_size(1, bytes / SHARE_LEAST_BYTES));
    *piece = (tutti_rdma_piece){.from = here, .bytes = (uint32_t)bytes, .nlanes = nlanes, .to = address};
    memcpy(piece->keys, stream->peer_state.keys, sizeof piece->keys);
    if (TUTTI_UNLIKELY(tutti_rdma_host->fault("rdma_bad_key"))) piece->keys[0] ^= 0xffff00;
    tutti_rdma_piece_post(stream, piece);
    stream->pieces_posted++;
    stream->parts.offset += bytes;
    stream->out_position += bytes;
    stream->pipe.counters.pieces++;
    return true;
}

/* Announces that this side waits for a grant, if it has waited for a while. */
static void wait_for_grant(tutti_rdma_stream *stream) {
    tutti_rdma_ring_state *state = &stream->out->state;
    if (state->waiting_at == stream->out_position || ++stream->looks < LOOKS_BEFORE_WAITING) return;
    state->waiting_at = stream->out_position;
    tutti_rdma_stream_tell(stream);
}

/* Registers the current part for a grant that covers it; if the registration fails, the stream uses the ring
 * instead. Returns false if the peer has not sent a grant yet. */
static bool start(tutti_rdma_stream *stream) {
    uint64_t address;
    size_t granted = granted_now(stream, &address), left = tutti_rdma_parts_left(&stream->parts);
    if (granted == 0) return wait_for_grant(stream), false;
    void *here = (void *)(uintptr_t)tutti_rdma_parts_here(&stream->parts);
    bool held = address != 0 && tutti_rdma_memory_hold(here, tutti_min_size(left, granted), TUTTI_RDMA_MEMORY_SOURCE,
                                                       stream->ports, stream->nlanes, &stream->source) == TUTTI_OK;
    if (!held) stream->ring_until = stream->out_position + granted;
    else if (stream->source.range != NULL) stream->pipe.counters.cache_hits++;
    else stream->pipe.counters.registrations++;
    return true;
}

bool tutti_rdma_direct_send(tutti_rdma_stream *stream) {
    if (!tutti_rdma_memory_is_held(&stream->source)) return start(stream);
    if (!tutti_rdma_stream_poll(stream)) return false;
    bool moved = tutti_rdma_pieces_retire(stream);
    while (post_next(stream)) moved = true;
    if (stream->pieces_done == stream->pieces_posted) {
        tutti_rdma_memory_release(&stream->source);
        moved = true;
    }
    return moved;
}

/* -------------------------------------------------------------------------------------------------- receiving */

static void grant(tutti_rdma_stream *stream, size_t bytes) {
    tutti_rdma_ring_state *state = &stream->out->state;
    state->granted_at = stream->in_position;
    state->granted_bytes = bytes;
    state->address = (uint64_t)(uintptr_t)stream->target.address;
    for (int i = 0; i < stream->nlanes && state->address != 0; i++)
        state->keys[i] = stream->target.mrs[stream->lanes[i].port->adapter->index]->rkey;
    tutti_rdma_stream_tell(stream);
}

/* Grants the buffer, or as much of it as can be registered at once. */
static void grant_buffer(tutti_rdma_stream *stream, size_t bytes) {
    tutti_status status = tutti_rdma_memory_hold(stream->dst + stream->pipe.received, bytes, TUTTI_RDMA_MEMORY_TARGET,
                                                 stream->ports, stream->nlanes, &stream->target);
    if (status == TUTTI_OK) bytes = stream->target.bytes;
    if (status == TUTTI_OK && stream->target.range != NULL) stream->pipe.counters.cache_hits++;
    else if (status == TUTTI_OK) stream->pipe.counters.registrations++;
    grant(stream, bytes);
}

void tutti_rdma_direct_ask(tutti_rdma_stream *stream) {
    const tutti_rdma_ring_state *given = &stream->out->state;
    size_t left = stream->pipe.to_receive - stream->pipe.received;
    if (stream->phase != TUTTI_RDMA_PHASE_UP || stream->pipe.status != TUTTI_OK) return;
    if (stream->in_offset > 0) return; /* the rest of a record is under way */
    if (stream->in_position >= given->granted_at && stream->in_position - given->granted_at < given->granted_bytes)
        return;
    tutti_rdma_memory_release(&stream->target); /* the registration of the previous range */
    if (left > stream->direct_bytes) {
        grant_buffer(stream, left);
        return;
    }
    tutti_rdma_ring_read_state(&stream->in->state, &stream->peer_state);
    if (stream->peer_state.waiting_at == stream->in_position) grant(stream, tutti_max_size(left, AHEAD_BYTES));
}

bool tutti_rdma_direct_take(tutti_rdma_stream *stream) {
    uint32_t heads[TUTTI_RDMA_DEVICES_PORTS] = {0}, bytes;
    int nlanes;
    for (int i = 0; i < stream->nlanes; i++) heads[i] = stream->lanes[i].came_head;
    if (!tutti_rdma_piece_came(stream, heads, &bytes, &nlanes)) return false;
    if (bytes > stream->pipe.to_receive - stream->pipe.received) {
        tutti_rdma_stream_break(stream, TUTTI_ERR_DATA, "%s wrote %u bytes, more than were requested", stream->peer,
                                bytes);
        return false;
    }
    for (int i = 0; i < nlanes; i++) stream->lanes[i].came_head++;
    stream->pieces_in++;
    tutti_rdma_stream_note_received(stream, bytes);
    return true;
}
