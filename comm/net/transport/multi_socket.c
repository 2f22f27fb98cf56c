/*
 * Which bytes of a stream go over which lane. See multi_socket.h; multi_socket_end.c has the end of bundles.
 *
 * A transfer is cut into pieces at block boundaries. Each of its lanes has one piece under way, and gets the next
 * one when that has moved; so a transfer longer than a block uses as many lanes as it has blocks, up to all of
 * them.
 */
#include "comm/net/transport/multi_socket.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/net/transport/multi_socket_state.h"

/* ------------------------------------------------------------------------------------------------ pieces */

/* Begins the next transfer of that direction: sets its lanes, and where each of them begins. */
static void begin(const tutti_multi_socket *b, tutti_multi_socket_way *way, size_t bytes) {
    uint64_t block = way->end / TUTTI_MULTI_SOCKET_BLOCK_BYTES;
    way->start = way->end;
    way->end += bytes;
    way->moved = 0;
    uint64_t blocks = bytes == 0 ? 0 : (way->end - 1) / TUTTI_MULTI_SOCKET_BLOCK_BYTES - block + 1;
    way->first = (int)(block % (uint64_t)b->nlanes);
    way->count = (int)tutti_min_size(blocks, (size_t)b->nlanes);
    for (int k = 0; k < way->count; k++)
        way->at[(way->first + k) % b->nlanes] =
            k == 0 ? way->start : (block + (uint64_t)k) * TUTTI_MULTI_SOCKET_BLOCK_BYTES;
}

static size_t piece_bytes(const tutti_multi_socket_way *way, int lane) {
    uint64_t at = way->at[lane];
    return tutti_min_size(way->end - at, TUTTI_MULTI_SOCKET_BLOCK_BYTES - at % TUTTI_MULTI_SOCKET_BLOCK_BYTES);
}

/* Advances the lane to its next piece; false: this transfer has no more for it. */
static bool next_piece(const tutti_multi_socket *b, tutti_multi_socket_way *way, int lane) {
    way->at[lane] =
        (way->at[lane] / TUTTI_MULTI_SOCKET_BLOCK_BYTES + (uint64_t)b->nlanes) * TUTTI_MULTI_SOCKET_BLOCK_BYTES;
    return way->at[lane] < way->end;
}

uint32_t tutti_multi_socket_busy(const tutti_multi_socket *b, const tutti_multi_socket_way *way) {
    uint32_t lanes = 0;
    for (int k = 0; k < way->count; k++) {
        int lane = (way->first + k) % b->nlanes;
        if (way->at[lane] < way->end) lanes |= UINT32_C(1) << lane;
    }
    return lanes;
}

/* Bytes from the start of the transfer up to its first gap. */
static size_t front(const tutti_multi_socket *b, const tutti_multi_socket_way *way) {
    uint64_t front = way->end;
    for (uint32_t lanes = tutti_multi_socket_busy(b, way); lanes != 0; lanes &= lanes - 1) {
        int lane = ffs((int)lanes) - 1;
        const tutti_pipe *pipe = b->lanes[lane];
        uint64_t moved = pipe->status != TUTTI_OK ? 0 : way == &b->out ? pipe->sent : pipe->received;
        if (way->at[lane] + moved < front) front = way->at[lane] + moved;
    }
    return (size_t)(front - way->start);
}

/* Updates the fronts of both transfers. A failed lane reports nothing any more, but bytes already counted have
 * moved. */
static void count_fronts(tutti_multi_socket *b) {
    size_t sent = front(b, &b->out), received = front(b, &b->in);
    if (sent > b->pipe.sent) b->pipe.sent = sent;
    if (received > b->pipe.received) b->pipe.received = received;
}

/* ------------------------------------------------------------------------------------------------ moving */

typedef struct counts {
    uint64_t in, out;
} counts;

static counts counts_of(const tutti_pipe *lane) {
    return (counts){.in = lane->bytes_in, .out = lane->bytes_out};
}

/* Counts the bytes that a call to a lane moved, and notes whether the lane has failed. */
static void account(tutti_multi_socket *b, int lane, counts before) {
    const tutti_pipe *pipe = b->lanes[lane];
    uint64_t in = pipe->bytes_in - before.in, out = pipe->bytes_out - before.out;
    b->pipe.bytes_in += in;
    b->pipe.bytes_out += out;
    b->in.moved += in;
    b->out.moved += out;
    if (TUTTI_LIKELY(pipe->status == TUTTI_OK && pipe->send_error == 0) || b->failed >= 0) return;
    b->failed = lane;
    b->quiet_ns = tutti_now_ns();
    b->heard = b->pipe.bytes_in;
}

/* Sends the lane's piece of the parts; again, if the parts have moved. */
static void send_piece(tutti_multi_socket *b, int lane) {
    struct iovec cut[TUTTI_SOCKET_PARTS];
    size_t skip = (size_t)(b->out.at[lane] - b->out.start), left = piece_bytes(&b->out, lane);
    int count = 0;
    for (int i = 0; i < b->nparts && left > 0; i++) {
        const struct iovec *part = &b->parts[i];
        size_t skipped = tutti_min_size(skip, part->iov_len), bytes = tutti_min_size(part->iov_len - skipped, left);
        skip -= skipped;
        left -= bytes;
        if (bytes > 0) cut[count++] = (struct iovec){(char *)part->iov_base + skipped, bytes};
    }
    counts before = counts_of(b->lanes[lane]);
    b->lanes[lane]->transport->send(b->lanes[lane], cut, count);
    account(b, lane, before);
}

static void receive_piece(tutti_multi_socket *b, int lane) {
    char *dst = b->dst + (b->in.at[lane] - b->in.start);
    counts before = counts_of(b->lanes[lane]);
    b->lanes[lane]->transport->recv(b->lanes[lane], dst, piece_bytes(&b->in, lane));
    account(b, lane, before);
}

/* One call each, so that sends and receives alternate, and lanes do. */
static void drive(tutti_multi_socket *b, int lane, bool receives, bool sends) {
    tutti_pipe *pipe = b->lanes[lane];
    counts before = counts_of(pipe);
    pipe->transport->progress(pipe);
    account(b, lane, before);
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return;
    if (receives && tutti_pipe_has_received(pipe) && next_piece(b, &b->in, lane)) receive_piece(b, lane);
    if (sends && tutti_pipe_has_sent(pipe) && next_piece(b, &b->out, lane)) send_piece(b, lane);
}

static tutti_status bundle_progress(tutti_pipe *pipe) {
    tutti_multi_socket *b = (tutti_multi_socket *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    uint32_t receive = tutti_multi_socket_busy(b, &b->in), send = tutti_multi_socket_busy(b, &b->out);
    for (uint32_t lanes = receive | send; lanes != 0; lanes &= lanes - 1) {
        int lane = ffs((int)lanes) - 1;
        drive(b, lane, receive >> lane & 1, send >> lane & 1);
    }
    count_fronts(b);
    return TUTTI_LIKELY(b->failed < 0) ? TUTTI_OK : tutti_multi_socket_judge(b, receive != 0);
}

static tutti_status bundle_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    tutti_multi_socket *b = (tutti_multi_socket *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool moves = !tutti_pipe_has_sent(pipe);
    b->nparts = nparts;
    memcpy(b->parts, parts, (size_t)nparts * sizeof *parts);
    if (!moves) {
        pipe->to_send = pipe->sent = 0;
        for (int i = 0; i < nparts; i++) pipe->to_send += parts[i].iov_len;
        begin(b, &b->out, pipe->to_send);
    }
    for (int k = 0; k < b->out.count; k++) {
        int lane = (b->out.first + k) % b->nlanes;
        bool waits = b->out.at[lane] < b->out.end && !(moves && tutti_pipe_has_sent(b->lanes[lane]));
        if (waits) send_piece(b, lane);
    }
    count_fronts(b);
    return TUTTI_OK;
}

static tutti_status bundle_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    tutti_multi_socket *b = (tutti_multi_socket *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool moves = !tutti_pipe_has_received(pipe);
    /* Lanes may have written bytes behind the front, too. */
    if (moves) {
        memcpy((char *)dst + pipe->received, b->dst + pipe->received, bytes - pipe->received);
    } else {
        pipe->received = 0;
        pipe->to_receive = bytes;
        begin(b, &b->in, bytes);
    }
    b->dst = dst;
    for (uint32_t lanes = tutti_multi_socket_busy(b, &b->in); lanes != 0; lanes &= lanes - 1) {
        int lane = ffs((int)lanes) - 1;
        if (!moves || !tutti_pipe_has_received(b->lanes[lane])) receive_piece(b, lane);
    }
    count_fronts(b);
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- opening */

/* Created from connections by tutti_multi_socket_open; never selected by name. */
static const tutti_transport bundle_transport = {
    .name = "bundle",
    .send = bundle_send,
    .recv = bundle_recv,
    .progress = bundle_progress,
    .sleep_on = tutti_multi_socket_sleep_on,
    .cancel = tutti_multi_socket_cancel,
    .close = tutti_multi_socket_close,
    .register_memory = tutti_socket_register_memory,
    .deregister_memory = tutti_socket_deregister_memory,
};

uint32_t tutti_multi_socket_lanes(const tutti_transport *transport) {
    bool sockets = tutti_transport_can(transport, TUTTI_TRANSPORT_SOCKETS);
    return sockets ? (uint32_t)tutti_setting_int(TUTTI_SETTING_TCP_SOCKETS) : 1;
}

static tutti_status open_lane(tutti_multi_socket *b, int lane, const tutti_transport *transport,
                              const tutti_connection *connection, tutti_deadline *deadline) {
    tutti_connection own = *connection;
    own.lane = true;
    tutti_status status = transport->open(&own, deadline, &b->lanes[lane]);
    explicit_bzero(own.key, sizeof own.key);
    if (status == TUTTI_OK) b->pipe.movable = b->pipe.movable && b->lanes[lane]->movable;
    return status;
}

tutti_status tutti_multi_socket_open(const tutti_transport *transport, const tutti_connection *connections, int nlanes,
                                     tutti_deadline *deadline, tutti_pipe **pipe_out) {
    if (nlanes == 1) return transport->open(connections, deadline, pipe_out);
    tutti_multi_socket *b = NULL;
    int lane = 0;
    tutti_status status = tutti_calloc(1, sizeof *b, &b);
    if (status == TUTTI_OK) {
        b->pipe = (tutti_pipe){.transport = &bundle_transport, .movable = true};
        b->nlanes = nlanes;
        b->failed = b->epoll_fd = -1;
        while (status == TUTTI_OK && lane < nlanes) {
            status = open_lane(b, lane, transport, &connections[lane], deadline);
            lane++;
        }
    }
    if (status == TUTTI_OK) {
        *pipe_out = &b->pipe;
        return TUTTI_OK;
    }
    while (lane < nlanes) close(connections[lane++].socket);
    if (b != NULL) b->pipe.status = status; /* then close waits for nothing */
    tutti_multi_socket_close(b != NULL ? &b->pipe : NULL);
    return status;
}
