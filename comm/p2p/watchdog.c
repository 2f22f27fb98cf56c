/*
 * Failures of sends and receives: deadlines, stalls, deaths, departures, broken communicators and channels.
 *
 * Runs at most every CHECK_NS, while requests are pending, inside tutti_p2p_progress. The data that a process has
 * sent before it died or left is read first; then only the requests that still need that process fail. A departure
 * fails the requests that need that rank; everything else breaks the communicator (the verdict, carried out without
 * the lock).
 */
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "comm/health/heartbeat.h"
#include "comm/health/monitor.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p_state.h"
#include "comm/p2p/remote_channel.h"

#define CHECK_NS     (50 * TUTTI_NS_PER_MS)
#define DRAIN_ROUNDS 64
#define LEGACY_NS    INT64_C(1000000000)

enum { NEEDS_NO_RANK = -2 };

/* The rank that the request still needs; TUTTI_ANY_SOURCE, or NEEDS_NO_RANK. */
static int needed_rank(const tutti_request *request) {
    switch (request->phase) {
    case TUTTI_PHASE_PULLING:
    case TUTTI_PHASE_ENDED: return NEEDS_NO_RANK;
    case TUTTI_PHASE_RECEIVING: return request->source_rank;
    default: return request->peer;
    }
}

/* --------------------------------------------------------------------------------------------- looking */

/* Reads all data that the process has sent; false: there is more, or no memory to keep it. */
static bool drain(tutti_channels *channel) {
    for (int i = 0; i < DRAIN_ROUNDS; i++)
        if (tutti_incoming_read(channel)) return true;
    return false;
}

/* Data that a process of another host sent before it ended may still be in transit for a moment. */
static bool may_still_come(tutti_channels *channel) {
    int64_t now_ns = tutti_now_ns();
    if (channel->remote == NULL) return false;
    if (channel->dead_since_ns == 0) channel->dead_since_ns = now_ns;
    return now_ns - channel->dead_since_ns < LEGACY_NS;
}

static void look_for_deaths(struct tutti_channel_list *list) {
    tutti_channels *next;
    for (tutti_channels *channel = TAILQ_FIRST(list); channel != NULL; channel = next) {
        next = TAILQ_NEXT(channel, link); /* draining may move the channel to the other list */
        if (!channel->gone && tutti_peer_ended(channel->peer) && !may_still_come(channel))
            channel->gone = drain(channel);
    }
}

static void look_for_departures(tutti_port *port) {
    if (port->comm->net.hosts != NULL) tutti_heartbeat_read_deaths(port->comm);
    for (int rank = 0; rank < port->comm->nranks; rank++) {
        if (port->left[rank] || rank == port->rank || !tutti_p2p_has_left(port, rank)) continue;
        tutti_peer *process = port->comm->members[rank].process;
        port->left[rank] = process->self || drain(process->channels);
    }
}

/* ------------------------------------------------------------------------------------------ departures */

static bool all_others_left(const tutti_port *port) {
    for (int rank = 0; rank < port->comm->nranks; rank++) {
        const tutti_peer *process = port->comm->members[rank].process;
        bool lost = process->remote && process->channels->gone;
        if (rank != port->rank && !port->left[rank] && !lost) return false;
    }
    return port->comm->nranks > 1;
}

static tutti_request *first_deserted(const tutti_port *port) {
    tutti_request *request;
    for (request = TAILQ_FIRST(&port->all); request != NULL; request = TAILQ_NEXT(request, all_link)) {
        int rank = needed_rank(request);
        if (rank == NEEDS_NO_RANK) continue;
        /* This rank may still send to itself: it has until the stall to do so. */
        if (rank == TUTTI_ANY_SOURCE ? request->reported && all_others_left(port) : port->left[rank]) return request;
    }
    return NULL;
}

/* Starts again after each failure, since a failure may end other requests, too. */
static void fail_deserted(tutti_port *port) {
    tutti_request *request;
    while ((request = first_deserted(port)) != NULL) tutti_request_fail_left(request, needed_rank(request));
}

/* -------------------------------------------------------------------------------------------- verdicts
 * Each judge_ function returns true when it has found a reason to break the port's communicator. */

static bool judge_pages(const tutti_port *port, tutti_verdict *verdict) {
    for (int rank = 0; rank < port->comm->nranks; rank++)
        if (tutti_p2p_read_reason(port, rank, verdict)) return true;
    return false;
}

static bool judge_process(const tutti_request *request, int rank, tutti_verdict *verdict) {
    tutti_peer *process = request->port->comm->members[rank].process;
    tutti_channels *channel = process->channels;
    if (process->remote && !channel->gone && !channel->broken) tutti_remote_reach(channel);
    if (process->self || request->port->left[rank] || (!channel->gone && !channel->broken)) return false;
    /* A remote process that is gone may have left; a request for any rank does not need it. */
    bool died = !process->remote || tutti_peer_ended(process);
    if (needed_rank(request) < 0 && !channel->broken && !died) return false;
    char what[512], name[192];
    tutti_request_describe(request, what, sizeof what);
    tutti_peer_describe_rank(request->port->comm, rank, name, sizeof name);
    verdict->status = channel->broken ? TUTTI_ERR_DATA : TUTTI_ERR_PEER_DIED;
    if (channel->broken)
        snprintf(verdict->text, sizeof verdict->text, "messages from %s cannot be read: %s; %s", name, channel->error,
                 what);
    else if (died) snprintf(verdict->text, sizeof verdict->text, "%s died; %s", name, what);
    else
        snprintf(verdict->text, sizeof verdict->text, "%s has ended or can no longer be reached (%s); %s", name,
                 channel->error, what);
    return true;
}

static bool judge_peers(const tutti_request *request, tutti_verdict *verdict) {
    int needed = needed_rank(request);
    if (needed >= 0) return judge_process(request, needed, verdict);
    if (needed == NEEDS_NO_RANK) return false;
    for (int rank = 0; rank < request->port->comm->nranks; rank++)
        if (judge_process(request, rank, verdict)) return true;
    return false;
}

static void report_stall(const tutti_request *request) {
    char what[512];
    int rank = needed_rank(request);
    bool other = rank >= 0 && !request->port->comm->members[rank].process->self;
    tutti_log(TUTTI_LOG_WARN, "stalled for %lld ms: %s%s%s", (long long)(request->stall.spent_ns / TUTTI_NS_PER_MS),
              tutti_request_describe(request, what, sizeof what), other ? "; that process " : "",
              other ? tutti_monitor_process_state(request->port->comm, rank) : "");
}

static bool judge_clocks(tutti_request *request, tutti_verdict *verdict) {
    const tutti_comm *comm = request->port->comm;
    int64_t timeout_ms = request->work->op.timeout_ms > 0 ? request->work->op.timeout_ms : comm->timeout_ms;
    if (!request->clocks) {
        request->deadline = tutti_deadline_after_ms(timeout_ms);
        request->stall = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_STALL_MS));
        request->clocks = true;
        return false;
    }
    if (!request->reported && tutti_deadline_passed(&request->stall)) {
        request->reported = true;
        report_stall(request);
    }
    if (!tutti_deadline_passed(&request->deadline)) return false;
    char what[512];
    verdict->status = TUTTI_ERR_TIMEOUT;
    snprintf(verdict->text, sizeof verdict->text, "%s; its deadline of %lld ms has passed",
             tutti_request_describe(request, what, sizeof what), (long long)timeout_ms);
    return true;
}

static bool judge(const tutti_port *port, tutti_verdict *verdict) {
    tutti_request *request;
    for (request = TAILQ_FIRST(&port->all); request != NULL; request = TAILQ_NEXT(request, all_link))
        if (judge_peers(request, verdict) || judge_clocks(request, verdict)) return true;
    return false;
}

/* Returns true if the port got the verdict. */
static bool check_port(tutti_port *port, tutti_verdict *verdict) {
    if (TAILQ_EMPTY(&port->all)) return false;
    /* first, so that a rank that breaks the communicator and leaves at once still gives the reason */
    bool broken = judge_pages(port, verdict);
    if (!broken) {
        look_for_departures(port);
        fail_deserted(port);
        broken = judge(port, verdict);
    }
    if (!broken) return false;
    verdict->port = port;
    port->pins++;
    return true;
}

void tutti_watch_check(tutti_verdict *verdict_out) {
    verdict_out->port = NULL;
    if (atomic_load_explicit(&tutti_p2p.pending, memory_order_relaxed) == 0) return;
    uint64_t ticks = tutti_ticks();
    if (TUTTI_LIKELY(tutti_ticks_to_ns(ticks - tutti_p2p.last_check_ticks) < CHECK_NS)) return;
    look_for_deaths(&tutti_p2p.found);
    look_for_deaths(&tutti_p2p.unfound);
    for (size_t i = 0; i < TUTTI_PORT_BUCKETS; i++)
        for (tutti_port *port = tutti_p2p.ports[i]; port != NULL; port = port->next)
            if (check_port(port, verdict_out)) return; /* the next call checks the others */
    tutti_p2p.last_check_ticks = ticks;
}
