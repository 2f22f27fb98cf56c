/*
 * Waiting on shared cores. See oversubscribed.h.
 */
#include "comm/shm/oversubscribed.h"

#include <sched.h>

#include "bootstrap/base/deadline.h"
#include "comm/base/cacheline.h"
#include "comm/base/hooks.h"
#include "comm/shm/flags.h"

#define SPINS_PER_SERVICE 64
#define LINGER_NS         INT64_C(50000) /* time between two calls of some ranks of a Python program */
#define LEAST_WAITS       64u            /* waits between two checks of the placement: some milliseconds */
#define MOST_WAITS        65536u         /* if the system moves the ranks back */

static int core_of(const tutti_comm *comm, int rank) {
    return rank == comm->rank ? sched_getcpu()
                              : atomic_load_explicit(&comm->members[rank].page->core, memory_order_relaxed);
}

/* True if a rank that last ran on this core has not yet reached target in the same flag of its own page. */
static bool needs_core(const tutti_comm *comm, const tutti_page *page, const _Atomic uint64_t *flag, uint64_t target) {
    size_t offset = (size_t)((const char *)flag - (const char *)page);
    int core = sched_getcpu();
    for (int i = 0; i < comm->nranks; i++) {
        char *other = (char *)comm->members[i].page;
        if (i != comm->rank && core_of(comm, i) == core &&
            !tutti_flag_reached((_Atomic uint64_t *)(other + offset), target))
            return true;
    }
    return false;
}

bool tutti_oversubscribed_linger(const tutti_comm *comm, const tutti_page *page, _Atomic uint64_t *flag,
                                 uint64_t target) {
    if (needs_core(comm, page, flag, target)) return false;
    uint64_t start = tutti_ticks();
    do {
        for (int i = 0; i < SPINS_PER_SERVICE; i++) {
            if (tutti_flag_reached(flag, target)) return true;
            tutti_relax();
        }
        tutti_hooks.p2p_progress();
    } while (tutti_ticks_to_ns(tutti_ticks() - start) < LINGER_NS);
    return false;
}

/* Returns a core that this thread may use and that has at least two ranks fewer than this core, else -1. Of the
 * ranks of a core only the last one moves, so that they do not all move. */
static int roomier_core(const tutti_comm *comm, const cpu_set_t *allowed) {
    uint16_t ranks[CPU_SETSIZE] = {0};
    int own = sched_getcpu(), best = -1;
    for (int i = 0; i < comm->nranks; i++) {
        int core = core_of(comm, i);
        if (core < 0 || core >= CPU_SETSIZE) return -1;
        if (core == own && i > comm->rank) return -1;
        ranks[core]++;
    }
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, allowed) && (best < 0 || ranks[core] < ranks[best])) best = core;
    return best >= 0 && ranks[best] + 2 <= ranks[own] ? best : -1;
}

void tutti_oversubscribed_spread(tutti_comm *comm) {
    tutti_oversubscribed *crowd = &comm->shm.crowd;
    cpu_set_t allowed, one;
    if (crowd->pause == 0) crowd->pause = LEAST_WAITS;
    if (++crowd->waits < crowd->pause) return;
    crowd->waits = 0;
    /* A communicator with only some of the host's ranks does not know where the other ranks are. */
    if (comm->nranks != comm->host_ranks || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    int core = roomier_core(comm, &allowed);
    if (core >= 0 && crowd->pause < MOST_WAITS) crowd->pause *= 2;
    else if (core < 0 && crowd->pause > LEAST_WAITS) crowd->pause /= 2;
    if (core < 0) return;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}
