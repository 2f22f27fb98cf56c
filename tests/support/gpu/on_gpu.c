/*
 * A GPU for tests. See on_gpu.h.
 */
#include "tests/support/gpu/on_gpu.h"

#include <stdlib.h>

const tutti_device *gpu;
tutti_stream stream;

bool is_standin(void) {
    return getenv("TUTTI_CUDA_MODULE") != NULL;
}

void open_device(void) {
    GOOD(tutti_device_open(&gpu));
    GOOD(gpu->use(0));
    GOOD(gpu->stream_create(&stream));
}

void *alloc(size_t bytes) {
    void *memory = NULL;
    GOOD(gpu->alloc(bytes, &memory));
    return memory;
}

void put(void *dst, const void *src, size_t bytes) {
    GOOD(gpu->copy(dst, src, bytes, stream));
    GOOD(gpu->stream_sync(stream));
}

void get(void *dst, const void *src, size_t bytes) {
    put(dst, src, bytes);
}
