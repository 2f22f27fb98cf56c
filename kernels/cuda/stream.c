/*
 * Streams, events, and waiting for values in memory. Where the GPU supports it, the stream itself waits for a value;
 * elsewhere one thread of the driver polls for all streams, so two such waits must never depend on each other.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/reduce/launch.h"
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

/* Invalidates captures in every mode, because their streams are among those to wait for. */
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
    cudaError_t result = cudaStreamIsCapturing(native(stream), &status);
    if (result == cudaErrorStreamCaptureImplicit) {
        cudaGetLastError();
        return tutti_cuda_host->fail(
            TUTTI_ERR_UNSUPPORTED,
            "the default stream cannot be used while a stream that waits for it is captured into a CUDA graph: pass a "
            "stream made with cudaStreamNonBlocking");
    }
    TUTTI_TRY(tutti_cuda_result(result, "cudaStreamIsCapturing"));
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
    const uint64_t *at; /* the host's address of the pinned memory */
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

/* By default the write is preceded by a system-wide fence. */
tutti_status tutti_cuda_write_value(tutti_stream stream, void *at, uint64_t value) {
    TUTTI_CUDA_BEGIN();
    if (!tutti_cuda_stream_waits())
        return tutti_cuda_result(tutti_cuda_launch_store(at, value, native(stream)), "the kernel that stores a value");
    return tutti_cuda_driver_result(tutti_cuda_driver_get(true)->write_value((CUstream)stream,
                                                                             (CUdeviceptr)(uintptr_t)at, value,
                                                                             CU_STREAM_WRITE_VALUE_DEFAULT),
                                    "cuStreamWriteValue64");
}

static CUstreamBatchMemOpParams batch_entry(const tutti_device_value *value) {
    CUstreamBatchMemOpParams entry;
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)value->at;
    memset(&entry, 0, sizeof entry); /* the whole union, whichever member is used */
    if (value->waits)
        entry.waitValue = (struct CUstreamMemOpWaitValueParams_st){.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                                                                   .address = at,
                                                                   .value64 = value->value,
                                                                   .flags = CU_STREAM_WAIT_VALUE_GEQ};
    else
        entry.writeValue = (struct CUstreamMemOpWriteValueParams_st){.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                                                                     .address = at,
                                                                     .value64 = value->value,
                                                                     .flags = CU_STREAM_WRITE_VALUE_DEFAULT};
    return entry;
}

/* Makes one driver call for all values: a call costs more than an operation. */
tutti_status tutti_cuda_use_values(tutti_stream stream, const tutti_device_value *values, int count) {
    CUstreamBatchMemOpParams operations[TUTTI_DEVICE_MOST_VALUES];
    assert(count <= TUTTI_DEVICE_MOST_VALUES);
    TUTTI_CUDA_BEGIN();
    if (count == 0) return TUTTI_OK;
    if (!tutti_cuda_stream_waits()) {
        for (int i = 0; i < count; i++)
            TUTTI_TRY(values[i].waits ? wait_on_host(stream, values[i].at, values[i].value)
                                      : tutti_cuda_write_value(stream, values[i].at, values[i].value));
        return TUTTI_OK;
    }
    for (int i = 0; i < count; i++) operations[i] = batch_entry(&values[i]);
    return tutti_cuda_driver_result(
        tutti_cuda_driver_get(true)->batch((CUstream)stream, (unsigned)count, operations, 0), "cuStreamBatchMemOp");
}
