/*
 * Collectives under way in streams, and how they end. See stream_state.h.
 *
 * A call ends well if the stream has passed its mark and the communicator was whole until then. When the communicator breaks,
 * its engine releases the streams, works end at once, and tracks go when their marks have passed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/algorithms/engines.h"
#include "comm/arena.h"
#include "comm/hosts.h"
#include "comm/monitor.h"
#include "comm/p2p.h"
#include "comm/peer.h"
#include "comm/stream_ledger.h"
#include "comm/stream_state.h"

#define GRACE_NS INT64_C(400000000) /* for the mark of a call that a rank finished before it ended */
#define DEFER_NS TUTTI_NS_PER_S     /* between the deadlines of ranks of several hosts, at most */

/* ---------------------------------------------------------------------------------------------- the list */

static void track_free(tutti_track *track) {
    tutti_mark_free(track->begun);
    tutti_mark_free(track->done);
    free(track);
}

static tutti_status track_make(const tutti_stream_comm *gpu, tutti_track **track_out) {
    tutti_track *track;
    tutti_status status;
    TUTTI_TRY(tutti_calloc(1, sizeof *track, &track));
    TUTTI_TRY_GOTO(status, tutti_stream_mark(gpu, &track->begun), fail);
    TUTTI_TRY_GOTO(status, tutti_stream_mark(gpu, &track->done), fail);
    *track_out = track;
    return TUTTI_OK;
fail:
    track_free(track);
    return status;
}

tutti_status tutti_track_take(tutti_stream_comm *gpu, tutti_track **track_out) {
    pthread_mutex_lock(&gpu->tracks->lock);
    tutti_track *track = TAILQ_FIRST(&gpu->tracks->spare);
    if (track != NULL) TAILQ_REMOVE(&gpu->tracks->spare, track, link);
    pthread_mutex_unlock(&gpu->tracks->lock);
    if (track == NULL) TUTTI_TRY(track_make(gpu, &track));
    track->has_begun = track->reported = track->message.direct = false;
    track->ended_ns = track->late_ns = 0;
    track->work = NULL;
    *track_out = track;
    return TUTTI_OK;
}

static void put_back(tutti_stream_comm *gpu, tutti_track *track) {
    tutti_work_free(track->work);
    track->work = NULL;
    TAILQ_INSERT_HEAD(&gpu->tracks->spare, track, link);
}

void tutti_track_drop(tutti_stream_comm *gpu, tutti_track *track) {
    if (track == NULL) return;
    pthread_mutex_lock(&gpu->tracks->lock);
    put_back(gpu, track);
    pthread_mutex_unlock(&gpu->tracks->lock);
}

void tutti_track_add(tutti_stream_comm *gpu, tutti_track *track) {
    pthread_mutex_lock(&gpu->tracks->lock);
    TAILQ_INSERT_TAIL(&gpu->tracks->under_way, track, link);
    pthread_mutex_unlock(&gpu->tracks->lock);
    tutti_stream_watch(gpu);
}

void tutti_track_capture(tutti_stream_comm *gpu) {
    if (gpu->comm->nranks == 1) return;
    pthread_mutex_lock(&gpu->tracks->lock);
    gpu->tracks->captured = true;
    pthread_mutex_unlock(&gpu->tracks->lock);
    tutti_stream_watch(gpu);
}

/* ------------------------------------------------------------------------------------------- how they end */

static void end_work(tutti_track *track, tutti_status status) {
    if (track->work == NULL) return;
    tutti_work_end(track->work, status);
    tutti_work_free(track->work);
    track->work = NULL;
}

static const char *describe(const tutti_track *track, char *text, size_t capacity) {
    const tutti_message *m = &track->message;
    if (m->direct) {
        snprintf(text, capacity, "%s of %zu bytes %s rank %d", m->sends ? "send" : "recv", m->bytes,
                 m->sends ? "to" : "from", m->peer);
        return text;
    }
    tutti_call call = tutti_call_of(&track->op);
    return tutti_call_describe(&call, text, capacity);
}

/* Has the stream passed it? A GPU that fails breaks the communicator. */
static bool has_passed(tutti_stream_comm *gpu, tutti_track *track) {
    char name[160], error[TUTTI_ERROR_TEXT_BYTES];
    tutti_status status = tutti_mark_ask(track->done);
    if (status == TUTTI_NOT_YET) return false;
    if (status != TUTTI_OK) {
        snprintf(error, sizeof error, "%s", tutti_last_error());
        status = tutti_fail(status, "%s of communicator \"%s\" failed in its stream on rank %d: %s",
                            describe(track, name, sizeof name), gpu->comm->name, gpu->comm->rank, error);
        tutti_comm_give_up(gpu->comm, status);
    }
    return true;
}

/* Another rank says that the communicator is broken: ranks of other hosts are told in turn, since it may not reach them. */
static tutti_status hear_of_break(tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_page *page = comm->members[rank].page;
        if (rank == comm->rank || atomic_load_explicit(&page->state, memory_order_acquire) != TUTTI_PAGE_BROKEN)
            continue;
        char reason[TUTTI_BROKEN_TEXT_BYTES];
        snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, page->broken_text);
        bool far = comm->hosts != NULL && page == comm->hosts->elsewhere;
        return tutti_comm_give_up(
            comm, tutti_monitor_told(comm, far ? comm->hosts->told_by : rank, page->broken_status, reason));
    }
    return TUTTI_OK;
}

/* Who breaks a communicator says so before his engine releases streams, his own and those of others. */
static tutti_status outcome(tutti_comm *comm) {
    TUTTI_TRY(tutti_comm_check(comm));
    return hear_of_break(comm);
}

static void end_passed(tutti_stream_comm *gpu) {
    tutti_track *track = TAILQ_FIRST(&gpu->tracks->under_way), *next;
    for (; track != NULL; track = next) {
        next = TAILQ_NEXT(track, link);
        if (!has_passed(gpu, track)) continue;
        TAILQ_REMOVE(&gpu->tracks->under_way, track, link);
        end_work(track, outcome(gpu->comm));
        put_back(gpu, track);
    }
}

/* ------------------------------------------------------------- what an engine leaves to us: lateness, deaths */

static void report_stall(const tutti_comm *comm, const tutti_track *track) {
    char name[160], missing[800];
    tutti_log(TUTTI_LOG_WARN,
              "stalled: rank %d waits for %lld ms in %s of communicator \"%s\" (%zu bytes, by \"%s\")%s", comm->rank,
              (long long)(track->stall.spent_ns / TUTTI_NS_PER_MS), describe(track, name, sizeof name), comm->name,
              track->message.direct ? track->message.bytes : track->op.count * tutti_type_bytes(track->op.type),
              track->engine->name, tutti_stream_ledger_missing(comm, track->op.sequence, missing, sizeof missing));
}

/* The deadline has passed. Who knows less of who is missing leaves it to another rank to say so, for a while. */
static tutti_status end_late(tutti_comm *comm, tutti_track *track) {
    char name[160], missing[800];
    int64_t now_ns = tutti_now_ns();
    if (track->late_ns == 0) track->late_ns = now_ns;
    if (now_ns - track->late_ns < DEFER_NS && tutti_stream_ledger_defers(comm, track->op.sequence)) return TUTTI_OK;
    tutti_fail(TUTTI_ERR_TIMEOUT, "%s of communicator \"%s\" was not done after %lld ms (carried out by \"%s\")%s",
               describe(track, name, sizeof name), comm->name, (long long)track->timeout_ms, track->engine->name,
               tutti_stream_ledger_missing(comm, track->op.sequence, missing, sizeof missing));
    return tutti_comm_give_up(comm, TUTTI_ERR_TIMEOUT);
}

static tutti_status mind_deadline(tutti_stream_comm *gpu, tutti_track *track) {
    if (!track->has_begun) {
        if (tutti_mark_ask(track->begun) != TUTTI_OK) return TUTTI_OK;
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

/* The first rank that has died or left of those that the call needs; -1: none. */
static int gone_rank(const tutti_comm *comm, const tutti_track *track) {
    if (comm->hosts != NULL) tutti_hosts_hear(comm);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_member *member = &comm->members[rank];
        if (rank == comm->rank || (track->message.direct && rank != track->message.peer)) continue;
        if (tutti_peer_ended(member->process)) return rank;
        if (atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0) return rank;
    }
    return -1;
}

/* A rank may have ended after it had done its part: then this call's mark is about to pass as well. */
static tutti_status mind_deaths(tutti_stream_comm *gpu, tutti_track *track) {
    tutti_comm *comm = gpu->comm;
    char name[160];
    if (comm->hosts != NULL) tutti_p2p_progress(); /* for what they say */
    TUTTI_TRY(hear_of_break(comm));
    int rank = gone_rank(comm, track);
    int64_t now_ns = tutti_now_ns();
    if (rank < 0) track->ended_ns = 0;
    else if (track->ended_ns == 0) track->ended_ns = now_ns;
    if (rank < 0 || now_ns - track->ended_ns < GRACE_NS) return TUTTI_OK;
    const tutti_peer *peer = comm->members[rank].process;
    if (!tutti_peer_ended(comm->members[rank].process)) {
        tutti_fail(TUTTI_ERR_BROKEN, "rank %d has destroyed communicator \"%s\" and does not take part in %s", rank,
                   comm->name, describe(track, name, sizeof name));
        return tutti_comm_give_up(comm, TUTTI_ERR_BROKEN);
    }
    tutti_fail(TUTTI_ERR_PEER_DIED, "rank %d (host %s, pid %d) died; %s of communicator \"%s\" cannot go on", rank,
               peer->host, (int)peer->pid, describe(track, name, sizeof name), comm->name);
    return tutti_comm_give_up(comm, TUTTI_ERR_PEER_DIED);
}

static tutti_status mind(tutti_stream_comm *gpu) {
    tutti_track *track;
    bool begun = false; /* a collective: those behind it wait for the same ranks */
    const tutti_stream_engine *engine = gpu->engine;
    TUTTI_TRY(tutti_stream_ledger_look(gpu->comm));
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        if (track->engine->minds_deaths) continue;
        TUTTI_TRY(mind_deadline(gpu, track));
        if (!track->has_begun || (begun && !track->message.direct)) continue;
        TUTTI_TRY(mind_deaths(gpu, track));
        begun = begun || !track->message.direct;
    }
    if (engine == NULL || engine->health == NULL || TAILQ_EMPTY(&gpu->tracks->under_way)) return TUTTI_OK;
    tutti_status status = engine->health(gpu->comm);
    return status == TUTTI_OK ? TUTTI_OK : tutti_comm_give_up(gpu->comm, status);
}

/* ----------------------------------------------------------------------------------------- calls in graphs */

/* A rank that died and had not left before, since who has left launches no graph any more; -1: none. */
static int dead_rank(const tutti_comm *comm) {
    if (comm->hosts != NULL) tutti_hosts_hear(comm);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_member *member = &comm->members[rank];
        bool left = atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0;
        if (rank != comm->rank && !left && tutti_peer_ended(member->process)) return rank;
    }
    return -1;
}

/* Is all well with them? Whether a graph waits for a rank that died is not known, so that this is told where none does, too. */
static tutti_status judge_graphs(tutti_stream_comm *gpu) {
    const tutti_comm *comm = gpu->comm;
    int rank = dead_rank(comm);
    int64_t now_ns = tutti_now_ns();
    if (rank < 0) gpu->tracks->dead_ns = 0;
    else if (gpu->tracks->dead_ns == 0) gpu->tracks->dead_ns = now_ns;
    if (rank < 0 && gpu->engine->health != NULL) return gpu->engine->health(gpu->comm);
    if (rank < 0 || now_ns - gpu->tracks->dead_ns < GRACE_NS) return TUTTI_OK;
    const tutti_peer *peer = comm->members[rank].process;
    return tutti_fail(TUTTI_ERR_PEER_DIED,
                      "rank %d (host %s, pid %d) died; CUDA graphs with calls of communicator \"%s\" cannot go on",
                      rank, peer->host, (int)peer->pid, comm->name);
}

static tutti_status mind_graphs(tutti_stream_comm *gpu) {
    TUTTI_TRY(hear_of_break(gpu->comm));
    tutti_status status = judge_graphs(gpu);
    return status == TUTTI_OK ? TUTTI_OK : tutti_comm_give_up(gpu->comm, status);
}

/* ------------------------------------------------------------------------------------------------- looking */

/* Who asked for no work goes on with what is in his buffers, and hears of this at his next call, if there is one. */
static void tell_unheard(const tutti_stream_comm *gpu) {
    const tutti_track *track;
    char name[160];
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        if (track->work != NULL) continue;
        tutti_comm_check(gpu->comm); /* its text */
        tutti_log(TUTTI_LOG_WARN, "what %s should have brought is not in its buffers: %s",
                  describe(track, name, sizeof name), tutti_last_error());
        return;
    }
}

/* Streams go on, works end. Under the lock. */
static void release_all(tutti_stream_comm *gpu, tutti_status status) {
    tutti_track *track;
    if (!gpu->tracks->aborted) {
        gpu->tracks->aborted = true;
        tell_unheard(gpu);
        if (gpu->engine != NULL && gpu->engine->abort != NULL) gpu->engine->abort(gpu->comm);
        if (gpu->engine != &tutti_engine_staged && gpu->staged) tutti_engine_staged.abort(gpu->comm);
    }
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        tutti_comm_check(gpu->comm); /* its text */
        end_work(track, status);
    }
    tutti_stream_messages_fail(gpu);
}

static bool is_busy(const tutti_stream_comm *gpu) {
    return !TAILQ_EMPTY(&gpu->tracks->under_way) || !TAILQ_EMPTY(&gpu->tracks->messages);
}

/* Marks that are events are asked for on the communicator's GPU: a thread that has none yet would get GPU 0. */
static void prepare_to_ask(tutti_stream_comm *gpu) {
    if (gpu->fault != NULL) {
        tutti_stream_fault_expect(gpu->fault);
        return;
    }
    tutti_status status = gpu->device->use(gpu->index);
    if (status != TUTTI_OK) tutti_comm_give_up(gpu->comm, status);
}

/* Under the lock. */
static void look(tutti_stream_comm *gpu) {
    if (is_busy(gpu)) prepare_to_ask(gpu);
    end_passed(gpu);
    tutti_stream_messages_advance(gpu);
    tutti_status status = tutti_comm_check(gpu->comm);
    if (status == TUTTI_OK) status = mind(gpu);
    if (status == TUTTI_OK && gpu->tracks->captured) status = mind_graphs(gpu);
    if (status != TUTTI_OK) release_all(gpu, status);
}

bool tutti_stream_look(tutti_stream_comm *gpu) {
    pthread_mutex_lock(&gpu->tracks->lock);
    bool goes_on = !gpu->tracks->closed;
    if (goes_on) {
        look(gpu);
        bool minds = gpu->tracks->captured || tutti_stream_ledger_is_behind(gpu);
        goes_on = is_busy(gpu) || (minds && !gpu->tracks->aborted);
    }
    pthread_mutex_unlock(&gpu->tracks->lock);
    return goes_on;
}

bool tutti_stream_is_busy(tutti_stream_comm *gpu) {
    pthread_mutex_lock(&gpu->tracks->lock);
    bool busy = is_busy(gpu) || (!gpu->tracks->aborted && tutti_stream_ledger_is_behind(gpu));
    pthread_mutex_unlock(&gpu->tracks->lock);
    return busy;
}

/* ------------------------------------------------------------------------------------------------- the end */

void tutti_stream_abandon(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->gpu, memory_order_acquire);
    int before = gpu != NULL ? gpu->index : 0;
    if (gpu == NULL) return;
    tutti_stream_enter(gpu, &before); /* a GPU that has failed is left all the same */
    pthread_mutex_lock(&gpu->tracks->lock);
    look(gpu);
    if (is_busy(gpu)) {
        tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was destroyed by rank %d while operations were under way",
                   comm->name, comm->rank);
        release_all(gpu, tutti_comm_give_up(comm, TUTTI_ERR_ABORTED));
    }
    bool idle = !is_busy(gpu);
    pthread_mutex_unlock(&gpu->tracks->lock);
    tutti_stream_leave(gpu, before);
    if (idle && gpu->staged) tutti_queue_settle(comm); /* who stored the last result is about to leave */
}

static void close_engines(tutti_stream_comm *gpu) {
    if (gpu->engine != NULL && gpu->engine->close != NULL) gpu->engine->close(gpu->comm);
    if (gpu->engine != &tutti_engine_staged && gpu->staged) tutti_engine_staged.close(gpu->comm);
}

/* Out of the lists under the lock, and away without it: CUDA may keep whom it is asked by waiting. */
static void free_tracks(tutti_stream_comm *gpu) {
    struct tutti_track_list left = TAILQ_HEAD_INITIALIZER(left);
    tutti_track *track;
    pthread_mutex_lock(&gpu->tracks->lock);
    TAILQ_CONCAT(&left, &gpu->tracks->spare, link);
    TAILQ_CONCAT(&left, &gpu->tracks->under_way, link);
    pthread_mutex_unlock(&gpu->tracks->lock);
    while ((track = TAILQ_FIRST(&left)) != NULL) {
        TAILQ_REMOVE(&left, track, link);
        track_free(track);
    }
}

void tutti_stream_close(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->gpu, memory_order_acquire);
    int before = gpu != NULL ? gpu->index : 0;
    if (comm->seed != NULL) comm->seed->drop(comm->seed);
    comm->seed = NULL;
    if (gpu == NULL) return;
    tutti_stream_enter(gpu, &before);
    pthread_mutex_lock(&gpu->tracks->lock);
    gpu->tracks->closed = true; /* from here on the watcher leaves it alone, and need not wait for the engine */
    bool dozes = gpu->tracks->captured;
    pthread_mutex_unlock(&gpu->tracks->lock);
    if (dozes) tutti_stream_attend(0); /* for the watcher to give up its reference now */
    close_engines(gpu);
    tutti_stream_messages_free(gpu);
    free_tracks(gpu);
    tutti_stream_leave(gpu, before);
}
