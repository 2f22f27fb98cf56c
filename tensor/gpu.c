/*
 * Tensors in CUDA memory: copies, fills, and queries of where memory is. See gpu.h.
 */
#include "tensor/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/device.h>

#include "bootstrap/base/common.h"

/* ----------------------------------------------------------------------------------------------- which GPU */

tutti_status tutti_gpu_current(int *gpu_out) {
    int count;
    const tutti_device *device = NULL;
    TUTTI_TRY(tutti_device_count(&count)); /* also checks whether the process may use CUDA */
    TUTTI_TRY(tutti_device_open(&device));
    return device->current(gpu_out);
}

tutti_status tutti_gpu_enter(int gpu, tutti_gpu_visit *visit_out) {
    tutti_gpu_visit visit = {.gpu = gpu, .before = gpu};
    TUTTI_TRY(tutti_device_open(&visit.device));
    TUTTI_TRY(visit.device->current(&visit.before));
    if (visit.before != gpu) TUTTI_TRY(visit.device->use(gpu));
    *visit_out = visit;
    return TUTTI_OK;
}

void tutti_gpu_leave(const tutti_gpu_visit *visit) {
    if (visit->before != visit->gpu) visit->device->leave(visit->before);
}

/* -------------------------------------------------------------------------------------------------- memory */

tutti_status tutti_gpu_alloc(int gpu, size_t bytes, void **memory_out) {
    tutti_gpu_visit visit;
    TUTTI_TRY(tutti_gpu_enter(gpu, &visit));
    tutti_status status = tutti_mem_alloc_cuda(bytes, memory_out);
    tutti_gpu_leave(&visit);
    return status;
}

void tutti_gpu_sync(int gpu) {
    tutti_gpu_visit visit;
    const tutti_device *device = tutti_device_in_use(); /* avoids creating a context to wait for nothing */
    if (device == NULL || tutti_gpu_enter(gpu, &visit) != TUTTI_OK) return;
    (void)visit.device->sync();
    tutti_gpu_leave(&visit);
}

/* Reads in a stream that waits for no other stream: the GPU has been waited for, and other threads may go on using
 * theirs. */
static tutti_status read_pieces(const tutti_device *device, const char *memory, size_t bytes, char *piece,
                                size_t piece_bytes, void (*read)(void *context, const void *piece, size_t bytes),
                                void *context) {
    tutti_stream stream;
    TUTTI_TRY(device->sync());
    TUTTI_TRY(device->stream_create(&stream));
    tutti_status status = TUTTI_OK;
    for (size_t at = 0; at < bytes && status == TUTTI_OK; at += piece_bytes) {
        size_t now = tutti_min_size(piece_bytes, bytes - at);
        status = device->copy(piece, memory + at, now, stream);
        if (status == TUTTI_OK) status = device->stream_sync(stream);
        if (status == TUTTI_OK) read(context, piece, now);
    }
    (void)device->stream_destroy(stream);
    return status;
}

tutti_status tutti_gpu_read(int gpu, const void *memory, size_t bytes,
                            void (*read)(void *context, const void *piece, size_t bytes), void *context) {
    enum { PIECE_BYTES = 1 << 20 };
    tutti_gpu_visit visit;
    char *piece;
    if (bytes == 0) return TUTTI_OK;
    TUTTI_TRY(tutti_calloc(tutti_min_size(bytes, PIECE_BYTES), 1, &piece));
    tutti_status status = tutti_gpu_enter(gpu, &visit);
    if (status == TUTTI_OK) {
        status = read_pieces(visit.device, memory, bytes, piece, PIECE_BYTES, read, context);
        tutti_gpu_leave(&visit);
    }
    free(piece);
    return status;
}

tutti_status tutti_gpu_check_place(int gpu, const void *memory, bool *fits_out, char *words_out, size_t capacity) {
    tutti_device_place place = {.memory = TUTTI_MEMORY_HOST, .device = -1};
    const tutti_device *device = tutti_device_in_use();
    if (device != NULL) TUTTI_TRY(device->locate(memory, &place));
    bool cuda = place.memory == TUTTI_MEMORY_CUDA;
    *fits_out = cuda ? place.device == gpu : gpu < 0;
    if (cuda) snprintf(words_out, capacity, "memory of GPU %d", place.device);
    else snprintf(words_out, capacity, "memory of the host");
    return TUTTI_OK;
}

/* -------------------------------------------------------------------------------------------- in the stream */

/* Contiguous copies that are enqueued as one. */
typedef struct batch {
    const tutti_device *device;
    tutti_stream stream;
    int count;
    void *dsts[64];
    const void *srcs[64];
    size_t bytes[64];
} batch;

static tutti_status flush(batch *b) {
    int count = b->count;
    b->count = 0;
    if (count == 1) return b->device->copy(b->dsts[0], b->srcs[0], b->bytes[0], b->stream);
    return count > 0 ? b->device->copy_many(b->dsts, b->srcs, b->bytes, count, b->stream) : TUTTI_OK;
}

static tutti_status add(batch *b, char *dst, const char *src, size_t bytes) {
    if (bytes == 0) return TUTTI_OK;
    if (b->count == (int)TUTTI_COUNT_OF(b->dsts)) TUTTI_TRY(flush(b));
    b->dsts[b->count] = dst;
    b->srcs[b->count] = src;
    b->bytes[b->count++] = bytes;
    return TUTTI_OK;
}

tutti_status tutti_gpu_run_blocks(const tutti_device *device, const tutti_blocks *blocks, size_t element_bytes,
                                  void *dst, const void *src, tutti_stream stream) {
    batch b = {.device = device, .stream = stream};
    for (size_t i = 0; i < blocks->count; i++) {
        const tutti_block *block = &blocks->items[i];
        char *to = (char *)dst + block->dst_first * (int64_t)element_bytes;
        const char *from = (const char *)src + block->src_first * (int64_t)element_bytes;
        if (tutti_box_is_contiguous(&block->copy))
            TUTTI_TRY(add(&b, to + block->copy.dst_first, from + block->copy.src_first, block->copy.bytes));
        else TUTTI_TRY(device->copy_box(&block->copy, to, from, stream));
    }
    return flush(&b);
}

/* Fills write the bytes of the first element; then the written part is copied after itself, doubling each time. */
tutti_status tutti_gpu_fill(const tutti_device *device, void *dst, uint64_t element, size_t element_bytes, size_t bytes,
                            tutti_stream stream) {
    uint8_t values[sizeof element];
    memcpy(values, &element, sizeof values);
    size_t same = 1;
    while (same < element_bytes && values[same] == values[0]) same++;
    if (bytes == 0 || same == element_bytes) return device->fill(dst, values[0], bytes, stream);
    for (size_t at = 0; at < element_bytes; at += same) {
        for (same = 1; at + same < element_bytes && values[at + same] == values[at];) same++;
        TUTTI_TRY(device->fill((char *)dst + at, values[at], same, stream));
    }
    for (size_t done = element_bytes; done < bytes; done *= 2)
        TUTTI_TRY(device->copy((char *)dst + done, dst, tutti_min_size(done, bytes - done), stream));
    return TUTTI_OK;
}
