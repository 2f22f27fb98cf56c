/*
 * The watcher's checks for an engine without its own: late calls, mismatched calls, and calls that need a dead or
 * departed rank. Any finding breaks the communicator; inflight.c then releases the streams.
 *
 * A rank may have ended, or broken the communicator, after it had done its part: so the completion of a call is
 * checked before all this.
 */
#include <stdio.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/base/broken.h"
#include "comm/base/call.h"
#include "comm/gpu/call_log.h"
#include "comm/gpu/stream_state.h"
#include "comm/health/heartbeat.h"
#include "comm/health/monitor.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/peer.h"

#define GRACE_NS      INT64_C(400000000)  /* for the mark of a call that a rank finished before it ended */
#define LEFT_GRACE_NS INT64_C(1500000000) /* the same before it left, which takes a while on a busy host */
#define DEFER_NS      TUTTI_NS_PER_S      /* between the deadlines of ranks of several hosts, at most */

const char *tutti_inflight_describe(const tutti_inflight *track, char *text, size_t capacity) {
    tutti_call call = tutti_call_of(&track->op);
    return tutti_call_describe(&call, text, capacity);
}

tutti_status tutti_stream_check_broken(tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        tutti_broken broken;
        if (rank == comm->rank || !tutti_broken_read(comm, rank, &broken)) continue;
        bool remote = comm->net.hosts != NULL && comm->members[rank].page == comm->net.hosts->elsewhere;
        return tutti_comm_give_up(
            comm, tutti_broken_adopt(comm, remote ? comm->net.hosts->told_by : rank, broken.status, broken.text));
    }
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------- deadlines, deaths */

static void report_stall(const tutti_comm *comm, const tutti_inflight *track) {
    char name[160], missing[800];
    tutti_log(TUTTI_LOG_WARN,
              "stalled: rank %d waits for %lld ms in %s of communicator \"%s\" (%zu bytes, engine \"%s\")%s",
              comm->rank, (long long)(track->stall.spent_ns / TUTTI_NS_PER_MS),
              tutti_inflight_describe(track, name, sizeof name), comm->name,
              track->op.count * tutti_type_bytes(track->op.type), track->engine->name,
              tutti_call_log_missing(comm, track->op.sequence, missing, sizeof missing));
}

/* The deadline has passed. A rank that knows less about the missing ranks leaves the report to another rank for a
 * while. */
static tutti_status end_late(tutti_comm *comm, tutti_inflight *track) {
    char name[160], missing[800];
    int64_t now_ns = tutti_now_ns();
    if (track->late_ns == 0) track->late_ns = now_ns;
    if (now_ns - track->late_ns < DEFER_NS && tutti_call_log_defers(comm, track->op.sequence)) return TUTTI_OK;
    tutti_fail(TUTTI_ERR_TIMEOUT, "%s of communicator \"%s\" did not complete within %lld ms (engine \"%s\")%s",
               tutti_inflight_describe(track, name, sizeof name), comm->name, (long long)track->timeout_ms,
               track->engine->name, tutti_call_log_missing(comm, track->op.sequence, missing, sizeof missing));
    return tutti_comm_give_up(comm, TUTTI_ERR_TIMEOUT);
}

static tutti_status mind_deadline(tutti_stream_comm *gpu, tutti_inflight *track) {
    if (!track->has_begun) {
        if (tutti_stream_event_ask(track->begun) != TUTTI_OK) return TUTTI_OK;
        track->has_begun = true;
        track->deadline = tutti_deadline_after_ms(track->timeout_ms);
        track->stall = tutti_deadline_after_ms(tutti_setting_int(TUTTI_SETTING_STALL_MS));
    }
    if (!track->reported && tutti_deadline_passed(&track->stall)) {
        track->reported = true;
        report_stall(gpu->comm, track);
    }
    return tutti_deadline_passed(&track->deadline) ? end_late(gpu->comm, track) : TUTTI_OK;
}

/* Returns the first rank that has died or left; -1: none. */
static int gone_rank(const tutti_comm *comm) {
    if (comm->net.hosts != NULL) tutti_heartbeat_read_deaths(comm);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_member *member = &comm->members[rank];
        if (rank == comm->rank) continue;
        if (tutti_peer_ended(member->process)) return rank;
        if (atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0) return rank;
    }
    return -1;
}

/* A rank may have ended after it had done its part: then the stream is about to pass the mark of this call as
 * well. */
static tutti_status mind_deaths(tutti_stream_comm *gpu, tutti_inflight *track) {
    tutti_comm *comm = gpu->comm;
    char name[160];
    if (comm->net.hosts != NULL) tutti_p2p_progress(); /* receives their reports */
    TUTTI_TRY(tutti_stream_check_broken(comm));
    int rank = gone_rank(comm);
    int64_t now_ns = tutti_now_ns();
    if (rank < 0) track->ended_ns = 0;
    else if (track->ended_ns == 0) track->ended_ns = now_ns;
    if (rank < 0) return TUTTI_OK;
    bool left = !tutti_peer_ended(comm->members[rank].process);
    if (now_ns - track->ended_ns < (left ? LEFT_GRACE_NS : GRACE_NS)) return TUTTI_OK;
    if (left) {
        tutti_fail(TUTTI_ERR_BROKEN, "rank %d has destroyed communicator \"%s\" and does not take part in %s", rank,
                   comm->name, tutti_inflight_describe(track, name, sizeof name));
        return tutti_comm_give_up(comm, TUTTI_ERR_BROKEN);
    }
    return tutti_comm_give_up(comm, tutti_monitor_died(comm, rank, tutti_inflight_describe(track, name, sizeof name)));
}

tutti_status tutti_stream_check(tutti_stream_comm *gpu) {
    tutti_inflight *track;
    bool begun = false; /* a collective has begun: those behind it wait for the same ranks */
    const tutti_stream_engine *engine = gpu->engine;
    TUTTI_TRY(tutti_call_log_look(gpu->comm));
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        if (track->engine->minds_deaths) continue;
        TUTTI_TRY(mind_deadline(gpu, track));
        if (!track->has_begun || begun) continue;
        TUTTI_TRY(mind_deaths(gpu, track));
        begun = true;
    }
    if (engine == NULL || engine->health == NULL || TAILQ_EMPTY(&gpu->tracks->under_way)) return TUTTI_OK;
    tutti_status status = engine->health(gpu->comm);
    return status == TUTTI_OK ? TUTTI_OK : tutti_comm_give_up(gpu->comm, status);
}

/* ----------------------------------------------------------------------------------------- calls in graphs */

/* Returns a rank that died and had not left before, since a rank that has left launches no graph any more; -1:
 * none. */
static int dead_rank(const tutti_comm *comm) {
    if (comm->net.hosts != NULL) tutti_heartbeat_read_deaths(comm);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_member *member = &comm->members[rank];
        bool left = atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0;
        if (rank != comm->rank && !left && tutti_peer_ended(member->process)) return rank;
    }
    return -1;
}

/* Checks the calls in graphs. It is unknown whether a graph waits for the dead rank, so a death is reported even if
 * no graph waits for it. */
static tutti_status judge_graphs(tutti_stream_comm *gpu) {
    const tutti_comm *comm = gpu->comm;
    int rank = dead_rank(comm);
    int64_t now_ns = tutti_now_ns();
    if (rank < 0) gpu->tracks->dead_ns = 0;
    else if (gpu->tracks->dead_ns == 0) gpu->tracks->dead_ns = now_ns;
    if (rank < 0 && gpu->engine->health != NULL) return gpu->engine->health(gpu->comm);
    if (rank < 0 || now_ns - gpu->tracks->dead_ns < GRACE_NS) return TUTTI_OK;
    return tutti_monitor_died(comm, rank, "CUDA graphs with calls");
}

tutti_status tutti_stream_check_graphs(tutti_stream_comm *gpu) {
    TUTTI_TRY(tutti_stream_check_broken(gpu->comm));
    tutti_status status = judge_graphs(gpu);
    return status == TUTTI_OK ? TUTTI_OK : tutti_comm_give_up(gpu->comm, status);
}
