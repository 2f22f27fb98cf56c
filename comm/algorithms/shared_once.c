/*
 * Small inputs, one meeting: each rank shows its whole input in its post line (up to 40 bytes) or in its `once` slot,
 * and, when all have posted, takes what it needs from the others'.
 *
 *   1. copy the input into the line or the slot of this call's parity
 *   2. post; meet
 *   3. read the others' inputs
 *
 * Nobody waits for the readers of step 3: line and slot are written again two calls later, and by then every rank has
 * posted the call in between, so has finished this one.
 */
#include <string.h>

#include "comm/algorithms/shared.h"

/* The segment of `rank`'s shown input that starts at `offset`. */
static const char *shown(const tutti_comm *comm, const tutti_op *op, int rank, size_t input_bytes, size_t offset) {
    const tutti_post *post = tutti_post_of(comm, op, rank);
    if (input_bytes <= TUTTI_POST_PAYLOAD_BYTES) return (const char *)post->payload + offset;
    tutti_slots slots = tutti_shared_slots_of(comm, op, rank);
    return tutti_slots_once(&slots, op->sequence) + offset;
}

static void show(tutti_comm *comm, const tutti_op *op, size_t input_bytes) {
    tutti_post *post = tutti_post_own(comm, op);
    char *place = (char *)post->payload;
    if (input_bytes > TUTTI_POST_PAYLOAD_BYTES) {
        post->slots = (uint64_t)(uintptr_t)comm->slots->memory;
        place = tutti_slots_once(comm->slots, op->sequence);
    }
    if (input_bytes > 0 && tutti_op_has_input(op, comm->rank)) memcpy(place, op->src, input_bytes);
}

static void take_reduced(tutti_comm *comm, const tutti_op *op, size_t input_bytes) {
    size_t offset = tutti_op_is_split(op) ? (size_t)comm->rank * op->count * tutti_type_bytes(op->type) : 0;
    for (int rank = 0; rank < comm->nranks; rank++) comm->views[rank] = shown(comm, op, rank, input_bytes, offset);
    tutti_shared_reduce_views(comm, op, op->dst, op->count);
}

static void take_moved(tutti_comm *comm, const tutti_op *op, size_t input_bytes) {
    size_t segment_bytes = op->count * tutti_type_bytes(op->type);
    size_t offset = tutti_op_is_split(op) ? (size_t)comm->rank * segment_bytes : 0;
    if (segment_bytes == 0) return;
    for (int rank = 0; rank < comm->nranks; rank++)
        if (tutti_op_has_input(op, rank))
            memcpy((void *)tutti_op_output(comm, op, rank).data, shown(comm, op, rank, input_bytes, offset),
                   segment_bytes);
}

static void take(tutti_comm *comm, const tutti_op *op, size_t input_bytes) {
    switch (op->kind) {
    case TUTTI_KIND_ALL_REDUCE:
    case TUTTI_KIND_REDUCE:
    case TUTTI_KIND_REDUCE_SCATTER: take_reduced(comm, op, input_bytes); return;
    default: take_moved(comm, op, input_bytes);
    }
}

tutti_status tutti_shared_once(tutti_comm *comm, const tutti_op *op) {
    size_t input_bytes = tutti_op_input_bytes(comm, op);
    bool leases = input_bytes > TUTTI_POST_PAYLOAD_BYTES;
    if (leases) TUTTI_TRY(tutti_slots_acquire(comm, op));
    show(comm, op, input_bytes);
    tutti_post_publish(comm, op);
    tutti_status status = tutti_meet(comm, op);
    if (status == TUTTI_OK && tutti_op_has_output(op, comm->rank)) take(comm, op, input_bytes);
    if (status == TUTTI_OK) status = tutti_shared_finish(comm, op, /* lends */ false);
    if (leases) tutti_slots_release(comm);
    return status;
}
