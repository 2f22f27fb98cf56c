/*
 * A pipe over UCX while it is open: sending, receiving, and the end of transfers under way. See ucx_state.h.
 *
 * The socket or UCX reports that the other side has gone, perhaps before its last bytes have been read. So that is
 * an error only when nothing arrives any more and a transfer is incomplete. A side that closes in order reports on
 * the socket how many bytes it has sent in all.
 *
 * Invariant: `received` counts bytes that are in place, and so is everything before them.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "comm/net/transport/ucx/ucx_state.h"

#define EAGER_BYTES     ((size_t)64 << 10)
#define PIECE_BYTES     ((size_t)1 << 20)
#define HELLO           UINT64_MAX /* in place of an offset: the greeting */
#define LAST_WORDS_MS   20
#define STOP_WAIT_MS    1000
#define ROUNDS_PER_LOOK 64

/* ------------------------------------------------------------------------------------------------ sending
 * The parts of a send become messages, in the order of the stream. Small parts are packed together first, so that a
 * record and its bytes are one message. A large part is sent in pieces, TUTTI_UCX_WINDOW at a time, so that the
 * receiver can work on the first while the others arrive.
 */

static void departed(tutti_ucx_departure *departure, ucs_status_t status) {
    tutti_ucx_pipe *u = departure->pipe;
    departure->running = false;
    u->sends_running--;
    if (status != UCS_OK) {
        if (u->lost == UCS_OK) u->lost = status;
        return;
    }
    u->pipe.sent += departure->bytes;
    u->pipe.bytes_out += departure->bytes;
}

static void on_sent(void *request, ucs_status_t status, void *argument) {
    departed(argument, status);
    ucp_request_free(request);
}

static void send_message(tutti_ucx_pipe *u, uint64_t offset, const void *data, size_t bytes) {
    tutti_ucx_departure *departure = u->departures;
    while (departure->running) departure++;
    *departure = (tutti_ucx_departure){
        .pipe = u, .header = {.token = u->peer_token, .offset = offset}, .bytes = bytes, .running = true};
    u->sends_running++;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = bytes <= EAGER_BYTES ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = on_sent,
        .user_data = departure,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(u->endpoint, TUTTI_UCX_MESSAGE, &departure->header,
                                               sizeof departure->header, data, bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) departed(departure, UCS_PTR_STATUS(request));
}

void tutti_ucx_greet(tutti_ucx_pipe *u) {
    send_message(u, HELLO, NULL, 0);
}

/* Hands parts to UCX, as many as it may take now. */
static void submit(tutti_ucx_pipe *u) {
    while (u->part < u->nparts && u->sends_running < TUTTI_UCX_WINDOW && u->lost == UCS_OK) {
        struct iovec *part = &u->parts[u->part];
        size_t bytes = tutti_min_size(part->iov_len, PIECE_BYTES);
        const void *data = part->iov_base;
        part->iov_base = (char *)part->iov_base + bytes;
        part->iov_len -= bytes;
        if (part->iov_len == 0) u->part++;
        uint64_t offset = u->offset_out;
        u->offset_out += bytes;
        send_message(u, offset, data, bytes);
    }
}

tutti_status tutti_ucx_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    tutti_ucx_pipe *u = (tutti_ucx_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_ucx_common_host->fail(pipe->status, "%s", pipe->error);
    pipe->to_send = pipe->sent = 0;
    u->part = u->nparts = 0;
    size_t staged = 0;
    for (int i = 0; i < nparts; i++) {
        size_t bytes = parts[i].iov_len;
        if (bytes == 0) continue;
        pipe->to_send += bytes;
        if (bytes > sizeof u->stage - staged) { /* the stage is full: the following parts are sent by themselves */
            u->parts[u->nparts++] = parts[i];
            staged = sizeof u->stage;
            continue;
        }
        memcpy(u->stage + staged, parts[i].iov_base, bytes);
        if (staged == 0) u->parts[u->nparts++] = (struct iovec){.iov_base = u->stage};
        staged += bytes;
        u->parts[u->nparts - 1].iov_len = staged;
    }
    submit(u);
    return TUTTI_OK;
}

/* ---------------------------------------------------------------------------------------------- receiving
 * Messages, which arrive in any order, become a stream again. A small message is copied once, directly into the user's
 * buffer if a receive waits for it, otherwise into an arrival. An offered message is fetched when a receive reaches it;
 * if the receive ends inside the message, it is fetched into memory of its own.
 */

static uint64_t next_in(const tutti_ucx_pipe *u) {
    return u->begin_in + u->pipe.received;
}

static void count_received(tutti_ucx_pipe *u, size_t bytes) {
    u->pipe.received += bytes;
    u->pipe.bytes_in += bytes;
}

/* Copies the bytes that the receive under way still wants; returns their number. */
static size_t place(tutti_ucx_pipe *u, const void *data, size_t bytes) {
    size_t wanted = tutti_min_size(bytes, u->pipe.to_receive - u->pipe.received);
    if (wanted > 0) memcpy(u->dst + u->pipe.received, data, wanted);
    count_received(u, wanted);
    return wanted;
}

/* ------------------------------------------------------------------------------------------- arrivals */

static ucs_status_t keep(tutti_ucx_pipe *u, uint64_t offset, void *data, size_t bytes, bool offered) {
    tutti_ucx_arrival *arrival = calloc(1, sizeof *arrival), **at = &u->arrivals;
    if (arrival != NULL && !offered) arrival->data = malloc(bytes);
    if (arrival == NULL || (!offered && arrival->data == NULL)) {
        free(arrival);
        u->no_memory = true;
        return UCS_OK;
    }
    arrival->pipe = u;
    arrival->offset = offset;
    arrival->bytes = bytes;
    arrival->stage = offered ? TUTTI_UCX_OFFERED : TUTTI_UCX_HERE;
    if (offered) arrival->offer = data;
    else memcpy(arrival->data, data, bytes);
    while (*at != NULL && (*at)->offset < offset) at = &(*at)->next;
    arrival->next = *at;
    *at = arrival;
    return offered ? UCS_INPROGRESS : UCS_OK;
}

ucs_status_t tutti_ucx_arrive(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const ucp_am_recv_param_t *param) {
    tutti_ucx_pipe *u = argument;
    tutti_ucx_header message;
    bool offered = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if (header_bytes != sizeof message) return UCS_OK;
    memcpy(&message, header, sizeof message);
    if (message.token != u->token) return UCS_OK;
    if (u->refuses) return offered ? UCS_ERR_CANCELED : UCS_OK;
    if (message.offset == HELLO) {
        u->greeted = true;
        return UCS_OK;
    }
    if (bytes == 0 || bytes > PIECE_BYTES || message.offset < next_in(u)) return UCS_OK;
    if (!offered && u->arrivals == NULL && message.offset == next_in(u)) {
        size_t placed = place(u, data, bytes);
        if (placed == bytes) return UCS_OK;
        return keep(u, message.offset + placed, (char *)data + placed, bytes - placed, offered);
    }
    return keep(u, message.offset, data, bytes, offered);
}

/* ------------------------------------------------------------------------------------------------ taking */

static void fetched(tutti_ucx_arrival *arrival, ucs_status_t status) {
    tutti_ucx_pipe *u = arrival->pipe;
    u->receives_running--;
    if (status == UCS_OK) {
        arrival->stage = arrival->direct ? TUTTI_UCX_PLACED : TUTTI_UCX_HERE;
        return;
    }
    arrival->stage = TUTTI_UCX_FAILED;
    if (u->lost == UCS_OK) u->lost = status;
}

static void on_fetched(void *request, ucs_status_t status, size_t bytes, void *argument) {
    (void)bytes; /* a message is fetched whole */
    fetched(argument, status);
    ucp_request_free(request);
}

static void fetch(tutti_ucx_pipe *u, tutti_ucx_arrival *arrival) {
    arrival->direct = arrival->offset + arrival->bytes <= u->begin_in + u->pipe.to_receive;
    if (!arrival->direct && (arrival->data = malloc(arrival->bytes)) == NULL) {
        u->no_memory = true;
        return;
    }
    void *target = arrival->direct ? u->dst + (arrival->offset - u->begin_in) : arrival->data;
    arrival->stage = TUTTI_UCX_RUNNING;
    u->receives_running++;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = on_fetched,
        .user_data = arrival,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(u->worker, arrival->offer, target, arrival->bytes, &param);
    arrival->offer = NULL; /* it belongs to UCX again */
    if (!UCS_PTR_IS_PTR(request)) fetched(arrival, UCS_PTR_STATUS(request));
}

static void fetch_offers(tutti_ucx_pipe *u) {
    uint64_t cursor = next_in(u), end = u->begin_in + u->pipe.to_receive;
    for (tutti_ucx_arrival *arrival = u->arrivals; arrival != NULL; arrival = arrival->next) {
        if (cursor >= end || arrival->offset + arrival->taken != cursor) return;
        if (u->receives_running == TUTTI_UCX_WINDOW || u->lost != UCS_OK) return;
        if (arrival->stage == TUTTI_UCX_OFFERED) fetch(u, arrival);
        cursor = arrival->offset + arrival->bytes;
    }
}

static void free_arrival(tutti_ucx_arrival *arrival) {
    free(arrival->data);
    free(arrival);
}

/* Moves received bytes into the user's buffer, and fetches offered messages. */
static void take(tutti_ucx_pipe *u) {
    if (u->arrivals == NULL || u->pipe.received == u->pipe.to_receive) return;
    fetch_offers(u);
    while (u->arrivals != NULL && u->pipe.received < u->pipe.to_receive) {
        tutti_ucx_arrival *first = u->arrivals;
        if (first->offset + first->taken != next_in(u)) return;
        if (first->stage == TUTTI_UCX_PLACED) {
            count_received(u, first->bytes);
        } else if (first->stage == TUTTI_UCX_HERE) {
            first->taken += place(u, first->data + first->taken, first->bytes - first->taken);
            if (first->taken < first->bytes) return;
        } else {
            return;
        }
        u->arrivals = first->next;
        free_arrival(first);
    }
}

tutti_status tutti_ucx_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    tutti_ucx_pipe *u = (tutti_ucx_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_ucx_common_host->fail(pipe->status, "%s", pipe->error);
    u->begin_in = next_in(u);
    u->dst = dst;
    pipe->received = 0;
    pipe->to_receive = bytes;
    take(u);
    return TUTTI_OK;
}

void tutti_ucx_refuse_offers(tutti_ucx_pipe *u) {
    u->refuses = true;
    for (tutti_ucx_arrival *arrival = u->arrivals; arrival != NULL; arrival = arrival->next) {
        if (arrival->stage != TUTTI_UCX_OFFERED) continue;
        ucp_am_data_release(u->worker, arrival->offer);
        arrival->offer = NULL;
        arrival->stage = TUTTI_UCX_FAILED;
    }
}

void tutti_ucx_free_arrivals(tutti_ucx_pipe *u) {
    while (u->arrivals != NULL) {
        tutti_ucx_arrival *first = u->arrivals;
        u->arrivals = first->next;
        free_arrival(first);
    }
}

/* ------------------------------------------------------------------------------------------- the other side */

/* Checks whether the other side has closed the pipe, or is gone. */
static void look(tutti_ucx_pipe *u) {
    char *farewell = (char *)&u->farewell;
    u->look = false;
    while (!u->ended) {
        char surplus;
        bool whole = u->farewell_bytes == sizeof u->farewell;
        ssize_t got = recv(u->socket, whole ? &surplus : farewell + u->farewell_bytes,
                           whole ? 1 : sizeof u->farewell - u->farewell_bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        u->ended = got <= 0 || whole;
        if (got > 0 && !whole) u->farewell_bytes += (size_t)got;
    }
    epoll_ctl(u->epoll, EPOLL_CTL_DEL, u->socket, NULL);
}

/* ---------------------------------------------------------------------------------------------- stopping */

bool tutti_ucx_finish(tutti_ucx_pipe *u, ucs_status_ptr_t request, int64_t most_ms) {
    if (!UCS_PTR_IS_PTR(request)) return true;
    int64_t end_ms = tutti_ucx_now_ms() + most_ms;
    bool done;
    while (!(done = ucp_request_check_status(request) != UCS_INPROGRESS)) {
        if (ucp_worker_progress(u->worker) == 0 && tutti_ucx_now_ms() >= end_ms) break;
    }
    ucp_request_free(request); /* UCX keeps it until it is done */
    return done;
}

void tutti_ucx_stop(tutti_ucx_pipe *u) {
    if (u->worker == NULL) return;
    ucp_request_param_t plain = {0},
                        force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    tutti_ucx_refuse_offers(u);
    if (u->endpoint != NULL) {
        if (u->lost == UCS_OK) tutti_ucx_finish(u, ucp_ep_flush_nbx(u->endpoint, &plain), LAST_WORDS_MS);
        tutti_ucx_finish(u, ucp_ep_close_nbx(u->endpoint, &force), STOP_WAIT_MS);
        u->endpoint = NULL;
    }
    int64_t end_ms = tutti_ucx_now_ms() + STOP_WAIT_MS;
    while (u->sends_running + u->receives_running > 0 && tutti_ucx_now_ms() < end_ms) ucp_worker_progress(u->worker);
    ucp_worker_destroy(u->worker); /* ends everything that could still move */
    u->worker = NULL;
    shutdown(u->socket, SHUT_WR); /* so that the other side notices */
}

/* ----------------------------------------------------------------------------------------------- driving */

static tutti_status fail(tutti_ucx_pipe *u) {
    ucs_status_t lost = u->lost;
    tutti_ucx_stop(u);
    if (u->no_memory)
        return tutti_ucx_own_host->pipe_fail(&u->pipe, TUTTI_ERR_MEMORY, "ucx: no memory for a received message");
    if (u->ended)
        return tutti_ucx_own_host->pipe_fail(&u->pipe, TUTTI_ERR_PEER_DIED,
                                             "ucx: the other side has closed the connection");
    return tutti_ucx_own_host->pipe_fail(&u->pipe, TUTTI_ERR_PEER_DIED, "ucx: the connection has failed: %s",
                                         ucs_status_string(lost));
}

/* Nothing moves, and the other side is gone: fails the pipe if bytes are missing. */
static tutti_status judge(tutti_ucx_pipe *u) {
    const tutti_pipe *pipe = &u->pipe;
    if (!tutti_pipe_has_received(pipe)) {
        bool comes = u->lost == UCS_OK && u->farewell_bytes == sizeof u->farewell &&
                     u->farewell >= u->begin_in + pipe->to_receive;
        return comes ? TUTTI_OK : fail(u);
    }
    return tutti_pipe_has_sent(pipe) ? TUTTI_OK : fail(u);
}

tutti_status tutti_ucx_progress(tutti_pipe *pipe) {
    tutti_ucx_pipe *u = (tutti_ucx_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_ucx_common_host->fail(pipe->status, "%s", pipe->error);
    uint64_t before = pipe->bytes_in + pipe->bytes_out;
    unsigned moved = ucp_worker_progress(u->worker);
    take(u);
    submit(u);
    if (TUTTI_UNLIKELY(u->no_memory)) return fail(u);
    if (moved > 0 || pipe->bytes_in + pipe->bytes_out != before) return TUTTI_OK;
    if (u->look || ++u->rounds % ROUNDS_PER_LOOK == 0) look(u);
    return TUTTI_UNLIKELY(u->ended || u->lost != UCS_OK) ? judge(u) : TUTTI_OK;
}

int tutti_ucx_sleep_on(tutti_pipe *pipe, short *events_out) {
    tutti_ucx_pipe *u = (tutti_ucx_pipe *)pipe;
    *events_out = POLLIN;
    u->look = true; /* the socket may be what wakes the sleeper */
    if (pipe->status != TUTTI_OK || u->worker_event < 0 || u->lost != UCS_OK) return -1;
    return ucp_worker_arm(u->worker) == UCS_OK ? u->epoll : -1; /* else something has arrived already */
}

void tutti_ucx_cancel(tutti_pipe *pipe) {
    tutti_ucx_pipe *u = (tutti_ucx_pipe *)pipe;
    bool partly =
        (pipe->sent != 0 && !tutti_pipe_has_sent(pipe)) || (pipe->received != 0 && !tutti_pipe_has_received(pipe));
    bool cut =
        partly || u->sends_running + u->receives_running > 0 || (!tutti_pipe_has_sent(pipe) && u->lost != UCS_OK);
    if (cut && pipe->status == TUTTI_OK) {
        tutti_ucx_stop(u);
        tutti_ucx_own_host->pipe_fail(pipe, TUTTI_ERR_ABORTED, "ucx: a transfer was cut off");
    }
    u->begin_in += pipe->received;
    u->part = u->nparts = 0;
    pipe->to_send = pipe->sent = 0;
    pipe->to_receive = pipe->received = 0;
}
