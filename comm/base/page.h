/*
 * Ordering and waking for flags in pages.
 *
 * Publishing is a store followed by a load of `sleepers`. A sleeper increments `sleepers` and then loads the flag
 * once more. At least one of the two orders must hold, so that either the publisher sees the sleeper or the sleeper
 * sees the new value. Sleeping is the slow path, so sleepers pay: membarrier(2) executes a barrier in all threads
 * that publish. Where the system does not offer it, the publisher's exchange orders them (page->fenced).
 */
#ifndef TUTTI_PAGE_H
#define TUTTI_PAGE_H

#include "comm/base/comm.h"

/* True if a thread can order the stores and loads of other threads (membarrier). Never changes in a process. */
bool tutti_can_membarrier(void);
/* Executes a barrier in all threads of all processes that use Tutti; false: the system has refused it. It takes
 * microseconds; in return the threads whose stores are read need no barrier of their own. */
bool tutti_membarrier(void);

/* Must be called before the owner of a new page publishes anything. */
void tutti_page_prepare(tutti_page *page);
/* Orders this thread's earlier stores before its later loads, as if all publishers had; false: not available. */
bool tutti_page_order(tutti_page *page);
/* Wakes all threads that sleep on the page's flags, so that they check its state. */
void tutti_page_wake(tutti_page *page);

/* The futex word of a flag: its low half. */
static inline uint32_t *tutti_flag_word(_Atomic uint64_t *flag) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint32_t *)flag + 1;
#else
    return (uint32_t *)flag;
#endif
}
/* Wakes all threads that sleep on the flag. */
void tutti_page_wake_flag(_Atomic uint64_t *flag);

#endif
