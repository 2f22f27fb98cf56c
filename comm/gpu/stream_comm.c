/*
 * The state of a communicator for calls on CUDA memory (comm->cuda.streams), and what all files of this folder need of
 * it. See stream.h.
 */
#include <stdlib.h>

#include "bootstrap/base/lock.h"
#include "comm/gpu/stream_state.h"

#define GATHER_SIGNATURE UINT64_C(0x2545f4914f6cdd1d)

tutti_status tutti_stream_enter(const tutti_stream_comm *gpu, int *before_out) {
    int before = gpu->index;
    TUTTI_TRY(gpu->device->current(&before));
    *before_out = before;
    return before == gpu->index ? TUTTI_OK : gpu->device->use(gpu->index);
}

void tutti_stream_leave(const tutti_stream_comm *gpu, int before) {
    if (before != gpu->index) gpu->device->leave(before);
}

static void gpu_free(tutti_stream_comm *gpu) {
    if (gpu == NULL) return;
    if (gpu->tracks != NULL) pthread_mutex_destroy(&gpu->tracks->lock);
    pthread_mutex_destroy(&gpu->order);
    free(gpu->tracks);
    free(gpu->facts);
    free(gpu);
}

static tutti_status gpu_make(tutti_comm *comm, int index, tutti_stream_comm **gpu_out) {
    tutti_stream_comm *gpu;
    TUTTI_TRY(tutti_calloc(1, sizeof *gpu, &gpu));
    gpu->comm = comm;
    gpu->index = index;
    pthread_mutex_init(&gpu->order, NULL);
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc(1, sizeof *gpu->tracks, &gpu->tracks), fail);
    pthread_mutex_init(&gpu->tracks->lock, NULL);
    TAILQ_INIT(&gpu->tracks->under_way);
    TAILQ_INIT(&gpu->tracks->spare);
    TAILQ_INIT(&gpu->tracks->messages);
    TUTTI_TRY_GOTO(status, tutti_device_open(&gpu->device), fail);
    TUTTI_TRY_GOTO(status, gpu->device->facts(index, &gpu->own), fail);
    if (gpu->own.stream_waits) gpu->fault = tutti_error_poll_of(gpu->device, index);
    *gpu_out = gpu;
    return TUTTI_OK;
fail:
    gpu_free(gpu);
    return status;
}

tutti_status tutti_stream_event_make(const tutti_stream_comm *gpu, tutti_stream_event **mark_out) {
    return tutti_stream_event_take(gpu->device, gpu->fault, mark_out);
}

tutti_status tutti_stream_gpu(tutti_comm *comm, int index, tutti_stream_comm **gpu_out) {
    tutti_stream_comm *gpu =
        atomic_load_explicit(&comm->cuda.streams, memory_order_acquire); /* pairs with the release below */
    tutti_status status = TUTTI_OK;
    if (gpu == NULL) {
        tutti_lock(TUTTI_LOCK_GPU_MAKING);
        gpu = atomic_load_explicit(&comm->cuda.streams, memory_order_relaxed);
        if (gpu == NULL) status = gpu_make(comm, index, &gpu);
        if (status == TUTTI_OK) atomic_store_explicit(&comm->cuda.streams, gpu, memory_order_release);
        tutti_unlock(TUTTI_LOCK_GPU_MAKING);
        TUTTI_TRY(status);
    }
    if (gpu->index != index)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "communicator \"%s\" uses memory of GPU %d since its first call on CUDA memory, not of "
                          "GPU %d; use one communicator for each GPU",
                          comm->name, gpu->index, index);
    *gpu_out = gpu;
    return TUTTI_OK;
}

void tutti_stream_free(tutti_comm *comm) {
    gpu_free(atomic_load_explicit(&comm->cuda.streams, memory_order_acquire));
}

tutti_status tutti_stream_work(tutti_comm *comm, tutti_work *whole, tutti_work **work_out) {
    tutti_work *work;
    TUTTI_TRY(tutti_work_create(comm, &work));
    work->streamed = true;
    work->start_ns = work->created_ns;
    if (whole != NULL) {
        work->whole = whole;
        tutti_work_retain(whole);
        atomic_fetch_add_explicit(&whole->parts, 1, memory_order_relaxed);
        whole->streamed = true;
    }
    *work_out = work;
    return TUTTI_OK;
}

tutti_status tutti_stream_gather_for(tutti_comm *comm, const tutti_op *shown, const void *mine, void *all,
                                     size_t bytes) {
    tutti_op op = {.kind = TUTTI_KIND_ALL_GATHER,
                   .type = TUTTI_UINT8,
                   .src = mine,
                   .dst = all,
                   .count = bytes,
                   .timeout_ms = shown->timeout_ms,
                   .signature = (shown->signature ^ GATHER_SIGNATURE ^ bytes) >> 1,
                   .part_of = shown};
    return tutti_queue_run(comm, &op);
}

tutti_status tutti_stream_gather(tutti_comm *comm, const void *mine, void *all, size_t bytes) {
    tutti_op shown = {.kind = TUTTI_KIND_ALL_GATHER,
                      .type = TUTTI_UINT8,
                      .count = bytes,
                      .cuda = true,
                      .timeout_ms = comm->connect_timeout_ms};
    return tutti_stream_gather_for(comm, &shown, mine, all, bytes);
}
