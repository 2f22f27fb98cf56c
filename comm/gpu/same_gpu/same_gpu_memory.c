/*
 * The memory of ranks on one GPU: what a rank has exported, what it has mapped of its peers, and what the process keeps
 * when a communicator is destroyed. See same_gpu.h.
 *
 * Invariants: an entry of a directory changes only after its allocation was freed. That waits for all streams of its
 * owner, so no call that uses the entry is under way on any rank. Counters and slots are returned only when no stream
 * uses them any more.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "comm/gpu/device_memory.h"
#include "comm/gpu/same_gpu/same_gpu.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

/* ------------------------------------------------------------------------------------------------ what is kept
 * Slots, counters and mappings of peers' memory. Returning any of them to CUDA waits for all streams of the GPU,
 * including those that wait for a peer; a rank that destroys a communicator must not wait. So the next communicator
 * reuses them, and they are freed with the process.
 */

/* The GPU address of counters: pinned once per process, even if several of its threads are ranks. */
typedef struct pin {
    tutti_same_gpu_counters *counters, *on_device;
    struct pin *next;
} pin;

typedef struct mapping {
    tutti_device_export exported;
    void *base;
    int users;
    struct mapping *next;
} mapping;

/* A slot, free or in use. */
typedef struct slot {
    char *memory;
    size_t bytes;
    int index; /* index of its GPU */
    bool in_use;
    struct slot *next;
} slot;

typedef struct spare_counters {
    tutti_same_gpu_counters *counters;
    struct spare_counters *next;
} spare_counters;

static struct {
    pin *pins;
    mapping *mappings;
    slot *slots;
    spare_counters *counters;
} kept;

/* ------------------------------------------------------------------------------------------------ counters */

/* With the lock held. */
static tutti_status add_pin(const tutti_device *device, tutti_peer *owner, tutti_same_gpu_counters *counters,
                            pin **pin_out) {
    pin *p;
    void *on_device;
    TUTTI_TRY(tutti_calloc(1, sizeof *p, &p));
    tutti_status status = device->pin(counters, sizeof *counters, &on_device);
    if (status != TUTTI_OK) {
        free(p);
        return tutti_fail_context(status, "counters of ranks on one GPU");
    }
    tutti_peer_retain(owner); /* keeps its heap mapped at this address */
    *p = (pin){.counters = counters, .on_device = on_device, .next = kept.pins};
    kept.pins = p;
    *pin_out = p;
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_pin(const tutti_device *device, tutti_peer *owner, tutti_same_gpu_counters *counters,
                                tutti_same_gpu_counters **on_device_out) {
    tutti_status status = TUTTI_OK;
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    pin *p = kept.pins;
    while (p != NULL && p->counters != counters) p = p->next;
    if (p == NULL) status = add_pin(device, owner, counters, &p);
    if (status == TUTTI_OK) *on_device_out = p->on_device;
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
    return status;
}

tutti_status tutti_same_gpu_take_counters(tutti_same_gpu_counters **counters_out) {
    void *memory = NULL;
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    spare_counters *spare = kept.counters;
    if (spare != NULL) kept.counters = spare->next;
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
    if (spare == NULL) TUTTI_TRY(tutti_heap_alloc(TUTTI_HEAP_CONTROL, sizeof **counters_out, &memory));
    else memory = memset(spare->counters, 0, sizeof *spare->counters);
    free(spare);
    *counters_out = memory;
    return TUTTI_OK;
}

/* All ranks have left. If one of them has released its streams, it may continue to do so, and streams may still count:
 * then this function leaks the counters, which is harmless. It also leaks them if it cannot allocate the list entry. */
void tutti_same_gpu_return_counters(void *memory) {
    tutti_same_gpu_counters *counters = memory;
    if (atomic_load_explicit(&counters->released, memory_order_acquire)) return;
    spare_counters *spare = malloc(sizeof *spare);
    if (spare == NULL) return;
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    *spare = (spare_counters){.counters = counters, .next = kept.counters};
    kept.counters = spare;
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
}

/* ------------------------------------------------------------------------------------------------- imports */

/* Maps memory of a peer, once in a process; each `map` has one `unmap`, or none where the mapping is to stay. */
static tutti_status map(const tutti_device *device, const tutti_device_export *exported, void **base_out) {
    tutti_status status = TUTTI_OK;
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    mapping *m = kept.mappings;
    while (m != NULL && memcmp(&m->exported, exported, sizeof *exported) != 0) m = m->next;
    if (m == NULL) {
        void *base;
        status = tutti_calloc(1, sizeof *m, &m);
        if (status == TUTTI_OK) status = device->import_memory(exported, &base);
        if (status == TUTTI_OK) {
            *m = (mapping){.exported = *exported, .base = base, .next = kept.mappings};
            kept.mappings = m;
        } else {
            free(m);
            m = NULL;
        }
    }
    if (m != NULL) {
        m->users++;
        *base_out = m->base;
    }
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
    return status;
}

static void unmap(const tutti_device *device, const tutti_device_export *exported) {
    mapping *unused = NULL;
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    mapping **at = &kept.mappings;
    while (*at != NULL && memcmp(&(*at)->exported, exported, sizeof *exported) != 0) at = &(*at)->next;
    if (*at != NULL && --(*at)->users == 0) {
        unused = *at;
        *at = unused->next;
        (void)device->close_import(unused->base); /* under the lock: the next mapping of it comes behind this */
    }
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
    free(unused);
}

/* --------------------------------------------------------------------------------------------------- slots */

/* With the lock held. */
static tutti_status add_slot(const tutti_device *device, int index, size_t bytes, slot **slot_out) {
    slot *new;
    void *memory;
    TUTTI_TRY(tutti_calloc(1, sizeof *new, &new));
    tutti_status status = device->alloc(bytes, &memory);
    if (status != TUTTI_OK) {
        free(new);
        return status;
    }
    *new = (slot){.memory = memory, .bytes = bytes, .index = index, .next = kept.slots};
    kept.slots = new;
    *slot_out = new;
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_take_slot(const tutti_device *device, int index, size_t bytes, char **memory_out) {
    tutti_status status = TUTTI_OK;
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    slot *found = kept.slots;
    while (found != NULL && (found->in_use || found->bytes != bytes || found->index != index)) found = found->next;
    if (found == NULL) status = add_slot(device, index, bytes, &found);
    if (status == TUTTI_OK) {
        found->in_use = true;
        *memory_out = found->memory;
    }
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
    return status;
}

void tutti_same_gpu_return_slot(const char *memory) {
    tutti_lock(TUTTI_LOCK_SAME_GPU);
    for (slot *s = kept.slots; s != NULL; s = s->next)
        if (s->memory == memory) s->in_use = false;
    tutti_unlock(TUTTI_LOCK_SAME_GPU);
}

/* ------------------------------------------------------------------------------------------- what is exported
 * Tutti's blocks     (tutti_mem_alloc_cuda, slots) stay allocated until the process ends, and so do their mappings
 * CUDA's allocations (cudaMalloc, PyTorch's segments) may be freed at any time. CUDA keeps the memory until the last
 *                    mapping is closed, so a rank that finds one of its own freed says so on its board, and peers
 *                    close their mappings of it. An allocation is known by its number, since a later one may have its
 *                    address.
 */

static bool is_in(const tutti_same_gpu_export *entry, const void *memory, size_t bytes) {
    uint64_t offset = (uint64_t)(uintptr_t)memory - entry->address, all = atomic_load(&entry->bytes);
    return offset < all && bytes <= all - offset;
}

/* The entry of this rank's directory with that block of Tutti's; -1: none. */
static int find_block(const tutti_same_gpu *s, const void *memory, size_t bytes) {
    int count = (int)atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    for (int i = 0; i < count; i++)
        if (!s->own->exports[i].may_be_freed && is_in(&s->own->exports[i], memory, bytes)) return i;
    return -1;
}

/* The entry is new, or its allocation was freed. */
static tutti_status fill_entry(tutti_same_gpu *s, uint32_t index, void *memory, size_t bytes, bool may_be_freed) {
    tutti_same_gpu_export *entry = &s->own->exports[index];
    tutti_device_export exported;
    TUTTI_TRY(s->device->export_memory(memory, &exported));
    entry->exported = exported;
    entry->address = (uint64_t)(uintptr_t)memory;
    entry->may_be_freed = may_be_freed;
    atomic_store_explicit(&entry->bytes, bytes, memory_order_release);
    if (index == atomic_load_explicit(&s->own->nexports, memory_order_relaxed))
        atomic_store_explicit(&s->own->nexports, index + 1, memory_order_release); /* pairs with import */
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_share(tutti_same_gpu *s, void *memory, size_t bytes) {
    uint32_t count = atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    if (s->alone || find_block(s, memory, bytes) >= 0) return TUTTI_OK;
    if (count == TUTTI_SAME_GPU_EXPORTS)
        return tutti_fail(TUTTI_ERR_MEMORY, "one rank has already shared %d allocations, the maximum", (int)count);
    return fill_entry(s, count, memory, bytes, /* may_be_freed */ false);
}

/* The rest of the directory is for slots. */
static bool has_room(const tutti_same_gpu *s) {
    return atomic_load_explicit(&s->own->nexports, memory_order_relaxed) <
           TUTTI_SAME_GPU_EXPORTS - TUTTI_SAME_GPU_SLOTS;
}

/* Blocks of tutti_mem_alloc_cuda are shared at their first use. They keep their address until the process ends: a freed
 * block is reused, but not returned to CUDA once it was shared. */
static int share_block(tutti_same_gpu *s, const void *memory, size_t bytes) {
    void *block;
    size_t block_bytes;
    if (!has_room(s) || !tutti_device_memory_share(memory, bytes, &block, &block_bytes)) return -1;
    return tutti_same_gpu_share(s, block, block_bytes) == TUTTI_OK ? find_block(s, memory, bytes) : -1;
}

static bool is_freed(const tutti_same_gpu *s, const tutti_same_gpu_export *entry) {
    tutti_device_place place;
    if (s->device->locate((void *)(uintptr_t)entry->address, &place) != TUTTI_OK) return false; /* not known */
    return place.memory != TUTTI_MEMORY_CUDA || place.serial != entry->exported.serial;
}

/* The index of a free entry; -1: none. On the way, publishes to peers all allocations that were freed. */
static int free_entry(tutti_same_gpu *s) {
    int free_index = -1, count = (int)atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        tutti_same_gpu_export *entry = &s->own->exports[i];
        if (!entry->may_be_freed) continue;
        if (atomic_load(&entry->bytes) > 0 && is_freed(s, entry)) {
            atomic_store_explicit(&entry->bytes, 0, memory_order_release);
            atomic_fetch_add_explicit(&s->own->nfreed, 1, memory_order_release); /* pairs with close_freed */
        }
        if (atomic_load(&entry->bytes) == 0) free_index = i;
    }
    return free_index < 0 && has_room(s) ? count : free_index;
}

/* Memory that CUDA does not export (of a pool, or of the driver's calls for virtual memory) is asked for once. */
static bool was_refused(const tutti_same_gpu *s, uint64_t serial) {
    for (size_t i = 0; i < TUTTI_COUNT_OF(s->refused); i++)
        if (s->refused[i] == serial) return true;
    return false;
}

static int share_allocation(tutti_same_gpu *s, const tutti_device_place *place) {
    int count = (int)atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    for (int i = 0; i < count; i++) {
        const tutti_same_gpu_export *entry = &s->own->exports[i];
        if (entry->may_be_freed && entry->exported.serial == place->serial && atomic_load(&entry->bytes) > 0) return i;
    }
    if (was_refused(s, place->serial)) return -1;
    int index = free_entry(s);
    if (index < 0) return -1;
    if (fill_entry(s, (uint32_t)index, place->base, place->bytes, /* may_be_freed */ true) == TUTTI_OK) return index;
    s->refused[s->nrefused++ % TUTTI_COUNT_OF(s->refused)] = place->serial;
    return -1;
}

/* The segments of a call mostly lie in one allocation, which is looked up once. */
static int find_allocation(tutti_same_gpu *s, const void *memory, size_t bytes) {
    tutti_device_place *place = &s->located;
    size_t offset = (size_t)((const char *)memory - (const char *)place->base);
    if (!s->maps_any) return -1;
    if (place->bytes == 0 || offset >= place->bytes) {
        if (s->device->locate(memory, place) != TUTTI_OK || place->memory != TUTTI_MEMORY_CUDA) place->bytes = 0;
        offset = (size_t)((const char *)memory - (const char *)place->base);
        s->located_index = place->bytes > 0 ? share_allocation(s, place) : -1;
    }
    return place->bytes > 0 && bytes <= place->bytes - offset ? s->located_index : -1;
}

void tutti_same_gpu_describe_begin(tutti_same_gpu *s) {
    s->located.bytes = 0; /* since the last call it may have been freed */
}

tutti_same_gpu_region tutti_same_gpu_describe(tutti_same_gpu *s, const void *memory, size_t bytes) {
    tutti_same_gpu_region region = {.address = (uint64_t)(uintptr_t)memory, .bytes = bytes, .export_index = -1};
    if (s->alone || bytes == 0) return region;
    region.export_index = find_block(s, memory, bytes);
    if (region.export_index < 0) region.export_index = share_block(s, memory, bytes);
    if (region.export_index < 0) region.export_index = find_allocation(s, memory, bytes);
    return region;
}

/* --------------------------------------------------------------------------------------------- what is mapped */

static void drop(tutti_same_gpu *s, tutti_same_gpu_import *import) {
    if (import->base != NULL) unmap(s->device, &import->exported);
    import->base = NULL;
}

static bool is_current(const tutti_same_gpu_import *import, const tutti_same_gpu_export *entry) {
    return atomic_load_explicit(&entry->bytes, memory_order_acquire) > 0 &&
           import->exported.serial == entry->exported.serial;
}

/* Closes the mappings of what a rank has freed. */
static void close_freed(tutti_same_gpu *s, int rank) {
    const tutti_same_gpu_board *board = s->boards[rank];
    uint32_t freed = atomic_load_explicit(&board->nfreed, memory_order_acquire);
    if (freed == s->seen_freed[rank]) return;
    s->seen_freed[rank] = freed;
    for (int i = 0; i < TUTTI_SAME_GPU_EXPORTS; i++) {
        tutti_same_gpu_import *import = &s->imports[rank][i];
        if (import->base != NULL && !is_current(import, &board->exports[i])) drop(s, import);
    }
}

static tutti_status import(tutti_same_gpu *s, int rank, int index) {
    const tutti_same_gpu_board *board = s->boards[rank];
    uint32_t count = atomic_load_explicit(&board->nexports, memory_order_acquire);
    if (index < 0 || (uint32_t)index >= count || index >= TUTTI_SAME_GPU_EXPORTS)
        return tutti_fail(TUTTI_ERR_DATA, "rank %d names memory that it has not shared", rank);
    close_freed(s, rank);
    tutti_same_gpu_import *own = &s->imports[rank][index];
    const tutti_same_gpu_export *entry = &board->exports[index];
    if (own->base != NULL && is_current(own, entry)) return TUTTI_OK;
    drop(s, own);
    own->exported = entry->exported;
    own->may_be_freed = entry->may_be_freed;
    return tutti_fail_context(map(s->device, &own->exported, &own->base), "memory of rank %d on the same GPU", rank);
}

tutti_status tutti_same_gpu_try_import(tutti_comm *comm, tutti_same_gpu *s) {
    for (int i = 1; i < s->nranks; i++) {
        int rank = (s->rank + i) % s->nranks;
        if (!comm->members[rank].process->self) return import(s, rank, 0);
    }
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_find(tutti_same_gpu *s, const tutti_comm *comm, int rank,
                                 const tutti_same_gpu_region *region, void **memory_out) {
    *memory_out = (void *)(uintptr_t)region->address;
    if (region->bytes == 0 || comm->members[rank].process->self) return TUTTI_OK;
    TUTTI_TRY(import(s, rank, region->export_index));
    const tutti_same_gpu_export *block = &s->boards[rank]->exports[region->export_index];
    uint64_t offset = region->address - block->address, all = atomic_load(&block->bytes);
    if (offset > all || region->bytes > all - offset)
        return tutti_fail(TUTTI_ERR_DATA, "rank %d names memory outside of what it has shared", rank);
    *memory_out = (char *)s->imports[rank][region->export_index].base + block->exported.offset + offset;
    return TUTTI_OK;
}

/* Mappings of Tutti's blocks are kept for the next communicator. Those of CUDA's allocations are closed, as this
 * process would not learn of their end; not after an abort, when closing may wait for streams that wait for a peer. */
void tutti_same_gpu_close_imports(tutti_same_gpu *s) {
    int before = 0;
    bool closes = s->imports != NULL && s->maps && !atomic_load(&s->released) &&
                  s->device->current(&before) == TUTTI_OK && s->device->use(s->index) == TUTTI_OK;
    for (int rank = 0; closes && rank < s->nranks; rank++)
        for (int i = 0; i < TUTTI_SAME_GPU_EXPORTS; i++)
            if (s->imports[rank][i].may_be_freed) drop(s, &s->imports[rank][i]);
    if (closes && before != s->index) s->device->leave(before);
    free(s->imports);
    free(s->seen_freed);
}
