/*
 * Memory for buffers: in the process's heap, or on a GPU; and where this process has mapped a peer's memory.
 */
#include <tutti/device.h>

#include "comm/base/comm.h"
#include "comm/gpu/device_memory.h"
#include "comm/gpu/nccl/nccl_memory.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

tutti_status tutti_mem_alloc(size_t bytes, void **memory_out) {
    if (memory_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_alloc: memory_out is NULL");
    return tutti_heap_alloc(TUTTI_HEAP_BLOCKS, bytes, memory_out);
}

tutti_status tutti_mem_alloc_cuda(size_t bytes, void **memory_out) {
    if (memory_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_alloc_cuda: memory_out is NULL");
    return tutti_device_memory_alloc(bytes, &tutti_nccl_allocator, memory_out);
}

tutti_status tutti_mem_free(void *memory) {
    tutti_status status;
    if (memory != NULL && !tutti_heap_holds(memory, 1) &&
        tutti_device_memory_free(memory, &tutti_nccl_allocator, &status))
        return status;
    if (memory != NULL && !tutti_heap_holds(memory, 1) && !tutti_forked())
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_free: %p is not from tutti_mem_alloc", memory);
    return tutti_heap_free(memory);
}

/* For callers that copy from a peer's memory directly, between two collectives, instead of sending messages. The
 * communicator keeps the mapping valid: its peers stay mapped as long as it exists, dead or alive. */
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
