/*
 * Waiting with more ranks of a host than cores. Two things take most of the time of a short call then, above all in Python
 * programs, whose code fills the caches: switches between ranks of one core, and ranks that the system has put on one core while
 * another has fewer. (The system balances cores within tens of milliseconds, unless the ranks ran a moment ago.)
 */
#ifndef TUTTI_OVERSUBSCRIBED_H
#define TUTTI_OVERSUBSCRIBED_H

#include "comm/base/comm.h"

/* Waits for *flag >= target, a flag of that page, for some microseconds if all ranks of this core have come as far: a
 * switch to another of them would gain nothing. A rank of this core that has not come as far can go on: what it waits for
 * is there, since this rank has come through the same calls. When the ranks of the other cores come meanwhile, this rank
 * has its next call under way before it switches, with the caches as it left them. True: the flag is there. */
bool tutti_oversubscribed_linger(const tutti_comm *comm, const tutti_page *page, _Atomic uint64_t *flag, uint64_t target);

/* Looks, once in many waits, whether this core has more ranks than another that this thread may use, and moves there. Threads
 * keep their affinity masks. */
void tutti_oversubscribed_spread(tutti_comm *comm);

#endif
