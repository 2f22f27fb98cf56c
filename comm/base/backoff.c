/*
 * Pauses. See backoff.h.
 */
#include "comm/base/backoff.h"

#include <sched.h>

#include "bootstrap/base/deadline.h"
#include "comm/base/cacheline.h"

#define SPINS             12 /* rounds, some microseconds in all */
#define YIELDS_BEFORE_NAP 200

TUTTI_THREAD_LOCAL bool tutti_backoff_yields;

void tutti_backoff_between_polls(int64_t least_ns, int64_t most_ns) {
    uint64_t start = tutti_ticks();
    int64_t part = (int64_t)(start * UINT64_C(0x9E3779B97F4A7C15) >> 56); /* 0 to 255 (Fibonacci hashing, Knuth) */
    int64_t ns = least_ns + (most_ns - least_ns) * part / 256;
    do tutti_relax();
    while (tutti_ticks_to_ns(tutti_ticks() - start) < ns);
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
