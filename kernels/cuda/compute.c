/*
 * Opening and closing a GPU's compute, its memory, and the table of kernels.
 *
 * Each step has two uploads; they go through pinned memory in pieces, so that the caller continues at once. Before a
 * slot is used again, its copy must have been sent; with several slots it usually has been.
 */
#include "kernels/cuda/compute.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_AGAIN_NS 20000

static tutti_status check(tutti_compute *compute) {
    const tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    return cuda->failed == TUTTI_OK ? TUTTI_OK : tutti_cuda_host->fail(cuda->failed, "%s", cuda->words);
}

static tutti_status wait(tutti_compute *compute) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    tutti_compute_note(compute, cuda->device->stream_sync(cuda->stream));
    return check(compute);
}

static void *stream_of(const tutti_compute *compute) {
    return ((const tutti_cuda_compute *)(const void *)compute)->stream;
}

/* ---------------------------------------------------------------------------------------- open, close */

static void close_compute(tutti_compute *compute) {
    if (compute == NULL) return;
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    const tutti_device *device = cuda->device;
    if (cuda->stream != NULL) (void)device->stream_sync(cuda->stream);
    tutti_blas_close(cuda);
    for (int i = 0; i < 2; i++)
        if (cuda->rounded[i].memory != NULL) (void)device->free(cuda->rounded[i].memory);
    for (int i = 0; i < TUTTI_COMPUTE_SLOTS; i++) {
        if (cuda->slots[i].sent != NULL) (void)device->event_destroy(cuda->slots[i].sent);
        if (cuda->slots[i].memory != NULL) (void)device->free_pinned(cuda->slots[i].memory);
    }
    if (cuda->partials != NULL) (void)device->free(cuda->partials);
    if (cuda->stream != NULL) (void)device->stream_destroy(cuda->stream);
    free(cuda);
}

static tutti_status open_slots(tutti_cuda_compute *cuda) {
    for (int i = 0; i < TUTTI_COMPUTE_SLOTS; i++) {
        TUTTI_TRY(cuda->device->event_create(&cuda->slots[i].sent));
        TUTTI_TRY(cuda->device->alloc_pinned(TUTTI_COMPUTE_SLOT_BYTES, &cuda->slots[i].memory, NULL));
    }
    return TUTTI_OK;
}

static tutti_status open_compute(const tutti_compute_options *options, tutti_compute **compute_out) {
    tutti_status status;
    tutti_cuda_compute *cuda;
    void *memory;
    TUTTI_TRY(tutti_cuda_host->calloc(1, sizeof *cuda, &cuda));
    cuda->base.kernels = &tutti_cuda_kernels;
    cuda->device = tutti_cuda_device;
    cuda->precision = options->precision;
    TUTTI_TRY_GOTO(status, cuda->device->use(options->device), fail);
    TUTTI_TRY_GOTO(status, cuda->device->stream_create(&cuda->stream), fail);
    TUTTI_TRY_GOTO(status, cuda->device->alloc(TUTTI_COMPUTE_PARTIALS * sizeof(float), &memory), fail);
    cuda->partials = memory;
    TUTTI_TRY_GOTO(status, open_slots(cuda), fail);
    TUTTI_TRY_GOTO(status, tutti_blas_open(cuda), fail);
    *compute_out = &cuda->base;
    return TUTTI_OK;
fail:
    close_compute(&cuda->base);
    return status;
}

/* ---------------------------------------------------------------------------------------------- memory */

static tutti_status alloc(tutti_compute *compute, size_t bytes, void **memory_out) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    void *memory;
    TUTTI_TRY(cuda->device->alloc(bytes > 0 ? bytes : 1, &memory));
    tutti_status status = cuda->device->fill(memory, 0, bytes, cuda->stream);
    if (status == TUTTI_OK) *memory_out = memory;
    else (void)cuda->device->free(memory);
    return status;
}

static void free_memory(tutti_compute *compute, void *memory) {
    if (memory == NULL) return;
    (void)wait(compute);
    tutti_compute_note(compute, tutti_cuda_compute_of(compute)->device->free(memory));
}

static tutti_status copy_and_wait(tutti_compute *compute, void *dst, const void *src, size_t bytes) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    tutti_compute_note(compute, cuda->device->copy(dst, src, bytes, cuda->stream));
    return wait(compute);
}

/* Returns the next slot, after waiting until its last copy has been sent. */
static tutti_status take_slot(tutti_cuda_compute *cuda, tutti_compute_slot **slot_out) {
    tutti_compute_slot *slot = &cuda->slots[cuda->next_slot];
    cuda->next_slot = (cuda->next_slot + 1) % TUTTI_COMPUTE_SLOTS;
    tutti_status sent = slot->used ? cuda->device->event_query(slot->sent) : TUTTI_OK;
    for (; sent == TUTTI_NOT_YET; sent = cuda->device->event_query(slot->sent))
        nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_NS}, NULL); /* meanwhile the other slots keep the GPU busy */
    TUTTI_TRY(sent);
    slot->used = true;
    *slot_out = slot;
    return TUTTI_OK;
}

static tutti_status send_piece(tutti_cuda_compute *cuda, void *dst, const void *src, size_t bytes) {
    tutti_compute_slot *slot;
    TUTTI_TRY(take_slot(cuda, &slot));
    memcpy(slot->memory, src, bytes);
    TUTTI_TRY(cuda->device->copy(dst, slot->memory, bytes, cuda->stream));
    return cuda->device->event_record(slot->sent, cuda->stream);
}

static void upload(tutti_compute *compute, void *dst, const void *src, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < TUTTI_COMPUTE_SLOT_BYTES ? bytes - done : TUTTI_COMPUTE_SLOT_BYTES;
        tutti_compute_note(
            compute, send_piece(tutti_cuda_compute_of(compute), (char *)dst + done, (const char *)src + done, piece));
        done += piece;
    }
}

static void copy(tutti_compute *compute, void *dst, const void *src, size_t bytes) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    if (bytes > 0) tutti_compute_note(compute, cuda->device->copy(dst, src, bytes, cuda->stream));
}

static void zero(tutti_compute *compute, void *dst, size_t bytes) {
    tutti_cuda_compute *cuda = tutti_cuda_compute_of(compute);
    if (bytes > 0) tutti_compute_note(compute, cuda->device->fill(dst, 0, bytes, cuda->stream));
}

const tutti_kernels tutti_cuda_kernels = {
    .name = "cuda",
    .memory = TUTTI_MEMORY_CUDA,
    .open = open_compute,
    .close = close_compute,
    .check = check,
    .wait = wait,
    .stream = stream_of,
    .alloc = alloc,
    .free = free_memory,
    .upload = upload,
    .download = copy_and_wait,
    .copy = copy,
    .zero = zero,
    .record_begin = tutti_recording_begin,
    .record_end = tutti_recording_end,
    .replay = tutti_recording_replay,
    .forget = tutti_recording_forget,
    .conv_scratch_count = tutti_gpu_conv_scratch_count,
    .conv_kept_count = tutti_gpu_conv_kept_count,
    .conv_forward = tutti_gpu_conv_forward,
    .conv_backward = tutti_gpu_conv_backward,
    .max_pool_forward = tutti_gpu_max_pool_forward,
    .max_pool_backward = tutti_gpu_max_pool_backward,
    .bias_forward = tutti_gpu_bias_forward,
    .bias_backward = tutti_gpu_bias_backward,
    .relu_forward = tutti_gpu_relu_forward,
    .relu_backward = tutti_gpu_relu_backward,
    .batch_norm_forward = tutti_gpu_batch_norm_forward,
    .batch_norm_backward = tutti_gpu_batch_norm_backward,
    .average_pool_forward = tutti_gpu_average_pool_forward,
    .average_pool_backward = tutti_gpu_average_pool_backward,
    .dense_forward = tutti_gpu_dense_forward,
    .dense_backward = tutti_gpu_dense_backward,
    .add = tutti_gpu_add,
    .add_relu = tutti_gpu_add_relu,
    .dropout = tutti_gpu_dropout,
    .softmax_loss = tutti_gpu_softmax_loss,
    .softmax_largest = tutti_gpu_softmax_largest,
    .softmax_sums = tutti_gpu_softmax_sums,
    .softmax_losses = tutti_gpu_softmax_losses,
    .truncated_normal = tutti_gpu_truncated_normal,
    .fill = tutti_gpu_fill,
    .sgd = tutti_gpu_sgd,
    .adam = tutti_gpu_adam,
};
