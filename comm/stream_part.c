/*
 * Parts of a communicator on CUDA memory. See stream_part.h.
 *
 * A part has a tutti_stream_comm like every communicator, but no facts are told in it: its engine is given.
 */
#include "comm/stream_part.h"

#include <stdio.h>
#include <stdlib.h>

#include "bootstrap/base/status.h"
#include "comm/hosts.h"
#include "comm/monitor.h"
#include "comm/stream_state.h"

/* A rank's part of opening went well, or not. */
typedef struct verdict {
    int32_t status;
    char reason[252];
} verdict;

tutti_status tutti_stream_agree(tutti_comm *comm, tutti_status status) {
    verdict mine = {.status = status}, *all;
    if (status != TUTTI_OK) snprintf(mine.reason, sizeof mine.reason, "%s", tutti_last_error());
    TUTTI_TRY(tutti_calloc((size_t)comm->nranks, sizeof *all, &all));
    status = tutti_stream_gather(comm, &mine, all, sizeof mine);
    for (int rank = 0; rank < comm->nranks && status == TUTTI_OK; rank++)
        if (all[rank].status != TUTTI_OK)
            status = tutti_fail(TUTTI_ERR_UNSUPPORTED, "rank %d: %.*s", tutti_comm_shown(comm, rank),
                                (int)sizeof all[rank].reason - 1, all[rank].reason);
    free(all);
    return status;
}

static tutti_status open_engine(tutti_comm *part, const tutti_stream_engine *engine) {
    tutti_stream_comm *gpu = atomic_load_explicit(&part->outer->gpu, memory_order_acquire), *own;
    TUTTI_TRY(tutti_stream_gpu(part, gpu->index, &own));
    own->engine = engine; /* from here on, what is half open is closed when the part is destroyed */
    return engine->open != NULL ? engine->open(part) : TUTTI_OK;
}

/* Its other ranks learn why; so does the caller. */
static tutti_status drop(tutti_comm *part, tutti_status status) {
    char reason[TUTTI_ERROR_TEXT_BYTES];
    snprintf(reason, sizeof reason, "%s", tutti_last_error());
    tutti_stream_part_break(part, status);
    tutti_comm_destroy(part);
    return tutti_fail(status, "%s", reason);
}

tutti_status tutti_stream_part_open(tutti_comm *whole, const tutti_stream_part *wanted, tutti_comm **part_out) {
    char name[64];
    tutti_comm *part = NULL;
    snprintf(name, sizeof name, "%.40s, %s", whole->name, wanted->name);
    tutti_comm_options options = TUTTI_COMM_OPTIONS(.name = name, .timeout_ms = whole->timeout_ms,
                                                    .connect_timeout_ms = whole->connect_timeout_ms);
    TUTTI_TRY(tutti_comm_split(whole, wanted->color, whole->rank, &options, &part));
    tutti_status status = TUTTI_OK;
    if (part != NULL) {
        part->outer = whole;
        part->shown_ranks = wanted->ranks;
        status = open_engine(part, wanted->engine);
    }
    if (status != TUTTI_OK) return drop(part, status);
    *part_out = part;
    return TUTTI_OK;
}

static uint64_t sign(const tutti_op *op, const tutti_op *whole, uint64_t number) {
    uint64_t x = whole->signature ^ (uint64_t)(op->kind + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9) + number;
    return (x ^ x >> 32) >> 1;
}

tutti_status tutti_stream_part_enqueue(tutti_comm *part, const tutti_stream_call *call, tutti_op op) {
    tutti_stream_comm *gpu = atomic_load_explicit(&part->gpu, memory_order_relaxed);
    TUTTI_TRY(tutti_comm_check(part));
    op.type = call->op->type;
    op.cuda = true;
    op.factor = call->op->factor;
    op.timeout_ms = call->op->timeout_ms;
    op.part_of = call->op;
    op.sequence = ++gpu->number;
    op.signature = sign(&op, call->op, gpu->number);
    tutti_stream_call step = {
        .op = &op, .stream = call->stream, .number = gpu->number, .timeout_ms = call->timeout_ms, .work = call->work};
    return gpu->engine->enqueue(part, &step);
}

tutti_status tutti_stream_part_look(tutti_comm *comm, const tutti_op *op) {
    tutti_comm *whole = comm->outer;
    if (whole == NULL) return TUTTI_OK;
    const tutti_stream_comm *gpu = atomic_load_explicit(&whole->gpu, memory_order_acquire);
    if (gpu == NULL || gpu->engine != NULL) return tutti_comm_check(whole);
    if (whole->hosts != NULL) tutti_hosts_hear(whole);
    return tutti_monitor_look(whole, op, /* deaths */ true);
}

void tutti_stream_part_break(tutti_comm *part, tutti_status status) {
    if (part == NULL) return;
    tutti_stream_comm *gpu = atomic_load_explicit(&part->gpu, memory_order_acquire);
    tutti_comm_give_up(part, status);
    if (gpu != NULL && gpu->engine_state != NULL) tutti_stream_look(gpu); /* finds it broken */
}
