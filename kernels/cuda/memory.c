/*
 * Memory of GPUs and pinned memory, and the place to which a pointer points.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "kernels/cuda/state.h"

/* Asks the driver: the runtime's query makes a context on the thread's GPU, and a process that only passes on
 * pointers of another library must not have one. One call reads all attributes; for an unknown pointer the driver
 * reports none. */
tutti_status tutti_cuda_locate(const void *pointer, tutti_device_place *place_out) {
    CUmemorytype type = (CUmemorytype)0;
    unsigned managed = 0;
    int device = 0;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    unsigned long long serial = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_BUFFER_ID};
    void *values[] = {&type, &managed, &device, &base, &bytes, &serial};
    tutti_device_place place = {.memory = TUTTI_MEMORY_HOST};
    const tutti_cuda_driver *driver = tutti_cuda_is_forked() ? NULL : tutti_cuda_driver_get(false);
    CUresult result = driver == NULL ? CUDA_ERROR_NOT_INITIALIZED
                                     : driver->pointer_attributes(TUTTI_COUNT_OF(attributes), attributes, values,
                                                                  (CUdeviceptr)(uintptr_t)pointer);
    /* CUDA is not started here (or this is a forked child), it has ended, or no context knows the pointer: host
     * memory. */
    bool unknown = result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_DEINITIALIZED ||
                   result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_INVALID_VALUE;
    if (!unknown) TUTTI_TRY(tutti_cuda_driver_result(result, "cuPointerGetAttributes"));
    if (!unknown && (type == CU_MEMORYTYPE_DEVICE || managed != 0))
        place = (tutti_device_place){.memory = TUTTI_MEMORY_CUDA,
                                     .device = device,
                                     .base = (void *)(uintptr_t)base,
                                     .bytes = bytes,
                                     .serial = serial};
    *place_out = place;
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------- allocating and pinning */

tutti_status tutti_cuda_alloc(size_t bytes, void **memory_out) {
    TUTTI_CUDA_BEGIN();
    if (bytes == 0) {
        *memory_out = NULL;
        return TUTTI_OK;
    }
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaMalloc(memory_out, bytes);
    tutti_cuda_unrelax(mode);
    if (result != cudaErrorMemoryAllocation) return tutti_cuda_result(result, "cudaMalloc");
    cudaGetLastError();
    return tutti_cuda_host->fail(TUTTI_ERR_MEMORY, "the GPU does not have %zu bytes of free memory", bytes);
}

tutti_status tutti_cuda_free(void *memory) {
    TUTTI_CUDA_BEGIN();
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaFree(memory);
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaFree");
}

tutti_status tutti_cuda_pin(void *memory, size_t bytes, void **device_out) {
    TUTTI_CUDA_BEGIN();
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (result == cudaSuccess && device_out != NULL) {
        result = cudaHostGetDevicePointer(device_out, memory, 0);
        if (result != cudaSuccess) cudaHostUnregister(memory);
    }
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaHostRegister");
}

static tutti_status unpin(void *memory) {
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaHostUnregister(memory);
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaHostUnregister");
}

/* Host memory that was allocated here. Registering memory returns while streams wait for a peer; cudaHostAlloc was
 * not observed to. Shared pages stay where they are when the process forks. */
typedef struct host_block {
    void *memory;
    size_t bytes;
    struct host_block *next;
} host_block;

static struct {
    pthread_mutex_t lock;
    host_block *blocks;
} host_memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

tutti_status tutti_cuda_alloc_pinned(size_t bytes, void **memory_out, void **device_out) {
    host_block *block = NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = tutti_align_up(tutti_max_size(bytes, 1), page);
    TUTTI_CUDA_BEGIN();
    TUTTI_TRY(tutti_cuda_host->calloc(1, sizeof *block, &block));
    void *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    tutti_status status =
        memory != MAP_FAILED
            ? tutti_cuda_pin(memory, rounded, device_out)
            : tutti_cuda_host->fail(TUTTI_ERR_MEMORY, "cannot allocate %zu bytes for the GPU to read: %s", rounded,
                                    strerror(errno));
    if (status != TUTTI_OK) {
        if (memory != MAP_FAILED) munmap(memory, rounded);
        free(block);
        return status;
    }
    *block = (host_block){.memory = memory, .bytes = rounded};
    pthread_mutex_lock(&host_memory.lock);
    block->next = host_memory.blocks;
    host_memory.blocks = block;
    pthread_mutex_unlock(&host_memory.lock);
    *memory_out = memory;
    return TUTTI_OK;
}

tutti_status tutti_cuda_free_pinned(void *memory) {
    TUTTI_CUDA_BEGIN();
    if (memory == NULL) return TUTTI_OK;
    pthread_mutex_lock(&host_memory.lock);
    host_block **link = &host_memory.blocks;
    while (*link != NULL && (*link)->memory != memory) link = &(*link)->next;
    host_block *block = *link;
    if (block != NULL) *link = block->next;
    pthread_mutex_unlock(&host_memory.lock);
    if (block == NULL)
        return tutti_cuda_host->fail(TUTTI_ERR_ARGUMENT, "%p is not pinned memory that was allocated here", memory);
    tutti_status status = unpin(memory);
    if (status == TUTTI_OK) munmap(memory, block->bytes);
    free(block);
    return status;
}

/* ------------------------------------------------------------------------------------------ other processes */

tutti_status tutti_cuda_export_memory(void *memory, tutti_device_export *export_out) {
    tutti_device_place place;
    tutti_device_export exported = {.offset = 0};
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof handle == TUTTI_DEVICE_IPC_BYTES, "an export is CUDA's handle");
    TUTTI_CUDA_BEGIN();
    TUTTI_TRY(tutti_cuda_locate(memory, &place));
    if (place.memory != TUTTI_MEMORY_CUDA)
        return tutti_cuda_host->fail(TUTTI_ERR_ARGUMENT, "%p is not GPU memory: it cannot be exported", memory);
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaIpcGetMemHandle(&handle, place.base);
    tutti_cuda_unrelax(mode);
    TUTTI_TRY(tutti_cuda_result(result, "cudaIpcGetMemHandle"));
    memcpy(exported.handle, &handle, sizeof handle);
    exported.offset = (uint64_t)((char *)memory - (char *)place.base);
    exported.serial = place.serial;
    *export_out = exported;
    return TUTTI_OK;
}

tutti_status tutti_cuda_import_memory(const tutti_device_export *exported, void **base_out) {
    cudaIpcMemHandle_t handle;
    TUTTI_CUDA_BEGIN();
    memcpy(&handle, exported->handle, sizeof handle);
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaIpcOpenMemHandle(base_out, handle, cudaIpcMemLazyEnablePeerAccess);
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaIpcOpenMemHandle");
}

tutti_status tutti_cuda_close_import(void *base) {
    TUTTI_CUDA_BEGIN();
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaIpcCloseMemHandle(base);
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaIpcCloseMemHandle");
}
