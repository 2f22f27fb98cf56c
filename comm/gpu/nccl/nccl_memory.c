/*
 * Memory of ncclMemAlloc, and the registrations of blocks. See nccl_memory.h.
 *
 * A communicator holds the blocks that are registered with it until it ends or they are freed; so an address that
 * is reused is never taken for the previous block.
 */
#include "comm/gpu/nccl/nccl_memory.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/lock.h"
#include "comm/gpu/nccl/nccl_state.h"

#define SETTLE_NS (2 * TUTTI_NS_PER_S)

typedef struct tutti_nccl_hold {
    struct tutti_nccl_hold *next;
    const void *block;
    void *handle; /* NCCL's handle; NULL: NCCL refused it, and is not asked again */
} tutti_nccl_hold;

static tutti_nccl_state *states; /* under TUTTI_LOCK_NCCL_MEMORY: communicators that use NCCL */

static bool can_register(const tutti_nccl *nccl) {
    return nccl->ncclCommRegister != NULL && nccl->ncclCommDeregister != NULL;
}

static tutti_status allocate(size_t bytes, void **memory_out) {
    tutti_lock(TUTTI_LOCK_NCCL_MEMORY);
    const tutti_nccl *nccl = states != NULL ? states->nccl : NULL;
    tutti_unlock(TUTTI_LOCK_NCCL_MEMORY);
    if (nccl == NULL) return tutti_fail(TUTTI_ERR_UNSUPPORTED, "no communicator of this process uses NCCL");
    if (nccl->ncclMemAlloc == NULL || nccl->ncclMemFree == NULL || !can_register(nccl))
        return tutti_fail(TUTTI_ERR_UNSUPPORTED, "%s lacks %s", nccl->file, nccl->lacking);
    tutti_nccl_result result = nccl->ncclMemAlloc(memory_out, bytes);
    if (result == TUTTI_NCCL_SUCCESS) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_MEMORY, "NCCL cannot allocate %zu bytes of GPU memory: %s", bytes,
                      nccl->ncclGetErrorString(result));
}

static tutti_status free_memory(void *memory) {
    const tutti_nccl *nccl;
    TUTTI_TRY(tutti_nccl_open(&nccl));
    tutti_nccl_result result = nccl->ncclMemFree(memory);
    if (result == TUTTI_NCCL_SUCCESS) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_SYSTEM, "ncclMemFree: %s", nccl->ncclGetErrorString(result));
}

/* Waits until the communicator is not in progress, since it would refuse calls then; a call of another thread may
 * have begun. NULL: it was aborted. With its lock held, which is released meanwhile. */
static tutti_nccl_comm settle(tutti_nccl_state *state) {
    tutti_nccl_result result = TUTTI_NCCL_SUCCESS;
    int64_t end_ns = tutti_now_ns() + SETTLE_NS;
    for (tutti_nccl_comm comm; (comm = state->handle) != NULL;) {
        if (state->nccl->ncclCommGetAsyncError(comm, &result) != TUTTI_NCCL_SUCCESS) return comm;
        if (result != TUTTI_NCCL_IN_PROGRESS || tutti_now_ns() >= end_ns) return comm;
        tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
        tutti_nap(50 * TUTTI_NS_PER_US);
        tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    }
    return NULL;
}

/* Ends a registration; an aborted communicator has ended its registrations itself. With TUTTI_LOCK_NCCL_MEMORY held. */
static void let_go(tutti_nccl_state *state, tutti_nccl_hold *hold) {
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_comm comm = settle(state);
    if (comm != NULL && hold->handle != NULL) state->nccl->ncclCommDeregister(comm, hold->handle);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    free(hold);
}

void tutti_nccl_memory_enter(tutti_nccl_state *state) {
    tutti_lock(TUTTI_LOCK_NCCL_MEMORY);
    state->next = states;
    states = state;
    tutti_unlock(TUTTI_LOCK_NCCL_MEMORY);
}

void tutti_nccl_memory_leave(tutti_nccl_state *state) {
    tutti_lock(TUTTI_LOCK_NCCL_MEMORY);
    for (tutti_nccl_state **at = &states; *at != NULL; at = &(*at)->next)
        if (*at == state) {
            *at = state->next;
            break;
        }
    while (state->holds != NULL) {
        tutti_nccl_hold *first = state->holds;
        state->holds = first->next;
        let_go(state, first);
    }
    tutti_unlock(TUTTI_LOCK_NCCL_MEMORY);
}

/* With TUTTI_LOCK_NCCL_MEMORY held. */
static void hold_block(tutti_nccl_state *state, void *block, size_t bytes) {
    tutti_nccl_hold *hold;
    for (hold = state->holds; hold != NULL; hold = hold->next)
        if (hold->block == block) return;
    if (tutti_calloc(1, sizeof *hold, &hold) != TUTTI_OK) return;
    tutti_lock_in(TUTTI_LOCK_NCCL, &state->lock);
    tutti_nccl_result result = TUTTI_NCCL_SUCCESS;
    tutti_nccl_comm comm = state->handle;
    if (comm != NULL) result = state->nccl->ncclCommRegister(comm, block, bytes, &hold->handle);
    tutti_unlock_in(TUTTI_LOCK_NCCL, &state->lock);
    if (result != TUTTI_NCCL_SUCCESS) {
        hold->handle = NULL;
        tutti_log(TUTTI_LOG_INFO, "NCCL did not register %zu bytes: %s", bytes,
                  state->nccl->ncclGetErrorString(result));
    }
    hold->block = block;
    hold->next = state->holds;
    state->holds = hold;
}

void tutti_nccl_memory_use(tutti_nccl_state *state, const void *memory) {
    void *block;
    size_t bytes;
    if (memory == NULL || !can_register(state->nccl) || !tutti_device_memory_find(memory, 1, &block, &bytes)) return;
    tutti_lock(TUTTI_LOCK_NCCL_MEMORY);
    hold_block(state, block, bytes);
    tutti_unlock(TUTTI_LOCK_NCCL_MEMORY);
}

static void forget(const void *block) {
    tutti_lock(TUTTI_LOCK_NCCL_MEMORY);
    for (tutti_nccl_state *state = states; state != NULL; state = state->next)
        for (tutti_nccl_hold **at = &state->holds; *at != NULL;) {
            tutti_nccl_hold *hold = *at;
            if (hold->block != block) {
                at = &hold->next;
                continue;
            }
            *at = hold->next;
            let_go(state, hold);
        }
    tutti_unlock(TUTTI_LOCK_NCCL_MEMORY);
}

const tutti_device_allocator tutti_nccl_allocator = {.alloc = allocate, .free_ = free_memory, .forget = forget};
