/*
 * Pauses. See backoff.h.
 */
#include "comm/base/backoff.h"

#include <sched.h>

#include "bootstrap/base/deadline.h"
#include "comm/base/cacheline.h"

#define SPINS             12 /* rounds, some microseconds in all */
#define YIELDS_BEFORE_NAP 200
#define BETWEEN_POLLS_NS  500

TUTTI_THREAD_LOCAL bool tutti_backoff_yields;

void tutti_backoff_between_polls(void) {
    uint64_t start = tutti_ticks();
    do tutti_relax();
    while (tutti_ticks_to_ns(tutti_ticks() - start) < BETWEEN_POLLS_NS);
}

void tutti_backoff_pause(tutti_backoff *backoff) {
    unsigned round = backoff->rounds++;
    if (round < SPINS && !backoff->yields) {
        for (int i = 0; i < 16; i++) tutti_relax();
    } else if (round < SPINS + YIELDS_BEFORE_NAP) {
        sched_yield();
    } else {
        tutti_nap((round < 1000 ? 50 : 500) * TUTTI_NS_PER_US);
    }
}
