/*
 * The end of NCCL communicators. See nccl_state.h.
 *
 * A communicator is ended on a separate thread: this frees memory, which waits for all kernels on the GPU,
 * including hanging kernels of other communicators, whose aborts must not wait for this one.
 */
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/thread.h"
#include "comm/gpu/nccl/nccl_state.h"

#define LOOK_NS (200 * TUTTI_NS_PER_US)

/* False: it failed or did not finish in time. */
static bool finalize(const tutti_nccl_ending *ending) {
    tutti_nccl_result result = ending->nccl->ncclCommFinalize(ending->handle);
    int64_t end_ns = tutti_now_ns() + TUTTI_NCCL_LINGER_NS;
    while (result == TUTTI_NCCL_IN_PROGRESS && tutti_now_ns() < end_ns) {
        tutti_nap(LOOK_NS);
        if (ending->nccl->ncclCommGetAsyncError(ending->handle, &result) != TUTTI_NCCL_SUCCESS) return false;
    }
    return result == TUTTI_NCCL_SUCCESS;
}

void tutti_nccl_ending_release(tutti_nccl_ending *ending) {
    if (ending != NULL && atomic_fetch_sub(&ending->holders, 1) == 1) free(ending);
}

static void *end_thread(void *context) {
    tutti_nccl_ending *ending = context;
    ending->device->use(ending->index); /* on failure NCCL must still be called */
    bool gone = ending->handle == NULL;
    if (!gone && ending->peaceful && finalize(ending)) {
        ending->nccl->ncclCommDestroy(ending->handle); /* it is destroyed, or will be, whatever the result */
        gone = true;
    }
    if (!gone) ending->nccl->ncclCommAbort(ending->handle);
    for (size_t i = 0; i < TUTTI_COUNT_OF(ending->memory); i++)
        if (ending->memory[i] != NULL) ending->device->free(ending->memory[i]); /* waits for the streams that use it */
    atomic_store_explicit(&ending->done, true, memory_order_release);
    tutti_nccl_ending_release(ending);
    return NULL;
}

static tutti_nccl_ending *make(const tutti_nccl *nccl, const tutti_device *device, int index, tutti_nccl_comm handle) {
    tutti_nccl_ending *ending = NULL;
    if (tutti_calloc(1, sizeof *ending, &ending) != TUTTI_OK) return NULL;
    *ending = (tutti_nccl_ending){.nccl = nccl, .device = device, .index = index, .handle = handle, .holders = 2};
    return ending;
}

void tutti_nccl_ending_run(tutti_nccl_ending *ending) {
    if (ending != NULL && tutti_thread_start(TUTTI_THREAD_NCCL_END, end_thread, ending, NULL) != 0) end_thread(ending);
}

tutti_nccl_ending *tutti_nccl_ending_take(tutti_nccl_state *state) {
    const tutti_stream_comm *gpu = state->comm->cuda.streams;
    tutti_nccl_ending *ending = make(state->nccl, gpu->device, gpu->index, state->handle);
    if (ending != NULL) state->handle = NULL; /* its registrations end with it */
    return ending;
}

/* On a separate thread: a kernel that hangs in a stream may be behind one that hangs for another communicator. */
void tutti_nccl_ending_abort(tutti_nccl_state *state) {
    state->aborted = true;
    if (state->handle != NULL) tutti_nccl_ending_run(state->ending = tutti_nccl_ending_take(state));
}

void tutti_nccl_ending_wait(const tutti_nccl_ending *ending, int64_t end_ns) {
    while (ending != NULL && !atomic_load_explicit(&ending->done, memory_order_acquire) && tutti_now_ns() < end_ns)
        tutti_nap(LOOK_NS);
}

void tutti_nccl_discard(const tutti_nccl *nccl, const tutti_device *device, int index, tutti_nccl_comm handle) {
    tutti_nccl_ending *ending = make(nccl, device, index, handle);
    tutti_nccl_ending_run(ending);
    tutti_nccl_ending_wait(ending, tutti_now_ns() + TUTTI_NCCL_LINGER_NS);
    tutti_nccl_ending_release(ending);
}
