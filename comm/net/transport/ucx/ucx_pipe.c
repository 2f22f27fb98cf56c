/*
 * Drives a pipe over UCX, and ends transfers under way. See ucx_state.h.
 *
 * The socket or UCX reports that the other side has gone, perhaps before its last bytes have been read. So that is
 * an error only when nothing arrives any more and a transfer is incomplete. A side that closes in order reports on
 * the socket how many bytes it has sent in all.
 */
#include <poll.h>
#include <sys/socket.h>

#include "comm/net/transport/ucx/ucx_state.h"

#define ROUNDS_PER_LOOK 64

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
        if (u->lost == UCS_OK) tutti_ucx_finish(u, ucp_ep_flush_nbx(u->endpoint, &plain), TUTTI_UCX_LAST_WORDS_MS);
        tutti_ucx_finish(u, ucp_ep_close_nbx(u->endpoint, &force), TUTTI_UCX_STOP_WAIT_MS);
        u->endpoint = NULL;
    }
    int64_t end_ms = tutti_ucx_now_ms() + TUTTI_UCX_STOP_WAIT_MS;
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
    tutti_ucx_take(u);
    tutti_ucx_submit(u);
    if (TUTTI_UNLIKELY(u->no_memory)) return fail(u);
    if (moved > 0 || pipe->bytes_in + pipe->bytes_out != before) return TUTTI_OK;
    if (u->look || ++u->rounds % ROUNDS_PER_LOOK == 0) tutti_ucx_look(u);
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
