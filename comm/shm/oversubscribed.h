/*
 * Waiting when a host has more ranks than cores. Two things then take most of the time of a short call, above all
 * in Python programs, whose code fills the caches: switches between ranks of one core, and ranks that the system
 * has placed on one core while another core has fewer. (The system balances cores within tens of milliseconds,
 * unless the ranks ran a moment ago.)
 */
#ifndef TUTTI_OVERSUBSCRIBED_H
#define TUTTI_OVERSUBSCRIBED_H

#include "comm/base/comm.h"

/* Waits some microseconds for *flag >= target, a flag of that page, if all ranks of this core have already reached
 * it: a switch to another of them would gain nothing. A rank of this core that has not reached it can run: what it
 * waits for is there, since this rank has passed the same calls. If the ranks of the other cores arrive meanwhile,
 * this rank starts its next call before it switches, with its caches still warm. True: the flag has reached target. */
bool tutti_oversubscribed_linger(const tutti_comm *comm, const tutti_page *page, _Atomic uint64_t *flag,
                                 uint64_t target);

/* Checks, once in many waits, whether this core has more ranks than another core that this thread may use, and
 * moves there. Threads keep their affinity masks. */
void tutti_oversubscribed_spread(tutti_comm *comm);

#endif
