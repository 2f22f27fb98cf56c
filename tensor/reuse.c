/*
 * GPU memory that is reused in stream order. See reuse.h.
 */
#include "tensor/reuse.h"

#include <stdlib.h>

#include <tutti/device.h>

#include "bootstrap/base/common.h"

#define GRAIN 512 /* block sizes are multiples of this */

struct tutti_reuse_block {
    tutti_reuse_block *next;
    void *memory;
    size_t bytes;
    bool captured; /* owned by a graph */
    tutti_stream stream;
    tutti_event_handle passed; /* recorded after the last use; NULL: the end of that use is unknown */
    const tutti_device *device;
};

void tutti_reuse_pool_init(tutti_reuse_pool *pool) {
    pthread_mutex_init(&pool->lock, NULL);
    pool->first = NULL;
}

static void free_block(tutti_reuse_block *block, bool with_memory) {
    if (with_memory) (void)tutti_mem_free(block->memory);
    if (block->passed != NULL) (void)block->device->event_destroy(block->passed);
    free(block);
}

void tutti_reuse_pool_free(tutti_reuse_pool *pool) {
    while (pool->first != NULL) {
        tutti_reuse_block *block = pool->first;
        pool->first = block->next;
        free_block(block, true);
    }
    pthread_mutex_destroy(&pool->lock);
}

/* Under the lock: takes the best block off the list. It takes no block that is much too large, which other takers
 * may need, and prefers a block of the same stream to one that has to be waited for. */
static tutti_reuse_block *take_known(tutti_reuse_pool *pool, size_t bytes, tutti_stream stream) {
    tutti_reuse_block **best = NULL;
    bool best_same = false;
    for (tutti_reuse_block **at = &pool->first; *at != NULL; at = &(*at)->next) {
        const tutti_reuse_block *b = *at;
        if (b->captured || b->passed == NULL || b->bytes < bytes || b->bytes / 2 > bytes + GRAIN) continue;
        bool same = tutti_stream_is_same(b->stream, stream);
        if (best != NULL && (same < best_same || (same == best_same && b->bytes >= (*best)->bytes))) continue;
        best = at;
        best_same = same;
    }
    if (best == NULL) return NULL;
    tutti_reuse_block *taken = *best;
    *best = taken->next;
    return taken;
}

/* Frees all unused blocks; graphs keep theirs. */
static void drain(tutti_reuse_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    tutti_reuse_block *all = pool->first;
    pool->first = NULL;
    while (all != NULL) {
        tutti_reuse_block *block = all;
        all = block->next;
        if (!block->captured) {
            free_block(block, true);
            continue;
        }
        block->next = pool->first;
        pool->first = block;
    }
    pthread_mutex_unlock(&pool->lock);
}

static tutti_status take_new(tutti_reuse_pool *pool, size_t bytes, void **memory_out) {
    tutti_status status = tutti_mem_alloc_cuda(bytes, memory_out);
    if (status != TUTTI_ERR_MEMORY) return status;
    drain(pool);
    return tutti_mem_alloc_cuda(bytes, memory_out);
}

tutti_status tutti_reuse_take(tutti_reuse_pool *pool, const tutti_device *device, size_t bytes, tutti_stream stream,
                              void **memory_out, size_t *capacity_out) {
    const size_t wanted = (tutti_max_size(bytes, 1) + GRAIN - 1) / GRAIN * GRAIN;
    bool captures = false;
    TUTTI_TRY(device->stream_captures(stream, &captures));
    pthread_mutex_lock(&pool->lock);
    tutti_reuse_block *known = captures ? NULL : take_known(pool, wanted, stream);
    pthread_mutex_unlock(&pool->lock);
    if (known == NULL) {
        tutti_device_captures = captures;
        tutti_status status = take_new(pool, wanted, memory_out);
        tutti_device_captures = false;
        TUTTI_TRY(status);
        *capacity_out = wanted;
        return TUTTI_OK;
    }
    tutti_status status = TUTTI_OK;
    if (!tutti_stream_is_same(known->stream, stream)) status = device->stream_wait_event(stream, known->passed);
    if (status != TUTTI_OK) { /* back on the list */
        pthread_mutex_lock(&pool->lock);
        known->next = pool->first;
        pool->first = known;
        pthread_mutex_unlock(&pool->lock);
        return status;
    }
    *memory_out = known->memory;
    *capacity_out = known->bytes;
    free_block(known, false);
    return TUTTI_OK;
}

/* If the event cannot be recorded the block is never handed out, because the end of its last use is unknown. */
bool tutti_reuse_give(tutti_reuse_pool *pool, const tutti_device *device, void *memory, size_t capacity,
                      tutti_stream stream) {
    tutti_reuse_block *block;
    tutti_event_handle passed = NULL;
    if (tutti_calloc(1, sizeof *block, &block) != TUTTI_OK) return false;
    *block = (tutti_reuse_block){.memory = memory, .bytes = capacity, .stream = stream, .device = device};
    tutti_status status = device->stream_captures(stream, &block->captured);
    if (status == TUTTI_OK && !block->captured) status = device->event_create(&passed);
    if (status == TUTTI_OK && passed != NULL) status = device->event_record(passed, stream);
    if (status == TUTTI_OK) block->passed = passed;
    else if (passed != NULL) (void)device->event_destroy(passed);
    pthread_mutex_lock(&pool->lock);
    block->next = pool->first;
    pool->first = block;
    pthread_mutex_unlock(&pool->lock);
    return true;
}
