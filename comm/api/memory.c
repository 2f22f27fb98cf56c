/*
 * Memory for buffers: in the process's heap, or on a GPU.
 */
#include <tutti/device.h>

#include "comm/base/comm.h"
#include "comm/gpu/device_memory.h"
#include "comm/gpu/nccl/nccl_memory.h"
#include "comm/shm/heap.h"

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
