/*
 * Pages outlive their communicators: a rank may leave the last call while a slower rank still reads its page and
 * slots. Retired pages are kept here until all peers have gone. A peer whose page no longer carries the
 * communicator's id has freed it, which it does only after it has departed.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/lock.h"
#include "comm/shm/heap.h"
#include "comm/shm/peer.h"
#include "comm/shm/segment.h"
#include "comm/shm/slots.h"

typedef struct retired {
    uint64_t comm_id;
    int nranks;
    tutti_page *page;
    tutti_shm_segment *segment; /* contains the page; NULL: the page is in this process's heap */
    tutti_member *members;
    tutti_slots *slots;
    tutti_kept kept[TUTTI_COUNT_OF(((tutti_comm *)0)->shm.kept)];
    struct retired *next;
} retired;

static retired *first_retired;

static bool all_gone(const retired *one) {
    for (int rank = 0; rank < one->nranks; rank++) {
        const tutti_member *member = &one->members[rank];
        if (member->page == one->page || member->process == NULL || member->page == NULL) continue;
        bool gone = atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0 ||
                    atomic_load_explicit(&member->page->comm_id, memory_order_acquire) != one->comm_id ||
                    tutti_peer_ended(member->process);
        if (!gone) return false;
    }
    return true;
}

static void free_retired(retired *one) {
    atomic_store_explicit(&one->page->comm_id, 0, memory_order_release);
    if (one->segment == NULL) tutti_heap_free(one->page);
    if (one->slots != NULL) tutti_heap_free(one->slots->memory);
    for (size_t i = 0; i < TUTTI_COUNT_OF(one->kept); i++)
        if (one->kept[i].memory != NULL) one->kept[i].give_back(one->kept[i].memory);
    free(one->slots);
    for (int rank = 0; rank < one->nranks; rank++)
        if (one->members[rank].process != NULL) tutti_peer_release(one->members[rank].process);
    free(one->members);
    tutti_shm_segment_release(one->segment);
    free(one);
}

void tutti_retire_comm(tutti_comm *comm) {
    retired *added = malloc(sizeof *added);
    if (added == NULL) return; /* no memory to record it: the page is never freed, which is harmless */
    *added = (retired){.comm_id = comm->id,
                       .nranks = comm->nranks,
                       .page = comm->page,
                       .segment = tutti_shm_segment_holds(comm->shm.segment, comm->page) ? comm->shm.segment : NULL,
                       .members = comm->members,
                       .slots = comm->shm.slots};
    memcpy(added->kept, comm->shm.kept, sizeof added->kept);
    if (added->segment != NULL) tutti_shm_segment_retain(added->segment);
    comm->page = NULL;
    comm->members = NULL;
    comm->shm.slots = NULL;
    retired *ready = NULL;
    tutti_lock(TUTTI_LOCK_RETIRED);
    added->next = first_retired;
    first_retired = added;
    for (retired **link = &first_retired; *link != NULL;) {
        retired *one = *link;
        if (!all_gone(one)) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        one->next = ready;
        ready = one;
    }
    tutti_unlock(TUTTI_LOCK_RETIRED);
    while (ready != NULL) {
        retired *one = ready;
        ready = one->next;
        free_retired(one);
    }
}

void tutti_retire_memory(tutti_comm *comm, void *memory, void (*give_back)(void *memory)) {
    size_t i = 0;
    while (comm->shm.kept[i].memory != NULL) i++;
    assert(i < TUTTI_COUNT_OF(comm->shm.kept));
    comm->shm.kept[i] = (tutti_kept){.memory = memory, .give_back = give_back};
}
