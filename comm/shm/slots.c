/*
 * Leases of staging memory. See slots.h.
 *
 * A lease may be taken from an idle communicator once all its ranks have finished the last call that used it: until
 * then slow peers may still read it. Below TUTTI_SLOTS_BUDGET_BYTES no lease is taken from another communicator.
 */
#include "comm/shm/slots.h"

#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "bootstrap/base/settings.h"
#include "comm/shm/flags.h"
#include "comm/shm/heap.h"
#include "kernels/copy.h"

static tutti_comm *comms;
static size_t leased_bytes;

/* Twice the size of a core's own cache: data that has been read has left that cache when its slot is used again. A
 * much larger ring would not fit into the shared cache either. Many ranks share the cores and their caches, so
 * their ring is smaller. From trials with 2 to 64 ranks. */
#define RING_BYTES       ((size_t)2 << 20)
#define SMALL_RING_BYTES ((size_t)1 << 20)
#define FEW_RANKS        4
#define CHUNKS           4 /* chunks of the largest size in a ring */
/* Where many ranks share cores (comm->counts), their rings share a core's own cache, with the buffers of all. From
 * trials with 6 to 64 ranks on 2 cores: with half of the ring, 1 to 16 MiB take 0.7 to 1.1 of the time, the memory
 * saved not counted. Short calls use less of it: 64 to 256 KiB then take 0.8 to 1 of the time, and 0.6 while other
 * programs use the shared cache. The rings of 64 ranks would not fit into the shared cache either; with slots that all
 * do, 8 KiB take half of the time. Two slots are enough: when a rank begins a call, others may still read the last. */
#define CROWDED_CHUNKS ((size_t)2)
#define CROWDED_BYTES  ((size_t)384 << 10)
#define CACHED_BYTES   ((size_t)8 << 20) /* of all ranks together */
#define LEAST_SLOTS    2

size_t tutti_slots_chunk_bytes(int nranks) {
    size_t forced = (size_t)tutti_setting_int(TUTTI_SETTING_CHUNK_BYTES);
    size_t bytes = forced > 0 ? forced : (nranks <= FEW_RANKS ? RING_BYTES : SMALL_RING_BYTES) / CHUNKS;
    return bytes / TUTTI_CACHE_LINE * TUTTI_CACHE_LINE;
}

static tutti_slots shape_of(const tutti_comm *comm) {
    size_t n = (size_t)comm->nranks;
    tutti_slots shape = {
        .ring_bytes =
            (comm->counts ? CROWDED_CHUNKS : CHUNKS) * tutti_max_size(comm->chunk_bytes, n * TUTTI_CACHE_LINE),
        .table_bytes = tutti_align_up(n * sizeof(tutti_count_entry), TUTTI_CACHE_LINE),
    };
    shape.bytes = shape.ring_bytes + TUTTI_POSTS * shape.table_bytes;
    return shape;
}

static bool readers_are_gone(const tutti_comm *comm, uint64_t sequence) {
    uint64_t done = tutti_progress_at(sequence, TUTTI_STEP_DONE);
    for (int rank = 0; rank < comm->nranks; rank++)
        if (atomic_load_explicit(&comm->members[rank].page->step, memory_order_acquire) < done) return false;
    return true;
}

/* Takes the memory of an idle lease of exactly this size from another communicator; NULL: there is none. */
static char *take_from_another(const tutti_comm *taker, size_t bytes) {
    for (tutti_comm *comm = comms; comm != NULL; comm = comm->next) {
        int idle = 0;
        if (comm == taker || !atomic_compare_exchange_strong(&comm->shm.slots_busy, &idle, 1)) continue;
        char *memory = NULL;
        if (comm->shm.slots != NULL && comm->shm.slots->bytes == bytes &&
            readers_are_gone(comm, comm->shm.slots->sequence)) {
            memory = comm->shm.slots->memory;
            free(comm->shm.slots);
            comm->shm.slots = NULL;
        }
        atomic_store_explicit(&comm->shm.slots_busy, 0, memory_order_release);
        if (memory != NULL) return memory;
    }
    return NULL;
}

static tutti_status lease(tutti_comm *comm) {
    tutti_slots *slots;
    TUTTI_TRY(tutti_calloc(1, sizeof *slots, &slots));
    *slots = shape_of(comm);
    tutti_lock(TUTTI_LOCK_SLOTS);
    if (leased_bytes + slots->bytes > TUTTI_SLOTS_BUDGET_BYTES) slots->memory = take_from_another(comm, slots->bytes);
    tutti_status status = TUTTI_OK;
    if (slots->memory == NULL) {
        void *memory = NULL;
        status = tutti_heap_alloc(TUTTI_HEAP_CONTROL, slots->bytes, &memory);
        slots->memory = memory;
        if (status == TUTTI_OK) leased_bytes += slots->bytes;
    }
    tutti_unlock(TUTTI_LOCK_SLOTS);
    if (status != TUTTI_OK) {
        free(slots);
        return status;
    }
    comm->shm.slots = slots;
    return TUTTI_OK;
}

tutti_status tutti_slots_acquire(tutti_comm *comm, const tutti_op *op) {
    /* A thread that searches for a lease holds the flag only for a moment. */
    int idle = 0;
    while (!atomic_compare_exchange_weak_explicit(&comm->shm.slots_busy, &idle, 1, memory_order_acquire,
                                                  memory_order_relaxed))
        idle = 0;
    if (TUTTI_UNLIKELY(comm->shm.slots == NULL)) {
        tutti_status status = lease(comm);
        if (status != TUTTI_OK) {
            tutti_slots_release(comm);
            return status;
        }
    }
    comm->shm.slots->sequence = op->sequence;
    return TUTTI_OK;
}

void tutti_slots_release(tutti_comm *comm) {
    atomic_store_explicit(&comm->shm.slots_busy, 0, memory_order_release);
}

/* ------------------------------------------------------------------------------------------------- ring */

/* Bytes of the ring that readers of earlier calls may still need. */
static size_t taken_before(const tutti_comm *comm, const tutti_op *op) {
    size_t bytes = 0;
    for (int i = 0; i < TUTTI_POSTS; i++) {
        const tutti_taken *taken = &comm->shm.slots->taken[i];
        if (taken->sequence > comm->finished && taken->sequence < op->sequence) bytes += taken->bytes;
    }
    return bytes;
}

/* Bytes of the ring in which the first slots of calls lie. */
static size_t used_bytes(const tutti_comm *comm, size_t stride) {
    size_t ring_bytes = comm->shm.slots->ring_bytes;
    if (!comm->counts) return ring_bytes;
    size_t most = tutti_min_size(CROWDED_BYTES, CACHED_BYTES / (size_t)comm->nranks);
    return tutti_min_size(ring_bytes, tutti_max_size(most, LEAST_SLOTS * stride));
}

tutti_status tutti_slots_take(tutti_comm *comm, const tutti_op *op, size_t stride, uint32_t *first_out) {
    tutti_slots *slots = comm->shm.slots;
    size_t depth = used_bytes(comm, stride) / stride;
    size_t first = (slots->offset + stride - 1) / stride;
    if (first >= depth) first = 0;
    size_t skipped = first * stride >= slots->offset ? first * stride - slots->offset
                                                     : slots->ring_bytes - slots->offset + first * stride;
    if (TUTTI_UNLIKELY(taken_before(comm, op) + skipped + stride > slots->ring_bytes))
        TUTTI_TRY(tutti_finished_wait(comm, op->sequence - 1));
    *first_out = (uint32_t)first;
    return TUTTI_OK;
}

void tutti_slots_taken(tutti_comm *comm, const tutti_op *op, size_t stride, uint32_t first, uint64_t count) {
    tutti_slots *slots = comm->shm.slots;
    size_t depth = slots->ring_bytes / stride;
    size_t end = (first + count - 1) % depth * stride + stride;
    size_t bytes = end > slots->offset ? end - slots->offset : slots->ring_bytes - slots->offset + end;
    bool all = count >= depth || (uint64_t)bytes < count * stride; /* wraps around to its own first slot */
    slots->taken[op->sequence % TUTTI_POSTS] =
        (tutti_taken){.sequence = op->sequence, .bytes = all ? slots->ring_bytes : bytes};
    slots->offset = end;
}

/* ---------------------------------------------------------------------------------------------- writing */

#define LEAST_MEASURED_BYTES ((size_t)2 << 10)
#define TRIAL_BYTES          ((size_t)8 << 10) /* more than the store buffer accepts without waiting */
#define WRITES_PER_LOOK      16                /* writes through the caches per measurement, which takes 60 ns */
#define WRITES_PER_TRIAL     64                /* writes past the caches per measurement */
/* Cost of a line written through the caches: 1 to 3 ns if readers share our last-level cache (with more ranks than
 * cores 2 to 8), else 12 to 28 ns. Past the caches it is 1 to 5 ns everywhere, but readers that share the cache then
 * wait some 6 ns longer for a line. */
#define DEAR_LINE_NS  10.0F
#define CHEAP_LINE_NS 6.0F

/* Loads the source into the cache, so that the measurement does not include reading it. */
static void touch(const char *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += TUTTI_CACHE_LINE) (void)*(const volatile char *)(src + i);
}

/* Copies through the caches, and measures the time until the bytes have left this core's store buffer. A
 * measurement is capped at a few times the known cost, since it may include the time of another thread. */
static void measured_copy(tutti_store_policy *pace, char *slot, const char *src, size_t bytes) {
    atomic_int drained = 0;
    touch(src, bytes);
    uint64_t start = tutti_ticks();
    memcpy(slot, src, bytes);
    atomic_exchange_explicit(&drained, 0, memory_order_seq_cst); /* returns once earlier stores have completed */
    float lines = (float)bytes / TUTTI_CACHE_LINE, cost = (float)tutti_ticks_to_ns(tutti_ticks() - start) / lines;
    float most = 4 * pace->line_ns + 1;
    pace->line_ns += ((cost < most ? cost : most) - pace->line_ns) / 4;
    if (pace->line_ns > DEAR_LINE_NS) pace->streams = true;
    if (pace->line_ns < CHEAP_LINE_NS) pace->streams = false;
}

/* Writes the first bytes of a write through the caches now and then, to measure their cost; returns their number. While
 * a rank writes past the caches, its lines lie in memory, and the first write through the caches is slow whatever the
 * distance of the readers. So that one only warms its place, and the next write to the same place is measured; but if
 * none comes until the next trial, that one is. */
static size_t sample(tutti_store_policy *pace, char *slot, const char *src, size_t bytes) {
    if (bytes < LEAST_MEASURED_BYTES) return 0;
    bool due = pace->writes++ % (pace->streams ? WRITES_PER_TRIAL : WRITES_PER_LOOK) == 0;
    bool warm = pace->warmed == slot;
    if (!due && !warm) return 0;
    size_t trial = tutti_min_size(bytes, TRIAL_BYTES);
    if (pace->streams && pace->warmed == NULL) {
        memcpy(slot, src, trial);
        pace->warmed = slot;
    } else {
        measured_copy(pace, slot, src, trial);
        pace->warmed = NULL;
    }
    return trial;
}

/* Neither way is better everywhere: in trials, writing past the caches is 5 times as fast between cores without a
 * common cache, and half as fast between others. Which cores these are may change at any time: threads move, and so
 * do the cores of a virtual machine. So each rank decides by the measured cost of its own writes. */
void tutti_slots_write(tutti_comm *comm, char *slot, const void *src, size_t bytes) {
    tutti_store_policy *pace = &comm->shm.store_policy;
    bool streams = pace->streams;
    size_t done = sample(pace, slot, src, bytes);
    if (streams) tutti_copy_stream(slot + done, (const char *)src + done, bytes - done);
    else tutti_copy_loop(slot + done, (const char *)src + done, bytes - done);
}

/* --------------------------------------------------------------------------------------- communicator list */

void tutti_slots_enlist(tutti_comm *comm) {
    tutti_lock(TUTTI_LOCK_SLOTS);
    comm->next = comms;
    comms = comm;
    tutti_unlock(TUTTI_LOCK_SLOTS);
}

void tutti_slots_delist(tutti_comm *comm) {
    tutti_lock(TUTTI_LOCK_SLOTS);
    tutti_comm **link = &comms;
    while (*link != NULL && *link != comm) link = &(*link)->next;
    if (*link != NULL) *link = comm->next;
    if (comm->shm.slots != NULL) leased_bytes -= comm->shm.slots->bytes;
    tutti_unlock(TUTTI_LOCK_SLOTS);
}
