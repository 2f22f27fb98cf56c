/*
 * The module libtutti_cuda.so: its table, and the translation of CUDA's errors to Tutti's.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cuda/compute.h"
#include "kernels/cuda/operators/op_kernels.h"
#include "kernels/cuda/state.h"

const tutti_module_host *tutti_cuda_host;
const tutti_device *tutti_cuda_device;

#ifndef TUTTI_CUDA_KERNELS /* built without cuBLAS */
#define TUTTI_CUDA_KERNELS   NULL
#define TUTTI_CUDA_OPERATORS NULL
#else
#define TUTTI_CUDA_OPERATORS &tutti_cuda_operators
#endif

/* started: CUDA was started in this process. forked: this is a child forked after that, in which CUDA does not work. */
static atomic_bool started, forked;

static void note_fork(void) {
    if (atomic_load_explicit(&started, memory_order_relaxed))
        atomic_store_explicit(&forked, true, memory_order_relaxed);
}

void tutti_cuda_note_start(void) {
    if (!atomic_load_explicit(&started, memory_order_relaxed))
        atomic_store_explicit(&started, true, memory_order_relaxed);
}

bool tutti_cuda_is_forked(void) {
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

tutti_status tutti_cuda_begin(void) {
    if (tutti_cuda_is_forked())
        return tutti_cuda_host->fail(TUTTI_ERR_FORKED,
                                     "this process was forked from one that had started CUDA, and CUDA "
                                     "does not work in such a child: start the process with exec (spawn)");
    tutti_cuda_note_start();
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- errors */

static tutti_status status_of(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return TUTTI_OK;
    case cudaErrorNotReady: return TUTTI_NOT_YET;
    case cudaErrorMemoryAllocation: return TUTTI_ERR_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorAlreadyMapped: return TUTTI_ERR_ARGUMENT;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: return TUTTI_ERR_UNSUPPORTED;
    default: return TUTTI_ERR_SYSTEM;
    }
}

tutti_status tutti_cuda_result(cudaError_t result, const char *what) {
    tutti_status status = status_of(result);
    if (status >= TUTTI_OK && result == cudaSuccess) return TUTTI_OK;
    cudaGetLastError();
    if (status == TUTTI_NOT_YET) return status;
    return tutti_cuda_host->fail(status, "%.*s: %s (%s)", (int)strcspn(what, "("), what, cudaGetErrorString(result),
                                 cudaGetErrorName(result));
}

/* The runtime and the driver use the same numbers for the errors that both have. */
tutti_status tutti_cuda_driver_result(CUresult result, const char *what) {
    const char *text = "unknown error";
    if (result == CUDA_SUCCESS) return TUTTI_OK;
    const tutti_cuda_driver *driver = tutti_cuda_driver_get(false);
    if (driver != NULL && driver->error_string(result, &text) != CUDA_SUCCESS) text = "unknown error";
    return tutti_cuda_host->fail(status_of((cudaError_t)result), "%s: %s (%d)", what, text, (int)result);
}

tutti_cuda_mode tutti_cuda_relax(void) {
    tutti_cuda_mode mode = cudaStreamCaptureModeRelaxed;
    return cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess ? mode : cudaStreamCaptureModeRelaxed;
}

void tutti_cuda_unrelax(tutti_cuda_mode mode) {
    cudaThreadExchangeStreamCaptureMode(&mode);
}

/* ---------------------------------------------------------------------------------------------- the table */

__attribute__((visibility("default"))) tutti_status tutti_module_start(const tutti_module_host *host,
                                                                       const tutti_module_calls **calls_out);

tutti_status tutti_module_start(const tutti_module_host *host, const tutti_module_calls **calls_out) {
    static const tutti_cuda_module module = {
        .calls.version = TUTTI_MODULE_VERSION,
        .device = {.check = tutti_cuda_check,
                   .describe = tutti_cuda_describe,
                   .count = tutti_cuda_count,
                   .facts = tutti_cuda_facts,
                   .use = tutti_cuda_use,
                   .current = tutti_cuda_current,
                   .leave = tutti_cuda_leave,
                   .in_use = tutti_cuda_in_use,
                   .locate = tutti_cuda_locate,
                   .alloc = tutti_cuda_alloc,
                   .free = tutti_cuda_free,
                   .alloc_pinned = tutti_cuda_alloc_pinned,
                   .free_pinned = tutti_cuda_free_pinned,
                   .pin = tutti_cuda_pin,
                   .unpin = tutti_cuda_unpin,
                   .export_memory = tutti_cuda_export_memory,
                   .import_memory = tutti_cuda_import_memory,
                   .close_import = tutti_cuda_close_import,
                   .stream_create = tutti_cuda_stream_create,
                   .stream_destroy = tutti_cuda_stream_destroy,
                   .stream_sync = tutti_cuda_stream_sync,
                   .sync = tutti_cuda_sync,
                   .stream_captures = tutti_cuda_stream_captures,
                   .event_create = tutti_cuda_event_create,
                   .event_destroy = tutti_cuda_event_destroy,
                   .event_record = tutti_cuda_event_record,
                   .event_query = tutti_cuda_event_query,
                   .stream_wait_event = tutti_cuda_stream_wait_event,
                   .copy = tutti_cuda_copy,
                   .fill = tutti_cuda_fill,
                   .wait_value = tutti_cuda_wait_value,
                   .write_value = tutti_cuda_write_value,
                   .use_values = tutti_cuda_use_values,
                   .reduce = tutti_cuda_reduce,
                   .copy_many = tutti_cuda_copy_many,
                   .copy_counted = tutti_cuda_copy_counted,
                   .copy_box = tutti_cuda_copy_box,
                   .call_host = tutti_cuda_call_host},
        .kernels = TUTTI_CUDA_KERNELS,
        .operators = TUTTI_CUDA_OPERATORS,
    };
    if (host->version == TUTTI_MODULE_VERSION) {
        tutti_cuda_device = &module.device;
        tutti_cuda_host = host; /* else the caller detects the difference, and makes no call */
        pthread_atfork(NULL, NULL, note_fork);
    }
    *calls_out = &module.calls;
    return TUTTI_OK;
}
