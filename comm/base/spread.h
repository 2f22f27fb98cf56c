/*
 * The cores on which the ranks of a host run. Each rank publishes its core, and a rank that waits moves to a core with
 * fewer ranks.
 *
 * Linux places a thread that wakes up near the thread that has woken it, so ranks often find themselves on one core
 * while another core has none. It balances cores within tens of milliseconds, unless the ranks ran a moment ago.
 */
#ifndef TUTTI_SPREAD_H
#define TUTTI_SPREAD_H

#include <sched.h>

#include "comm/base/comm.h"

/* Publishes the core of this thread: a hint for the waits of other ranks. */
static inline void tutti_core_publish(const tutti_comm *comm) {
    int core = sched_getcpu(); /* from the thread's restartable-sequence area: no system call */
    if (core != atomic_load_explicit(&comm->page->core, memory_order_relaxed))
        atomic_store_explicit(&comm->page->core, core, memory_order_relaxed);
}

/* The core on which a rank of this host was last seen. */
static inline int tutti_core_of(const tutti_comm *comm, int rank) {
    return rank == comm->rank ? sched_getcpu()
                              : atomic_load_explicit(&comm->members[rank].page->core, memory_order_relaxed);
}

/* For a thread that waits and would yield its core: moves it to another core that it may use and that has at least two
 * ranks fewer, and returns true if it has moved. The thread's affinity mask stays as it is. Calls that come too soon
 * after another one, or on a communicator that does not know where all ranks of the host are, return false. */
bool tutti_spread(tutti_comm *comm);

#endif
