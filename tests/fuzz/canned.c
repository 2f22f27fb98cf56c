/*
 * See canned.h.
 */
#include "tests/fuzz/canned.h"

#include <string.h>

static tutti_status canned_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    canned_pipe *canned = (canned_pipe *)pipe;
    pipe->to_send = 0;
    for (int i = 0; i < nparts; i++) {
        bool fits = canned->kept != NULL && parts[i].iov_len <= canned->kept_most - canned->kept_bytes;
        if (fits && parts[i].iov_len > 0)
            memcpy(canned->kept + canned->kept_bytes, parts[i].iov_base, parts[i].iov_len);
        if (fits) canned->kept_bytes += parts[i].iov_len;
        pipe->to_send += parts[i].iov_len;
    }
    pipe->sent = pipe->to_send;
    return TUTTI_OK;
}

static tutti_status canned_progress(tutti_pipe *pipe) {
    canned_pipe *canned = (canned_pipe *)pipe;
    size_t bytes = tutti_min_size(pipe->to_receive - pipe->received, tutti_min_size(canned->left, canned->piece));
    if (tutti_pipe_has_received(pipe)) return pipe->status;
    if (bytes == 0 && canned->waits) return TUTTI_OK;
    if (bytes == 0) return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED, "the end");
    memcpy(canned->dst + pipe->received, canned->next, bytes);
    canned->next += bytes;
    canned->left -= bytes;
    pipe->received += bytes;
    pipe->bytes_in += bytes;
    return TUTTI_OK;
}

static tutti_status canned_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    ((canned_pipe *)pipe)->dst = dst;
    if (!tutti_pipe_has_received(pipe)) return pipe->status; /* progress */
    pipe->to_receive = bytes;
    pipe->received = 0;
    return ((canned_pipe *)pipe)->ahead ? canned_progress(pipe) : pipe->status;
}

static int canned_sleep_on(tutti_pipe *pipe, short *events_out) {
    (void)pipe;
    *events_out = 0;
    return -1;
}

static void canned_cancel(tutti_pipe *pipe) {
    pipe->to_send = pipe->sent = pipe->to_receive = pipe->received = 0;
}

static void canned_close(tutti_pipe *pipe) {
    (void)pipe;
}

static const tutti_transport canned_transport = {.name = "canned",
                                                 .send = canned_send,
                                                 .recv = canned_recv,
                                                 .progress = canned_progress,
                                                 .sleep_on = canned_sleep_on,
                                                 .cancel = canned_cancel,
                                                 .close = canned_close};

canned_pipe canned_of(const uint8_t *data, size_t bytes, size_t piece) {
    return (canned_pipe){
        .pipe = {.transport = &canned_transport, .movable = true}, .next = data, .left = bytes, .piece = piece};
}
