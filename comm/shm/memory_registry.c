/*
 * Registered ranges, kept in an array: programs register few, large ranges.
 */
#include "comm/shm/memory_registry.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "bootstrap/base/lock.h"

typedef struct range {
    uintptr_t start;
    size_t bytes;
} range;

static range *ranges;
static size_t capacity;
static atomic_size_t nranges; /* changed under lock */
static void (*_Atomic watcher)(void *start);

bool tutti_memory_registry_find(const void *memory, void **start_out, size_t *bytes_out) {
    if (TUTTI_LIKELY(atomic_load_explicit(&nranges, memory_order_relaxed) == 0)) return false;
    bool found = false;
    tutti_lock(TUTTI_LOCK_REGISTRY);
    for (size_t i = 0; i < nranges && !found; i++) {
        if ((uintptr_t)memory - ranges[i].start >= ranges[i].bytes) continue;
        *start_out = (void *)ranges[i].start;
        *bytes_out = ranges[i].bytes;
        found = true;
    }
    tutti_unlock(TUTTI_LOCK_REGISTRY);
    return found;
}

void tutti_memory_registry_watch(void (*function)(void *start)) {
    atomic_store_explicit(&watcher, function, memory_order_release);
}

void tutti_memory_registry_changed(void *start) {
    void (*function)(void *) = atomic_load_explicit(&watcher, memory_order_acquire);
    if (function != NULL) function(start);
}

static tutti_status add(range added) {
    for (size_t i = 0; i < nranges; i++)
        if (ranges[i].start == added.start)
            return tutti_fail(TUTTI_ERR_ARGUMENT,
                              "tutti_mem_register: this address is already registered; deregister it first");
    if (nranges == capacity) {
        size_t wanted = capacity > 0 ? 2 * capacity : 16;
        range *grown = realloc(ranges, wanted * sizeof *grown);
        if (grown == NULL) return tutti_fail(TUTTI_ERR_MEMORY, "no memory for the table of registered ranges");
        ranges = grown;
        capacity = wanted;
    }
    ranges[nranges] = added;
    nranges++;
    return TUTTI_OK;
}

tutti_status tutti_mem_register(void *memory, size_t bytes) {
    if (memory == NULL || bytes == 0)
        return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_register: memory is NULL or bytes is 0");
    if (bytes > UINTPTR_MAX - (uintptr_t)memory)
        return tutti_fail(TUTTI_ERR_ARGUMENT,
                          "tutti_mem_register: %zu bytes at %p reach past the end of the address space", bytes, memory);
    tutti_lock(TUTTI_LOCK_REGISTRY);
    tutti_status status = add((range){.start = (uintptr_t)memory, .bytes = bytes});
    tutti_unlock(TUTTI_LOCK_REGISTRY);
    return status;
}

tutti_status tutti_mem_deregister(void *memory) {
    bool found = false;
    tutti_lock(TUTTI_LOCK_REGISTRY);
    for (size_t i = 0; i < nranges && !found; i++) {
        if (ranges[i].start != (uintptr_t)memory) continue;
        ranges[i] = ranges[nranges - 1];
        nranges--;
        found = true;
        tutti_memory_registry_changed(memory);
    }
    tutti_unlock(TUTTI_LOCK_REGISTRY);
    return found ? TUTTI_OK : tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_mem_deregister: %p is not registered", memory);
}
