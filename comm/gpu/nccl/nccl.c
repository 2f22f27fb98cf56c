/*
 * The engine "nccl": each rank has its own GPU, and all ranks have the same NCCL version. See nccl_state.h for its
 * parts.
 *
 * A sum of floats is in NCCL's order, which depends on topology and size, unless TUTTI_DETERMINISTIC=1: NCCL
 * reduces while it moves data, through NVLink switches where available, and that is worth it between GPUs.
 *
 * Creation of NCCL communicators: all ranks join one with rank 0's unique id, which is distributed by an all_gather
 * on host memory; or it is split from the NCCL communicator of the parent, which is faster.
 *
 * A split needs all ranks of the parent, so it is done in tutti_comm_split and kept as a seed until the child's
 * first collective on CUDA memory. During the split the parent's communicator is in progress; the child's handle is
 * valid when that ends.
 *
 * Each rank checks its peers while it waits, since NCCL does not detect the death of a peer on the same host. No
 * rank continues before all are done: the ranks that still wait would miss a rank that leaves at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/nccl/nccl_state.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"

#define SCRATCH_BYTES          ((size_t)16 << 20)
#define SCRATCH_BYTES_PER_RANK ((size_t)256 << 10)

/* ------------------------------------------------------------------------------------- capabilities of ranks */

/* One rank needs no NCCL, but TUTTI_ALGORITHM=nccl may request it, to try it with one GPU. */
static bool is_asked_for(void) {
    return strcmp(tutti_setting_text(TUTTI_SETTING_ALGORITHM), "nccl") == 0;
}

/* NCCL_COMM_BLOCKING overrides our configuration: a blocking call that waits for a peer would also block an abort. */
static bool is_made_to_block(void) {
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    return blocking != NULL && strcmp(blocking, "1") == 0;
}

static void fill_caps(const tutti_comm *comm, tutti_stream_caps *own) {
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

/* ----------------------------------------------------------------------------------------------- creation */

static const tutti_op opening = {.kind = TUTTI_KIND_BARRIER, .cuda = true};

static tutti_nccl_config make_config(void) {
    return (tutti_nccl_config){.bytes = sizeof(tutti_nccl_config),
                               .magic = TUTTI_NCCL_CONFIG_MAGIC,
                               .version = TUTTI_NCCL_OLDEST,
                               .blocking = 0,
                               .cga_cluster = TUTTI_NCCL_UNDEFINED,
                               .least_ctas = TUTTI_NCCL_UNDEFINED,
                               .most_ctas = TUTTI_NCCL_UNDEFINED,
                               .split_share = TUTTI_NCCL_UNDEFINED,
                               .unused = TUTTI_NCCL_UNDEFINED};
}

static bool is_good(tutti_nccl_result result) {
    return result == TUTTI_NCCL_SUCCESS || result == TUTTI_NCCL_IN_PROGRESS;
}

static tutti_status await(tutti_nccl_state *state, const char *name) {
    return tutti_nccl_wait(
        state, &(tutti_nccl_reason){.op = &opening, .timeout_ms = state->comm->connect_timeout_ms, .name = name});
}

/* Waits until all ranks are here. */
static tutti_status meet(tutti_comm *comm) {
    uint8_t one = 1, *all;
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, 1, &all));
    tutti_status status = tutti_stream_gather(comm, &one, all, 1);
    free(all);
    return status;
}

/* ------------------------------------------------------------------------------------------ by a unique id */

/* Rank 0's message to all ranks: the id, or the reason why there is none. */
typedef struct invitation {
    int32_t result;
    char reason[124];
    tutti_nccl_id id;
} invitation;

static tutti_status invite(tutti_nccl_state *state, tutti_nccl_id *id_out) {
    tutti_comm *comm = state->comm;
    invitation mine = {.result = TUTTI_NCCL_SUCCESS}, *all;
    if (comm->rank == 0) {
        mine.result = (int32_t)state->nccl->ncclGetUniqueId(&mine.id);
        if (mine.result != TUTTI_NCCL_SUCCESS)
            snprintf(mine.reason, sizeof mine.reason, "%s",
                     state->nccl->ncclGetErrorString((tutti_nccl_result)mine.result));
    }
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *all, &all));
    tutti_status status = tutti_stream_gather(comm, &mine, all, sizeof mine);
    invitation first = all[0];
    free(all);
    TUTTI_TRY(status);
    if (first.result != TUTTI_NCCL_SUCCESS)
        return tutti_fail(TUTTI_ERR_SYSTEM,
                          "NCCL created no unique id on rank 0: %.*s; set NCCL_DEBUG=WARN for details",
                          (int)sizeof first.reason - 1, first.reason);
    *id_out = first.id;
    return TUTTI_OK;
}

static tutti_status join(tutti_nccl_state *state) {
    static const char name[] = "ncclCommInitRankConfig";
    tutti_comm *comm = state->comm;
    tutti_nccl_config config = make_config();
    tutti_nccl_id id;
    TUTTI_TRY(invite(state, &id));
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_result result =
        state->aborted ? TUTTI_NCCL_IN_PROGRESS
                       : state->nccl->ncclCommInitRankConfig(&state->handle, comm->nranks, id, comm->rank, &config);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (!is_good(result)) return tutti_nccl_failure(state, &opening, result, name);
    return await(state, name);
}

/* ----------------------------------------------------------------------------------------------- by a split */

/* What a child gets from its parent's NCCL communicator. */
typedef struct seed {
    tutti_stream_seed base; /* must be first */
    const tutti_nccl *nccl;
    const tutti_device *device;
    tutti_nccl_comm handle; /* written by an NCCL thread; read once the parent is no longer in progress */
} seed;

static void drop_seed(tutti_stream_seed *base) {
    seed *s = (seed *)(void *)base;
    if (s->handle != NULL) tutti_nccl_discard(s->nccl, s->device, base->index, s->handle);
    free(s);
}

/* Collective over the communicator of `state`. After a failure the seed is leaked: NCCL may still write to it. */
static tutti_status split_off(tutti_nccl_state *state, int color, int key, seed **seed_out) {
    static const char name[] = "ncclCommSplit";
    const tutti_stream_comm *gpu = state->comm->cuda.streams;
    tutti_nccl_config config = make_config();
    seed *s;
    TUTTI_TRY(tutti_calloc(1, sizeof *s, &s));
    s->base = (tutti_stream_seed){.index = gpu->index, .drop = drop_seed};
    s->nccl = state->nccl;
    s->device = gpu->device;
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_comm parent = state->handle;
    tutti_nccl_result result =
        state->aborted ? TUTTI_NCCL_IN_PROGRESS : state->nccl->ncclCommSplit(parent, color, key, &s->handle, &config);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (!is_good(result)) return tutti_nccl_failure(state, &opening, result, name);
    TUTTI_TRY(await(state, name));
    *seed_out = s;
    return TUTTI_OK;
}

static tutti_status split(tutti_nccl_state *state, tutti_comm *child, int color) {
    seed *s = NULL;
    TUTTI_TRY(split_off(state, child != NULL ? color : TUTTI_NCCL_NO_COLOR, child != NULL ? child->rank : 0, &s));
    if (child != NULL) child->cuda.seed = &s->base;
    else drop_seed(&s->base);
    return meet(state->comm);
}

/* tutti_stream_engine.split */
static tutti_status split_engine(tutti_comm *parent, tutti_comm *child, int color) {
    tutti_nccl_state *state = parent->cuda.streams->engine_state;
    if (state->nccl->ncclCommSplit == NULL) return TUTTI_OK;
    tutti_status status = split(state, child, color);
    return status == TUTTI_OK ? TUTTI_OK : tutti_comm_give_up(parent, status);
}

/* Takes the handle that the parent's NCCL communicator made, if every rank has one; otherwise drops it. */
static tutti_nccl_comm take_seed(tutti_comm *comm) {
    bool all = true;
    tutti_nccl_comm handle = NULL;
    seed *s = (seed *)(void *)comm->cuda.seed;
    if (s == NULL) return NULL;
    comm->cuda.seed = NULL;
    for (int rank = 0; rank < comm->nranks; rank++)
        all = all && comm->cuda.streams->facts != NULL && comm->cuda.streams->facts[rank].nccl_seed != 0;
    if (all) {
        handle = s->handle;
        s->handle = NULL;
    }
    drop_seed(&s->base);
    return handle;
}

/* -------------------------------------------------------------------------------------------------- connect */

static bool is_first_of_host(const tutti_comm *comm, int rank) {
    for (int before = 0; before < rank; before++)
        if (comm->net.hosts->host_of[before] == comm->net.hosts->host_of[rank]) return false;
    return true;
}

/* Sends an empty message to `peer`, or receives one from it. */
static tutti_status greet(tutti_comm *comm, bool sends, int peer) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    tutti_status status = sends ? tutti_p2p_send(comm, NULL, 0, peer, TUTTI_TAG_ACQUAINT, work)
                                : tutti_p2p_recv(comm, NULL, 0, 1, peer, TUTTI_TAG_ACQUAINT, work);
    if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    return status;
}

/* A rank that breaks a communicator reports this to the ranks of other hosts that it has a connection to: so the first
 * rank of each host connects to those of all others. Small messages wait for no receiver, so all ranks send first. */
static tutti_status acquaint_hosts(tutti_comm *comm) {
    if (comm->net.hosts == NULL || !is_first_of_host(comm, comm->rank)) return TUTTI_OK;
    for (int turn = 0; turn < 2; turn++)
        for (int rank = 0; rank < comm->nranks; rank++)
            if (rank != comm->rank && is_first_of_host(comm, rank)) TUTTI_TRY(greet(comm, turn == 0, rank));
    return TUTTI_OK;
}

/* Creates the NCCL communicator; collective. */
static tutti_status connect_ranks(tutti_nccl_state *state) {
    tutti_nccl_comm given = take_seed(state->comm);
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    state->handle = given;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (given == NULL) TUTTI_TRY(join(state));
    TUTTI_TRY(acquaint_hosts(state->comm));
    return meet(state->comm);
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
    TUTTI_TRY(connect_ranks(state));
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
    .fill_caps = fill_caps,
    .fits = fits,
    .open = open_engine,
    .enqueue = tutti_nccl_enqueue,
    .spares = spares,
    .split = split_engine,
    .health = health,
    .abort = abort_engine,
    .close = close_engine,
    .captures = true,
};
