/*
 * Staging memory of a collective: leased from the process for the duration of a call, and kept by the communicator
 * while no other communicator wants it, so that 500 groups do not need 500 rings.
 *
 *    | ring                                            | table[0] ... table[3] |
 *
 * ring      memory that peers read: pieces of inputs and of results. A call divides it into slots of one size (small
 *           ones with a gap in between: TUTTI_GAP_BYTES) and puts piece k into slot (first + k) % depth; the next call
 *           continues behind it. So a slot rests as long as possible before it is written again: by then it has left
 *           the caches of its readers, from which each line would otherwise have to be fetched first (in a trial 128
 *           KiB took 2 ranks 7 us with a ring of 2 MiB, and 18 us always in the same place). Only where many ranks
 *           share cores, their calls begin in the first part of the ring
 * table     addresses and counts per rank, for the v-kinds; call k uses table[k % TUTTI_POSTS]
 *
 * Invariant: a slot is written only after all its readers have read the previous content.
 */
#ifndef TUTTI_SLOTS_H
#define TUTTI_SLOTS_H

#include "comm/base/comm.h"

/* An entry of the table: the owner's data for one rank. */
typedef struct tutti_count_entry {
    uint64_t address; /* address in the owner's process */
    uint64_t count;
} tutti_count_entry;

/* Bytes of the ring that a call has used and that peers may still read. */
typedef struct tutti_taken {
    uint64_t sequence;
    size_t bytes;
} tutti_taken;

typedef struct tutti_slots {
    char *memory; /* in the heap's control area */
    size_t bytes;
    size_t ring_bytes, table_bytes; /* table_bytes: of one table */
    size_t offset;                  /* place of the next call's first piece */
    tutti_taken taken[TUTTI_POSTS]; /* by the last calls; call k uses taken[k % TUTTI_POSTS] */
    uint64_t sequence;              /* last call that used the lease */
} tutti_slots;

/* A process that has leased this much reuses the leases of idle communicators for others, as long as there are some. */
#define TUTTI_SLOTS_BUDGET_BYTES ((size_t)32 << 20)

/* Largest piece that a rank of a communicator of this size stages at once: a quarter of its ring, or half of it if
 * many ranks share cores. */
size_t tutti_slots_chunk_bytes(int nranks);

/* Makes sure that comm->slots exists and stays this communicator's until release. Its calls never overlap. */
tutti_status tutti_slots_acquire(tutti_comm *comm, const tutti_op *op);
void tutti_slots_release(tutti_comm *comm);

/* Returns the index of this call's first slot, for slots of `stride` bytes: the next one, or the ring's first one if
 * the next one would end beyond the part of the ring in which calls begin. Waits for that slot's readers. */
tutti_status tutti_slots_take(tutti_comm *comm, const tutti_op *op, size_t stride, uint32_t *first_out);
/* The call has used `count` slots from `first` on. */
void tutti_slots_taken(tutti_comm *comm, const tutti_op *op, size_t stride, uint32_t first, uint64_t count);

/* Copies into staging memory, or a peer's output, through the caches or past them, whichever was faster recently. */
void tutti_slots_write(tutti_comm *comm, char *slot, const void *src, size_t bytes);

static inline tutti_count_entry *tutti_slots_table(const tutti_slots *slots, uint64_t sequence) {
    return (tutti_count_entry *)(slots->memory + slots->ring_bytes + sequence % TUTTI_POSTS * slots->table_bytes);
}

/* List of this process's communicators, searched for idle leases; comm.c fills it. Removed ones keep their lease. */
void tutti_slots_enlist(tutti_comm *comm);
void tutti_slots_delist(tutti_comm *comm);

#endif
