/*
 * Streams, events, and waiting for values in memory. Waits for a value are the stream's own where the GPU can do that; elsewhere a
 * thread of the driver's polls, one for all streams, so two such waits must never need each other.
 */
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/state.h"

static cudaStream_t native(tutti_stream stream) {
    return stream;
}

static cudaEvent_t native_event(tutti_event_handle event) {
    return (cudaEvent_t)event;
}

tutti_status tutti_cuda_stream_create(tutti_stream *stream_out) {
    cudaStream_t stream = NULL;
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    *stream_out = stream;
    return TUTTI_OK;
}

tutti_status tutti_cuda_stream_destroy(tutti_stream stream) {
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaStreamDestroy(native(stream)));
    return TUTTI_OK;
}

tutti_status tutti_cuda_stream_sync(tutti_stream stream) {
    TUTTI_CUDA_BEGIN();
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaStreamSynchronize(native(stream));
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaStreamSynchronize");
}

tutti_status tutti_cuda_sync(void) {
    TUTTI_CUDA_BEGIN();
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaDeviceSynchronize();
    tutti_cuda_unrelax(mode);
    return tutti_cuda_result(result, "cudaDeviceSynchronize");
}

tutti_status tutti_cuda_stream_captures(tutti_stream stream, bool *captures_out) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaStreamIsCapturing(native(stream), &status));
    *captures_out = status != cudaStreamCaptureStatusNone;
    return TUTTI_OK;
}

tutti_status tutti_cuda_event_create(tutti_event_handle *event_out) {
    cudaEvent_t event = NULL;
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    *event_out = (tutti_event_handle)event;
    return TUTTI_OK;
}

tutti_status tutti_cuda_event_destroy(tutti_event_handle event) {
    TUTTI_CUDA_BEGIN();
    if (event != NULL) TUTTI_CUDA_TRY(cudaEventDestroy(native_event(event)));
    return TUTTI_OK;
}

tutti_status tutti_cuda_event_record(tutti_event_handle event, tutti_stream stream) {
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaEventRecord(native_event(event), native(stream)));
    return TUTTI_OK;
}

/* While the process ends, CUDA answers no queries. This is not a failure: peers that are done too must not receive
 * one. */
tutti_status tutti_cuda_event_query(tutti_event_handle event) {
    TUTTI_CUDA_BEGIN();
    tutti_cuda_mode mode = tutti_cuda_relax();
    cudaError_t result = cudaEventQuery(native_event(event));
    tutti_cuda_unrelax(mode);
    if (result == cudaErrorCudartUnloading) return TUTTI_NOT_YET;
    return tutti_cuda_result(result, "cudaEventQuery");
}

tutti_status tutti_cuda_stream_wait_event(tutti_stream stream, tutti_event_handle event) {
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaStreamWaitEvent(native(stream), native_event(event), 0));
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------- values */

typedef struct poll {
    const uint64_t *at; /* the same address for the host: memory that is pinned, under unified addressing */
    uint64_t value;
} poll;

/* Acquire: pairs with the release store of the thread that writes the value. */
static void CUDART_CB poll_value(void *context) {
    poll *p = context;
    while ((int64_t)(__atomic_load_n(p->at, __ATOMIC_ACQUIRE) - p->value) < 0) usleep(20);
    free(p);
}

static tutti_status wait_on_host(tutti_stream stream, void *at, uint64_t value) {
    struct cudaPointerAttributes attributes;
    poll *made = NULL;
    TUTTI_CUDA_TRY(cudaPointerGetAttributes(&attributes, at));
    if (attributes.hostPointer == NULL)
        return tutti_cuda_host->fail(TUTTI_ERR_UNSUPPORTED,
                                     "streams of this GPU cannot wait for a value in its own memory");
    TUTTI_TRY(tutti_cuda_host->calloc(1, sizeof *made, &made));
    *made = (poll){attributes.hostPointer, value};
    tutti_status status = tutti_cuda_result(cudaLaunchHostFunc(native(stream), poll_value, made), "cudaLaunchHostFunc");
    if (status != TUTTI_OK) free(made);
    return status;
}

tutti_status tutti_cuda_wait_value(tutti_stream stream, void *at, uint64_t value) {
    TUTTI_CUDA_BEGIN();
    if (!tutti_cuda_stream_waits()) return wait_on_host(stream, at, value);
    return tutti_cuda_driver_result(tutti_cuda_driver_get(true)->wait_value(
                                        (CUstream)stream, (CUdeviceptr)(uintptr_t)at, value, CU_STREAM_WAIT_VALUE_GEQ),
                                    "cuStreamWaitValue64");
}

/* One call of the driver's for all: each costs more than what it says. */
tutti_status tutti_cuda_wait_values(tutti_stream stream, void *const *ats, int count, uint64_t value) {
    CUstreamBatchMemOpParams operations[TUTTI_DEVICE_MOST_BUFFERS];
    assert(count <= TUTTI_DEVICE_MOST_BUFFERS);
    TUTTI_CUDA_BEGIN();
    if (count == 0) return TUTTI_OK;
    if (!tutti_cuda_stream_waits()) {
        for (int i = 0; i < count; i++) TUTTI_TRY(wait_on_host(stream, ats[i], value));
        return TUTTI_OK;
    }
    for (int i = 0; i < count; i++)
        operations[i].waitValue = (struct CUstreamMemOpWaitValueParams_st){.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                                                                           .address = (CUdeviceptr)(uintptr_t)ats[i],
                                                                           .value64 = value,
                                                                           .flags = CU_STREAM_WAIT_VALUE_GEQ};
    return tutti_cuda_driver_result(
        tutti_cuda_driver_get(true)->batch((CUstream)stream, (unsigned)count, operations, 0), "cuStreamBatchMemOp");
}

/* By default a fence for the whole system comes before the write. */
tutti_status tutti_cuda_write_value(tutti_stream stream, void *at, uint64_t value) {
    TUTTI_CUDA_BEGIN();
    if (!tutti_cuda_stream_waits())
        return tutti_cuda_result(tutti_cuda_launch_store(at, value, native(stream)), "the kernel that stores a value");
    return tutti_cuda_driver_result(tutti_cuda_driver_get(true)->write_value((CUstream)stream,
                                                                             (CUdeviceptr)(uintptr_t)at, value,
                                                                             CU_STREAM_WRITE_VALUE_DEFAULT),
                                    "cuStreamWriteValue64");
}

tutti_status tutti_cuda_call_host(tutti_stream stream, void (*function)(void *context), void *context) {
    TUTTI_CUDA_BEGIN();
    TUTTI_CUDA_TRY(cudaLaunchHostFunc(native(stream), function, context));
    return TUTTI_OK;
}
