/*
 * References to communicators, and breaking them. See comm.h.
 */
#include "comm/base/comm.h"

#include <stdio.h>

#include "comm/base/hooks.h"
#include "comm/base/page.h"

void tutti_comm_identify(tutti_comm *comm, uint64_t id) {
    comm->id = id;
    atomic_store_explicit(&comm->page->comm_id, id, memory_order_release);
}

void tutti_comm_retain(tutti_comm *comm) {
    atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
}

void tutti_comm_release(tutti_comm *comm) {
    if (atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) != 1) return;
    tutti_hooks.comm_free(comm);
}

tutti_status tutti_comm_check(tutti_comm *comm) {
    if (TUTTI_UNLIKELY(tutti_forked()))
        return tutti_fail(TUTTI_ERR_FORKED, "communicator \"%s\" belongs to the process that this one was forked from",
                          comm->name);
    if (TUTTI_LIKELY(atomic_load_explicit(&comm->page->state, memory_order_acquire) != TUTTI_PAGE_BROKEN))
        return TUTTI_OK;
    return tutti_fail((tutti_status)comm->page->broken_status, "%s", comm->page->broken_text);
}

void tutti_comm_wake(tutti_comm *comm) {
    tutti_page_wake(comm->page);
    if (comm->counts && comm->rank != 0) tutti_page_wake(comm->members[0].page);
}

tutti_status tutti_comm_break(tutti_comm *comm, tutti_status status) {
    tutti_page *page = comm->page;
    uint32_t whole = TUTTI_PAGE_WHOLE;
    if (atomic_compare_exchange_strong_explicit(&page->state, &whole, TUTTI_PAGE_BREAKING, memory_order_acq_rel,
                                                memory_order_acquire)) {
        page->broken_status = status;
        snprintf(page->broken_text, sizeof page->broken_text, "%s", tutti_last_error());
        atomic_store_explicit(&page->state, TUTTI_PAGE_BROKEN, memory_order_release);
        for (int i = 0; i < TUTTI_POSTS; i++) {
            if (atomic_load(&page->step) >= tutti_progress_at(atomic_load(&page->posts[i].sequence), TUTTI_STEP_DONE))
                continue;
            atomic_store_explicit(&page->posts[i].signature, TUTTI_SIGNATURE_BROKEN, memory_order_release);
            if (comm->counts) atomic_fetch_add(&comm->members[0].page->arrivals[i].signatures, 1);
        }
        tutti_comm_wake(comm);
    }
    while (atomic_load_explicit(&page->state, memory_order_acquire) != TUTTI_PAGE_BROKEN) {}
    return tutti_fail((tutti_status)page->broken_status, "%s", page->broken_text);
}
