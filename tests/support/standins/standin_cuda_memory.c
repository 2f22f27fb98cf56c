/*
 * Memory of the stand-in for CUDA. An allocation is a memfd, mapped at an address that only the stand-in knows; the
 * address that it returns is a range without access, so that ordinary code crashes on it. Pinned memory is host
 * memory, and has a second, inaccessible address for the GPU. An export is the process and its descriptor of the
 * file.
 *
 * Invariant: ranges do not overlap; an address is looked up in all of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "tests/support/standins/standin_cuda.h"

typedef enum range_kind { DEVICE, IMPORT, PINNED, REGISTERED } range_kind;

typedef struct range {
    struct range *next;
    range_kind kind;
    char *given; /* the address that the GPU uses */
    char *host;  /* the same bytes for ordinary code; PINNED, REGISTERED: the caller's address */
    size_t bytes;
    int device, file;
    bool unshared; /* DEVICE: cannot be exported */
    uint64_t serial;
    pid_t owner; /* IMPORT: the exporter's serial */
} range;

typedef struct handle {
    pid_t process;
    int file, device;
    uint64_t bytes, serial;
} handle;

static range *ranges; /* under standin_lock */
static uint64_t serials;
static atomic_int freeing;     /* threads that wait for the streams in order to free memory */
static atomic_int allocations; /* allocations of GPU memory since the start */

static bool holds(const char *start, size_t bytes, const void *address) {
    return (const char *)address >= start && (const char *)address < start + bytes;
}

/* Under the lock: the range that contains the address, which is the GPU's or (pinned) the host's. Moves it to the
 * front: most lookups, among thousands of ranges, repeat. */
static range *find(const void *address) {
    for (range **at = &ranges; *at != NULL; at = &(*at)->next) {
        range *r = *at;
        bool pinned = r->kind == PINNED || r->kind == REGISTERED;
        if (!holds(r->given, r->bytes, address) && !(pinned && holds(r->host, r->bytes, address))) continue;
        *at = r->next;
        r->next = ranges;
        ranges = r;
        return r;
    }
    return NULL;
}

static void *reach(const void *address, size_t bytes, bool as_gpu) {
    pthread_mutex_lock(&standin_lock);
    range *r = find(address);
    void *reached = r == NULL && !as_gpu ? (void *)(uintptr_t)address : NULL;
    bool given = r != NULL && holds(r->given, r->bytes, address);
    if (given || (r != NULL && !as_gpu)) {
        size_t offset = (size_t)((const char *)address - (given ? r->given : r->host));
        if (bytes <= r->bytes - offset) reached = r->host + offset;
    }
    pthread_mutex_unlock(&standin_lock);
    return reached;
}

void *standin_reach(const void *address, size_t bytes) {
    return reach(address, bytes, false);
}

void *standin_reach_as_gpu(const void *address, size_t bytes) {
    return reach(address, bytes, true);
}

void *standin_host_pointer(const void *device_pointer) {
    return standin_reach(device_pointer, 1);
}

bool standin_is_pageable(const void *address) {
    pthread_mutex_lock(&standin_lock);
    bool pageable = find(address) == NULL;
    pthread_mutex_unlock(&standin_lock);
    return pageable;
}

tutti_status standin_locate(const void *pointer, tutti_device_place *place_out) {
    tutti_device_place place = {.memory = TUTTI_MEMORY_HOST};
    if (standin_is_forked()) { /* CUDA does not know the address */
        *place_out = place;
        return TUTTI_OK;
    }
    STANDIN_BEGIN("locate");
    pthread_mutex_lock(&standin_lock);
    range *r = find(pointer);
    if (r != NULL && (r->kind == DEVICE || r->kind == IMPORT))
        place = (tutti_device_place){
            .memory = TUTTI_MEMORY_CUDA, .device = r->device, .base = r->given, .bytes = r->bytes, .serial = r->serial};
    pthread_mutex_unlock(&standin_lock);
    *place_out = place;
    return TUTTI_OK;
}

/* --------------------------------------------------------------------------------- making and dropping ranges */

static void drop(range *r) {
    if (r->given != NULL) munmap(r->given, r->bytes);
    if (r->host != NULL && r->kind != REGISTERED) munmap(r->host, r->bytes);
    if (r->file >= 0) close(r->file);
    free(r);
}

/* `file`: its bytes; -1: anonymous memory, or for REGISTERED what is at `there`. Takes the file over. */
static tutti_status make(range_kind kind, size_t bytes, int file, void *there, range **range_out) {
    range *r = NULL;
    int shared = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (standin_host->calloc(1, sizeof *r, &r) != TUTTI_OK) {
        if (file >= 0) close(file);
        return TUTTI_ERR_MEMORY;
    }
    *r = (range){.kind = kind, .bytes = bytes, .device = standin_current(), .file = file, .host = there};
    void *given = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (given != MAP_FAILED) r->given = given;
    if (there == NULL) {
        void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, shared, file, 0);
        if (host != MAP_FAILED) r->host = host;
    }
    if (r->given == NULL || r->host == NULL) {
        drop(r);
        return standin_host->fail(TUTTI_ERR_MEMORY, "stand-in: cannot allocate %zu bytes: out of memory", bytes);
    }
    if (kind == DEVICE) atomic_fetch_add(&allocations, 1);
    pthread_mutex_lock(&standin_lock);
    r->serial = ++serials;
    r->next = ranges;
    ranges = r;
    pthread_mutex_unlock(&standin_lock);
    *range_out = r;
    return TUTTI_OK;
}

int standin_allocations(void) {
    return atomic_load(&allocations);
}

int standin_allocated(void) {
    int count = 0;
    pthread_mutex_lock(&standin_lock);
    for (const range *r = ranges; r != NULL; r = r->next) count += r->kind == DEVICE;
    pthread_mutex_unlock(&standin_lock);
    return count;
}

void standin_wait_for_frees(void) {
    if (standin_is_forked() || atomic_load(&freeing) == 0) return;
    pthread_mutex_lock(&standin_lock);
    while (atomic_load(&freeing) > 0) pthread_cond_wait(&standin_changed, &standin_lock);
    pthread_mutex_unlock(&standin_lock);
}

bool standin_is_freeing(void) {
    return atomic_load(&freeing) > 0;
}

void standin_sync_alone(tutti_stream stream) {
    atomic_fetch_add(&freeing, 1);
    if (stream == STANDIN_ALL_STREAMS) standin_sync_all();
    else standin_sync(stream);
    pthread_mutex_lock(&standin_lock);
    atomic_fetch_sub(&freeing, 1);
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
}

/* The range of that kind that begins at the address, for the caller to drop. Waits for all streams first. */
static tutti_status take(range_kind kind, const void *address, const char *call) {
    range *taken = NULL;
    standin_sync_alone(STANDIN_ALL_STREAMS);
    pthread_mutex_lock(&standin_lock);
    for (range **at = &ranges; *at != NULL && taken == NULL;) {
        range *r = *at;
        bool host = kind == PINNED || kind == REGISTERED;
        if (r->kind == kind && (const void *)(host ? r->host : r->given) == address) {
            taken = r;
            *at = r->next;
        } else {
            at = &r->next;
        }
    }
    pthread_mutex_unlock(&standin_lock);
    if (taken == NULL)
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: %s: %p is nothing that it could take", call, address);
    drop(taken);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ GPU's and pinned */

static tutti_status allocate(size_t bytes, bool unshared, void **memory_out) {
    range *made = NULL;
    standin_make_context();
    if (bytes == 0) {
        *memory_out = NULL;
        return TUTTI_OK;
    }
    int file = memfd_create("stand-in", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        if (file >= 0) close(file);
        return standin_host->fail(TUTTI_ERR_MEMORY, "stand-in: alloc of %zu bytes: %s", bytes, strerror(errno));
    }
    TUTTI_TRY(make(DEVICE, bytes, file, NULL, &made));
    made->unshared = unshared;
    memset(made->host, 0xcd, bytes); /* replaces any mapping there */
    *memory_out = made->given;
    return TUTTI_OK;
}

tutti_status standin_alloc(size_t bytes, void **memory_out) {
    STANDIN_BEGIN("alloc");
    return allocate(bytes, false, memory_out);
}

tutti_status standin_alloc_unshared(size_t bytes, void **memory_out) {
    STANDIN_BEGIN("alloc_unshared");
    return allocate(bytes, true, memory_out);
}

tutti_status standin_free(void *memory) {
    STANDIN_BEGIN("free");
    return memory == NULL ? TUTTI_OK : take(DEVICE, memory, "free");
}

tutti_status standin_alloc_pinned(size_t bytes, void **memory_out, void **device_out) {
    range *made = NULL;
    STANDIN_BEGIN("alloc_pinned");
    standin_make_context();
    TUTTI_TRY(make(PINNED, bytes, -1, NULL, &made));
    *memory_out = made->host;
    if (device_out != NULL) *device_out = made->given;
    return TUTTI_OK;
}

tutti_status standin_free_pinned(void *memory) {
    STANDIN_BEGIN("free_pinned");
    return memory == NULL ? TUTTI_OK : take(PINNED, memory, "free_pinned");
}

tutti_status standin_pin(void *memory, size_t bytes, void **device_out) {
    range *made = NULL;
    STANDIN_BEGIN("pin");
    standin_make_context();
    pthread_mutex_lock(&standin_lock);
    bool already = find(memory) != NULL || find((char *)memory + bytes - 1) != NULL;
    pthread_mutex_unlock(&standin_lock);
    if (already || bytes == 0)
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: pin: part or all of it is registered already");
    TUTTI_TRY(make(REGISTERED, bytes, -1, memory, &made));
    if (device_out != NULL) *device_out = made->given;
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ other processes */

tutti_status standin_export_memory(void *memory, tutti_device_export *export_out) {
    tutti_device_export exported = {.offset = 0};
    handle made = {0};
    _Static_assert(sizeof made <= sizeof exported.handle, "a handle has room");
    STANDIN_BEGIN("export_memory");
    pthread_mutex_lock(&standin_lock);
    range *r = find(memory);
    bool can = r != NULL && r->kind == DEVICE && !r->unshared;
    if (can) {
        made = (handle){getpid(), r->file, r->device, r->bytes, r->serial};
        exported.offset = (uint64_t)((char *)memory - r->given);
        exported.serial = r->serial;
    }
    pthread_mutex_unlock(&standin_lock);
    if (!can) return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: %p cannot be exported", memory);
    memcpy(exported.handle, &made, sizeof made);
    *export_out = exported;
    return TUTTI_OK;
}

static bool is_imported(const handle *wanted) {
    pthread_mutex_lock(&standin_lock);
    bool found = false;
    for (range *r = ranges; r != NULL && !found; r = r->next)
        found = r->kind == IMPORT && r->owner == wanted->process && r->serial == wanted->serial;
    pthread_mutex_unlock(&standin_lock);
    return found;
}

tutti_status standin_import_memory(const tutti_device_export *exported, void **base_out) {
    handle wanted;
    range *made = NULL;
    char path[64];
    STANDIN_BEGIN("import_memory");
    memcpy(&wanted, exported->handle, sizeof wanted);
    if (wanted.process == getpid())
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: import of an export of this very process");
    if (is_imported(&wanted))
        return standin_host->fail(TUTTI_ERR_ARGUMENT, "stand-in: this export is mapped here already");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)wanted.process, wanted.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return standin_host->fail(TUTTI_ERR_SYSTEM, "stand-in: import from process %d: %s", (int)wanted.process,
                                  strerror(errno));
    standin_make_context();
    TUTTI_TRY(make(IMPORT, wanted.bytes, file, NULL, &made));
    pthread_mutex_lock(&standin_lock);
    made->owner = wanted.process;
    made->serial = wanted.serial;
    made->device = wanted.device < standin_gpus() ? wanted.device : standin_current();
    pthread_mutex_unlock(&standin_lock);
    *base_out = made->given;
    return TUTTI_OK;
}

tutti_status standin_close_import(void *base) {
    STANDIN_BEGIN("close_import");
    return take(IMPORT, base, "close_import");
}
