/*
 * TLS: a pipe like tcp's whose bytes are encrypted, by the module libtutti_tls.so (OpenSSL), opened at first use.
 *
 * TLS 1.3 between the two sides of a proved connection, without certificates: both derive a pre-shared key from the
 * connection's own key, and a fresh Diffie-Hellman exchange contributes to the session's keys, so that recorded
 * traffic stays secret when the job's secret leaks later. Since the connection's key covers the connection id, no
 * attacker can splice two connections of a job.
 *
 * Bytes are sent in records of 16 KiB. Large parts are encrypted in place; small ones (a header, with what follows)
 * are packed together first, so that a short message is one record and one call.
 *
 * Invariant: bytes counted by `sent` are encrypted and the kernel's; bytes counted by `received` were
 * authenticated. A record under way holds bytes that are not counted yet, and is passed again unchanged.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "comm/base/fork.h"
#include "comm/net/transport/socket.h"
#include "comm/net/transport/tls.h"

typedef struct tls_pipe {
    tutti_pipe pipe; /* first */
    int socket;
    size_t call_bytes; /* most bytes before the other direction's turn */
    tutti_tls_session *session;
    tutti_socket_parts parts;
    bool under_way;      /* the next record has begun: some of it may have been sent */
    size_t record_bytes; /* bytes of that record */
    bool dry;            /* everything that had arrived at the last read has been received */
    char *dst;           /* where the next byte goes */
    size_t staged;       /* bytes of the next record in `stage`, if it is packed there */
    char stage[TUTTI_TLS_RECORD_BYTES];
} tls_pipe;

/* ---------------------------------------------------------------------------------------------- the module */

static const tutti_tls_module *_Atomic module; /* NULL: not opened; release pairs with the acquire in get_module */

static tutti_status open_module(void) {
    const tutti_module_calls *calls;
    tutti_status status = tutti_module_open("tls", TUTTI_TLS_LEFT_OUT, &calls);
    if (status == TUTTI_OK) status = ((const tutti_tls_module *)calls)->check();
    if (status != TUTTI_OK) return tutti_fail_context(status, "it needs OpenSSL 3 (Debian: libssl3)");
    atomic_store_explicit(&module, (const tutti_tls_module *)calls, memory_order_release);
    return TUTTI_OK;
}

static tutti_status check(void) {
    tutti_status status = TUTTI_OK;
    if (atomic_load_explicit(&module, memory_order_acquire) != NULL) return TUTTI_OK;
    tutti_lock(TUTTI_LOCK_TLS);
    if (atomic_load_explicit(&module, memory_order_relaxed) == NULL) status = open_module();
    tutti_unlock(TUTTI_LOCK_TLS);
    return status;
}

/* The module's table. A pipe exists, so the module is open. */
static const tutti_tls_module *calls(void) {
    return atomic_load_explicit(&module, memory_order_acquire);
}

/* ----------------------------------------------------------------------------------------------- opening */

static tutti_status tls_open(const tutti_connection *connection, tutti_deadline *deadline, tutti_pipe **pipe_out) {
    tls_pipe *tls = NULL;
    tutti_status status = TUTTI_OK;
    TUTTI_TRY_GOTO(status, check(), fail);
    TUTTI_TRY_GOTO(status, tutti_socket_tune(connection->socket), fail);
    TUTTI_TRY_GOTO(status, tutti_calloc(1, sizeof *tls, &tls), fail);
    TUTTI_TRY_GOTO(status, calls()->open(connection, deadline, &tls->session), fail);
    tls->pipe.transport = &tutti_tls_transport;
    tls->pipe.movable = true;
    tls->pipe.lane = connection->lane;
    tls->socket = connection->socket;
    tls->call_bytes = tutti_socket_call_bytes(tls->socket);
    tutti_fork_closes(tls->socket);
    *pipe_out = &tls->pipe;
    return TUTTI_OK;
fail:
    close(connection->socket); /* the other side sees the connection end */
    free(tls);
    return status;
}

/* ------------------------------------------------------------------------------------------------ moving */

/* Packs the next record. */
static void gather(tls_pipe *tls, size_t most) {
    const tutti_socket_parts *parts = &tls->parts;
    for (int i = parts->first; i < parts->count && tls->staged < most; i++) {
        size_t bytes = tutti_min_size(parts->all[i].iov_len, most - tls->staged);
        memcpy(tls->stage + tls->staged, parts->all[i].iov_base, bytes);
        tls->staged += bytes;
    }
}

/* The bytes of the next record: from one part, if that fills the record or is the last, otherwise packed in `stage`. */
static const void *next_record(tls_pipe *tls, size_t *bytes_out) {
    const tutti_socket_parts *parts = &tls->parts;
    const struct iovec *first = &parts->all[parts->first];
    bool whole = first->iov_len >= TUTTI_TLS_RECORD_BYTES || parts->first + 1 == parts->count;
    if (tls->staged == 0 && whole) {
        *bytes_out = tutti_min_size(first->iov_len, TUTTI_TLS_RECORD_BYTES);
        return first->iov_base;
    }
    if (tls->staged == 0) gather(tls, sizeof tls->stage);
    *bytes_out = tls->staged;
    return tls->stage;
}

/* progress() reports a failure, since bytes that the other side sent last may still be there to receive. */
static void push(tls_pipe *tls) {
    tutti_pipe *pipe = &tls->pipe;
    for (size_t moved = 0; moved < tls->call_bytes && !tutti_pipe_has_sent(pipe);) {
        const void *record = next_record(tls, &tls->record_bytes);
        size_t bytes = tls->record_bytes;
        tls->under_way = !calls()->write(tls->session, record, bytes);
        if (tls->under_way) return;
        tls->staged = 0;
        tutti_socket_parts_drop(&tls->parts, bytes);
        pipe->sent += bytes;
        pipe->bytes_out += bytes;
        moved += bytes;
    }
}

static tutti_status pull(tls_pipe *tls) {
    tutti_pipe *pipe = &tls->pipe;
    tls->dry = false;
    for (size_t moved = 0; moved < tls->call_bytes && !tls->dry && !tutti_pipe_has_received(pipe);) {
        size_t got = 0, wanted = pipe->to_receive - pipe->received;
        tutti_status status = calls()->read(tls->session, tls->dst, wanted, &got);
        if (status != TUTTI_OK) return tutti_pipe_fail(pipe, status, "tls: %s", tutti_last_error());
        tls->dry = got == 0;
        tls->dst += got;
        pipe->received += got;
        pipe->bytes_in += got;
        moved += got;
    }
    if (TUTTI_LIKELY(!tls->dry)) return TUTTI_OK;
    if (tls->session->receive_error != 0) return tutti_socket_fail(pipe, tls->session->receive_error);
    if (tls->session->ended)
        return tutti_pipe_fail(pipe, TUTTI_ERR_PEER_DIED, "tls: the other side has closed the connection");
    return TUTTI_OK;
}

static tutti_status tls_progress(tutti_pipe *pipe) {
    tls_pipe *tls = (tls_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool receives = !tutti_pipe_has_received(pipe);
    if (receives) TUTTI_TRY(pull(tls));
    if (TUTTI_UNLIKELY(tls->session->send_error != 0))
        return tutti_socket_fail_send(pipe, tls->session->send_error, receives);
    if (!tutti_pipe_has_sent(pipe)) push(tls);
    return TUTTI_OK;
}

static tutti_status tls_send(tutti_pipe *pipe, const struct iovec *parts, int nparts) {
    tls_pipe *tls = (tls_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    bool moves = !tutti_pipe_has_sent(pipe);
    if (!moves) pipe->sent = 0;
    pipe->to_send = tutti_socket_parts_set(&tls->parts, parts, nparts);
    if (moves) tutti_socket_parts_drop(&tls->parts, pipe->sent);
    if (moves && tls->under_way && tls->staged == 0)
        gather(tls, tls->record_bytes); /* at whatever boundaries the parts have now */
    if (tls->session->send_error == 0) push(tls);
    return TUTTI_OK;
}

static tutti_status tls_recv(tutti_pipe *pipe, void *dst, size_t bytes) {
    tls_pipe *tls = (tls_pipe *)pipe;
    if (TUTTI_UNLIKELY(pipe->status != TUTTI_OK)) return tutti_fail(pipe->status, "%s", pipe->error);
    tls->dst = dst;
    tls->dry = false;
    if (!tutti_pipe_has_received(pipe)) { /* the receive moves to a new buffer */
        tls->dst += pipe->received;
        return TUTTI_OK;
    }
    pipe->received = 0;
    pipe->to_receive = bytes;
    return TUTTI_OK;
}

/* Bytes that OpenSSL has already read from the socket do not wake a poll, so -1 until a read has found none. */
static int sleep_on(tutti_pipe *pipe, short *events_out) {
    const tls_pipe *tls = (tls_pipe *)pipe;
    short events = 0;
    bool receives = !tutti_pipe_has_received(pipe);
    if (receives) events |= POLLIN;
    if (!tutti_pipe_has_sent(pipe)) events |= POLLOUT;
    *events_out = events;
    return receives && !tls->dry ? -1 : tls->socket;
}

/* ------------------------------------------------------------------------------------------------ ending */

static void tls_cancel(tutti_pipe *pipe) {
    tls_pipe *tls = (tls_pipe *)pipe;
    if (pipe == NULL) return;
    bool cut = tls->under_way || (pipe->sent != 0 && !tutti_pipe_has_sent(pipe)) ||
               (pipe->received != 0 && !tutti_pipe_has_received(pipe));
    if (cut) tutti_pipe_fail(pipe, TUTTI_ERR_ABORTED, "tls: a transfer was cut off");
    pipe->to_send = pipe->sent = 0;
    pipe->to_receive = pipe->received = 0;
}

static void tls_close(tutti_pipe *pipe) {
    tls_pipe *tls = (tls_pipe *)pipe;
    if (pipe == NULL) return;
    if (pipe->status == TUTTI_OK && !tls->under_way) calls()->part(tls->session);
    tutti_socket_close(tls->socket, /* see_off */ pipe->status == TUTTI_OK);
    calls()->close(tls->session);
    explicit_bzero(tls->stage, sizeof tls->stage);
    free(tls);
}

/* ------------------------------------------------------------------------------------------------- other */

static void describe(char *text, size_t capacity) {
    char manner[128];
    tutti_socket_manner(manner, sizeof manner);
    if (check() != TUTTI_OK) snprintf(text, capacity, "%s", tutti_last_error());
    else snprintf(text, capacity, "TLS 1.3 by %s; %s", calls()->version(), manner);
}

const tutti_transport tutti_tls_transport = {
    .name = "tls",
    .capabilities = TUTTI_TRANSPORT_ENCRYPTS | TUTTI_TRANSPORT_SOCKETS,
    .check = check,
    .open = tls_open,
    .send = tls_send,
    .recv = tls_recv,
    .progress = tls_progress,
    .sleep_on = sleep_on,
    .cancel = tls_cancel,
    .close = tls_close,
    .describe = describe,
};
