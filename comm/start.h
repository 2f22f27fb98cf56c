/*
 * Where the time of a start goes, phase by phase: told in one line by rank 0 at TUTTI_LOG=info.
 *
 * Each thread has a clock: whoever is in a phase says when it is over. Ranks leave their times in the hall; rank 0 tells its
 * own, and per phase the slowest of its host.
 */
#ifndef TUTTI_START_H
#define TUTTI_START_H

#include "comm/hall.h"

typedef enum tutti_start_phase {
    TUTTI_START_LAUNCHER, /* the launcher's variables */
    TUTTI_START_STORE,    /* reaching the store */
    TUTTI_START_MEMORY,   /* this process's shared memory */
    TUTTI_START_ROLL,     /* cards, and the roll of all: here a rank waits for whoever comes last */
    TUTTI_START_CONTACT,  /* first contact with the host's ranks, and their memory */
    TUTTI_START_DOORS,    /* several hosts: where processes can be reached from others */
    TUTTI_START_MEETING,  /* the first barrier */
    TUTTI_START_PHASES
} tutti_start_phase;

_Static_assert((int)TUTTI_START_PHASES <= TUTTI_HALL_PHASES, "the phases fit into a seat");

/* The clock of this thread starts. */
void tutti_start_begin(void);
/* What has passed since the last call belongs to that phase. */
void tutti_start_over(tutti_start_phase phase);
/* Leaves this rank's times in its seat; before the first meeting. */
void tutti_start_leave(tutti_seat *seat);
/* Tells; after the first meeting. `hall` has that many seats. */
void tutti_start_tell(const char *name, int nranks, int nhosts, const tutti_hall *hall, int nseats);

#endif
