/*
 * Threads that open pipes. See opener.h.
 *
 * A transport may be there on both sides and lead nowhere all the same: adapters on networks that do not meet, say. Both sides
 * learn that when it is opened, and turn to the next one that both have, on connections of their own: who called calls again.
 */
#include "comm/opener.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/base/thread.h"
#include "comm/transports/bundle.h"
#include "comm/ways.h"

#define LOOK_NS TUTTI_NS_PER_MS /* between two looks at the door */

typedef enum opener_state { WORKS, DONE, ABANDONED } opener_state;

struct tutti_opener {
    tutti_door_card door;
    tutti_ticket ticket;
    tutti_connection connections[TUTTI_LANES_MOST]; /* of all lanes */
    bool taken;                                     /* they are there already */
    bool calls;                                     /* this side makes them */
    bool reached;                                   /* they are there: what fails is the transport */
    int64_t timeout_ms;
    tutti_pipe *pipe; /* the result; NULL: `status` and `error` say why */
    tutti_status status;
    char error[TUTTI_ERROR_TEXT_BYTES];
    char turned[256]; /* why the transport before this one did not lead there; "": there was none */
    atomic_int state; /* opener_state */
};

static void free_opener(tutti_opener *opener) {
    if (opener->pipe != NULL) opener->pipe->transport->close(opener->pipe);
    free(opener);
}

/* True for the first of thread and owner; the other one's turn it is to free. Release and acquire: the result passes. */
static bool is_first(tutti_opener *opener, opener_state state) {
    int works = WORKS;
    return atomic_compare_exchange_strong_explicit(&opener->state, &works, state, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static void close_all(const tutti_connection *connections, uint32_t count) {
    for (uint32_t lane = 0; lane < count; lane++) close(connections[lane].socket);
}

/* All lanes, before anything is opened: the other side takes them together. */
static tutti_status connect_all(tutti_opener *o, tutti_deadline *deadline) {
    for (o->ticket.lane = 0; o->ticket.lane < o->ticket.lanes; o->ticket.lane++) {
        uint32_t lane = o->ticket.lane;
        tutti_status status = tutti_door_connect(&o->door, &o->ticket, deadline, &o->connections[lane]);
        if (status == TUTTI_OK) continue;
        close_all(o->connections, lane);
        return status;
    }
    return TUTTI_OK;
}

/* The other side calls again. */
static tutti_status await_all(tutti_opener *o, tutti_deadline *deadline) {
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    for (;;) {
        tutti_status status = tutti_door_take(&o->ticket, o->connections);
        if (status != TUTTI_NOT_YET) return status;
        if (atomic_load_explicit(&o->state, memory_order_relaxed) == ABANDONED) return TUTTI_ERR_ABORTED;
        if (tutti_deadline_passed(deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT, "the other side has not tried %s in time",
                              tutti_transports[o->ticket.transport]->name);
        nanosleep(&nap, NULL);
    }
}

/* On the ticket's transport. */
static tutti_status open_way(tutti_opener *o) {
    tutti_deadline deadline = tutti_deadline_after_ms(o->timeout_ms);
    const tutti_transport *transport = tutti_transports[o->ticket.transport];
    tutti_status status = tutti_transport_permit(transport);
    if (status != TUTTI_OK && o->taken) close_all(o->connections, o->ticket.lanes);
    if (status == TUTTI_OK && !o->taken) status = (o->calls ? connect_all : await_all)(o, &deadline);
    if (status != TUTTI_OK) return status;
    o->reached = true;
    o->taken = false; /* the transport takes them over */
    for (o->ticket.lane = 0; o->ticket.lane < o->ticket.lanes; o->ticket.lane++)
        tutti_ways_tell_connection(&o->ticket, o->connections[o->ticket.lane].socket);
    /* The other side does its part when it next calls the library: as late as an operation may last. */
    int64_t operation_ms = tutti_setting_int(TUTTI_SETTING_TIMEOUT_MS);
    tutti_deadline open_by = tutti_deadline_after_ms(o->timeout_ms > operation_ms ? o->timeout_ms : operation_ms);
    return tutti_bundle_open(transport, o->connections, (int)o->ticket.lanes, &open_by, &o->pipe);
}

/* The next transport that both sides have: both know it from the other one's door. False: there is none. */
static bool turn_to_next(tutti_opener *o) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char why[TUTTI_ERROR_TEXT_BYTES];
    tutti_door_card own;
    uint32_t tried = (UINT32_C(2) << o->ticket.transport) - 1;
    snprintf(why, sizeof why, "%s", tutti_last_error());
    int next =
        tutti_door_open(&own) == TUTTI_OK ? tutti_transport_common(own.transports & ~tried, o->door.transports) : -1;
    if (next < 0) {
        tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s", why);
        return false;
    }
    tutti_log(atomic_flag_test_and_set(&told) ? TUTTI_LOG_DEBUG : TUTTI_LOG_WARN, "%s; goes by %s", why,
              tutti_transports[next]->name);
    snprintf(o->turned, sizeof o->turned, "%.255s", why);
    o->ticket.transport = (uint32_t)next;
    o->ticket.lanes = tutti_bundle_lanes(tutti_transports[next]);
    o->reached = false;
    return true;
}

static tutti_status open_pipe(tutti_opener *o) {
    tutti_status status;
    do status = open_way(o);
    while (status == TUTTI_ERR_UNSUPPORTED && o->reached && turn_to_next(o));
    if (status == TUTTI_OK) snprintf(o->pipe->error, sizeof o->pipe->error, "%s", o->turned);
    return status;
}

static void *opener_thread(void *argument) {
    tutti_opener *o = argument;
    o->status = open_pipe(o);
    explicit_bzero(o->connections, sizeof o->connections); /* their keys */
    if (o->status != TUTTI_OK) snprintf(o->error, sizeof o->error, "%s", tutti_last_error());
    if (!is_first(o, DONE)) free_opener(o);
    return NULL;
}

tutti_status tutti_opener_start(const tutti_door_card *door, const tutti_ticket *ticket, const tutti_connection *taken,
                                int64_t timeout_ms, tutti_opener **opener_out) {
    tutti_opener *opener = NULL;
    tutti_status status = tutti_calloc(1, sizeof *opener, &opener);
    if (status == TUTTI_OK) {
        opener->door = *door;
        opener->ticket = *ticket;
        opener->taken = taken != NULL;
        opener->calls = taken == NULL;
        if (taken != NULL) memcpy(opener->connections, taken, ticket->lanes * sizeof *taken);
        opener->timeout_ms = timeout_ms;
        int error = tutti_thread_start("tutti-connect", opener_thread, opener, NULL);
        if (error != 0) status = tutti_fail_errno(error, "cannot start a thread that opens a connection");
    }
    if (status != TUTTI_OK) {
        if (taken != NULL) close_all(taken, ticket->lanes);
        free(opener);
        return status;
    }
    *opener_out = opener;
    return TUTTI_OK;
}

tutti_status tutti_opener_take(tutti_opener *opener, tutti_pipe **pipe_out) {
    if (atomic_load_explicit(&opener->state, memory_order_acquire) != DONE) return TUTTI_NOT_YET;
    tutti_status status = opener->status;
    if (status == TUTTI_OK) *pipe_out = opener->pipe;
    else tutti_fail(status, "%s", opener->error);
    opener->pipe = NULL;
    free_opener(opener);
    return status;
}

void tutti_opener_abandon(tutti_opener *opener) {
    if (opener != NULL && !is_first(opener, ABANDONED)) free_opener(opener);
}
