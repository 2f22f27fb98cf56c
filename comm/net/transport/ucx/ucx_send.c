/*
 * Sending over UCX: the parts of a send become messages, in the order of the stream; see ucx_state.h.
 *
 * Small parts are packed together first, so that a record and its bytes are one message. A large part is sent in
 * pieces, TUTTI_UCX_WINDOW at a time, so that the receiver can work on the first while the others arrive.
 */
#include <string.h>

#include "comm/net/transport/ucx/ucx_state.h"

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
        .flags = bytes <= TUTTI_UCX_EAGER_BYTES ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = on_sent,
        .user_data = departure,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(u->endpoint, TUTTI_UCX_MESSAGE, &departure->header,
                                               sizeof departure->header, data, bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) departed(departure, UCS_PTR_STATUS(request));
}

void tutti_ucx_greet(tutti_ucx_pipe *u) {
    send_message(u, TUTTI_UCX_HELLO, NULL, 0);
}

void tutti_ucx_submit(tutti_ucx_pipe *u) {
    while (u->part < u->nparts && u->sends_running < TUTTI_UCX_WINDOW && u->lost == UCS_OK) {
        struct iovec *part = &u->parts[u->part];
        size_t bytes = tutti_min_size(part->iov_len, TUTTI_UCX_PIECE_BYTES);
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
    tutti_ucx_submit(u);
    return TUTTI_OK;
}
