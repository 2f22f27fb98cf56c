/*
 * The GPUs of this machine: their number, their properties, and the one that a thread uses.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "kernels/cuda/reduce/launch.h"
#include "kernels/cuda/state.h"

#define MOST_DEVICES 1024

/* Frequently needed facts of each GPU. 0: not queried yet; written by any thread, always with the same value. */
static struct {
    atomic_int processors, waits; /* waits: 1 no, 2 yes */
    atomic_bool ready;            /* has a context with the kernels loaded */
} known[MOST_DEVICES];

static atomic_bool context_seen;

/* ------------------------------------------------------------------------------------------------- driver */

tutti_status tutti_cuda_check(void) {
    int version = 0, count = 0, needed = CUDART_VERSION / 1000;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(true);
    if (driver == NULL)
        return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED, "there is no NVIDIA driver: libcuda.so.1 was not found");
    if (driver->version(&version) != CUDA_SUCCESS || version / 1000 < needed)
        return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED,
                                     "the driver is for CUDA %d.%d, this build needs one for %d.0 or later: update it, "
                                     "or build with an older nvcc",
                                     version / 1000, version % 1000 / 10, needed);
    TUTTI_CUDA_BEGIN();
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
    if (error == cudaSuccess) return TUTTI_OK;
    cudaGetLastError();
    return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED, "the driver (for CUDA %d.%d) reports: %s (%s)", version / 1000,
                                 version % 1000 / 10, cudaGetErrorString(error), cudaGetErrorName(error));
}

void tutti_cuda_describe(char *text, size_t capacity) {
    int version = 0;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(true);
    if (driver == NULL || driver->version(&version) != CUDA_SUCCESS) version = 0;
    snprintf(text, capacity, "CUDA %d.%d, driver for %d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
             version / 1000, version % 1000 / 10);
}

tutti_status tutti_cuda_count(int *count_out) {
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaGetDeviceCount(count_out));
    return TUTTI_OK;
}

static tutti_status check_index(int device) {
    int count = 0;
    TUTTI_TRY(tutti_cuda_count(&count));
    if (device >= 0 && device < count && device < MOST_DEVICES) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_ARGUMENT,
                                 "there is no GPU %d: the number of GPUs that this process sees is %d", device, count);
}

/* -------------------------------------------------------------------------------------------------- facts */

static bool can_wait(int device) {
    int can = 0;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(true);
    return driver != NULL &&
           driver->device_attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) == CUDA_SUCCESS &&
           can != 0;
}

static bool has_mps(int device) {
    int has = 0;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(true);
    return driver != NULL && driver->device_attribute(&has, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) == CUDA_SUCCESS &&
           has != 0;
}

/* Memory of GPUs that share the host's memory (Jetson) cannot be exported by the old interface, which is the one that
 * works with plain allocations everywhere else. */
static bool can_export(int device) {
    int integrated = 1, unified = 0;
    return cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, device) == cudaSuccess && integrated == 0 &&
           cudaDeviceGetAttribute(&unified, cudaDevAttrUnifiedAddressing, device) == cudaSuccess && unified != 0;
}

tutti_status tutti_cuda_facts(int device, tutti_device_facts *facts_out) {
    struct cudaDeviceProp properties;
    tutti_device_facts facts = {0};
    CUuuid uuid;
    _Static_assert(sizeof uuid.bytes == sizeof facts.id, "an id is a UUID");
    TUTTI_TRY(check_index(device));
    TUTTI_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
    TUTTI_CUDA_TRY(cudaDeviceGetPCIBusId(facts.pci, sizeof facts.pci, device));
    TUTTI_TRY(tutti_cuda_driver_result(tutti_cuda_driver_get(true)->device_uuid(&uuid, device), "cuDeviceGetUuid"));
    memcpy(facts.id, uuid.bytes, sizeof facts.id);
    for (char *c = facts.pci; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
    snprintf(facts.name, sizeof facts.name, "%.*s", (int)sizeof facts.name - 1, properties.name);
    facts.major = properties.major;
    facts.minor = properties.minor;
    facts.memory_bytes = properties.totalGlobalMem;
    facts.processors = properties.multiProcessorCount;
    facts.stream_waits = can_wait(device);
    facts.ipc = can_export(device);
    facts.mps = has_mps(device);
    *facts_out = facts;
    return TUTTI_OK;
}

tutti_status tutti_cuda_processors(int *processors_out) {
    int device = 0, processors;
    TUTTI_CUDA_TRY(cudaGetDevice(&device));
    processors = device < MOST_DEVICES ? atomic_load_explicit(&known[device].processors, memory_order_relaxed) : 0;
    if (processors == 0) {
        TUTTI_CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
        if (device < MOST_DEVICES) atomic_store_explicit(&known[device].processors, processors, memory_order_relaxed);
    }
    *processors_out = processors;
    return TUTTI_OK;
}

bool tutti_cuda_stream_waits(void) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= MOST_DEVICES) return false;
    int waits = atomic_load_explicit(&known[device].waits, memory_order_relaxed);
    if (waits == 0) {
        waits = can_wait(device) ? 2 : 1;
        atomic_store_explicit(&known[device].waits, waits, memory_order_relaxed);
    }
    return waits == 2;
}

/* ------------------------------------------------------------------------------------------ the thread's GPU */

/* The driver implements copies within a GPU and fills by kernels of its own: loads those. */
static cudaError_t load_drivers_kernels(void) {
    char *memory = NULL;
    cudaStream_t stream = NULL;
    cudaError_t result = cudaMalloc((void **)&memory, 256);
    if (result == cudaSuccess) result = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (result == cudaSuccess) result = cudaMemsetAsync(memory, 0, 128, stream);
    if (result == cudaSuccess) result = cudaMemcpyAsync(memory + 128, memory, 128, cudaMemcpyDeviceToDevice, stream);
    if (result == cudaSuccess) result = cudaStreamSynchronize(stream);
    if (stream != NULL) cudaStreamDestroy(stream);
    if (memory != NULL) cudaFree(memory);
    return result;
}

/* By default CUDA loads a kernel at its first launch, which may wait for all streams of the GPU, even for a stream
 * that waits for a peer that waits for this kernel. So all kernels are loaded here. */
static tutti_status prepare(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    tutti_cuda_mode mode = tutti_cuda_relax();
    tutti_status status = tutti_cuda_result(cudaFree(NULL), "making a context on the GPU");
    if (status == TUTTI_OK) status = tutti_cuda_result(tutti_cuda_launch_prepare(), "loading kernels");
    if (status == TUTTI_OK) status = tutti_cuda_result(tutti_cuda_launch_prepare_box(), "loading kernels of boxes");
    if (status == TUTTI_OK) status = tutti_cuda_result(load_drivers_kernels(), "loading the driver's kernels");
    tutti_cuda_unrelax(mode);
    pthread_mutex_unlock(&lock);
    return status;
}

tutti_status tutti_cuda_use(int device) {
    bool in_table = device >= 0 && device < MOST_DEVICES;
    TUTTI_CUDA_BEGIN();
    cudaError_t set = cudaSetDevice(device);
    if (set == cudaErrorCudartUnloading) return TUTTI_OK; /* the process is ending; see event_query */
    TUTTI_TRY(tutti_cuda_result(set, "cudaSetDevice"));
    if (in_table && atomic_load_explicit(&known[device].ready, memory_order_acquire)) return TUTTI_OK;
    TUTTI_TRY(prepare());
    atomic_store_explicit(&context_seen, true, memory_order_release);
    if (in_table) atomic_store_explicit(&known[device].ready, true, memory_order_release);
    return TUTTI_OK;
}

tutti_status tutti_cuda_current(int *device_out) {
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaGetDevice(device_out));
    return TUTTI_OK;
}

static bool has_context(int device) {
    int active = 0;
    unsigned flags;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(false);
    return driver != NULL && driver->primary_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

void tutti_cuda_leave(int device) {
    if (!tutti_cuda_is_forked() && has_context(device)) (void)tutti_cuda_result(cudaSetDevice(device), "cudaSetDevice");
}

/* A context is not detected if it is neither a GPU's primary one, which all runtimes share, nor this thread's. */
bool tutti_cuda_in_use(void) {
    CUcontext context = NULL;
    int count = 0;
    if (atomic_load_explicit(&context_seen, memory_order_acquire)) return true;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(false);
    if (driver == NULL || driver->context_current(&context) != CUDA_SUCCESS) return false; /* not started */
    bool seen = context != NULL;
    if (driver->device_count(&count) != CUDA_SUCCESS) count = 0;
    for (int i = 0; i < count && !seen; i++) seen = has_context(i);
    if (!seen) return false;
    tutti_cuda_note_start();
    atomic_store_explicit(&context_seen, true, memory_order_release);
    return true;
}
