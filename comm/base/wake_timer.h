/*
 * An alarm clock: one thread sleeps on it, any others set it. Setting it to ring soon, where it is set already, costs no
 * system call; so a queue that is mostly emptied by others does not wake its worker for nothing.
 */
#ifndef TUTTI_WAKE_TIMER_H
#define TUTTI_WAKE_TIMER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tutti/tutti.h"

typedef struct tutti_wake_timer {
    int fd;        /* timerfd */
    atomic_int on; /* OFF, SOON, NOW; changed by setters, cleared by the sleeper when it rings */
    _Atomic int64_t due_ns; /* when it rings, as the last setter said; a hint */
} tutti_wake_timer;

tutti_status tutti_wake_timer_open(tutti_wake_timer *alarm);
void tutti_wake_timer_close(tutti_wake_timer *alarm);

/* Rings after delay_ns at the latest; 0: at once. */
void tutti_wake_timer_set(tutti_wake_timer *alarm, int64_t delay_ns);
/* The same, when all that it was set for before has been done by others: it rings after delay_ns, and no sooner than after half
 * of that. So an alarm that is postponed often enough never rings. For one setter at a time. */
void tutti_wake_timer_postpone(tutti_wake_timer *alarm, int64_t delay_ns);
/* Sleeps until it rings; false: most_ms passed first. What was done before a tutti_wake_timer_set is seen after its ring. */
bool tutti_wake_timer_sleep(tutti_wake_timer *alarm, int most_ms);

#endif
