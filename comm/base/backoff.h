/*
 * Pauses in wait loops that do not wait for a flag (flags.h does): point to point, works, engines.
 */
#ifndef TUTTI_BACKOFF_H
#define TUTTI_BACKOFF_H

#include "comm/base/comm.h"

/* Counts rounds from 0; spins, then yields, then naps. */
typedef struct tutti_backoff {
    unsigned rounds;
    bool yields;
} tutti_backoff;
void tutti_backoff_pause(tutti_backoff *backoff);

/* The time between two polls of a socket that has nothing yet, which varies between these bounds. A poll takes the
 * socket's lock and its cache lines, which the core that handles the packets needs. Between distant cores, messages of
 * up to 8 KiB took 3 % longer without this pause, between near ones 1 % less; pauses of 2 us cost 10 % there
 * (bench/compare_hosts). In a loop of calls, all messages of one size come equally long after a poll: with a constant
 * time, this may be long for some size. */
void tutti_backoff_between_polls(int64_t least_ns, int64_t most_ns);

/* Set in a thread that shares its core with a thread that computes (workers): its waits do not spin. */
extern TUTTI_THREAD_LOCAL bool tutti_backoff_yields;

#endif
