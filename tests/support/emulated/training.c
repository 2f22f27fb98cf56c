/*
 * libstandin_training.so: the stand-in for CUDA with kernels for training: those of kernels/cuda, run on the host in
 * stream order. A recorded step is a graph of the stand-in's (standin_cuda_graph.c).
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/compute.h"
#include "tests/support/emulated/enqueue.h"
#include "tests/support/standins/standin_cuda.h"

void standin_training_start(const tutti_module_host *host, const tutti_device *device);

const tutti_module_host *tutti_cuda_host;
const tutti_device *tutti_cuda_device;

struct tutti_recording {
    void *graph;
};

void *emulated_reach(const void *address) {
    void *reached = address != NULL ? standin_reach_as_gpu(address, 1) : NULL;
    if (address != NULL && reached == NULL) {
        fprintf(stderr, "emulation: a kernel was given %p, which is not an address of the GPU\n", address);
        abort();
    }
    return reached;
}

void emulated_enqueue(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    standin_submit(stream, run, forget, context);
}

tutti_status tutti_recording_begin(tutti_compute *compute) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    cuda->recording = true;
    standin_graph_begin(cuda->stream, 0);
    return TUTTI_OK;
}

tutti_status tutti_recording_end(tutti_compute *compute, tutti_recording **recording_out) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    void *graph = NULL;
    cuda->recording = false;
    if (standin_graph_end(cuda->stream, &graph) != 0)
        return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM,
                                     "stand-in: recording ended with a stream that nothing waits for");
    tutti_status status = compute->kernels->check(compute);
    if (status != TUTTI_OK) {
        standin_graph_forget(graph);
        return status;
    }
    tutti_recording *made = malloc(sizeof *made);
    if (made == NULL) abort();
    made->graph = graph;
    *recording_out = made;
    return TUTTI_OK;
}

tutti_status tutti_recording_replay(tutti_compute *compute, tutti_recording *recording) {
    if (standin_graph_launch(recording->graph, tutti_cuda_compute_of(compute)->stream) == 0) return TUTTI_OK;
    return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "stand-in: replay after a failure");
}

void tutti_recording_forget(tutti_compute *compute, tutti_recording *recording) {
    if (recording == NULL) return;
    (void)compute->kernels->wait(compute);
    standin_graph_forget(recording->graph);
    free(recording);
}

void standin_training_start(const tutti_module_host *host, const tutti_device *device) {
    tutti_cuda_host = host;
    tutti_cuda_device = device;
}
