/*
 * A communicator of one rank: copies inputs to outputs. Reductions still run, since avg, premul_sum and bool change
 * even a single input.
 */
#include <string.h>

#include "comm/shm/coll/shared.h"

tutti_status tutti_single(tutti_comm *comm, const tutti_op *op) {
    tutti_span input = tutti_op_input(comm, op, 0);
    if (tutti_op_reduces(op)) {
        comm->shm.views[0] = input.data;
        tutti_shared_reduce_views(comm, op, (void *)tutti_op_output(comm, op, 0).data,
                                  input.bytes / tutti_type_bytes(op->type));
    } else if (tutti_op_has_output(op, 0) && input.bytes > 0) {
        memmove((void *)tutti_op_output(comm, op, 0).data, input.data, input.bytes);
    }
    return TUTTI_OK;
}
