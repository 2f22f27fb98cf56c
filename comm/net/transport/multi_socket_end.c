/*
 * How bundles sleep, fail and end. See multi_socket.h.
 *
 * A bundle cannot work without one of its lanes. But a side that closes the bundle closes its lanes one by one, and
 * bytes that it sent last may be on one lane while another already reports the end. So the bundle fails when the
 * failed lane is the next one to receive on, when nothing is to be received, or when nothing has arrived for a
 * second. Then all lanes are closed, so that the other side, which may wait on any of them, notices.
 *
 * A sleep on one lane polls its descriptor, a sleep on several an epoll descriptor over them. Polling only the next
 * lane would not do: the next lanes of the send and of the receive may differ, and both sides might wait on the
 * wrong one.
 */
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bootstrap/base/status.h"
#include "comm/base/fork.h"
#include "comm/net/transport/multi_socket_state.h"

#define MOST_LATE_NS  INT64_C(1000000000)
#define MOST_CLOSE_NS INT64_C(2000000000)

_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT, "EPOLLIN and EPOLLOUT must equal POLLIN and POLLOUT");

/* With see_off, waits for sent bytes on all lanes, in effect at once; but not again for each lane of a peer that
 * accepts nothing. */
static void close_lanes(tutti_multi_socket *b, bool see_off) {
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

/* May bytes still arrive that were sent before the lane failed? */
static bool may_still_come(tutti_multi_socket *b, bool receives) {
    const tutti_pipe *pipe = &b->pipe;
    if (tutti_pipe_has_received(pipe)) return receives; /* it ended just now: the caller may want to receive more */
    if (b->lanes[tutti_multi_socket_lane_at(b, b->in.start + pipe->received)]->status != TUTTI_OK) return false;
    int64_t now_ns = tutti_now_ns();
    if (b->heard != pipe->bytes_in) b->quiet_ns = now_ns;
    b->heard = pipe->bytes_in;
    return now_ns - b->quiet_ns < MOST_LATE_NS;
}

tutti_status tutti_multi_socket_judge(tutti_multi_socket *b, bool receives) {
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

/* Lists the events that each busy lane waits for. Returns the number of these lanes; -1: one of them cannot be
 * slept on. */
static int list_wishes(const tutti_multi_socket *b, wish wishes[TUTTI_LANES_MOST], wish *last_out) {
    int count = 0;
    uint32_t lanes = tutti_multi_socket_busy(b, &b->in) | tutti_multi_socket_busy(b, &b->out);
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
static bool watch(tutti_multi_socket *b, int lane, wish wanted) {
    struct epoll_event event = {.events = (uint32_t)wanted.events};
    if (wanted.events == b->watched[lane]) return true;
    int change = wanted.events == 0 ? EPOLL_CTL_DEL : b->watched[lane] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (wanted.fd >= 0) b->fds[lane] = wanted.fd;
    if (epoll_ctl(b->epoll_fd, change, b->fds[lane], &event) != 0) return false;
    b->watched[lane] = wanted.events;
    return true;
}

int tutti_multi_socket_sleep_on(tutti_pipe *pipe, short *events_out) {
    tutti_multi_socket *b = (tutti_multi_socket *)pipe;
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
static bool take_back(tutti_multi_socket_way *way) {
    if (way->moved != 0 && way->moved != way->end - way->start) return false;
    if (way->moved == 0) way->end = way->start;
    way->start = way->end;
    way->moved = 0;
    way->count = 0;
    return true;
}

void tutti_multi_socket_cancel(tutti_pipe *pipe) {
    tutti_multi_socket *b = (tutti_multi_socket *)pipe;
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

void tutti_multi_socket_close(tutti_pipe *pipe) {
    tutti_multi_socket *b = (tutti_multi_socket *)pipe;
    if (pipe == NULL) return;
    if (b->epoll_fd >= 0) {
        tutti_fork_forget(b->epoll_fd);
        close(b->epoll_fd);
    }
    close_lanes(b, /* see_off */ pipe->status == TUTTI_OK);
    free(b);
}
