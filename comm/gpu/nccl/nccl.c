/*
 * The engine "nccl": each rank has its own GPU, and all ranks have the same NCCL version. See nccl_state.h for its
 * parts.
 *
 * A sum of floats is in NCCL's order, which depends on topology and size, unless TUTTI_DETERMINISTIC=1: NCCL
 * reduces while it moves data, through NVLink switches where available, and that is worth it between GPUs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/engines.h"
#include "comm/gpu/nccl/nccl_state.h"

#define SCRATCH_BYTES          ((size_t)16 << 20)
#define SCRATCH_BYTES_PER_RANK ((size_t)256 << 10)

/* ------------------------------------------------------------------------------------- capabilities of ranks */

/* One rank needs no NCCL, but TUTTI_ALGORITHM=nccl may request it, to try it with one GPU. */
static bool is_asked_for(void) {
    return strcmp(tutti_setting_text(TUTTI_SETTING_ALGORITHM), "nccl") == 0;
}

/* NCCL_COMM_BLOCKING overrides our configuration: a blocking call that waits for a peer would also block an
 * abort. */
static bool is_made_to_block(void) {
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    return blocking != NULL && strcmp(blocking, "1") == 0;
}

static void tell(const tutti_comm *comm, tutti_stream_caps *own) {
    const tutti_nccl *nccl;
    own->nccl_version = 0;
    own->nccl_seed = comm->cuda.seed != NULL && comm->cuda.seed->index == comm->cuda.streams->index;
    if (comm->nranks == 1 && !is_asked_for()) return; /* the library is large and slow to load */
    if (is_made_to_block()) {
        snprintf(own->nccl_missing, sizeof own->nccl_missing, "NCCL_COMM_BLOCKING=1 would block aborts; unset it");
        tutti_log(TUTTI_LOG_WARN, "communicator \"%s\" does not use NCCL: %s", comm->name, own->nccl_missing);
        return;
    }
    if (tutti_nccl_open(&nccl) == TUTTI_OK) own->nccl_version = nccl->version;
    else snprintf(own->nccl_missing, sizeof own->nccl_missing, "%.255s", tutti_last_error());
}

static bool fits(const tutti_comm *comm, char *reason_out, size_t capacity) {
    const tutti_stream_comm *gpu = comm->cuda.streams;
    const tutti_stream_caps *facts = gpu->facts;
    char reason[TUTTI_ENGINES_REASON_BYTES] = "", a[16], b[16];
    if (comm->nranks == 1 && !is_asked_for()) snprintf(reason, sizeof reason, "there is one rank");
    for (int rank = 0; rank < comm->nranks && reason[0] == '\0'; rank++) {
        if (facts[rank].nccl_version == 0)
            snprintf(reason, sizeof reason, "rank %d: %.*s", rank, (int)sizeof facts[rank].nccl_missing - 1,
                     facts[rank].nccl_missing);
        else if (facts[rank].nccl_version != facts[0].nccl_version)
            snprintf(reason, sizeof reason, "rank 0 has NCCL %s, rank %d %s",
                     tutti_nccl_version_text(facts[0].nccl_version, a), rank,
                     tutti_nccl_version_text(facts[rank].nccl_version, b));
        for (int other = 0; other < rank && reason[0] == '\0'; other++)
            if (tutti_stream_same_gpu(comm, rank, other)) /* NCCL identifies GPUs by PCI address */
                snprintf(reason, sizeof reason, "ranks %d and %d share a GPU%s", other, rank,
                         tutti_stream_same_device(comm, rank, other) ? "" : ", in different MIG instances");
    }
    if (reason_out != NULL && reason[0] != '\0') snprintf(reason_out, capacity, "%s", reason);
    return reason[0] == '\0';
}

/* ------------------------------------------------------------------------------------------------- opening */

static tutti_status open_engine(tutti_comm *comm) {
    tutti_stream_comm *gpu = comm->cuda.streams;
    tutti_nccl_state *state;
    TUTTI_TRY(tutti_calloc(1, sizeof *state, &state));
    gpu->engine_state = state;
    state->comm = comm;
    state->rank_order = tutti_setting_int(TUTTI_SETTING_DETERMINISTIC) == 1;
    state->scratch_bytes = tutti_max_size(SCRATCH_BYTES, (size_t)comm->nranks * SCRATCH_BYTES_PER_RANK);
    pthread_mutex_init(&state->lock, NULL);
    TUTTI_TRY(tutti_nccl_open(&state->nccl));
    TUTTI_TRY(gpu->device->alloc(TUTTI_CACHE_LINE, &state->token));
    TUTTI_TRY(gpu->device->event_create(&state->scratch_free));
    TUTTI_TRY(gpu->device->event_create(&state->joint));
    TUTTI_TRY(tutti_nccl_connect(state));
    tutti_nccl_memory_enter(state);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ health and abort */

/* The asynchronous result of the NCCL communicator. With the lock held. */
static tutti_nccl_result ask(const tutti_nccl_state *state) {
    tutti_nccl_result result = TUTTI_NCCL_SUCCESS;
    if (state->handle == NULL) return result;
    tutti_nccl_result answer = state->nccl->ncclCommGetAsyncError(state->handle, &result);
    return answer != TUTTI_NCCL_SUCCESS ? answer : result;
}

static tutti_status health(tutti_comm *comm) {
    tutti_nccl_state *state = comm->cuda.streams->engine_state;
    const tutti_op op = {.kind = TUTTI_KIND_BARRIER, .cuda = true};
    if (state == NULL || !tutti_try_lock_in(TUTTI_LOCK_NCCL, &state->lock)) return TUTTI_OK; /* a call is in progress */
    tutti_nccl_result result = ask(state);
    const char *name = state->failed != NULL ? state->failed : "a call in flight";
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (result == TUTTI_NCCL_SUCCESS || result == TUTTI_NCCL_IN_PROGRESS) return TUTTI_OK;
    if (state->remote_error_ns == 0) state->remote_error_ns = tutti_now_ns();
    bool doubtful = tutti_now_ns() - state->remote_error_ns < TUTTI_NCCL_DOUBT_NS;
    if (result == TUTTI_NCCL_REMOTE_ERROR && doubtful) return TUTTI_OK;
    return tutti_nccl_failure(state, &op, result, name);
}

/* A non-blocking NCCL communicator keeps its first error and accepts no call after it. */
static bool spares(tutti_comm *comm) {
    tutti_nccl_state *state = comm->cuda.streams->engine_state;
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    bool whole = !state->aborted && ask(state) == TUTTI_NCCL_SUCCESS;
    if (whole) state->failed = NULL;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    return whole;
}

static void *abort_later(void *context) {
    tutti_nccl_state *state = context;
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_ending_abort(state);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    return NULL;
}

/* The holder of the lock may be blocked in CUDA by a stream that only the end of another communicator releases. */
static void abort_engine(tutti_comm *comm) {
    tutti_nccl_state *state = comm->cuda.streams->engine_state;
    if (state == NULL) return;
    if (!tutti_try_lock_in(TUTTI_LOCK_NCCL, &state->lock)) {
        state->has_aborter = tutti_thread_start(TUTTI_THREAD_NCCL_STOP, abort_later, state, &state->aborter) == 0;
        if (state->has_aborter) return;
        tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    }
    tutti_nccl_ending_abort(state);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
}

/* ------------------------------------------------------------------------------------------------- closing */

static void close_engine(tutti_comm *comm) {
    tutti_stream_comm *gpu = comm->cuda.streams;
    tutti_nccl_state *state = gpu->engine_state;
    if (state == NULL) return;
    bool whole = tutti_comm_check(comm) == TUTTI_OK;
    if (state->has_aborter) pthread_join(state->aborter, NULL); /* the call that it waited for has returned */
    tutti_nccl_memory_leave(state);
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_ending *ending = tutti_nccl_ending_take(state);
    if (ending != NULL) ending->peaceful = whole && !state->aborted;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (ending != NULL) {
        ending->memory[0] = state->token;
        ending->memory[1] = state->scratch;
    }
    tutti_nccl_ending_run(ending);
    int64_t end_ns = tutti_now_ns() + 2 * TUTTI_NCCL_LINGER_NS;
    tutti_nccl_ending_wait(state->ending, end_ns);
    tutti_nccl_ending_wait(ending, end_ns);
    tutti_nccl_ending_release(state->ending);
    tutti_nccl_ending_release(ending);
    if (state->scratch_free != NULL) gpu->device->event_destroy(state->scratch_free);
    if (state->joint != NULL) gpu->device->event_destroy(state->joint);
    if (state->aside != NULL) gpu->device->stream_destroy(state->aside);
    pthread_mutex_destroy(&state->lock);
    free(state);
    gpu->engine_state = NULL;
}

const tutti_stream_engine tutti_engine_nccl = {
    .name = "nccl",
    .when = "every rank has a GPU of its own, and NCCL 2.18 or newer, the same everywhere",
    .tell = tell,
    .fits = fits,
    .open = open_engine,
    .enqueue = tutti_nccl_enqueue,
    .spares = spares,
    .split = tutti_nccl_split,
    .health = health,
    .abort = abort_engine,
    .close = close_engine,
    .captures = true,
};
