/*
 * The engine "mixed": its parts and their life. See mixed.h for the way of a call.
 *
 * Kinds in which each pair of ranks has bytes of its own (all_to_all, gather, scatter and their v-variants) are left to the
 * staged engine: packed and unpacked on both sides, they would go through four copies on each GPU.
 */
#include "comm/algorithms/mixed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/algorithms/engines.h"
#include "comm/algorithms/same_device.h"
#include "comm/hosts.h"
#include "comm/stream_part.h"

#define MOST_SCRATCH_BYTES ((size_t)32 << 20)

/* ------------------------------------------------------------------------------------- which ranks are where */

/* The lowest rank on this one's GPU. */
static int leader_of(const tutti_comm *comm, int rank) {
    int leader = 0;
    while (!tutti_stream_same_device(comm, leader, rank)) leader++;
    return leader;
}

/* Is one before it on its GPU in its process? (Ranks of other hosts do not tell.) */
static bool shares_process(const tutti_comm *comm, int rank) {
    for (int other = 0; other < rank; other++)
        if (comm->members[other].process == comm->members[rank].process && tutti_stream_same_device(comm, other, rank))
            return true;
    return false;
}

/* Can this rank work with its leader by way of the GPU's memory? */
static bool can_share(const tutti_comm *comm, int leader, int rank, char *reason, size_t capacity) {
    const tutti_stream_facts *facts = comm->gpu->facts;
    bool one_process = comm->hosts == NULL && comm->one_process;
    int sharers = 0;
    for (int other = 0; other <= rank; other++) sharers += tutti_stream_same_device(comm, other, leader);
    if (comm->hosts != NULL && comm->hosts->host_of[rank] != comm->hosts->host_of[leader])
        snprintf(reason, capacity, "ranks %d and %d share a GPU, but count as being on different hosts", leader, rank);
    else if (!facts[leader].stream_waits && (one_process || comm->hosts != NULL || shares_process(comm, rank)))
        snprintf(reason, capacity,
                 "streams of the GPU of ranks %d and %d cannot wait for memory, and ranks may share a process", leader,
                 rank); /* one thread would wait for all their streams */
    else if (!one_process && (!facts[rank].ipc || !facts[leader].ipc))
        snprintf(reason, capacity, "the memory of the GPU of ranks %d and %d cannot be shared", leader, rank);
    else if (sharers > TUTTI_DEVICE_MOST_BUFFERS)
        snprintf(reason, capacity, "more than %d ranks are on one GPU", TUTTI_DEVICE_MOST_BUFFERS);
    else return true;
    return false;
}

/* Can this leader work with those before it by NCCL? Rank 0 is one of them. */
static bool can_join(const tutti_comm *comm, int leader, char *reason, size_t capacity) {
    const tutti_stream_facts *facts = comm->gpu->facts;
    if (facts[leader].nccl_version == 0 || facts[leader].nccl_version != facts[0].nccl_version) {
        snprintf(reason, capacity, "rank %d %s: %.*s", leader,
                 facts[leader].nccl_version == 0 ? "has no NCCL" : "has not the NCCL of rank 0",
                 (int)sizeof facts[leader].nccl_missing - 1, facts[leader].nccl_missing);
        return false;
    }
    for (int other = 0; other < leader; other++)
        if (tutti_stream_same_gpu(comm, other, leader)) {
            snprintf(reason, capacity, "ranks %d and %d are in different MIG instances of one GPU", other, leader);
            return false;
        }
    return true;
}

static bool fits(const tutti_comm *comm, char *reason_out, size_t capacity) {
    char reason[TUTTI_ENGINES_REASON_BYTES];
    int ngpus = 0;
    bool good = true;
    for (int rank = 0; rank < comm->nranks && good; rank++) {
        int leader = leader_of(comm, rank);
        ngpus += leader == rank;
        good = leader == rank ? can_join(comm, rank, reason, sizeof reason)
                              : can_share(comm, leader, rank, reason, sizeof reason);
    }
    if (good && ngpus < 2) snprintf(reason, sizeof reason, "the ranks have one GPU");
    if (good && ngpus >= 2) return true;
    if (reason_out != NULL) snprintf(reason_out, capacity, "%s", reason);
    return false;
}

static bool takes(const tutti_comm *comm, const tutti_op *op) {
    (void)comm;
    switch (op->kind) {
    case TUTTI_KIND_ALL_TO_ALL:
    case TUTTI_KIND_ALL_TO_ALL_V:
    case TUTTI_KIND_GATHER:
    case TUTTI_KIND_GATHER_V:
    case TUTTI_KIND_SCATTER:
    case TUTTI_KIND_SCATTER_V: return false;
    default: return true;
    }
}

/* --------------------------------------------------------------------------------------------------- opening */

static tutti_status make_tables(tutti_mixed *m, size_t nranks) {
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->gpu_of, &m->gpu_of));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->local_of, &m->local_of));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->order, &m->order));
    TUTTI_TRY(tutti_calloc(nranks + 1, sizeof *m->first, &m->first));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->leader_of, &m->leader_of));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->srcs, &m->srcs));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->dsts, &m->dsts));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->src_counts, &m->src_counts));
    TUTTI_TRY(tutti_calloc(nranks, sizeof *m->dst_counts, &m->dst_counts));
    return tutti_calloc(nranks + 1, sizeof *m->places, &m->places);
}

/* Numbers GPUs and their ranks. */
static void lay_out(const tutti_comm *comm, tutti_mixed *m) {
    int at = 0;
    for (int leader = 0; leader < comm->nranks; leader++) {
        if (leader_of(comm, leader) != leader) continue;
        m->leader_of[m->ngpus] = leader;
        m->first[m->ngpus] = at;
        for (int rank = leader; rank < comm->nranks; rank++) {
            if (!tutti_stream_same_device(comm, leader, rank)) continue;
            m->gpu_of[rank] = m->ngpus;
            m->local_of[rank] = at - m->first[m->ngpus];
            m->order[at++] = rank;
        }
        m->ngpus++;
    }
    m->first[m->ngpus] = at;
    m->gpu = m->gpu_of[comm->rank];
}

static tutti_status open_local(tutti_comm *comm, tutti_mixed *m) {
    const tutti_stream_part local = {.name = "ranks on a GPU",
                                     .color = m->gpu,
                                     .ranks = m->order + m->first[m->gpu],
                                     .engine = &tutti_engine_same_device};
    size_t least = (size_t)comm->nranks * 256, wanted = (size_t)tutti_setting_int(TUTTI_SETTING_CUDA_SLOT_BYTES);
    m->scratch_bytes = tutti_max_size(least, tutti_min_size(wanted, MOST_SCRATCH_BYTES));
    TUTTI_TRY(tutti_stream_part_open(comm, &local, &m->local));
    /* Now, while nothing is under way: CUDA may wait for all GPUs of the process before it gives memory. */
    return tutti_same_device_lease(m->local->gpu->engine_state, m->scratch_bytes, &m->scratch);
}

static tutti_status open_leaders(tutti_comm *comm, tutti_mixed *m) {
    bool leads = m->leader_of[m->gpu] == comm->rank;
    const tutti_stream_part leaders = {.name = "between GPUs",
                                       .color = leads ? 0 : TUTTI_COLOR_NONE,
                                       .ranks = m->leader_of,
                                       .engine = &tutti_engine_nccl};
    return tutti_stream_part_open(comm, &leaders, &m->leaders);
}

/* Where ranks on a GPU, or leaders, cannot work together after all, no rank goes on: the staged engine serves them. What all
 * agree on besides is that all have come so far: from then on streams wait for them, till a deadline. */
static tutti_status open_engine(tutti_comm *comm) {
    tutti_mixed *m;
    TUTTI_TRY(tutti_calloc(1, sizeof *m, &m));
    comm->gpu->engine_state = m;
    TUTTI_TRY(make_tables(m, (size_t)comm->nranks));
    lay_out(comm, m);
    TUTTI_TRY(comm->gpu->device->event_create(&m->tail));
    TUTTI_TRY(tutti_stream_agree(comm, open_local(comm, m)));
    return tutti_stream_agree(comm, open_leaders(comm, m));
}

/* ------------------------------------------------------------------------------------------------ the end */

static tutti_status health(tutti_comm *comm) {
    tutti_mixed *m = comm->gpu->engine_state;
    TUTTI_TRY(tutti_comm_check(m->local));
    if (!tutti_mixed_leads(m)) return TUTTI_OK;
    TUTTI_TRY(tutti_comm_check(m->leaders));
    return tutti_engine_nccl.health(m->leaders);
}

/* What breaks the whole breaks its parts, and the other way round: health. */
static void abort_engine(tutti_comm *comm) {
    const tutti_mixed *m = comm->gpu->engine_state;
    tutti_status status = tutti_comm_check(comm);
    if (m == NULL || status == TUTTI_OK) return;
    tutti_stream_part_break(m->local, status);
    tutti_stream_part_break(m->leaders, status);
}

static void close_engine(tutti_comm *comm) {
    tutti_mixed *m = comm->gpu->engine_state;
    if (m == NULL) return;
    abort_engine(comm); /* where it was not opened in full */
    comm->gpu->engine_state = NULL;
    tutti_comm_destroy(m->leaders);
    tutti_comm_destroy(m->local);
    if (m->tail != NULL) comm->gpu->device->event_destroy(m->tail);
    free(m->gpu_of);
    free(m->local_of);
    free(m->order);
    free(m->first);
    free(m->leader_of);
    free(m->srcs);
    free(m->dsts);
    free(m->src_counts);
    free(m->dst_counts);
    free(m->places);
    free(m);
    tutti_comm_check(comm); /* its text is this thread's again */
}

/* ------------------------------------------------------------------------------------------------------ calls */

/* Parts and scratch serve one call at a time: a call in another stream comes after the last one. */
static tutti_status enqueue(tutti_comm *comm, const tutti_stream_call *call) {
    tutti_mixed *m = comm->gpu->engine_state;
    const tutti_device *device = comm->gpu->device;
    if (m->has_tail && !tutti_stream_is_same(m->last_stream, call->stream))
        TUTTI_TRY(device->stream_wait_event(call->stream, m->tail));
    TUTTI_TRY(tutti_mixed_carry_out(comm, call));
    m->has_tail = true;
    m->last_stream = call->stream;
    return device->event_record(m->tail, call->stream);
}

const tutti_stream_engine tutti_engine_mixed = {
    .name = "mixed",
    .when = "several ranks on some of several GPUs: within a GPU as same_device, between them as nccl",
    .fits = fits,
    .open = open_engine,
    .takes = takes,
    .enqueue = enqueue,
    .health = health,
    .abort = abort_engine,
    .close = close_engine,
    .yields = true,
};
