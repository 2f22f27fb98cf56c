/*
 * Which bytes of a stream go over which lane, and how multi-socket pipes sleep, fail and end. See multi_socket.h.
 *
 * A transfer is cut into pieces at block boundaries. Each of its lanes has one piece under way, and gets the next
 * one when that has moved; so a transfer longer than a block uses as many lanes as it has blocks, up to all of
 * them.
 *
 * A multi-socket pipe cannot work without one of its lanes. But a side that closes the pipe closes its lanes one by
 * one, and bytes that it sent last may be on one lane while another already reports the end. So the pipe fails when the
 * failed lane is the next one to receive on, when nothing is to be received, or when nothing has arrived for a
 * second. Then all lanes are closed, so that the other side, which may wait on any of them, notices.
 *
 * A sleep on one lane polls its descriptor, a sleep on several an epoll descriptor over them. Polling only the next
 * lane would not do: the next lanes of the send and of the receive may differ, and both sides might wait on the
 * wrong one.
 */
#include "comm/net/transport/multi_socket.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "comm/base/fork.h"
#include "comm/net/transport/socket.h"

#define MOST_LATE_NS  INT64_C(1000000000)
#define MOST_CLOSE_NS INT64_C(2000000000)

_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT, "EPOLLIN and EPOLLOUT must equal POLLIN and POLLOUT");

/* One direction. Positions are those of the stream, from its opening. */
typedef struct lanes_way {
    uint64_t start, end;           /* of the transfer under way, or of the last one */
    uint64_t moved;                /* bytes moved of it, on all lanes */
    int first, count;              /* its lanes: first, first + 1, ..., modulo nlanes */
    uint64_t at[TUTTI_LANES_MOST]; /* by lane: position of the piece under way; `end` or more: the lane has none left */
} lanes_way;

typedef struct multi_socket {
    tutti_pipe pipe; /* first */
    int nlanes;
    tutti_pipe *lanes[TUTTI_LANES_MOST]; /* NULL: not open yet, or closed after a failure */
    lanes_way out, in;
    struct iovec parts[TUTTI_SOCKET_PARTS]; /* parts of the send */
    int nparts;
    char *dst;                       /* destination of the receive's first byte */
    int failed;                      /* the first lane that failed; -1: none */
    int64_t quiet_ns;                /* after a failure: when bytes last arrived, or the failure was noticed */
    uint64_t heard;                  /* bytes_in at that time */
    int epoll_fd;                    /* for sleeping on several lanes; -1: not needed yet */
    short watched[TUTTI_LANES_MOST]; /* poll events watched by it; 0: none */
    int fds[TUTTI_LANES_MOST];       /* descriptors of the lanes that were ever watched */
} multi_socket;

/* The lane of that position of the stream. */
static inline int lane_at(const multi_socket *b, uint64_t position) {
    return (int)(position / TUTTI_MULTI_SOCKET_BLOCK_BYTES % (uint64_t)b->nlanes);
}

/* ------------------------------------------------------------------------------------------------ pieces */

/* Begins the next transfer of that direction: sets its lanes, and where each of them begins. */
static void begin(const multi_socket *b, lanes_way *way, size_t bytes) {
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

static size_t piece_bytes(const lanes_way *way, int lane) {
    uint64_t at = way->at[lane];
    return tutti_min_size(way->end - at, TUTTI_MULTI_SOCKET_BLOCK_BYTES - at % TUTTI_MULTI_SOCKET_BLOCK_BYTES);
}

/* Advances the lane to its next piece; false: this transfer has no more for it. */
static bool next_piece(const multi_socket *b, lanes_way *way, int lane) {
    way->at[lane] =
        (way->at[lane] / TUTTI_MULTI_SOCKET_BLOCK_BYTES + (uint64_t)b->nlanes) * TUTTI_MULTI_SOCKET_BLOCK_BYTES;
    return way->at[lane] < way->end;
}

static uint32_t busy(const multi_socket *b, const lanes_way *way) {
    uint32_t lanes = 0;
    for (int k = 0; k < way->count; k++) {
        int lane = (way->first + k) % b->nlanes;
        if (way->at[lane] < way->end) lanes |= UINT32_C(1) << lane;
    }
    return lanes;
}

/* Bytes from the start of the transfer up to its first gap. */
static size_t front(const multi_socket *b, const lanes_way *way) {
    uint64_t front = way->end;
    for (uint32_t lanes = busy(b, way); lanes != 0; lanes &= lanes - 1) {
        int lane = ffs((int)lanes) - 1;
        const tutti_pipe *pipe = b->lanes[lane];
        uint64_t moved = pipe->status != TUTTI_OK ? 0 : way == &b->out ? pipe->sent : pipe->received;
        if (way->at[lane] + moved < front) front = way->at[lane] + moved;
    }
    return (size_t)(front - way->start);
}

/* Updates the fronts of both transfers. A failed lane reports nothing more, but bytes already counted have moved. */
static void count_fronts(multi_socket *b) {
    size_t sent = front(b, &b->out), received = front(b, &b->in);
    if (sent > b->pipe.sent) b->pipe.sent = sent;
    if (received > b->pipe.received) b->pipe.received = received;
}

/* ------------------------------------------------------------------------------------ failing, sleeping, ending */

/* With see_off, waits for sent bytes on all lanes; but not again for each lane of a peer that accepts nothing. */
static void close_lanes(multi_socket *b, bool see_off) {
    int64_t start_ns = tutti_now_ns();
    for (int i = 0; i < b->nlanes; i++) {
        tutti_pipe *lane = b->lanes[i];
        if (lane == NULL) continue;
        see_off = see_off && tutti_now_ns() - start_ns < MOST_CLOSE_NS;
        if (!see_off && lane->status == TUTTI_OK)
            lane->status = TUTTI_ERR_ABORTED; /* makes close() return without waiting */
        lane->transport->close(lane);
        b->lanes[i] = NULL;
    }
}

/* ----------------------------------------------------------------------------------------------- failing */

/* Returns whether bytes that were sent before the lane failed may still arrive. */
static bool may_still_come(multi_socket *b, bool receives) {
    const tutti_pipe *pipe = &b->pipe;
    if (tutti_pipe_has_received(pipe)) return receives; /* it ended just now: the caller may want to receive more */
    if (b->lanes[lane_at(b, b->in.start + pipe->received)]->status != TUTTI_OK) return false;
    int64_t now_ns = tutti_now_ns();
    if (b->heard != pipe->bytes_in) b->quiet_ns = now_ns;
    b->heard = pipe->bytes_in;
    return now_ns - b->quiet_ns < MOST_LATE_NS;
}

static tutti_status judge(multi_socket *b, bool receives) {
    tutti_pipe *lane = b->lanes[b->failed];
    if (may_still_come(b, receives)) return TUTTI_OK;
    if (lane->status == TUTTI_OK) tutti_socket_fail(lane, lane->send_error);
    tutti_pipe_fail(&b->pipe, lane->status, "socket %d of %d: %s", b->failed + 1, b->nlanes, lane->error);
    close_lanes(b, /* see_off */ false);
    return tutti_fail(b->pipe.status, "%s", b->pipe.error);
}

/* ---------------------------------------------------------------------------------------------- sleeping */

typedef struct wish {
    int fd;
    short events;
} wish;

/* Lists the events that each busy lane waits for. Returns the number of these lanes; -1: one cannot be slept on. */
static int list_wishes(const multi_socket *b, wish wishes[TUTTI_LANES_MOST], wish *last_out) {
    int count = 0;
    uint32_t lanes = busy(b, &b->in) | busy(b, &b->out);
    for (int lane = 0; lane < b->nlanes; lane++) {
        tutti_pipe *pipe = b->lanes[lane];
        wishes[lane] = (wish){.fd = -1};
        if (pipe->status != TUTTI_OK || (lanes >> lane & 1) == 0)
            continue; /* a failed lane would always wake the caller */
        wishes[lane].fd = pipe->transport->sleep_on(pipe, &wishes[lane].events);
        if (wishes[lane].fd < 0) return -1;
        if (pipe->send_error != 0) wishes[lane].events &= (short)~POLLOUT;
        *last_out = wishes[lane];
        count++;
    }
    return count;
}

/* Sets the events watched on a lane. A lane without any is removed: its end would always wake the caller. */
static bool watch(multi_socket *b, int lane, wish wanted) {
    struct epoll_event event = {.events = (uint32_t)wanted.events};
    if (wanted.events == b->watched[lane]) return true;
    int change = wanted.events == 0 ? EPOLL_CTL_DEL : b->watched[lane] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (wanted.fd >= 0) b->fds[lane] = wanted.fd;
    if (epoll_ctl(b->epoll_fd, change, b->fds[lane], &event) != 0) return false;
    b->watched[lane] = wanted.events;
    return true;
}

static int multi_socket_sleep_on(tutti_pipe *pipe, short *events_out) {
    multi_socket *b = (multi_socket *)pipe;
    wish wishes[TUTTI_LANES_MOST], last = {.fd = -1};
    *events_out = 0;
    int count = pipe->status == TUTTI_OK ? list_wishes(b, wishes, &last) : -1;
    if (count == 1) *events_out = last.events;
    if (count <= 1) return count < 0 ? -1 : last.fd;
    if (b->epoll_fd < 0 && (b->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0) tutti_fork_closes(b->epoll_fd);
    for (int lane = 0; lane < b->nlanes; lane++)
        if (b->epoll_fd < 0 || !watch(b, lane, wishes[lane])) return -1;
    *events_out = POLLIN;
    return b->epoll_fd;
}

/* ------------------------------------------------------------------------------------------------ ending */

/* Withdraws a transfer of which nothing has moved; false: it was interrupted. */
static bool take_back(lanes_way *way) {
    if (way->moved != 0 && way->moved != way->end - way->start) return false;
    if (way->moved == 0) way->end = way->start;
    way->start = way->end;
    way->moved = 0;
    way->count = 0;
    return true;
}

static void multi_socket_cancel(tutti_pipe *pipe) {
    multi_socket *b = (multi_socket *)pipe;
    if (pipe == NULL) return;
    bool whole = take_back(&b->out);
    whole = take_back(&b->in) && whole;
    for (int i = 0; i < b->nlanes; i++) {
        tutti_pipe *lane = b->lanes[i];
        if (lane != NULL) lane->transport->cancel(lane);
        whole = whole && (lane == NULL || lane->status == TUTTI_OK);
    }
    b->out.count = b->in.count = 0;
    if (!whole) tutti_pipe_fail(pipe, TUTTI_ERR_ABORTED, "a transfer over %d sockets was cut off", b->nlanes);
    pipe->to_send = pipe->sent = 0;
    pipe->to_receive = pipe->received = 0;
}

static void multi_socket_close(tutti_pipe *pipe) {
    multi_socket *b = (multi_socket *)pipe;
    if (pipe == NULL) return;
    if (b->epoll_fd >= 0) {
        tutti_fork_forget(b->epoll_fd);
        close(b->epoll_fd);
    }
    close_lanes(b, /* see_off */ pipe->status == TUTTI_OK);
    free(b);
}

/* ------------------------------------------------------------------------------------------------ moving */

typedef struct counts {
    uint64_t in, out;
} counts;

static counts counts_of(const tutti_pipe *lane) {
    return (counts){.in = lane->bytes_in, .out = lane->bytes_out};
}

/* Counts the bytes that a call to a lane moved, and notes whether the lane has failed. */
static void account(multi_socket *b, int lane, counts before) {
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
static void send_piece(multi_socket *b, int lane) {
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

static void receive_piece(multi_socket *b, int lane) {
    char *dst = b->dst + (b->in.at[lane] - b->in.start);
    counts before = counts_of(b->lanes[lane]);
    b->lanes[lane]->transport->recv(b->lanes[lane], dst, piece_bytes(&b->in, lane));
    account(b, lane, before);
}

/* One call each, so that sends and receives alternate, and lanes do. */
static void drive(multi_socket *b, int lane, bool receives, bool sends) {
    tutti_pipe *pipe = b->lanes[lane];
    counts before = counts_of(pipe);
    pipe->transport->progress(pipe);
    account(b, lane, before);
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return;
    if (receives && tutti_pipe_has_received(pipe) && next_piece(b, &b->in, lane)) receive_piece(b, lane);
    if (sends && tutti_pipe_has_sent(pipe) && next_piece(b, &b->out, lane)) send_piece(b, lane);
}

static tutti_status multi_socket_progress(tutti_pipe *pipe) {
    multi_socket *b = (multi_socket *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    uint32_t receive = busy(b, &b->in), send = busy(b, &b->out);
    for (uint32_t lanes = receive | send; lanes != 0; lanes &= lanes - 1) {
        int lane = ffs((int)lanes) - 1;
        drive(b, lane, receive >> lane & 1, send >> lane & 1);
    }
    count_fronts(b);
    return TUTTI_LIKELY(b->failed < 0) ? TUTTI_OK : judge(b, receive != 0);
}

static tutti_status multi_socket_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    multi_socket *b = (multi_socket *)pipe;
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

static tutti_status multi_socket_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    multi_socket *b = (multi_socket *)pipe;
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
    for (uint32_t lanes = busy(b, &b->in); lanes != 0; lanes &= lanes - 1) {
        int lane = ffs((int)lanes) - 1;
        if (!moves || !tutti_pipe_has_received(b->lanes[lane])) receive_piece(b, lane);
    }
    count_fronts(b);
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- opening */

/* Created from connections by tutti_multi_socket_open; never selected by name. */
static const tutti_transport multi_socket_transport = {
    .name = "multi_socket",
    .send = multi_socket_send,
    .recv = multi_socket_recv,
    .progress = multi_socket_progress,
    .sleep_on = multi_socket_sleep_on,
    .cancel = multi_socket_cancel,
    .close = multi_socket_close,
};

uint32_t tutti_multi_socket_lanes(const tutti_transport *transport) {
    bool sockets = tutti_transport_can(transport, TUTTI_TRANSPORT_SOCKETS);
    return sockets ? (uint32_t)tutti_setting_int(TUTTI_SETTING_TCP_SOCKETS) : 1;
}

static tutti_status open_lane(multi_socket *b, int lane, const tutti_transport *transport,
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
    multi_socket *b = NULL;
    int lane = 0;
    tutti_status status = tutti_calloc(1, sizeof *b, &b);
    if (status == TUTTI_OK) {
        b->pipe = (tutti_pipe){.transport = &multi_socket_transport, .movable = true};
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
    multi_socket_close(b != NULL ? &b->pipe : NULL);
    return status;
}
