/*
 * Creates a communicator of ranks that meet in a store, and measures the phases of that: each thread has a clock; the
 * code of a phase reports its end. Rank 0 logs its own times and, per phase, the slowest of its host, in one line at
 * TUTTI_LOG=info.
 */
#ifndef TUTTI_INIT_H
#define TUTTI_INIT_H

#include "comm/base/comm.h"

/* Fills comm from what the ranks publish in the store: which ranks exist and on which host; their memory, or the
 * addresses at which they can be reached. Then `end` opens the communicator and meets the other ranks. */
tutti_status tutti_init_from_store(tutti_comm *comm, const tutti_store *store, const char *prefix,
                                   tutti_status (*end)(tutti_comm *comm));

typedef enum tutti_timing_phase {
    TUTTI_TIMING_LAUNCHER,   /* reading the launcher's variables */
    TUTTI_TIMING_STORE,      /* reaching the store */
    TUTTI_TIMING_MEMORY,     /* creating this process's shared memory */
    TUTTI_TIMING_PEER_TABLE, /* gathering the peer table: here a rank waits for the last rank to start */
    TUTTI_TIMING_LOCAL,      /* bootstrap with the ranks of the host, and mapping their memory */
    TUTTI_TIMING_ADDRESSES,  /* several hosts: exchanging the addresses of listeners */
    TUTTI_TIMING_MEETING,    /* the first barrier */
    TUTTI_TIMING_PHASES
} tutti_timing_phase;

/* Starts the clock of this thread. */
void tutti_timing_begin(void);
/* Charges the time since the last call to this phase. */
void tutti_timing_over(tutti_timing_phase phase);

#endif
