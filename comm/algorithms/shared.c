/*
 * What the algorithms for shared memory have in common. See shared.h.
 */
#include "comm/algorithms/shared.h"

#include "comm/heap.h"
#include "kernels/reduce.h"

bool tutti_shared_lends(const tutti_comm *comm, const void *data, size_t bytes) {
    return comm->one_process || tutti_heap_holds(data, bytes);
}

const char *tutti_shared_at(const tutti_comm *comm, int rank, uint64_t address, size_t bytes) {
    return tutti_peer_translate(comm->members[rank].process, address, bytes);
}

tutti_slots tutti_shared_slots_of(const tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_slots slots = *comm->slots; /* all ranks' leases have the same shape */
    uint64_t address = tutti_post_of(comm, op, rank)->slots;
    slots.memory = (char *)tutti_shared_at(comm, rank, address, slots.bytes);
    return slots;
}

tutti_status tutti_shared_finish(tutti_comm *comm, const tutti_op *op, bool lends) {
    tutti_step_publish(comm, op, TUTTI_STEP_DONE);
    return lends ? tutti_step_wait_all(comm, op, TUTTI_STEP_DONE) : TUTTI_OK;
}

void tutti_shared_reduce_views(tutti_comm *comm, const tutti_op *op, void *dst, size_t count) {
    bool premul = op->reduction == TUTTI_PREMUL_SUM;
    for (int rank = 0; premul && rank < comm->nranks; rank++)
        comm->factors[rank] = rank == comm->rank ? op->factor : tutti_post_of(comm, op, rank)->factor;
    tutti_reduce_args args = {
        .dst = dst,
        .srcs = comm->views,
        .factors = premul ? comm->factors : NULL,
        .nsrcs = comm->nranks,
        .count = count,
        .type = op->type,
        .reduction = op->reduction,
        .divisor = comm->nranks,
    };
    tutti_reduce_host(&args);
}
