/*
 * Short inputs, one meeting: each rank puts its input into its post, except a long segment for itself. When all ranks
 * whose data it needs have posted, it takes that data from their posts. Up to 40 bytes, flag and data are in one cache
 * line: nothing else moves between cores. Data of a KiB or more begin with the next line.
 *
 * No rank waits for its readers: the line is written again only once all ranks have finished this call
 * (tutti_post_claim).
 */
#include <string.h>

#include "comm/shm/coll/shared.h"
#include "comm/shm/slots.h"

/* From this size on, data is copied through the caches or past them, whichever is faster: past them between distant
 * cores, where 4 KiB then take a third of the time. */
#define LEAST_WRITTEN_BYTES ((size_t)2 << 10)
#define LEAST_SKIPPED_BYTES ((size_t)256)

/* My own input is read from src: my post may be on its way to another core. */
static const char *shown(const tutti_comm *comm, const tutti_op *op, int rank, size_t offset) {
    if (rank == comm->rank) return (const char *)op->src + offset;
    size_t at = tutti_post_payload_at(tutti_op_input_bytes(comm, op));
    return (const char *)tutti_post_of(comm, op, rank)->payload + at + offset;
}

/* Copies bytes of the input into the own post. */
static void put(tutti_comm *comm, const tutti_op *op, size_t input_bytes, size_t from, size_t to) {
    char *payload = (char *)tutti_post_own(comm, op)->payload + tutti_post_payload_at(input_bytes);
    const char *src = op->src;
    if (from == to) return;
    if (to - from < LEAST_WRITTEN_BYTES) tutti_copy_lines(payload + from, src + from, to - from);
    else tutti_slots_write(comm, payload + from, src + from, to - from);
}

/* Copies the input into the own post. No rank reads this rank's own segment there: a long one is left out. */
static void put_input(tutti_comm *comm, const tutti_op *op, size_t input_bytes) {
    size_t segment = tutti_op_is_split(op) ? op->count * tutti_type_bytes(op->type) : 0;
    size_t own = (size_t)comm->rank * segment;
    if (segment < LEAST_SKIPPED_BYTES) {
        put(comm, op, input_bytes, 0, input_bytes);
        return;
    }
    put(comm, op, input_bytes, 0, own);
    put(comm, op, input_bytes, own + segment, input_bytes);
}

static void take_reduced(tutti_comm *comm, const tutti_op *op) {
    size_t offset = tutti_op_is_split(op) ? (size_t)comm->rank * op->count * tutti_type_bytes(op->type) : 0;
    for (int rank = 0; rank < comm->nranks; rank++) comm->shm.views[rank] = shown(comm, op, rank, offset);
    tutti_shared_reduce_views(comm, op, op->dst, op->count);
}

static void take_segment(tutti_comm *comm, const tutti_op *op, int source) {
    size_t bytes = op->count * tutti_type_bytes(op->type);
    size_t offset = tutti_op_is_split(op) ? (size_t)comm->rank * bytes : 0;
    if (bytes > 0 && tutti_op_has_input(op, source))
        tutti_copy_lines((void *)tutti_op_output(comm, op, source).data, shown(comm, op, source, offset), bytes);
}

/* Takes all segments except my own, which was taken while the posts of the other ranks were on their way. */
static void take_moved(tutti_comm *comm, const tutti_op *op) {
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank) take_segment(comm, op, rank);
}

tutti_status tutti_shared_inline(tutti_comm *comm, const tutti_op *op) {
    size_t input_bytes = tutti_op_input_bytes(comm, op);
    if (input_bytes > 0 && tutti_op_has_input(op, comm->rank)) put_input(comm, op, input_bytes);
    tutti_post_publish(comm, op);
    bool takes = tutti_op_has_output(op, comm->rank), reduces = tutti_op_reduces(op);
    if (takes && !reduces) take_segment(comm, op, comm->rank);
    TUTTI_TRY(tutti_shared_meet(comm, op));
    if (takes && reduces) take_reduced(comm, op);
    else if (takes) take_moved(comm, op);
    tutti_post_prefetch(comm, op, input_bytes);
    return tutti_shared_finish(comm, op, /* lends */ false);
}
