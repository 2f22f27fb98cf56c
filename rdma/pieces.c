/*
 * The pieces of large messages: what is posted and what has come, also after a fault.
 *
 * The immediate data holds the length of the whole piece and its number of lanes, so that the receiver, which takes
 * lane 0's completions in order, knows which other completions to wait for.
 */
#include <string.h>

#include "bootstrap/base/common.h"
#include "rdma/stream.h"

enum { LENGTH_BITS = 30 }; /* of immediate data: bytes; the bits above hold lanes - 1 */

static size_t share_of(const tutti_rdma_piece *piece) {
    return tutti_align_up((piece->bytes + (size_t)piece->nlanes - 1) / (size_t)piece->nlanes, 4096);
}

void tutti_rdma_piece_post(tutti_rdma_stream *stream, tutti_rdma_piece *piece) {
    size_t share = share_of(piece);
    uint32_t value = piece->bytes | (uint32_t)(piece->nlanes - 1) << LENGTH_BITS;
    for (int i = 0; i < piece->nlanes; i++) {
        tutti_rdma_lane *lane = &stream->lanes[i];
        size_t from = tutti_min_size((size_t)i * share, piece->bytes);
        tutti_rdma_lane_post(lane,
                             &(tutti_rdma_lane_write){.from = piece->from + from,
                                                      .bytes = tutti_min_size(share, piece->bytes - from),
                                                      .local_key = stream->source.mrs[lane->port->adapter->index]->lkey,
                                                      .to = piece->to + from,
                                                      .remote_key = piece->keys[i],
                                                      .signaled = true,
                                                      .immediate = true,
                                                      .value = value});
        piece->numbers[i] = lane->posted;
        stream->pipe.counters.work_requests++;
    }
}

static bool is_done(const tutti_rdma_stream *stream, const tutti_rdma_piece *piece) {
    for (int i = 0; i < piece->nlanes; i++)
        if (piece->numbers[i] > stream->lanes[i].completed) return false;
    return true;
}

bool tutti_rdma_pieces_retire(tutti_rdma_stream *stream) {
    bool any = false;
    while (stream->pieces_done != stream->pieces_posted) {
        const tutti_rdma_piece *piece = tutti_rdma_piece_at(stream, stream->pieces_done);
        if (!is_done(stream, piece)) break;
        stream->pieces_done++;
        stream->pipe.sent += piece->bytes;
        stream->pipe.bytes_out += piece->bytes;
        any = true;
    }
    return any;
}

bool tutti_rdma_piece_came(const tutti_rdma_stream *stream, const uint32_t heads[TUTTI_RDMA_DEVICES_PORTS],
                           uint32_t *bytes_out, int *nlanes_out) {
    const tutti_rdma_lane *lane = &stream->lanes[0];
    if (heads[0] == lane->came_tail) return false;
    uint32_t value = lane->came[heads[0] % TUTTI_RDMA_LANE_RECEIVES];
    *bytes_out = value & ((UINT32_C(1) << LENGTH_BITS) - 1);
    *nlanes_out = (int)(value >> LENGTH_BITS) + 1;
    for (int i = 1; i < *nlanes_out; i++)
        if (i >= stream->nlanes || heads[i] == stream->lanes[i].came_tail) return false;
    return true;
}

/* ------------------------------------------------------------------------------------------------ after a fault */

uint32_t tutti_rdma_pieces_settle(tutti_rdma_stream *stream) {
    uint32_t heads[TUTTI_RDMA_DEVICES_PORTS] = {0}, count = stream->pieces_in, bytes;
    int nlanes;
    for (int i = 0; i < stream->nlanes; i++) heads[i] = stream->lanes[i].came_head;
    for (; tutti_rdma_piece_came(stream, heads, &bytes, &nlanes); count++)
        for (int i = 0; i < nlanes; i++) heads[i]++;
    for (int i = 0; i < stream->nlanes; i++) stream->lanes[i].came_tail = heads[i];
    return count;
}

bool tutti_rdma_pieces_settled(tutti_rdma_stream *stream, uint32_t pieces_in) {
    uint32_t more = pieces_in - stream->pieces_done, posted = stream->pieces_posted - stream->pieces_done;
    if (more > posted) return false; /* also when the difference is "negative" */
    for (uint32_t i = 0; i < posted; i++) {
        tutti_rdma_piece *piece = tutti_rdma_piece_at(stream, stream->pieces_done + i);
        for (int lane = 0; lane < piece->nlanes; lane++) piece->numbers[lane] = i < more ? 0 : UINT64_MAX;
    }
    return true;
}

void tutti_rdma_pieces_closed(tutti_rdma_stream *stream, uint32_t pieces_in) {
    for (uint32_t number = stream->pieces_done; number != stream->pieces_posted; number++)
        if ((int32_t)(pieces_in - number) > 0)
            memset(tutti_rdma_piece_at(stream, number)->numbers, 0,
                   sizeof tutti_rdma_piece_at(stream, number)->numbers);
    tutti_rdma_pieces_retire(stream);
}

void tutti_rdma_pieces_replay(tutti_rdma_stream *stream) {
    for (uint32_t number = stream->pieces_done; number != stream->pieces_posted; number++) {
        tutti_rdma_piece *piece = tutti_rdma_piece_at(stream, number);
        if (piece->numbers[0] != 0) tutti_rdma_piece_post(stream, piece);
    }
}
