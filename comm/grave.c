/*
 * Pages outlive their communicators: a rank may leave the last call while a slower one still reads its page and slots.
 * Here they wait until all peers have gone. A peer whose page no longer carries the communicator's id has freed it,
 * which it does only after it has departed.
 */
#include "comm/grave.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "comm/hall.h"
#include "comm/heap.h"
#include "comm/peer.h"
#include "comm/slots.h"

typedef struct grave {
    uint64_t comm_id;
    int nranks;
    tutti_page *page;
    tutti_hall *hall; /* the page is in it, or NULL: in this process's heap */
    tutti_member *members;
    tutti_slots *slots;
    tutti_kept kept[TUTTI_COUNT_OF(((tutti_comm *)0)->kept)];
    struct grave *next;
} grave;

static pthread_mutex_t graves_lock = PTHREAD_MUTEX_INITIALIZER;
static grave *graves;

static bool all_gone(const grave *g) {
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

static void free_grave(grave *g) {
    atomic_store_explicit(&g->page->comm_id, 0, memory_order_release);
    if (g->hall == NULL) tutti_heap_free(g->page);
    if (g->slots != NULL) tutti_heap_free(g->slots->memory);
    for (size_t i = 0; i < TUTTI_COUNT_OF(g->kept); i++)
        if (g->kept[i].memory != NULL) g->kept[i].give_back(g->kept[i].memory);
    free(g->slots);
    for (int rank = 0; rank < g->nranks; rank++)
        if (g->members[rank].process != NULL) tutti_peer_release(g->members[rank].process);
    free(g->members);
    tutti_hall_release(g->hall);
    free(g);
}

void tutti_grave_bury(tutti_comm *comm) {
    grave *new = malloc(sizeof *new);
    if (new == NULL) return; /* no memory for a note: the page stays, which harms nobody */
    *new = (grave){.comm_id = comm->id,
                   .nranks = comm->nranks,
                   .page = comm->page,
                   .hall = tutti_hall_holds(comm->hall, comm->page) ? comm->hall : NULL,
                   .members = comm->members,
                   .slots = comm->slots};
    memcpy(new->kept, comm->kept, sizeof new->kept);
    if (new->hall != NULL) tutti_hall_retain(new->hall);
    comm->page = NULL;
    comm->members = NULL;
    comm->slots = NULL;
    grave *ready = NULL;
    pthread_mutex_lock(&graves_lock);
    new->next = graves;
    graves = new;
    for (grave **link = &graves; *link != NULL;) {
        grave *g = *link;
        if (!all_gone(g)) {
            link = &g->next;
            continue;
        }
        *link = g->next;
        g->next = ready;
        ready = g;
    }
    pthread_mutex_unlock(&graves_lock);
    while (ready != NULL) {
        grave *g = ready;
        ready = g->next;
        free_grave(g);
    }
}

void tutti_grave_keep(tutti_comm *comm, void *memory, void (*give_back)(void *memory)) {
    size_t i = 0;
    while (comm->kept[i].memory != NULL) i++;
    assert(i < TUTTI_COUNT_OF(comm->kept));
    comm->kept[i] = (tutti_kept){.memory = memory, .give_back = give_back};
}
