/*
 * Where the time of a start goes, phase by phase: told in one line by rank 0 at TUTTI_LOG=info.
 *
 * Each thread has a clock: whoever is in a phase says when it is over. Ranks leave their times in the segment; rank 0 tells its
 * own, and per phase the slowest of its host.
 */
#ifndef TUTTI_TIMING_H
#define TUTTI_TIMING_H

#include "comm/shm/segment.h"

typedef enum tutti_timing_phase {
    TUTTI_TIMING_LAUNCHER, /* the launcher's variables */
    TUTTI_TIMING_STORE,    /* reaching the store */
    TUTTI_TIMING_MEMORY,   /* this process's shared memory */
    TUTTI_TIMING_ROLL,     /* cards, and the peer table of all: here a rank waits for whoever comes last */
    TUTTI_TIMING_CONTACT,  /* first contact with the host's ranks, and their memory */
    TUTTI_TIMING_DOORS,    /* several hosts: where processes can be reached from others */
    TUTTI_TIMING_MEETING,  /* the first barrier */
    TUTTI_TIMING_PHASES
} tutti_timing_phase;

_Static_assert((int)TUTTI_TIMING_PHASES <= TUTTI_SHM_SEGMENT_PHASES, "the phases fit into a seat");

/* The clock of this thread starts. */
void tutti_timing_begin(void);
/* What has passed since the last call belongs to that phase. */
void tutti_timing_over(tutti_timing_phase phase);
/* Leaves this rank's times in its seat; before the first meeting. */
void tutti_timing_store(tutti_shm_member *seat);
/* Tells; after the first meeting. `segment` has that many seats. */
void tutti_timing_log(const char *name, int nranks, int nhosts, const tutti_shm_segment *segment, int nseats);

#endif
