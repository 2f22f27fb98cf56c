/*
 * What every wait asks: the clock, whether its deadline has passed, whether to log it, whether to stop.
 *
 * A deadline is a budget, not a point in time: each check charges the time since the last check, but never more
 * than TUTTI_DEADLINE_STEP_NS. A pause of the whole process (debugger, Ctrl-Z, paused machine) is therefore not
 * charged, and a process that was paused does not blame its peers. Waiters check at least every 100 ms.
 */
#ifndef TUTTI_BASE_DEADLINE_H
#define TUTTI_BASE_DEADLINE_H

#include <time.h>

#include "bootstrap/base/common.h"

#define TUTTI_DEADLINE_STEP_NS INT64_C(500000000)

/* CLOCK_MONOTONIC; the same for all processes of a host. */
int64_t tutti_now_ns(void);

/* CLOCK_MONOTONIC at the last tick of the system, at most 10 ms ago. Takes 5 ns, half the time of the counter. */
static inline int64_t tutti_coarse_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * TUTTI_NS_PER_S + now.tv_nsec;
}

/* Sleeps for that long; a signal handler may end it early. For loops that check something from time to time. */
void tutti_nap(int64_t ns);

typedef struct tutti_deadline {
    int64_t budget_ns; /* remaining at the last check; INT64_MAX: never passes */
    int64_t spent_ns;  /* charged so far */
    int64_t last_ns;   /* time of the last check */
} tutti_deadline;

/* timeout_ms < 0: never passes. */
tutti_deadline tutti_deadline_after_ms(int64_t timeout_ms);
/* Charges the time since the last check; returns true when the budget is used up. */
bool tutti_deadline_passed(tutti_deadline *deadline);
/* Milliseconds left after the last check, rounded up, at most INT32_MAX; for poll and similar calls. */
int tutti_deadline_left_ms(const tutti_deadline *deadline);

/* Asks the program whether to stop (tutti_interrupt_set): fails with TUTTI_ERR_INTERRUPTED when the calling thread's
 * function returns nonzero; calls it at most every 50 ms. Costs nothing when no function is set. */
tutti_status tutti_interrupt_check(void);

/* When a wait is logged: after 2 s, 10 s, 30 s, then every minute of the time charged to its deadline. */
#define TUTTI_NOTICE_MS 2000

typedef struct tutti_notice {
    int said; /* lines logged so far */
} tutti_notice;

/* Returns true when the next line is due, and counts it as logged. */
static inline bool tutti_notice_due(tutti_notice *notice, int64_t waited_ns) {
    static const int first_ms[] = {TUTTI_NOTICE_MS, 10000, 30000};
    int64_t at_ms = notice->said < 3 ? first_ms[notice->said] : INT64_C(60000) * (notice->said - 2);
    if (waited_ns < at_ms * TUTTI_NS_PER_MS) return false;
    notice->said++;
    return true;
}

/* Ticks of a cheap counter (TSC where available), for intervals too short for a clock. */
static inline uint64_t tutti_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return (uint64_t)tutti_now_ns();
#endif
}
/* Converts a difference of ticks to nanoseconds; calibrated at first use, accurate to a few percent. */
int64_t tutti_ticks_to_ns(uint64_t ticks);

#endif
