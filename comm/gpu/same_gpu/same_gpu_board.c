/*
 * The data that ranks on one GPU share on the host: posts and counters. See same_gpu.h.
 *
 * Boards are in the heaps that ranks of one host map anyway, so the data of a dead rank can still be read.
 */
#include <stdlib.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/status.h"
#include "comm/base/backoff.h"
#include "comm/gpu/same_gpu/same_gpu.h"
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
    TUTTI_TRY_GOTO(status, tutti_calloc(n, sizeof *s->seen_freed, &s->seen_freed), out);
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
    tutti_same_gpu_close_imports(s);
    free(s->boards);
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
