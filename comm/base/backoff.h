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

/* Set in a thread that shares its core with a thread that computes (workers): its waits do not spin. */
extern TUTTI_THREAD_LOCAL bool tutti_backoff_yields;

#endif
