/*
 * Startup time by phase: rank 0 logs it in one line at TUTTI_LOG=info.
 *
 * Each thread has a clock; the code of a phase reports its end. Each rank stores its times in the segment; rank 0
 * logs its own and, per phase, the slowest of its host.
 */
#ifndef TUTTI_TIMING_H
#define TUTTI_TIMING_H

#include "comm/shm/segment.h"

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

_Static_assert((int)TUTTI_TIMING_PHASES <= TUTTI_SHM_SEGMENT_PHASES, "the phases fit into a member");

/* Starts the clock of this thread. */
void tutti_timing_begin(void);
/* Charges the time since the last call to this phase. */
void tutti_timing_over(tutti_timing_phase phase);
/* Stores this rank's times in its member of the segment; call it before the first barrier. */
void tutti_timing_store(tutti_shm_member *member);
/* Logs the times; call it after the first barrier. `segment` has `nmembers` members. */
void tutti_timing_log(const char *name, int nranks, int nhosts, const tutti_shm_segment *segment, int nmembers);

#endif
