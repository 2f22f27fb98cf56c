/*
 * Pinned blocks: a list of free blocks, with sizes rounded up to powers of two. See event.h.
 *
 * Blocks are never returned to the system: that would wait for all streams of the GPU.
 */
#include "comm/gpu/event.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"

#define LEAST_BYTES ((size_t)4096)

static tutti_pinned *free_blocks;
static tutti_pinned *abandoned; /* keeps them reachable */

/* True if the GPU no longer uses the block; also true if the GPU has failed. With the lock held. */
static bool is_ready(tutti_pinned *block) {
    if (block->after == NULL) return true;
    if (tutti_stream_event_ask(block->after) == TUTTI_NOT_YET) return false;
    tutti_stream_event_free(block->after);
    block->after = NULL;
    return true;
}

static tutti_pinned *take(size_t bytes) {
    tutti_lock(TUTTI_LOCK_PINNED);
    tutti_pinned **link = &free_blocks, *block;
    while ((block = *link) != NULL && (block->bytes != bytes || !is_ready(block))) link = &block->next;
    if (block != NULL) *link = block->next;
    tutti_unlock(TUTTI_LOCK_PINNED);
    return block;
}

tutti_status tutti_pinned_lease(const tutti_device *device, size_t bytes, tutti_pinned **block_out) {
    size_t rounded = LEAST_BYTES;
    while (rounded < bytes) rounded *= 2;
    tutti_pinned *block = take(rounded);
    if (block == NULL) {
        void *memory, *on_device;
        TUTTI_TRY(tutti_calloc(1, sizeof *block, &block));
        tutti_status status = device->alloc_pinned(rounded, &memory, &on_device);
        if (status != TUTTI_OK) {
            free(block);
            return status;
        }
        *block = (tutti_pinned){.memory = memory, .on_device = on_device, .bytes = rounded};
    }
    memset(block->memory, 0, LEAST_BYTES);
    *block_out = block;
    return TUTTI_OK;
}

void tutti_pinned_return_after(tutti_pinned *block, tutti_stream_event *after) {
    if (block == NULL) {
        tutti_stream_event_free(after);
        return;
    }
    block->after = after;
    tutti_lock(TUTTI_LOCK_PINNED);
    block->next = free_blocks;
    free_blocks = block;
    tutti_unlock(TUTTI_LOCK_PINNED);
}

void tutti_pinned_return(tutti_pinned *block) {
    tutti_pinned_return_after(block, NULL);
}

void tutti_pinned_abandon(tutti_pinned *block) {
    if (block == NULL) return;
    tutti_lock(TUTTI_LOCK_PINNED);
    block->next = abandoned;
    abandoned = block;
    tutti_unlock(TUTTI_LOCK_PINNED);
}
