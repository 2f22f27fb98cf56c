/*
 * Threads that open pipes. See async_connect.h.
 *
 * A transport may be available on both sides and still not connect them, for example if their adapters are on
 * separate networks. Both sides detect this when it is opened, and try the next transport that both support, on new
 * connections: the side that connected before connects again.
 */
#include "comm/net/async_connect.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "comm/net/route_log.h"
#include "comm/net/transport/multi_socket.h"

#define LOOK_NS TUTTI_NS_PER_MS /* between two checks of the listener */

typedef enum attempt_state { WORKS, DONE, ABANDONED } attempt_state;

struct tutti_async_connect {
    tutti_listener_info listener;
    tutti_conn_id conn_id;
    tutti_connection connections[TUTTI_LANES_MOST]; /* of all lanes */
    bool taken;                                     /* they were passed by the caller */
    bool calls;                                     /* this side connects */
    bool reached;                                   /* they are connected: an error is the transport's */
    int64_t timeout_ms;
    tutti_pipe *pipe; /* the result; NULL: see `status` and `error` */
    tutti_status status;
    tutti_error error;
    char turned[256]; /* why the transport tried before this one failed; "": there was none */
    atomic_int state; /* attempt_state */
};

static void free_attempt(tutti_async_connect *attempt) {
    if (attempt->pipe != NULL) attempt->pipe->transport->close(attempt->pipe);
    free(attempt);
}

/* True for the first of thread and owner to finish; the second one frees. Release and acquire publish the result. */
static bool is_first(tutti_async_connect *attempt, attempt_state state) {
    int works = WORKS;
    return atomic_compare_exchange_strong_explicit(&attempt->state, &works, state, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static void close_all(const tutti_connection *connections, uint32_t count) {
    for (uint32_t lane = 0; lane < count; lane++) close(connections[lane].socket);
}

/* Connects all lanes before any is opened: the other side takes them together. */
static tutti_status connect_all(tutti_async_connect *o, tutti_deadline *deadline) {
    for (o->conn_id.lane = 0; o->conn_id.lane < o->conn_id.lanes; o->conn_id.lane++) {
        uint32_t lane = o->conn_id.lane;
        tutti_status status = tutti_listener_connect(&o->listener, &o->conn_id, deadline, &o->connections[lane]);
        if (status == TUTTI_OK) continue;
        close_all(o->connections, lane);
        return status;
    }
    return TUTTI_OK;
}

/* Waits for the other side to connect again. */
static tutti_status await_all(tutti_async_connect *o, tutti_deadline *deadline) {
    for (;;) {
        tutti_status status = tutti_listener_take(&o->conn_id, o->connections);
        if (status != TUTTI_NOT_YET) return status;
        if (atomic_load_explicit(&o->state, memory_order_relaxed) == ABANDONED) return TUTTI_ERR_ABORTED;
        if (tutti_deadline_passed(deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT, "the other side did not connect for %s in time",
                              tutti_transports[o->conn_id.transport]->name);
        tutti_nap(LOOK_NS);
    }
}

/* Opens the transport that the connection id names. */
static tutti_status open_way(tutti_async_connect *o) {
    tutti_deadline deadline = tutti_deadline_after_ms(o->timeout_ms);
    const tutti_transport *transport = tutti_transports[o->conn_id.transport];
    tutti_status status = tutti_transport_permit(transport);
    if (status != TUTTI_OK && o->taken) close_all(o->connections, o->conn_id.lanes);
    if (status == TUTTI_OK && !o->taken) status = (o->calls ? connect_all : await_all)(o, &deadline);
    if (status != TUTTI_OK) return status;
    o->reached = true;
    o->taken = false; /* the transport takes them over */
    for (o->conn_id.lane = 0; o->conn_id.lane < o->conn_id.lanes; o->conn_id.lane++)
        tutti_route_log_connection(&o->conn_id, o->connections[o->conn_id.lane].socket);
    /* The other side does its part at its next call of the library, which may come as late as an operation may last. */
    int64_t operation_ms = tutti_setting_int(TUTTI_SETTING_TIMEOUT_MS);
    tutti_deadline open_by = tutti_deadline_after_ms(o->timeout_ms > operation_ms ? o->timeout_ms : operation_ms);
    return tutti_multi_socket_open(transport, o->connections, (int)o->conn_id.lanes, &open_by, &o->pipe);
}

/* Selects the next transport that both sides support, as their listener infos say. False: there is none. */
static bool turn_to_next(tutti_async_connect *o) {
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    const tutti_error why = tutti_fail_save();
    tutti_listener_info own;
    uint32_t tried = (UINT32_C(2) << o->conn_id.transport) - 1;
    int next = tutti_listener_open(&own) == TUTTI_OK
                   ? tutti_transport_common(own.transports & ~tried, o->listener.transports)
                   : -1;
    if (next < 0) {
        tutti_fail_again(TUTTI_ERR_UNSUPPORTED, &why);
        return false;
    }
    tutti_log(atomic_flag_test_and_set(&logged) ? TUTTI_LOG_DEBUG : TUTTI_LOG_WARN, "%s; using %s instead", why.text,
              tutti_transports[next]->name);
    snprintf(o->turned, sizeof o->turned, "%.255s", why.text);
    o->conn_id.transport = (uint32_t)next;
    o->conn_id.lanes = tutti_multi_socket_lanes(tutti_transports[next]);
    o->reached = false;
    return true;
}

static tutti_status open_pipe(tutti_async_connect *o) {
    tutti_status status;
    do status = open_way(o);
    while (status == TUTTI_ERR_UNSUPPORTED && o->reached && turn_to_next(o));
    if (status == TUTTI_OK) snprintf(o->pipe->error, sizeof o->pipe->error, "%s", o->turned);
    return status;
}

static void *attempt_thread(void *argument) {
    tutti_async_connect *o = argument;
    o->status = open_pipe(o);
    explicit_bzero(o->connections, sizeof o->connections); /* contain keys */
    if (o->status != TUTTI_OK) o->error = tutti_fail_save();
    if (!is_first(o, DONE)) free_attempt(o);
    return NULL;
}

tutti_status tutti_async_connect_start(const tutti_listener_info *listener, const tutti_conn_id *conn_id,
                                       const tutti_connection *taken, int64_t timeout_ms,
                                       tutti_async_connect **attempt_out) {
    tutti_async_connect *attempt = NULL;
    tutti_status status = tutti_calloc(1, sizeof *attempt, &attempt);
    if (status == TUTTI_OK) {
        attempt->listener = *listener;
        attempt->conn_id = *conn_id;
        attempt->taken = taken != NULL;
        attempt->calls = taken == NULL;
        if (taken != NULL) memcpy(attempt->connections, taken, conn_id->lanes * sizeof *taken);
        attempt->timeout_ms = timeout_ms;
        int error = tutti_thread_start(TUTTI_THREAD_CONNECT, attempt_thread, attempt, NULL);
        if (error != 0) status = tutti_fail_errno(error, "cannot start a thread that opens a connection");
    }
    if (status != TUTTI_OK) {
        if (taken != NULL) close_all(taken, conn_id->lanes);
        free(attempt);
        return status;
    }
    *attempt_out = attempt;
    return TUTTI_OK;
}

tutti_status tutti_async_connect_take(tutti_async_connect *attempt, tutti_pipe **pipe_out) {
    if (atomic_load_explicit(&attempt->state, memory_order_acquire) != DONE) return TUTTI_NOT_YET;
    tutti_status status = attempt->status;
    if (status == TUTTI_OK) *pipe_out = attempt->pipe;
    else tutti_fail_again(status, &attempt->error);
    attempt->pipe = NULL;
    free_attempt(attempt);
    return status;
}

void tutti_async_connect_abandon(tutti_async_connect *attempt) {
    if (attempt != NULL && !is_first(attempt, ABANDONED)) free_attempt(attempt);
}
