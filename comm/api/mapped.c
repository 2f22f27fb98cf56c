/*
 * Where this process has mapped a peer's memory: for callers that copy from it directly, between two collectives,
 * instead of sending messages. Only the communicator keeps the mapping valid: its peers stay mapped as long as it
 * exists, dead or alive.
 */
#include "comm/base/comm.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

tutti_status tutti_mem_peer(tutti_comm *comm, int peer, const void *memory, size_t bytes, const void **here_out) {
    if (comm == NULL || here_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_peer: NULL argument");
    if (peer < 0 || peer >= comm->nranks)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_peer: rank %d is out of range for a communicator of %d ranks",
                          peer, comm->nranks);
    if (tutti_forked())
        return tutti_fail(TUTTI_ERR_FORKED,
                          "tutti_mem_peer: this process was forked after communicator \"%s\" was made", comm->name);
    const tutti_peer *process = comm->members[peer].process;
    if (process->remote) *here_out = NULL;
    else if (!process->self) *here_out = tutti_peer_translate(process, (uint64_t)(uintptr_t)memory, bytes);
    else *here_out = comm->one_process || peer != comm->rank || tutti_heap_holds(memory, bytes) ? memory : NULL;
    return TUTTI_OK;
}
