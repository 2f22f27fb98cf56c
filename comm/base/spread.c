/*
 * Spreading ranks over cores. See spread.h.
 */
#include "comm/base/spread.h"

#include "bootstrap/base/deadline.h"

/* The time between two checks of the placement. A move takes about 20 us, and then the caches of the other core are
 * cold; a pair of ranks on one core needs several times as long for a short call. A check reads a line of each rank's
 * page, 0.1 to 0.2 us each, and all ranks of a core make checks: they take up to a hundredth of its time. */
#define LEAST_PAUSE_NS         INT64_C(200000)
#define LEAST_CROWDED_PAUSE_NS INT64_C(2000000)
#define PAUSE_PER_LINE_NS      INT64_C(16000)
#define MOST_LONGER   10 /* times the least pause, if the system always moves ranks back that have a core each */
#define MOST_PAUSE_NS INT64_C(2000000000) /* the same if ranks share cores in any case, and lose less */
#define SELDOM        8                   /* pauses without a call: the last move has lasted */

static int64_t least_pause_ns(const tutti_comm *comm) {
    int64_t per_core = (comm->host_ranks + comm->host_cores - 1) / comm->host_cores;
    int64_t pause_ns = comm->nranks * per_core * PAUSE_PER_LINE_NS;
    int64_t least_ns = comm->spins ? LEAST_PAUSE_NS : LEAST_CROWDED_PAUSE_NS;
    return pause_ns > least_ns ? pause_ns : least_ns;
}

/* Returns a core that this thread may use and that has at least two ranks fewer than this core, else -1. Of the
 * ranks of a core only the last one moves, so that they do not all move. */
static int roomier_core(const tutti_comm *comm, const cpu_set_t *allowed) {
    uint16_t ranks[CPU_SETSIZE] = {0};
    int own = sched_getcpu(), best = -1;
    for (int i = 0; i < comm->nranks; i++) {
        int core = tutti_core_of(comm, i);
        if (core < 0 || core >= CPU_SETSIZE) return -1;
        if (core == own && i > comm->rank) return -1;
        ranks[core]++;
    }
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, allowed) && (best < 0 || ranks[core] < ranks[best])) best = core;
    return best >= 0 && ranks[best] + 2 <= ranks[own] ? best : -1;
}

static bool move(tutti_comm *comm) {
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    int core = roomier_core(comm, &allowed);
    if (core < 0) return false;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) return false;
    sched_setaffinity(0, sizeof allowed, &allowed);
    tutti_core_publish(comm);
    return true;
}

bool tutti_spread(tutti_comm *comm) {
    tutti_spread_state *state = &comm->spread;
    int64_t now_ns = tutti_ticks_to_ns(tutti_ticks());
    int64_t due_ns = atomic_load_explicit(&state->due_ns, memory_order_relaxed);
    if (now_ns < due_ns) return false;
    /* A communicator with only some of the host's ranks does not know where the other ranks are. */
    if (comm->net.hosts != NULL || comm->nranks != comm->host_ranks) return false;
    int64_t pause_ns = atomic_load_explicit(&state->pause_ns, memory_order_relaxed);
    int64_t least_ns = least_pause_ns(comm), most_ns = comm->spins ? MOST_LONGER * least_ns : MOST_PAUSE_NS;
    bool moved = move(comm), again = moved && now_ns - due_ns < SELDOM * pause_ns;
    pause_ns = again ? tutti_min_i64(2 * pause_ns, most_ns) : pause_ns / 2;
    if (pause_ns < least_ns) pause_ns = least_ns;
    atomic_store_explicit(&state->pause_ns, pause_ns, memory_order_relaxed);
    atomic_store_explicit(&state->due_ns, now_ns + pause_ns, memory_order_relaxed);
    return moved;
}
