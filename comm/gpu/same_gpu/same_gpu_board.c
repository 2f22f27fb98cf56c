/*
 * The data that ranks on one GPU share on the host: posts, counters, exported allocations. See same_gpu.h.
 *
 * Boards are in the heaps that ranks of one host map anyway, so the data of a dead rank can still be read.
 */
#include <stdlib.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/status.h"
#include "comm/gpu/device_memory.h"
#include "comm/gpu/same_gpu/same_gpu.h"
#include "comm/shm/flags.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/retire.h"

/* ---------------------------------------------------------------------------------------------- opening */

/* Published by a rank at open: addresses in its own process. */
typedef struct hello {
    uint64_t board, counters; /* 0: none, or allocation failed */
} hello;

static size_t board_bytes(const tutti_same_gpu *s) {
    return sizeof(tutti_same_gpu_board) + TUTTI_SAME_GPU_DEPTH * s->post_bytes;
}

static tutti_status map_boards(const tutti_comm *comm, tutti_same_gpu *s, const hello *all) {
    for (int rank = 0; rank < s->nranks; rank++) {
        tutti_peer *peer = comm->members[rank].process;
        s->boards[rank] = tutti_peer_translate(peer, all[rank].board, board_bytes(s));
        s->alone = s->alone && peer->self;
        if (all[rank].board == 0 || s->boards[rank] == NULL)
            return tutti_fail(TUTTI_ERR_MEMORY, "rank %d has no shared memory for calls on one GPU", rank);
    }
    s->counters = tutti_peer_translate(comm->members[0].process, all[0].counters, sizeof *s->counters);
    if (all[0].counters == 0 || s->counters == NULL)
        return tutti_fail(TUTTI_ERR_MEMORY, "rank 0 has no shared memory for counters");
    return TUTTI_OK;
}

static tutti_status make_own(const tutti_comm *comm, tutti_same_gpu *s, hello *own) {
    void *memory = NULL;
    TUTTI_TRY(tutti_heap_alloc(TUTTI_HEAP_CONTROL, board_bytes(s), &memory));
    s->own = memory;
    own->board = (uint64_t)(uintptr_t)memory;
    if (comm->rank != 0) return TUTTI_OK;
    TUTTI_TRY(tutti_same_gpu_take_counters(&s->own_counters));
    own->counters = (uint64_t)(uintptr_t)s->own_counters;
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_open_boards(tutti_comm *comm, tutti_same_gpu *s) {
    size_t n = (size_t)s->nranks;
    hello own = {.board = 0}, *all = NULL;
    tutti_status status;
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *all, &all), out);
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *s->boards, &s->boards), out);
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *s->imports, &s->imports), out);
    TUTTI_TRY_GOTO(status, make_own(comm, s, &own), out);
    TUTTI_TRY_GOTO(status, tutti_stream_gather(comm, &own, all, sizeof own), out);
    TUTTI_TRY_GOTO(status, map_boards(comm, s, all), out);
out:
    free(all);
    return status;
}

tutti_status tutti_same_gpu_open_counters(tutti_comm *comm, tutti_same_gpu *s) {
    return tutti_same_gpu_pin(s->device, comm->members[0].process, s->counters, &s->on_device);
}

static void free_board(void *board) {
    tutti_heap_free(board);
}

/* Board and counters are kept until no rank reads them any more. */
void tutti_same_gpu_close_boards(tutti_comm *comm, tutti_same_gpu *s) {
    if (s->own != NULL) tutti_retire_memory(comm, s->own, free_board);
    if (s->own_counters != NULL) tutti_retire_memory(comm, s->own_counters, tutti_same_gpu_return_counters);
    free(s->imports);
    free(s->boards);
}

/* ---------------------------------------------------------------------------------------------- regions */

/* The entry of this rank's directory that contains the memory; -1: none. */
static int find_own(const tutti_same_gpu *s, const void *memory, size_t bytes) {
    uint32_t count = atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t offset = (uint64_t)(uintptr_t)memory - s->own->exports[i].address;
        if (offset < s->own->exports[i].bytes && bytes <= s->own->exports[i].bytes - offset) return (int)i;
    }
    return -1;
}

tutti_status tutti_same_gpu_share(tutti_same_gpu *s, void *memory, size_t bytes) {
    uint32_t count = atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    if (s->alone || find_own(s, memory, bytes) >= 0) return TUTTI_OK;
    if (count == TUTTI_SAME_GPU_EXPORTS)
        return tutti_fail(TUTTI_ERR_MEMORY, "one rank has already shared %d allocations, the maximum", (int)count);
    tutti_same_gpu_export *entry = &s->own->exports[count];
    TUTTI_TRY(s->device->export_memory(memory, &entry->exported));
    entry->address = (uint64_t)(uintptr_t)memory;
    entry->bytes = bytes;
    atomic_store_explicit(&s->own->nexports, count + 1, memory_order_release); /* pairs with import */
    return TUTTI_OK;
}

/* Blocks of tutti_mem_alloc_cuda are shared at their first use. They keep their address until the process ends: a
 * freed block is reused, but not returned to CUDA once it was shared. If there are too many, calls on the other
 * blocks go through slots. */
static int find_or_share(tutti_same_gpu *s, const void *memory, size_t bytes) {
    void *block;
    size_t block_bytes;
    int index = find_own(s, memory, bytes);
    uint32_t count = atomic_load_explicit(&s->own->nexports, memory_order_relaxed);
    bool full = count >= TUTTI_SAME_GPU_EXPORTS - TUTTI_SAME_GPU_SLOTS; /* the rest is for slots */
    if (index >= 0 || full || !tutti_device_memory_share(memory, bytes, &block, &block_bytes)) return index;
    return tutti_same_gpu_share(s, block, block_bytes) == TUTTI_OK ? find_own(s, memory, bytes) : -1;
}

tutti_same_gpu_region tutti_same_gpu_describe(tutti_same_gpu *s, const void *memory, size_t bytes) {
    tutti_same_gpu_region region = {.address = (uint64_t)(uintptr_t)memory, .bytes = bytes, .export_index = -1};
    if (!s->alone && bytes > 0) region.export_index = find_or_share(s, memory, bytes);
    return region;
}

static tutti_status import(tutti_same_gpu *s, int rank, int index) {
    const tutti_same_gpu_board *board = s->boards[rank];
    uint32_t count = atomic_load_explicit(&board->nexports, memory_order_acquire);
    if (index < 0 || (uint32_t)index >= count || index >= TUTTI_SAME_GPU_EXPORTS)
        return tutti_fail(TUTTI_ERR_DATA, "rank %d names memory that it has not shared", rank);
    if (s->imports[rank][index] != NULL) return TUTTI_OK;
    return tutti_fail_context(
        tutti_same_gpu_import(s->device, &board->exports[index].exported, &s->imports[rank][index]),
        "memory of rank %d on the same GPU", rank);
}

tutti_status tutti_same_gpu_find(tutti_same_gpu *s, const tutti_comm *comm, int rank,
                                 const tutti_same_gpu_region *region, void **memory_out) {
    *memory_out = (void *)(uintptr_t)region->address;
    if (region->bytes == 0 || comm->members[rank].process->self) return TUTTI_OK;
    TUTTI_TRY(import(s, rank, region->export_index));
    const tutti_same_gpu_export *block = &s->boards[rank]->exports[region->export_index];
    uint64_t offset = region->address - block->address;
    if (offset > block->bytes || region->bytes > block->bytes - offset)
        return tutti_fail(TUTTI_ERR_DATA, "rank %d names memory outside of what it has shared", rank);
    *memory_out = (char *)s->imports[rank][region->export_index] + block->exported.offset + offset;
    return TUTTI_OK;
}

tutti_status tutti_same_gpu_try_import(tutti_comm *comm, tutti_same_gpu *s) {
    for (int i = 1; i < s->nranks; i++) {
        int rank = (s->rank + i) % s->nranks;
        if (!comm->members[rank].process->self) return import(s, rank, 0);
    }
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ posts */

tutti_status tutti_same_gpu_claim(tutti_comm *comm, tutti_same_gpu *s, uint64_t place) {
    const _Atomic uint64_t *launched = &s->counters->launched[place % TUTTI_SAME_GPU_DEPTH].value;
    uint64_t before = place > TUTTI_SAME_GPU_DEPTH ? place - TUTTI_SAME_GPU_DEPTH : 0;
    tutti_deadline deadline = tutti_deadline_after_ms(comm->timeout_ms);
    tutti_backoff backoff = {.yields = true};
    while (atomic_load_explicit(launched, memory_order_acquire) < before) { /* pairs with the release in launch_end */
        TUTTI_TRY(tutti_comm_check(comm));
        if (tutti_deadline_passed(&deadline))
            return tutti_fail(TUTTI_ERR_TIMEOUT,
                              "%d calls on the GPU wait for a rank that is that many calls behind; communicator \"%s\"",
                              TUTTI_SAME_GPU_DEPTH, comm->name);
        tutti_backoff_pause(&backoff);
    }
    return TUTTI_OK;
}

bool tutti_same_gpu_arrive(tutti_same_gpu *s, tutti_same_gpu_post *post, uint64_t place) {
    _Atomic uint64_t *arrived = &s->counters->arrived[place % TUTTI_SAME_GPU_DEPTH].value;
    atomic_store_explicit(&post->number, place, memory_order_release);
    /* The last rank sees everything that all others wrote before. */
    if (atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel) + 1 < (uint64_t)s->nranks) return false;
    atomic_store_explicit(arrived, 0, memory_order_relaxed); /* before launched, which frees the place */
    return true;
}
