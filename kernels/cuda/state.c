/*
 * What the calls of the module share: whether CUDA works in this process, the translation of CUDA's errors to Tutti's,
 * and calls during a capture. See state.h.
 */
#include "kernels/cuda/state.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

const tutti_module_host *tutti_cuda_host;
const tutti_device *tutti_cuda_device;

/* started: CUDA was started in this process. forked: this is a child forked after that, in which CUDA does not work. */
static atomic_bool started, forked;

static void note_fork(void) {
    if (atomic_load_explicit(&started, memory_order_relaxed))
        atomic_store_explicit(&forked, true, memory_order_relaxed);
}

void tutti_cuda_watch_forks(void) {
    pthread_atfork(NULL, NULL, note_fork);
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
