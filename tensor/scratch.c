/*
 * Scratch memory on a GPU. See scratch.h.
 *
 * Blocks that are too small stay, for runs that need less. Each new block is half as large again as the largest, so
 * all blocks together take at most three times what the largest run needs, for each thread that runs at the same
 * time.
 */
#include "tensor/scratch.h"

#include <stdlib.h>

#include <tutti/device.h>

#include "bootstrap/base/common.h"

struct tutti_scratch {
    struct tutti_scratch *next;
    void *memory;
    size_t bytes;
    bool taken;
    tutti_stream stream;       /* of the last run; it may have been destroyed */
    tutti_event_handle passed; /* recorded after that run; NULL: there was no run */
    const tutti_device *device;
};

void tutti_scratch_pool_init(tutti_scratch_pool *pool) {
    pthread_mutex_init(&pool->lock, NULL);
    pool->first = NULL;
}

void tutti_scratch_pool_free(tutti_scratch_pool *pool) {
    while (pool->first != NULL) {
        tutti_scratch *scratch = pool->first;
        pool->first = scratch->next;
        (void)tutti_mem_free(scratch->memory);
        if (scratch->passed != NULL) (void)scratch->device->event_destroy(scratch->passed);
        free(scratch);
    }
    pthread_mutex_destroy(&pool->lock);
}

/* The smallest block that is large enough, preferably one that the stream need not wait for. */
static tutti_scratch *find(tutti_scratch_pool *pool, size_t bytes, tutti_stream stream) {
    tutti_scratch *best = NULL;
    bool best_same = false;
    for (tutti_scratch *s = pool->first; s != NULL; s = s->next) {
        if (s->taken || s->bytes < bytes) continue;
        bool same = s->passed == NULL || tutti_stream_is_same(s->stream, stream);
        if (best != NULL && (same < best_same || (same == best_same && s->bytes >= best->bytes))) continue;
        best = s;
        best_same = same;
    }
    return best;
}

static tutti_status add(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes,
                        tutti_scratch **scratch_out) {
    tutti_scratch *made;
    size_t largest = 0;
    for (const tutti_scratch *s = pool->first; s != NULL; s = s->next) largest = tutti_max_size(largest, s->bytes);
    TUTTI_TRY(tutti_calloc(1, sizeof *made, &made));
    made->device = device;
    made->bytes = largest < bytes ? tutti_max_size(bytes, largest + largest / 2) : bytes;
    tutti_status status = tutti_mem_alloc_cuda(made->bytes, &made->memory);
    if (status == TUTTI_ERR_MEMORY && made->bytes > bytes)
        status = tutti_mem_alloc_cuda(made->bytes = bytes, &made->memory);
    if (status != TUTTI_OK) {
        free(made);
        return tutti_fail_context(status, "%zu bytes of GPU memory for the packing of a redistribution", bytes);
    }
    made->next = pool->first;
    pool->first = made;
    *scratch_out = made;
    return TUTTI_OK;
}

tutti_status tutti_scratch_take(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes, tutti_stream stream,
                                tutti_scratch **scratch_out) {
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&pool->lock);
    tutti_scratch *scratch = find(pool, bytes, stream);
    if (scratch == NULL) status = add(pool, device, bytes, &scratch);
    else if (scratch->passed != NULL && !tutti_stream_is_same(scratch->stream, stream))
        status = device->stream_wait_event(stream, scratch->passed);
    if (status == TUTTI_OK) {
        scratch->taken = true;
        *scratch_out = scratch;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

tutti_status tutti_scratch_make(tutti_scratch_pool *pool, const tutti_device *device, size_t bytes,
                                tutti_scratch **scratch_out) {
    pthread_mutex_lock(&pool->lock);
    tutti_device_captures = true;
    tutti_status status = add(pool, device, bytes, scratch_out);
    tutti_device_captures = false;
    if (status == TUTTI_OK) (*scratch_out)->taken = true;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void *tutti_scratch_memory(const tutti_scratch *scratch) {
    return scratch->memory;
}

/* If that fails the block stays taken forever, because the end of its last use is unknown. */
tutti_status tutti_scratch_give(tutti_scratch_pool *pool, const tutti_device *device, tutti_scratch *scratch,
                                tutti_stream stream) {
    if (scratch->passed == NULL) TUTTI_TRY(device->event_create(&scratch->passed));
    TUTTI_TRY(device->event_record(scratch->passed, stream));
    pthread_mutex_lock(&pool->lock);
    scratch->stream = stream;
    scratch->taken = false;
    pthread_mutex_unlock(&pool->lock);
    return TUTTI_OK;
}
