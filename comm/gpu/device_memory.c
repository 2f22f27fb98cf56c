/*
 * <tutti/device.h>, for code without CUDA: the GPU of the process; blocks of its memory, kept in a list: programs
 * allocate few and large blocks; streams and their operations.
 */
#include "comm/gpu/device_memory.h"

#include <stdatomic.h>
#include <stdlib.h>

#include <tutti/device.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "comm/base/comm.h"
#include "comm/base/fork.h"
#include "kernels/device.h"

typedef struct block {
    struct block *next;
    char *memory;
    size_t bytes;
    int index;                               /* index of its GPU */
    bool shared;                             /* a peer may have it mapped */
    bool free;                               /* freed, but kept to be reused; streams may still use it */
    const tutti_device_allocator *allocator; /* that allocated it; NULL: CUDA itself (cudaMalloc) */
} block;

static block *_Atomic blocks; /* changed under the lock; NULL is checked without it */
static atomic_int sharings;   /* communicators whose peers map memory of this process */

/* -------------------------------------------------------------------------------------- choice of the GPU */

static tutti_status open_device(const tutti_device **device_out) {
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    return tutti_device_open(device_out);
}

tutti_status tutti_device_count(int *count_out) {
    const tutti_device *device = NULL;
    if (count_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_count: count_out is NULL");
    TUTTI_TRY(open_device(&device));
    return device->count(count_out);
}

tutti_status tutti_device_get(int *device_out) {
    if (device_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_get: device_out is NULL");
    if (tutti_forked()) return tutti_fail(TUTTI_ERR_FORKED, "this process was forked from one that uses Tutti");
    return tutti_device_choose(device_out);
}

tutti_status tutti_device_use(int index) {
    const tutti_device *device = NULL;
    int count = 0;
    TUTTI_TRY(tutti_device_count(&count));
    if (index == -1) TUTTI_TRY(tutti_device_get(&index));
    if (index < 0 || index >= count)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_use: GPU index %d is out of range: there are %d GPUs",
                          index, count);
    TUTTI_TRY(tutti_device_open(&device));
    return device->use(index);
}

/* -------------------------------------------------------------------------------------------------- blocks */

void tutti_device_memory_expect_peers(int change) {
    atomic_fetch_add_explicit(&sharings, change, memory_order_relaxed);
}

/* CUDA exports whole physical pages: smaller allocations would share one, and peers would map neighbours' data. */
#define EXPORTED_BYTES ((size_t)2 << 20)

/* The allocator's (NCCL's) memory is better between GPUs. On one GPU peers cannot map it, and read through slots. */
static tutti_status allocate(const tutti_device *device, const tutti_device_allocator *allocator, block *added) {
    void *memory;
    TUTTI_TRY(device->current(&added->index));
    TUTTI_TRY(device->use(added->index)); /* a thread that has not chosen a GPU may have no context yet */
    bool mapped = atomic_load_explicit(&sharings, memory_order_relaxed) > 0;
    if (!mapped && allocator->alloc(added->bytes, &memory) == TUTTI_OK) added->allocator = allocator;
    else TUTTI_TRY(device->alloc(tutti_align_up(added->bytes, EXPORTED_BYTES), &memory));
    added->memory = memory;
    return TUTTI_OK;
}

/* Makes a block of the list reusable. */
static void keep(block *b) {
    tutti_lock(TUTTI_LOCK_DEVICE_MEMORY);
    b->free = true;
    tutti_unlock(TUTTI_LOCK_DEVICE_MEMORY);
}

static void add(block *b) {
    tutti_lock(TUTTI_LOCK_DEVICE_MEMORY);
    b->next = atomic_load_explicit(&blocks, memory_order_relaxed);
    atomic_store_explicit(&blocks, b, memory_order_release);
    tutti_unlock(TUTTI_LOCK_DEVICE_MEMORY);
}

/* Waits for the calls that may still use a block; later calls report failures. False: it must not. */
static bool settle(const tutti_device *device) {
    if (tutti_device_captures) return false;
    (void)device->sync();
    return true;
}

/* Takes a block of this size that was freed but kept; NULL: there is none. */
static block *reuse(size_t bytes, int index) {
    tutti_lock(TUTTI_LOCK_DEVICE_MEMORY);
    block *b = atomic_load_explicit(&blocks, memory_order_relaxed);
    while (b != NULL && !(b->free && b->bytes == bytes && b->index == index)) b = b->next;
    if (b != NULL) b->free = false;
    tutti_unlock(TUTTI_LOCK_DEVICE_MEMORY);
    return b;
}

tutti_status tutti_device_memory_alloc(size_t bytes, const tutti_device_allocator *allocator, void **memory_out) {
    const tutti_device *device = NULL;
    int index;
    block *added;
    tutti_fork_watch();
    TUTTI_TRY(open_device(&device));
    TUTTI_TRY(device->current(&index));
    block *known = reuse(tutti_max_size(bytes, 1), index);
    if (known != NULL && settle(device)) {
        *memory_out = known->memory;
        return TUTTI_OK;
    }
    if (known != NULL) keep(known); /* the GPU cannot be waited for during a capture */
    TUTTI_TRY(tutti_calloc(1, sizeof *added, &added));
    added->bytes = tutti_max_size(bytes, 1);
    tutti_status status = allocate(device, allocator, added);
    if (status != TUTTI_OK) {
        free(added);
        return status;
    }
    add(added);
    *memory_out = added->memory;
    return TUTTI_OK;
}

static bool find(const void *memory, size_t bytes, bool shares, void **block_out, size_t *block_bytes_out) {
    if (atomic_load_explicit(&blocks, memory_order_acquire) == NULL) return false;
    tutti_lock(TUTTI_LOCK_DEVICE_MEMORY);
    block *b = atomic_load_explicit(&blocks, memory_order_relaxed);
    while (b != NULL &&
           !((uintptr_t)memory >= (uintptr_t)b->memory && (uintptr_t)memory - (uintptr_t)b->memory <= b->bytes &&
             bytes <= b->bytes - ((uintptr_t)memory - (uintptr_t)b->memory)))
        b = b->next;
    if (b != NULL && shares && b->allocator != NULL) b = NULL; /* CUDA IPC exports only memory of cudaMalloc */
    if (b != NULL) {
        b->shared = b->shared || shares;
        *block_out = b->memory;
        *block_bytes_out = b->bytes;
    }
    tutti_unlock(TUTTI_LOCK_DEVICE_MEMORY);
    return b != NULL;
}

bool tutti_device_memory_find(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out) {
    return find(memory, bytes, /* shares */ false, block_out, block_bytes_out);
}

bool tutti_device_memory_share(const void *memory, size_t bytes, void **block_out, size_t *block_bytes_out) {
    return find(memory, bytes, /* shares */ true, block_out, block_bytes_out);
}

/* Removes the block from the list; NULL: it is not in the list. A shared block stays in the list and is kept. */
static block *take(const void *memory, bool *kept_out) {
    tutti_lock(TUTTI_LOCK_DEVICE_MEMORY);
    block *found = atomic_load_explicit(&blocks, memory_order_relaxed), *before = NULL;
    while (found != NULL && (found->memory != memory || found->free)) {
        before = found;
        found = found->next;
    }
    *kept_out = found != NULL && found->shared;
    if (found != NULL && !*kept_out && before != NULL) before->next = found->next;
    else if (found != NULL && !*kept_out) atomic_store_explicit(&blocks, found->next, memory_order_release);
    tutti_unlock(TUTTI_LOCK_DEVICE_MEMORY);
    return found;
}

bool tutti_device_memory_free(void *memory, const tutti_device_allocator *allocator, tutti_status *status_out) {
    if (tutti_forked() || atomic_load_explicit(&blocks, memory_order_acquire) == NULL) return false;
    bool kept;
    block *found = take(memory, &kept);
    const tutti_device *device = NULL;
    int before = 0;
    if (found == NULL) return false;
    if (kept) {
        keep(found);
        *status_out = TUTTI_OK;
        return true;
    }
    tutti_status status = tutti_device_open(&device);
    if (status == TUTTI_OK) status = device->current(&before);
    if (status == TUTTI_OK && before != found->index) status = device->use(found->index);
    /* During a capture, which free would invalidate as well, the block is kept for later. */
    if (status == TUTTI_OK && !settle(device)) {
        if (before != found->index) device->leave(before);
        found->free = true;
        add(found);
        *status_out = TUTTI_OK;
        return true;
    }
    allocator->forget(found->memory);
    if (status == TUTTI_OK)
        status = found->allocator != NULL ? found->allocator->free_(found->memory) : device->free(found->memory);
    if (device != NULL && before != found->index) device->leave(before);
    free(found);
    *status_out = status;
    return true;
}

/* ------------------------------------------------------------------------------------------------------ streams */

tutti_status tutti_device_stream_create(void **stream_out) {
    const tutti_device *device = NULL;
    if (stream_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_stream_create: stream_out is NULL");
    TUTTI_TRY(open_device(&device));
    return device->stream_create(stream_out);
}

tutti_status tutti_device_stream_destroy(void *stream) {
    const tutti_device *device = NULL;
    if (stream == NULL) return TUTTI_OK;
    TUTTI_TRY(open_device(&device));
    return device->stream_destroy(stream);
}

tutti_status tutti_device_follow(void *stream, void *leader) {
    const tutti_device *device = NULL;
    tutti_event_handle event;
    TUTTI_TRY(open_device(&device));
    TUTTI_TRY(device->event_create(&event));
    tutti_status status = device->event_record(event, leader);
    if (status == TUTTI_OK) status = device->stream_wait_event(stream, event);
    (void)device->event_destroy(event); /* streams that wait for it still do */
    return status;
}

tutti_status tutti_device_copy(void *dst, const void *src, size_t bytes, void *stream) {
    const tutti_device *device = NULL;
    if (bytes == 0) return TUTTI_OK;
    if (dst == NULL || src == NULL)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_copy: %s is NULL", dst == NULL ? "dst" : "src");
    TUTTI_TRY(open_device(&device));
    return device->copy(dst, src, bytes, stream);
}

tutti_status tutti_device_fill(void *dst, int value, size_t bytes, void *stream) {
    const tutti_device *device = NULL;
    if (bytes == 0) return TUTTI_OK;
    if (dst == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_device_fill: dst is NULL");
    TUTTI_TRY(open_device(&device));
    return device->fill(dst, value, bytes, stream);
}
