/*
 * Pages outlive their communicators: a rank may leave the last call while a slower rank still reads its page and
 * slots. Retired pages are kept here until all peers have gone. A peer whose page no longer carries the
 * communicator's id has freed it, which it does only after it has departed.
 */
#include "comm/shm/retire.h"

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

static retired *graves;

static bool all_gone(const retired *g) {
    for (int rank = 0; rank < g->nranks; rank++) {
        const tutti_member *member = &g->members[rank];
        if (member->page == g->page || member->process == NULL || member->page == NULL) continue;
        bool gone = atomic_load_explicit(&member->page->departed, memory_order_acquire) != 0 ||
                    atomic_load_explicit(&member->page->comm_id, memory_order_acquire) != g->comm_id ||
                    tutti_peer_ended(member->process);
        if (!gone) return false;
    }
    return true;
}

static void free_grave(retired *g) {
    atomic_store_explicit(&g->page->comm_id, 0, memory_order_release);
    if (g->segment == NULL) tutti_heap_free(g->page);
    if (g->slots != NULL) tutti_heap_free(g->slots->memory);
    for (size_t i = 0; i < TUTTI_COUNT_OF(g->kept); i++)
        if (g->kept[i].memory != NULL) g->kept[i].give_back(g->kept[i].memory);
    free(g->slots);
    for (int rank = 0; rank < g->nranks; rank++)
        if (g->members[rank].process != NULL) tutti_peer_release(g->members[rank].process);
    free(g->members);
    tutti_shm_segment_release(g->segment);
    free(g);
}

void tutti_retire_comm(tutti_comm *comm) {
    retired *new = malloc(sizeof *new);
    if (new == NULL) return; /* no memory to record it: the page is never freed, which is harmless */
    *new = (retired){.comm_id = comm->id,
                     .nranks = comm->nranks,
                     .page = comm->page,
                     .segment = tutti_shm_segment_holds(comm->shm.segment, comm->page) ? comm->shm.segment : NULL,
                     .members = comm->members,
                     .slots = comm->shm.slots};
    memcpy(new->kept, comm->shm.kept, sizeof new->kept);
    if (new->segment != NULL) tutti_shm_segment_retain(new->segment);
    comm->page = NULL;
    comm->members = NULL;
    comm->shm.slots = NULL;
    retired *ready = NULL;
    tutti_lock(TUTTI_LOCK_RETIRED);
    new->next = graves;
    graves = new;
    for (retired **link = &graves; *link != NULL;) {
        retired *g = *link;
        if (!all_gone(g)) {
            link = &g->next;
            continue;
        }
        *link = g->next;
        g->next = ready;
        ready = g;
    }
    tutti_unlock(TUTTI_LOCK_RETIRED);
    while (ready != NULL) {
        retired *g = ready;
        ready = g->next;
        free_grave(g);
    }
}

void tutti_retire_memory(tutti_comm *comm, void *memory, void (*give_back)(void *memory)) {
    size_t i = 0;
    while (comm->shm.kept[i].memory != NULL) i++;
    assert(i < TUTTI_COUNT_OF(comm->kept));
    comm->shm.kept[i] = (tutti_kept){.memory = memory, .give_back = give_back};
}
