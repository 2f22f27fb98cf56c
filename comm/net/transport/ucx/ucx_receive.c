/*
 * Receiving over UCX: messages, which arrive in any order, become a stream again. See ucx_state.h.
 *
 * A small message is copied once, directly into the user's buffer if a receive waits for it, otherwise into an
 * arrival. An offered message is fetched when a receive reaches it; if the receive ends inside the message, it is
 * fetched into memory of its own.
 *
 * Invariant: `received` counts bytes that are in place, and so is everything before them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "comm/net/transport/ucx/ucx_state.h"

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

/* ------------------------------------------------------------------------------------------------ coming */

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
    if (message.offset == TUTTI_UCX_HELLO) {
        u->greeted = true;
        return UCS_OK;
    }
    if (bytes == 0 || bytes > TUTTI_UCX_PIECE_BYTES || message.offset < next_in(u)) return UCS_OK;
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

void tutti_ucx_take(tutti_ucx_pipe *u) {
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
    tutti_ucx_take(u);
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

void tutti_ucx_look(tutti_ucx_pipe *u) {
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
