/*
 * The cache of registrations; see memory.h for which ones it may hold.
 *
 * Ranges are in a list, the most recently used one in front. There is one per block of tutti_mem_alloc in use with
 * the network, so a list suffices; only large messages search it.
 */
#include "rdma/memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"

/* Most bytes registered for one transfer: pinning more at once would only delay the first byte. */
#define MOST_AT_ONCE ((size_t)64 << 20)

typedef struct tutti_rdma_memory_range {
    struct tutti_rdma_memory_range *before, *after;
    char *address;
    size_t bytes;
    struct ibv_mr *mrs[TUTTI_RDMA_DEVICES_PORTS];
    bool registered; /* with at least one adapter */
    int uses;
    bool removed; /* forgotten while a transfer used it */
} tutti_rdma_memory_range;

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_rdma_memory_range *first, *last; /* under memory_lock, with all ranges in the list */
static size_t cached_bytes;
static bool (*finder)(const void *memory, void **start_out,
                      size_t *bytes_out); /* set once, before any pipe is opened */

static void deregister(struct ibv_mr **mrs) {
    for (int i = 0; i < TUTTI_RDMA_DEVICES_PORTS; i++) {
        if (mrs[i] != NULL) ibv_dereg_mr(mrs[i]);
        mrs[i] = NULL;
    }
}

static tutti_status register_with(const tutti_rdma_adapter *adapter, void *address, size_t bytes, int access,
                                  struct ibv_mr **mr) {
    errno = 0;
    if (*mr != NULL) return TUTTI_OK; /* two ports of one adapter */
    *mr = tutti_rdma_host->fault("rdma_register") ? NULL : ibv_reg_mr(adapter->domain, address, bytes, access);
    if (*mr != NULL) return TUTTI_OK;
    return tutti_rdma_host->fail(TUTTI_ERR_SYSTEM, "cannot register %zu bytes with RDMA adapter %s: %s%s", bytes,
                                 adapter->name, strerror(errno), errno == ENOMEM ? " (is 'ulimit -l' too low?)" : "");
}

static tutti_status register_all(void *address, size_t bytes, int access, const tutti_rdma_port *const *ports,
                                 int nports, struct ibv_mr **mrs) {
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < nports && status == TUTTI_OK; i++)
        status = register_with(ports[i]->adapter, address, bytes, access, &mrs[ports[i]->adapter->index]);
    return status;
}

/* ---------------------------------------------------------------------------------------- the list of ranges */

static void unlink_range(tutti_rdma_memory_range *range) {
    *(range->before != NULL ? &range->before->after : &first) = range->after;
    *(range->after != NULL ? &range->after->before : &last) = range->before;
}

static void put_first(tutti_rdma_memory_range *range) {
    range->before = NULL;
    range->after = first;
    *(first != NULL ? &first->before : &last) = range;
    first = range;
}

static void forget(tutti_rdma_memory_range *range) {
    deregister(range->mrs);
    if (range->registered) cached_bytes -= range->bytes;
    range->registered = false;
}

/* Drops the least recently used registrations until there is room for `bytes` more. */
static void make_room(size_t bytes) {
    size_t limit = (size_t)tutti_rdma_host->setting_int(TUTTI_SETTING_RDMA_CACHE_BYTES);
    for (tutti_rdma_memory_range *range = last; range != NULL && cached_bytes + bytes > limit; range = range->before)
        if (range->registered && range->uses == 0) forget(range);
}

static tutti_rdma_memory_range *range_of(const char *address) {
    for (tutti_rdma_memory_range *range = first; range != NULL; range = range->after)
        if (!range->removed && address >= range->address && address < range->address + range->bytes) return range;
    return NULL;
}

/* The caller holds memory_lock. */
static tutti_status hold_range(tutti_rdma_memory_range *range, char *address, size_t bytes,
                               const tutti_rdma_port *const *ports, int nports, tutti_rdma_memory_use *use_out) {
    if (!range->registered) make_room(range->bytes);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    tutti_status status = register_all(range->address, range->bytes, access, ports, nports, range->mrs);
    if (status != TUTTI_OK && range->uses == 0) forget(range);
    TUTTI_TRY(status);
    if (!range->registered) cached_bytes += range->bytes;
    range->registered = true;
    size_t left = (size_t)(range->address + range->bytes - address);
    *use_out = (tutti_rdma_memory_use){.address = address, .bytes = bytes < left ? bytes : left, .range = range};
    memcpy(use_out->mrs, range->mrs, sizeof use_out->mrs);
    range->uses++;
    unlink_range(range);
    put_first(range);
    return TUTTI_OK;
}

/* Adds the range of `address`, if `finder` knows one. The caller's transfer has that memory in use, so it is not
 * forgotten meanwhile. Where memory for the entry runs out, the buffer is registered for this transfer only. */
static void look_for(const void *address) {
    tutti_rdma_memory_range *range;
    void *start;
    size_t bytes;
    if (!finder(address, &start, &bytes) || tutti_rdma_host->calloc(1, sizeof *range, &range) != TUTTI_OK) return;
    range->address = start;
    range->bytes = bytes;
    pthread_mutex_lock(&memory_lock);
    put_first(range);
    pthread_mutex_unlock(&memory_lock);
}

/* -------------------------------------------------------------------------------------------------- transfers */

tutti_status tutti_rdma_memory_hold(void *address, size_t bytes, tutti_rdma_memory_purpose purpose,
                                    const tutti_rdma_port *const *ports, int nports, tutti_rdma_memory_use *use_out) {
    pthread_mutex_lock(&memory_lock);
    tutti_rdma_memory_range *range = range_of(address);
    if (range == NULL && finder != NULL) {
        pthread_mutex_unlock(&memory_lock);
        look_for(address);
        pthread_mutex_lock(&memory_lock);
        range = range_of(address);
    }
    tutti_status status = range != NULL ? hold_range(range, address, bytes, ports, nports, use_out) : TUTTI_OK;
    pthread_mutex_unlock(&memory_lock);
    if (range != NULL) return status;
    /* A source may be read-only memory. With relaxed ordering writes may overtake each other on the bus; that all bytes
     * have arrived is proved by the completion of the write with immediate data, not by looking at the memory. */
    int access = purpose == TUTTI_RDMA_MEMORY_SOURCE
                     ? 0
                     : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    tutti_rdma_memory_use use = {.address = address, .bytes = bytes < MOST_AT_ONCE ? bytes : MOST_AT_ONCE};
    status = register_all(address, use.bytes, access, ports, nports, use.mrs);
    if (status != TUTTI_OK) deregister(use.mrs);
    else *use_out = use;
    return status;
}

void tutti_rdma_memory_release(tutti_rdma_memory_use *use) {
    tutti_rdma_memory_range *range = use->range;
    if (use->address == NULL) return;
    if (range == NULL) {
        deregister(use->mrs);
    } else {
        pthread_mutex_lock(&memory_lock);
        if (--range->uses == 0 && range->removed) {
            unlink_range(range);
            forget(range);
            free(range);
        }
        pthread_mutex_unlock(&memory_lock);
    }
    *use = (tutti_rdma_memory_use){0};
}

/* ----------------------------------------------------------------------------------------------------- ranges */

static void drop(tutti_rdma_memory_range *range) {
    range->removed = true;
    if (range->uses > 0) return;
    unlink_range(range);
    forget(range);
    free(range);
}

void tutti_rdma_memory_ask(bool (*find)(const void *memory, void **start_out, size_t *bytes_out)) {
    finder = find;
}

void tutti_rdma_memory_forget(void *start) {
    pthread_mutex_lock(&memory_lock);
    for (tutti_rdma_memory_range *range = first, *after; range != NULL; range = after) {
        after = range->after;
        if (!range->removed && range->address == start) drop(range);
    }
    pthread_mutex_unlock(&memory_lock);
}

void tutti_rdma_memory_forked(void) {
    pthread_mutex_init(&memory_lock, NULL);
    cached_bytes = 0;
    for (tutti_rdma_memory_range *range = first; range != NULL; range = range->after) {
        memset(range->mrs, 0, sizeof range->mrs); /* they are the parent's */
        range->registered = false;
        range->uses = 0;
        range->removed = true;
    }
}
