/*
 * Leases of staging memory. See slots.h.
 *
 * A lease may be taken from an idle communicator once all its ranks have finished the last call that used it: until
 * then slow peers may still read it. Below BUDGET_BYTES nobody takes anything from anyone.
 */
#include "comm/slots.h"

#include <stdlib.h>

#include "bootstrap/base/settings.h"
#include "bootstrap/base/status.h"
#include "comm/heap.h"

#define BUDGET_BYTES    ((size_t)32 << 20)
#define MOST_ONCE_BYTES ((size_t)16 << 10)

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static tutti_comm *comms;
static size_t leased_bytes;

/* The slots of all ranks together should stay in the last-level cache. Below that, more is better: what has left the
 * writer's own cache for the shared one is read faster than what must be fetched from it (bench/: 2 MiB all_reduce with
 * 2 ranks took half the time with 512 KiB that it took with 128 KiB), and with many ranks each chunk costs every one of
 * them its turn on a core. */
#define ALL_CHUNKS_BYTES  ((size_t)2 << 20)
#define LEAST_CHUNK_BYTES ((size_t)256 << 10)
#define MOST_CHUNK_BYTES  ((size_t)512 << 10)

size_t tutti_slots_chunk_bytes(int nranks) {
    size_t forced = (size_t)tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES);
    size_t share = ALL_CHUNKS_BYTES / (size_t)nranks;
    size_t bytes = forced > 0 ? forced : tutti_min_size(tutti_max_size(share, LEAST_CHUNK_BYTES), MOST_CHUNK_BYTES);
    return bytes / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
}

size_t tutti_slots_once_bytes(const tutti_comm *comm) {
    return tutti_min_size(comm->chunk_bytes / 8, MOST_ONCE_BYTES);
}

static tutti_slots shape_of(const tutti_comm *comm) {
    size_t n = (size_t)comm->nranks;
    tutti_slots shape = {
        .in_bytes = tutti_align_up(tutti_max_size(comm->chunk_bytes, n * TUTTI_CACHE_LINE), TUTTI_CACHE_LINE),
        .once_bytes = tutti_align_up(tutti_slots_once_bytes(comm), TUTTI_CACHE_LINE),
        .table_bytes = tutti_align_up(n * sizeof(tutti_segment), TUTTI_CACHE_LINE),
    };
    shape.bytes = 4 * shape.in_bytes + 2 * shape.once_bytes + 2 * shape.table_bytes;
    return shape;
}

static bool readers_are_gone(const tutti_comm *comm, uint64_t sequence) {
    uint64_t done = tutti_step_at(sequence, TUTTI_STEP_DONE);
    for (int rank = 0; rank < comm->nranks; rank++)
        if (atomic_load_explicit(&comm->members[rank].page->step, memory_order_acquire) < done) return false;
    return true;
}

/* Takes the memory of an idle lease of exactly this size from another communicator; NULL when there is none. */
static char *take_from_another(const tutti_comm *taker, size_t bytes) {
    for (tutti_comm *comm = comms; comm != NULL; comm = comm->next) {
        int idle = 0;
        if (comm == taker || !atomic_compare_exchange_strong(&comm->slots_busy, &idle, 1)) continue;
        char *memory = NULL;
        if (comm->slots != NULL && comm->slots->bytes == bytes && readers_are_gone(comm, comm->slots->sequence)) {
            memory = comm->slots->memory;
            free(comm->slots);
            comm->slots = NULL;
        }
        atomic_store_explicit(&comm->slots_busy, 0, memory_order_release);
        if (memory != NULL) return memory;
    }
    return NULL;
}

static tutti_status lease(tutti_comm *comm) {
    tutti_slots *slots;
    TUTTI_TRY(tutti_calloc(1, sizeof *slots, &slots));
    *slots = shape_of(comm);
    pthread_mutex_lock(&slots_lock);
    if (leased_bytes + slots->bytes > BUDGET_BYTES) slots->memory = take_from_another(comm, slots->bytes);
    tutti_status status = TUTTI_OK;
    if (slots->memory == NULL) {
        void *memory = NULL;
        status = tutti_heap_alloc(TUTTI_HEAP_CONTROL, slots->bytes, &memory);
        slots->memory = memory;
        if (status == TUTTI_OK) leased_bytes += slots->bytes;
    }
    pthread_mutex_unlock(&slots_lock);
    if (status != TUTTI_OK) {
        free(slots);
        return status;
    }
    comm->slots = slots;
    return TUTTI_OK;
}

tutti_status tutti_slots_acquire(tutti_comm *comm, const tutti_op *op) {
    /* Someone who looks for a lease holds the flag for a moment only. */
    int idle = 0;
    while (
        !atomic_compare_exchange_weak_explicit(&comm->slots_busy, &idle, 1, memory_order_acquire, memory_order_relaxed))
        idle = 0;
    if (TUTTI_UNLIKELY(comm->slots == NULL)) {
        tutti_status status = lease(comm);
        if (status != TUTTI_OK) {
            tutti_slots_release(comm);
            return status;
        }
    }
    comm->slots->sequence = op->sequence;
    return TUTTI_OK;
}

void tutti_slots_release(tutti_comm *comm) {
    atomic_store_explicit(&comm->slots_busy, 0, memory_order_release);
}

void tutti_slots_enlist(tutti_comm *comm) {
    pthread_mutex_lock(&slots_lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&slots_lock);
}

void tutti_slots_delist(tutti_comm *comm) {
    pthread_mutex_lock(&slots_lock);
    tutti_comm **link = &comms;
    while (*link != NULL && *link != comm) link = &(*link)->next;
    if (*link != NULL) *link = comm->next;
    if (comm->slots != NULL) leased_bytes -= comm->slots->bytes;
    pthread_mutex_unlock(&slots_lock);
}
