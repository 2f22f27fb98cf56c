/*
 * What ranks on one GPU keep when a communicator is destroyed: slots, counters and mappings of peers' memory.
 * Returning any of it to CUDA waits for all streams of the GPU, including those that wait for a peer; a rank that
 * destroys a communicator must not wait. So the next communicator reuses it, and it is freed with the process.
 *
 * Invariant: counters and slots are returned only when no stream uses them any more.
 */
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "comm/gpu/same_gpu/same_gpu.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

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

tutti_status tutti_same_gpu_map(const tutti_device *device, const tutti_device_export *exported, void **base_out) {
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

void tutti_same_gpu_unmap(const tutti_device *device, const tutti_device_export *exported) {
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
