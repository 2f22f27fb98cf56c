/*
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

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/log.h"
#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/gpu/nccl/nccl_state.h"
#include "comm/net/hosts.h"
#include "comm/p2p/p2p.h"

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

tutti_status tutti_nccl_split(tutti_comm *parent, tutti_comm *child, int color) {
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

/* A rank that breaks a communicator reports this to the ranks of other hosts that it has a connection to: so the
 * first rank of each host connects to the first rank of every other host. Small messages wait for no receiver, so
 * all ranks send first. */
static tutti_status acquaint_hosts(tutti_comm *comm) {
    if (comm->net.hosts == NULL || !is_first_of_host(comm, comm->rank)) return TUTTI_OK;
    for (int turn = 0; turn < 2; turn++)
        for (int rank = 0; rank < comm->nranks; rank++)
            if (rank != comm->rank && is_first_of_host(comm, rank)) TUTTI_TRY(greet(comm, turn == 0, rank));
    return TUTTI_OK;
}

tutti_status tutti_nccl_connect(tutti_nccl_state *state) {
    tutti_nccl_comm given = take_seed(state->comm);
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    state->handle = given;
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (given == NULL) TUTTI_TRY(join(state));
    TUTTI_TRY(acquaint_hosts(state->comm));
    return meet(state->comm);
}
