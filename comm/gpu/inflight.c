/*
 * Collectives in flight in streams, the thread that watches them (the watcher), and how they end. See stream_state.h.
 *
 * A call succeeds if the stream has passed its mark and the communicator was not broken until then. For an engine
 * without checks of its own, the watcher then looks for late calls, mismatched calls, and calls that need a dead or
 * departed rank; a rank may have ended, or broken the communicator, after it had done its part, so completion is
 * checked first. Any finding breaks the communicator. When the communicator breaks, its engine releases the streams,
 * works fail at once, and in-flight calls are freed when the streams have passed their marks.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/call_log.h"
#include "comm/gpu/stream_state.h"
#include "comm/health/heartbeat.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"
#include "comm/shm/peer.h"

#define GRACE_NS      INT64_C(400000000)  /* for the mark of a call that a rank finished before it ended */
#define LEFT_GRACE_NS INT64_C(1500000000) /* the same before it left, which takes a while on a busy host */
#define DEFER_NS      TUTTI_NS_PER_S      /* between the deadlines of ranks of several hosts, at most */

#define NAP_NS       TUTTI_NS_PER_MS
#define SHORT_NAP_NS (30 * TUTTI_NS_PER_US)
#define LONG_NAP_NS  (50 * TUTTI_NS_PER_MS)

/* ---------------------------------------------------------------------------------------------- the list */

static void track_free(tutti_inflight *track) {
    tutti_stream_event_free(track->begun);
    tutti_stream_event_free(track->done);
    free(track);
}

static tutti_status track_make(const tutti_stream_comm *gpu, tutti_inflight **track_out) {
    tutti_inflight *track;
    tutti_status status;
    TUTTI_TRY(tutti_calloc(1, sizeof *track, &track));
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &track->begun), fail);
    TUTTI_TRY_GOTO(status, tutti_stream_event_make(gpu, &track->done), fail);
    *track_out = track;
    return TUTTI_OK;
fail:
    track_free(track);
    return status;
}

tutti_status tutti_inflight_take(tutti_stream_comm *gpu, tutti_inflight **track_out) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    tutti_inflight *track = TAILQ_FIRST(&gpu->tracks->spare);
    if (track != NULL) TAILQ_REMOVE(&gpu->tracks->spare, track, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    if (track == NULL) TUTTI_TRY(track_make(gpu, &track));
    track->has_begun = track->reported = false;
    track->ended_ns = track->late_ns = 0;
    track->work = NULL;
    *track_out = track;
    return TUTTI_OK;
}

static void put_back(tutti_stream_comm *gpu, tutti_inflight *track) {
    tutti_work_free(track->work);
    track->work = NULL;
    TAILQ_INSERT_HEAD(&gpu->tracks->spare, track, link);
}

void tutti_inflight_drop(tutti_stream_comm *gpu, tutti_inflight *track) {
    if (track == NULL) return;
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    put_back(gpu, track);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
}

void tutti_inflight_add(tutti_stream_comm *gpu, tutti_inflight *track) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    TAILQ_INSERT_TAIL(&gpu->tracks->under_way, track, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
}

void tutti_inflight_capture(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    gpu->tracks->captured = true;
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
}

/* Describes the call for reports and errors. Returns `text`. */
static const char *describe(const tutti_inflight *track, char *text, size_t capacity) {
    tutti_call call = tutti_call_of(&track->op);
    return tutti_call_describe(&call, text, capacity);
}

/* Checks if another rank reports the communicator as broken; if so, breaks it here, which reports it to ranks of
 * other hosts in turn, since the first report may not reach them. */
static tutti_status check_broken(tutti_comm *comm) {
    for (int rank = 0; rank < comm->nranks; rank++) {
        tutti_broken broken;
        if (rank == comm->rank || !tutti_broken_read(comm, rank, &broken)) continue;
        bool remote = comm->net.hosts != NULL && comm->members[rank].page == comm->net.hosts->elsewhere;
        return tutti_comm_give_up(
            comm, tutti_broken_adopt(comm, remote ? comm->net.hosts->reported_by : rank, broken.status, broken.text));
    }
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------------- deadlines, deaths */

static void report_stall(const tutti_comm *comm, const tutti_inflight *track) {
    char name[160], missing[800];
    tutti_log(TUTTI_LOG_WARN,
              "stalled: rank %d waits for %lld ms in %s of communicator \"%s\" (%zu bytes, engine \"%s\")%s",
              comm->rank, (long long)(track->stall.spent_ns / TUTTI_NS_PER_MS), describe(track, name, sizeof name),
              comm->name, track->op.count * tutti_type_bytes(track->op.type), track->engine->name,
              tutti_call_log_missing(comm, track->op.sequence, missing, sizeof missing));
}

/* The deadline has passed. A rank that knows less about the missing ranks leaves the report to another. */
static tutti_status end_late(tutti_comm *comm, tutti_inflight *track) {
    char name[160], missing[800];
    int64_t now_ns = tutti_now_ns();
    if (track->late_ns == 0) track->late_ns = now_ns;
    if (now_ns - track->late_ns < DEFER_NS && tutti_call_log_defers(comm, track->op.sequence)) return TUTTI_OK;
    tutti_fail(TUTTI_ERR_TIMEOUT, "%s of communicator \"%s\" did not complete within %lld ms (engine \"%s\")%s",
               describe(track, name, sizeof name), comm->name, (long long)track->timeout_ms, track->engine->name,
               tutti_call_log_missing(comm, track->op.sequence, missing, sizeof missing));
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

/* A rank may have ended after it had done its part: then the stream is about to pass the mark of this call as well. */
static tutti_status mind_deaths(tutti_stream_comm *gpu, tutti_inflight *track) {
    tutti_comm *comm = gpu->comm;
    char name[160];
    if (comm->net.hosts != NULL) tutti_p2p_progress(); /* receives their reports */
    TUTTI_TRY(check_broken(comm));
    int rank = gone_rank(comm);
    int64_t now_ns = tutti_now_ns();
    if (rank < 0) track->ended_ns = 0;
    else if (track->ended_ns == 0) track->ended_ns = now_ns;
    if (rank < 0) return TUTTI_OK;
    bool left = !tutti_peer_ended(comm->members[rank].process);
    if (now_ns - track->ended_ns < (left ? LEFT_GRACE_NS : GRACE_NS)) return TUTTI_OK;
    if (left) {
        tutti_fail(TUTTI_ERR_BROKEN, "rank %d has destroyed communicator \"%s\" and does not take part in %s", rank,
                   comm->name, describe(track, name, sizeof name));
        return tutti_comm_give_up(comm, TUTTI_ERR_BROKEN);
    }
    return tutti_comm_give_up(comm, tutti_peer_fail_died(comm, rank, describe(track, name, sizeof name)));
}

/* Checks the calls in flight. Any problem breaks the communicator. With the lock of tracks held. */
static tutti_status check(tutti_stream_comm *gpu) {
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

tutti_status tutti_inflight_mind(tutti_stream_comm *gpu, tutti_inflight *track) {
    if (gpu->fault != NULL) tutti_error_poll_expect(gpu->fault);
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    tutti_status status = tutti_comm_check(gpu->comm);
    if (status == TUTTI_OK) status = tutti_call_log_look(gpu->comm);
    if (status == TUTTI_OK) status = mind_deadline(gpu, track);
    if (status == TUTTI_OK) status = mind_deaths(gpu, track);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return status;
}

/* ----------------------------------------------------------------------------------------- calls in graphs */

/* Returns a rank that died and had not left before, since a rank that has left launches no graph any more; -1: none. */
static int dead_rank(const tutti_comm *comm) {
    if (comm->net.hosts != NULL) tutti_heartbeat_read_deaths(comm);
    for (int rank = 0; rank < comm->nranks; rank++) {
        const tutti_member *member = &comm->members[rank];
        bool left = atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0;
        if (rank != comm->rank && !left && tutti_peer_ended(member->process)) return rank;
    }
    return -1;
}

/* Checks the calls in graphs: a death is reported even if no graph waits for the dead rank, which is unknown. */
static tutti_status judge_graphs(tutti_stream_comm *gpu) {
    const tutti_comm *comm = gpu->comm;
    int rank = dead_rank(comm);
    int64_t now_ns = tutti_now_ns();
    if (rank < 0) gpu->tracks->dead_ns = 0;
    else if (gpu->tracks->dead_ns == 0) gpu->tracks->dead_ns = now_ns;
    if (rank < 0 && gpu->engine->health != NULL) return gpu->engine->health(gpu->comm);
    if (rank < 0 || now_ns - gpu->tracks->dead_ns < GRACE_NS) return TUTTI_OK;
    return tutti_peer_fail_died(comm, rank, "CUDA graphs with calls");
}

/* As check, for the calls in graphs. */
static tutti_status check_graphs(tutti_stream_comm *gpu) {
    TUTTI_TRY(check_broken(gpu->comm));
    tutti_status status = judge_graphs(gpu);
    return status == TUTTI_OK ? TUTTI_OK : tutti_comm_give_up(gpu->comm, status);
}

/* --------------------------------------------------------------------------------------------- completion */

static void end_work(tutti_inflight *track, tutti_status status) {
    if (track->work == NULL) return;
    tutti_work_end(track->work, status);
    tutti_work_free(track->work);
    track->work = NULL;
}

/* True if the stream has passed the call. A GPU failure breaks the communicator. */
static bool has_passed(tutti_stream_comm *gpu, tutti_inflight *track) {
    char name[160];
    tutti_status status = tutti_stream_event_ask(track->done);
    if (status == TUTTI_NOT_YET) return false;
    if (status != TUTTI_OK) {
        tutti_fail_context(status, "%s of communicator \"%s\" failed in its stream on rank %d",
                           describe(track, name, sizeof name), gpu->comm->name, gpu->comm->rank);
        tutti_comm_give_up(gpu->comm, status);
    }
    return true;
}

/* The status of a call that the stream has passed. A rank that breaks a communicator publishes this before its
 * engine releases any stream, so a released stream is never taken for success. */
static tutti_status outcome(tutti_comm *comm) {
    TUTTI_TRY(tutti_comm_check(comm));
    return check_broken(comm);
}

static void end_passed(tutti_stream_comm *gpu) {
    tutti_inflight *track = TAILQ_FIRST(&gpu->tracks->under_way), *next;
    for (; track != NULL; track = next) {
        next = TAILQ_NEXT(track, link);
        if (!has_passed(gpu, track)) continue;
        TAILQ_REMOVE(&gpu->tracks->under_way, track, link);
        end_work(track, outcome(gpu->comm));
        put_back(gpu, track);
    }
}

/* ---------------------------------------------------------------------------------------------- the check */

/* Callers without a work go on with invalid data, and get the error at their next call, if there is one: log it. */
static void tell_unheard(const tutti_stream_comm *gpu) {
    const tutti_inflight *track;
    char name[160];
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        if (track->work != NULL) continue;
        tutti_comm_check(gpu->comm); /* sets the error text */
        tutti_log(TUTTI_LOG_WARN, "%s failed, and its buffers do not hold its result: %s",
                  describe(track, name, sizeof name), tutti_last_error());
        return;
    }
}

/* Releases streams and fails works. With the lock held. */
static void release_all(tutti_stream_comm *gpu, tutti_status status) {
    tutti_inflight *track;
    if (!gpu->tracks->aborted) {
        gpu->tracks->aborted = true;
        tell_unheard(gpu);
        if (gpu->engine != NULL && gpu->engine->abort != NULL) gpu->engine->abort(gpu->comm);
        if (gpu->staged != NULL && gpu->staged != gpu->engine) gpu->staged->abort(gpu->comm);
    }
    TAILQ_FOREACH(track, &gpu->tracks->under_way, link) {
        tutti_comm_check(gpu->comm); /* sets the error text */
        end_work(track, status);
    }
    tutti_stream_messages_fail(gpu);
}

static bool is_busy(const tutti_stream_comm *gpu) {
    return !TAILQ_EMPTY(&gpu->tracks->under_way) || !TAILQ_EMPTY(&gpu->tracks->messages);
}

/* Marks that are CUDA events are queried on the communicator's GPU: a thread without a current GPU would use GPU 0. */
static void prepare_to_ask(tutti_stream_comm *gpu) {
    if (gpu->fault != NULL) {
        tutti_error_poll_expect(gpu->fault);
        return;
    }
    tutti_status status = gpu->device->use(gpu->index);
    if (status != TUTTI_OK) tutti_comm_give_up(gpu->comm, status);
}

/* With the lock held. */
static void look(tutti_stream_comm *gpu) {
    if (is_busy(gpu)) prepare_to_ask(gpu);
    end_passed(gpu);
    tutti_stream_messages_advance(gpu);
    tutti_status status = tutti_comm_check(gpu->comm);
    if (status == TUTTI_OK) status = check(gpu);
    if (status == TUTTI_OK && gpu->tracks->captured) status = check_graphs(gpu);
    if (status != TUTTI_OK) release_all(gpu, status);
}

/* --------------------------------------------------------------------------------------------- the watcher
 * One thread watches all communicators of this process with calls in flight in streams. It checks about every
 * millisecond; more often while a thread waits for a work or messages are in flight, less often if there are only calls
 * in graphs. It starts with the first such call and ends after one second without any. It holds one reference to each
 * communicator in its list.
 */

/* One check: completes calls that are done or have failed. False: nothing is left to watch. busy_out: a call or message
 * is known to be in flight; otherwise the watcher may check less often. */
static bool look_at(tutti_stream_comm *gpu, bool *busy_out) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    bool goes_on = !gpu->tracks->closed;
    if (goes_on) {
        look(gpu);
        *busy_out = is_busy(gpu);
        goes_on = *busy_out || (gpu->tracks->captured && !gpu->tracks->aborted);
    }
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return goes_on;
}

static tutti_stream_comm *watched; /* the list; linked by gpu->next_watched */
static bool any_busy;              /* calls were in flight at the last check */
static atomic_int attended;        /* threads that wait for works */

/* Checks all communicators of the list; removes those that need no watching and returns them, with their
 * references. */
static tutti_stream_comm *look_at_all(void) {
    tutti_stream_comm **link = &watched, *gpu, *idle = NULL;
    any_busy = false;
    while ((gpu = *link) != NULL) {
        bool busy = false;
        if (look_at(gpu, &busy)) {
            any_busy = any_busy || busy;
            link = &gpu->next_watched;
            continue;
        }
        *link = gpu->next_watched;
        gpu->watched = false;
        gpu->next_idle = idle; /* not next_watched: it may be added again as soon as the lock is free */
        idle = gpu;
    }
    return idle;
}

static void release(tutti_stream_comm *idle) {
    while (idle != NULL) {
        tutti_stream_comm *next = idle->next_idle;
        tutti_comm_release(idle->comm);
        idle = next;
    }
}

static bool watch(int64_t *nap_ns_out) {
    for (tutti_stream_comm *idle; (idle = look_at_all()) != NULL;) {
        tutti_unlock(TUTTI_LOCK_WATCHDOG);
        release(idle); /* may free a communicator */
        tutti_lock(TUTTI_LOCK_WATCHDOG);
    }
    bool hurries = any_busy && (atomic_load_explicit(&attended, memory_order_relaxed) > 0 || tutti_p2p_pending());
    *nap_ns_out = hurries ? SHORT_NAP_NS : any_busy ? NAP_NS : watched != NULL ? LONG_NAP_NS : TUTTI_NS_PER_S;
    return watched != NULL;
}

static tutti_service watcher = {
    .thread = TUTTI_THREAD_CUDA_WATCH, .lock = TUTTI_LOCK_WATCHDOG, .round = watch, .most_threads = 1};

void tutti_stream_watch(tutti_stream_comm *gpu) {
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    bool sleeps = !any_busy; /* for long */
    if (!gpu->watched) {
        tutti_comm_retain(gpu->comm);
        gpu->watched = true;
        gpu->next_watched = watched;
        watched = gpu;
        sleeps = true;
    }
    if (sleeps) tutti_service_wake(&watcher);
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
}

void tutti_stream_attend(int change) {
    atomic_fetch_add_explicit(&attended, change, memory_order_relaxed);
    if (change < 0) return;
    tutti_lock(TUTTI_LOCK_WATCHDOG);
    if (watched != NULL) tutti_service_wake(&watcher);
    tutti_unlock(TUTTI_LOCK_WATCHDOG);
}

/* --------------------------------------------------------------------------------------------- destruction */

void tutti_stream_abandon(tutti_comm *comm) {
    tutti_stream_comm *gpu = atomic_load_explicit(&comm->cuda.streams, memory_order_acquire);
    int before = gpu != NULL ? gpu->index : 0;
    if (gpu == NULL) return;
    tutti_stream_enter(gpu, &before); /* continue on failure: the GPU may have failed */
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    look(gpu);
    if (is_busy(gpu)) {
        tutti_fail(TUTTI_ERR_ABORTED, "communicator \"%s\" was destroyed by rank %d while operations were under way",
                   comm->name, comm->rank);
        release_all(gpu, tutti_comm_give_up(comm, TUTTI_ERR_ABORTED));
    }
    bool idle = !is_busy(gpu);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    tutti_stream_leave(gpu, before);
    if (idle && gpu->staged != NULL)
        tutti_queue_settle(comm); /* the thread that stored the last result is about to leave */
}

bool tutti_inflight_close(tutti_stream_comm *gpu) {
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    gpu->tracks->closed = true;
    bool captured = gpu->tracks->captured;
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    return captured;
}

/* Takes them out of the lists with the lock held and frees them without it: CUDA may block the caller. */
void tutti_inflight_free(tutti_stream_comm *gpu) {
    struct tutti_inflight_list left = TAILQ_HEAD_INITIALIZER(left);
    tutti_inflight *track;
    tutti_lock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    TAILQ_CONCAT(&left, &gpu->tracks->spare, link);
    TAILQ_CONCAT(&left, &gpu->tracks->under_way, link);
    tutti_unlock_in(TUTTI_LOCK_INFLIGHT, &gpu->tracks->lock);
    while ((track = TAILQ_FIRST(&left)) != NULL) {
        TAILQ_REMOVE(&left, track, link);
        track_free(track);
    }
}
