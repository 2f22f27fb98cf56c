/*
 * Recording a step: a CUDA graph, captured from the compute's stream and all streams that wait for it.
 *
 * The capture covers this thread only: calls of the process's other threads, Tutti's own included, neither join nor
 * end it.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "kernels/cuda/compute.h"

struct tutti_recording {
    cudaGraphExec_t graph;
};

static tutti_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return TUTTI_OK;
    (void)cudaGetLastError(); /* otherwise the next launch would report it */
    return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "%s a step on the GPU: %s", what, cudaGetErrorString(error));
}

tutti_status tutti_recording_begin(tutti_compute *compute) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    TUTTI_TRY(check(cudaStreamBeginCapture((cudaStream_t)cuda->stream, cudaStreamCaptureModeThreadLocal), "recording"));
    cuda->recording = true;
    return TUTTI_OK;
}

tutti_status tutti_recording_end(tutti_compute *compute, tutti_recording **recording_out) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    cudaGraph_t graph = NULL;
    cuda->recording = false;
    TUTTI_TRY(check(cudaStreamEndCapture((cudaStream_t)cuda->stream, &graph), "recording"));
    tutti_recording *recording = calloc(1, sizeof *recording);
    tutti_status status = compute->kernels->check(compute);
    if (status == TUTTI_OK && recording == NULL)
        status = tutti_cuda_host->fail(TUTTI_ERR_MEMORY, "no memory for a recorded step");
    if (status == TUTTI_OK) status = check(cudaGraphInstantiate(&recording->graph, graph, 0), "preparing");
    (void)cudaGraphDestroy(graph);
    if (status == TUTTI_OK) *recording_out = recording;
    else free(recording);
    return status;
}

tutti_status tutti_recording_replay(tutti_compute *compute, tutti_recording *recording) {
    return check(cudaGraphLaunch(recording->graph, (cudaStream_t)tutti_cuda_compute_of(compute)->stream), "replaying");
}

void tutti_recording_forget(tutti_compute *compute, tutti_recording *recording) {
    if (recording == NULL) return;
    (void)compute->kernels->wait(compute);
    (void)cudaGraphExecDestroy(recording->graph);
    free(recording);
}
