/*
 * ncclCommSplit of the stand-in for NCCL: all ranks write a ticket to the parent's area; the first rank of each
 * colour makes a unique id for it. As in NCCL the parent is in progress meanwhile, and the new communicator appears
 * when that ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/standins/standin_nccl.h"

typedef struct splitting {
    tutti_nccl_comm parent, *made;
    standin_split *split;
} splitting;

/* The position of the parent's `rank` in its colour's order; also the number of ranks of the colour, and its first
 * rank. */
static int place_in(const splitting *s, int rank, int *count_out, int *first_out) {
    const standin_ticket *tickets = s->split->tickets, *own = &tickets[rank];
    int before = 0;
    *count_out = 0;
    for (int other = 0; other < s->parent->nranks; other++) {
        const standin_ticket *t = &tickets[other];
        if (t->color != own->color) continue;
        bool earlier = t->key < own->key || (t->key == own->key && other < rank);
        before += earlier;
        ++*count_out;
    }
    for (int other = 0; other < s->parent->nranks; other++) {
        int ahead = 0;
        for (int third = 0; third < s->parent->nranks; third++)
            ahead +=
                tickets[third].color == own->color && (tickets[third].key < tickets[other].key ||
                                                       (tickets[third].key == tickets[other].key && third < other));
        if (tickets[other].color == own->color && ahead == 0) *first_out = other;
    }
    return before;
}

static tutti_nccl_result split_now(const splitting *s) {
    int rank = s->parent->rank, count, first = rank;
    standin_ticket *own = &s->split->tickets[rank];
    atomic_bool *gone = &s->parent->abort;
    while (atomic_load(&s->split->arrived) < s->parent->nranks && !atomic_load(gone)) usleep(100);
    if (own->color == TUTTI_NCCL_NO_COLOR || atomic_load(gone)) return OK;
    int place = place_in(s, rank, &count, &first);
    standin_ticket *inviting = &s->split->tickets[first];
    if (place == 0) {
        ncclGetUniqueId(&own->id);
        atomic_store(&own->invited, true);
    }
    while (!atomic_load(&inviting->invited) && !atomic_load(gone)) usleep(100);
    if (atomic_load(gone)) return OK;
    tutti_nccl_comm comm = standin_nccl_make(&inviting->id, place, count, s->parent->gpu);
    if (comm == NULL) return TUTTI_NCCL_SYSTEM_ERROR;
    tutti_nccl_result result = standin_nccl_meet(comm);
    *s->made = comm; /* before the parent's state: a thread that sees the state reads this */
    return result;
}

/* As in NCCL the parent is in progress, and the new communicator appears when that ends. */
static void *split_thread(void *context) {
    splitting *s = context;
    unsigned seed = (unsigned)s->parent->rank;
    standin_nccl_linger(&seed);
    tutti_nccl_result result = split_now(s);
    atomic_store(&s->parent->state, result);
    atomic_fetch_sub(&s->parent->pending, 1);
    free(s);
    return NULL;
}

tutti_nccl_result ncclCommSplit(tutti_nccl_comm comm, int color, int key, tutti_nccl_comm *made,
                                tutti_nccl_config *config) {
    standin_nccl_count_call("ncclCommSplit");
    tutti_nccl_result fault = standin_nccl_check(comm, "ncclCommSplit");
    if (fault != OK) return fault;
    if (!standin_nccl_is_config(config) || comm->splits == STANDIN_SPLITS)
        return standin_nccl_fail(TUTTI_NCCL_INVALID_ARGUMENT, "a split of a blocking kind, or too many");
    splitting *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    *made = NULL;
    *s = (splitting){.parent = comm, .made = made, .split = &comm->area->splits[comm->splits++]};
    s->split->tickets[comm->rank].color = color;
    s->split->tickets[comm->rank].key = key;
    atomic_store(&comm->state, TUTTI_NCCL_IN_PROGRESS);
    atomic_fetch_add(&comm->pending, 1);
    atomic_fetch_add(&s->split->arrived, 1);
    pthread_t thread;
    if (pthread_create(&thread, NULL, split_thread, s) != 0) abort();
    pthread_detach(thread);
    return OK;
}
