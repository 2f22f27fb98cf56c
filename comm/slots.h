/*
 * Staging memory of a collective: leased from the process for the time of a call, kept by the communicator while
 * nobody else wants it, so that 500 groups need no 500 arenas.
 *
 *    | in[0] | in[1] | out[0] | out[1] | once[0] | once[1] | table[0] | table[1] |
 *
 * in, out   chunks on their way: inputs that peers read, results that peers read; chunk c uses in[c % 2]
 * once      a whole small input, by the parity of the call, so that no call waits for the readers of the one before
 * table     addresses and counts per rank, for the v-kinds, by parity as well
 */
#ifndef TUTTI_SLOTS_H
#define TUTTI_SLOTS_H

#include "comm/comm.h"

/* An entry of the table: what the owner has for one rank. */
typedef struct tutti_segment {
    uint64_t address; /* in the owner's process */
    uint64_t count;
} tutti_segment;

typedef struct tutti_slots {
    char *memory; /* in the heap's control area */
    size_t bytes;
    size_t in_bytes, once_bytes, table_bytes; /* of one of each */
    uint64_t sequence;                        /* last call that used it */
} tutti_slots;

/* Bytes that a rank of a communicator of this size stages at a time. */
size_t tutti_slots_chunk_bytes(int nranks);
/* Largest input, in bytes, that fits `once`: equal on all ranks. */
size_t tutti_slots_once_bytes(const tutti_comm *comm);

/* Makes sure that comm->slots is there and nobody takes it until release. Two calls of one communicator never
 * overlap. */
tutti_status tutti_slots_acquire(tutti_comm *comm, const tutti_op *op);
void tutti_slots_release(tutti_comm *comm);

static inline char *tutti_slots_in(const tutti_slots *slots, uint64_t chunk) {
    return slots->memory + (chunk & 1) * slots->in_bytes;
}
static inline char *tutti_slots_out(const tutti_slots *slots, uint64_t chunk) {
    return slots->memory + (2 + (chunk & 1)) * slots->in_bytes;
}
static inline char *tutti_slots_once(const tutti_slots *slots, uint64_t sequence) {
    return slots->memory + 4 * slots->in_bytes + (sequence & 1) * slots->once_bytes;
}
static inline tutti_segment *tutti_slots_table(const tutti_slots *slots, uint64_t sequence) {
    return (tutti_segment *)(slots->memory + 4 * slots->in_bytes + 2 * slots->once_bytes +
                             (sequence & 1) * slots->table_bytes);
}

/* All communicators of this process, for takers of leases; comm.c adds and removes. Removed ones keep their lease. */
void tutti_slots_enlist(tutti_comm *comm);
void tutti_slots_delist(tutti_comm *comm);

#endif
