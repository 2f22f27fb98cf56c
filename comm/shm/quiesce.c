/*
 * Waits until no rank writes into our buffers any more. See quiesce.h.
 */
#include "comm/shm/quiesce.h"

#include "bootstrap/base/deadline.h"
#include "comm/base/page.h"
#include "comm/shm/flags.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"

#define MOST_WAIT_MS 2000

static bool is_quiet(const tutti_comm *comm, const tutti_op *op, int rank) {
    const tutti_page *page = comm->members[rank].page;
    const tutti_post *post = &page->posts[op->sequence % TUTTI_POSTS];
    /* A rank that arrives later finds a broken signature in our post. */
    if (atomic_load_explicit(&post->sequence, memory_order_acquire) < op->sequence) return true;
    return atomic_load_explicit(&page->quiet, memory_order_acquire) >= op->sequence ||
           atomic_load_explicit(&page->step, memory_order_acquire) >=
               tutti_progress_at(op->sequence, TUTTI_STEP_DONE) ||
           atomic_load_explicit(&page->departed, memory_order_acquire) != 0 ||
           tutti_peer_ended(comm->members[rank].process);
}

static bool wait_until_quiet(const tutti_comm *comm, const tutti_op *op, int rank) {
    tutti_deadline deadline = tutti_deadline_after_ms(MOST_WAIT_MS);
    while (!is_quiet(comm, op, rank)) {
        /* Threads of this process are stopped only all together. */
        if (!comm->members[rank].process->self && tutti_deadline_passed(&deadline)) return false;
        tutti_nap(200 * TUTTI_NS_PER_US);
    }
    return true;
}

void tutti_quiesce(tutti_comm *comm, const tutti_op *op) {
    bool settled = true;
    atomic_store_explicit(&comm->page->quiet, op->sequence, memory_order_release);
    tutti_page_order(comm->page);
    for (int rank = 0; rank < comm->nranks; rank++)
        if (rank != comm->rank) settled = wait_until_quiet(comm, op, rank) && settled;
    if (settled) return;
    tutti_heap_retire_blocks();
    tutti_log(TUTTI_LOG_WARN,
              "a peer that does not respond may still write into the buffer of the failed call on communicator \"%s\"; "
              "from now on this process does not reuse freed memory of tutti_mem_alloc",
              comm->name);
}
