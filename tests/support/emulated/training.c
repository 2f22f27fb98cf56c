/*
 * libstandin_training.so: the stand-in for CUDA with kernels for training: those of kernels/cuda, run on the host in stream
 * order. What is enqueued while a step is recorded is kept in a list, and replayed as one task.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/compute.h"
#include "tests/support/emulated/enqueue.h"
#include "tests/support/standin_cuda.h"

void standin_training_start(const tutti_module_host *host, const tutti_device *device);

const tutti_module_host *tutti_cuda_host;
const tutti_device *tutti_cuda_device;

typedef struct call {
    struct call *next;
    void (*run)(void *context);
    void (*forget)(void *context);
    void *context;
} call;

struct tutti_recording {
    void *stream;
    call *first, **last;
};

static _Thread_local tutti_recording *under_way;
static tutti_device recordable; /* the stand-in's, whose copies are recorded as well */

/* ---------------------------------------------------------------------------------------------- in the stream */

void *emulated_reach(const void *address) {
    void *reached = address != NULL ? standin_reach_as_gpu(address, 1) : NULL;
    if (address != NULL && reached == NULL) {
        fprintf(stderr, "emulation: a kernel was given %p, which is no address of the GPU's\n", address);
        abort();
    }
    return reached;
}

static void run_once(void *context) {
    call *once = context;
    if (!standin_is_broken()) once->run(once->context);
    once->forget(once->context);
    free(once);
}

void emulated_enqueue(void *stream, void (*run)(void *context), void (*forget)(void *context), void *context) {
    call *made = malloc(sizeof *made);
    *made = (call){NULL, run, forget, context};
    if (under_way == NULL || under_way->stream != stream) {
        standin_enqueue(stream, run_once, made);
        return;
    }
    *under_way->last = made;
    under_way->last = &made->next;
}

/* ------------------------------------------------------------------------------------------- copies and fills */

typedef struct move {
    void *dst;
    const void *src; /* NULL: bytes of `value` */
    size_t bytes;
    int value;
} move;

static void run_move(void *context) {
    const move *m = context;
    if (m->src != NULL) memmove(emulated_reach(m->dst), emulated_reach(m->src), m->bytes);
    else memset(emulated_reach(m->dst), m->value, m->bytes);
}

static void record_move(move what, tutti_stream stream) {
    move *made = malloc(sizeof *made);
    *made = what;
    emulated_enqueue(stream, run_move, free, made);
}

static tutti_status copy(void *dst, const void *src, size_t bytes, tutti_stream stream) {
    if (under_way == NULL) return standin_copy(dst, src, bytes, stream);
    record_move((move){.dst = dst, .src = src, .bytes = bytes}, stream);
    return TUTTI_OK;
}

static tutti_status fill(void *dst, int value, size_t bytes, tutti_stream stream) {
    if (under_way == NULL) return standin_fill(dst, value, bytes, stream);
    record_move((move){.dst = dst, .bytes = bytes, .value = value}, stream);
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------------- recording */

static void forget_calls(tutti_recording *recording) {
    while (recording->first != NULL) {
        call *first = recording->first;
        recording->first = first->next;
        first->forget(first->context);
        free(first);
    }
    free(recording);
}

tutti_status tutti_recording_begin(tutti_compute *compute) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    tutti_recording *made = calloc(1, sizeof *made);
    made->stream = cuda->stream;
    made->last = &made->first;
    under_way = made;
    cuda->recording = true;
    standin_capture(cuda->stream, true);
    return TUTTI_OK;
}

tutti_status tutti_recording_end(tutti_compute *compute, tutti_recording **recording_out) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    tutti_recording *made = under_way;
    under_way = NULL;
    cuda->recording = false;
    standin_capture(cuda->stream, false);
    tutti_status status = compute->kernels->check(compute);
    if (status == TUTTI_OK) *recording_out = made;
    else forget_calls(made);
    return status;
}

static void run_recording(void *context) {
    const tutti_recording *recording = context;
    for (const call *next = recording->first; next != NULL && !standin_is_broken(); next = next->next)
        next->run(next->context);
}

tutti_status tutti_recording_replay(tutti_compute *compute, tutti_recording *recording) {
    (void)compute;
    if (standin_is_broken()) return tutti_cuda_host->fail(TUTTI_ERR_SYSTEM, "stand-in: replay after a failure");
    standin_enqueue(recording->stream, run_recording, recording);
    return TUTTI_OK;
}

void tutti_recording_forget(tutti_compute *compute, tutti_recording *recording) {
    if (recording == NULL) return;
    (void)compute->kernels->wait(compute);
    forget_calls(recording);
}

void standin_training_start(const tutti_module_host *host, const tutti_device *device) {
    recordable = *device;
    recordable.copy = copy;
    recordable.fill = fill;
    tutti_cuda_host = host;
    tutti_cuda_device = &recordable;
}
