/*
 * A timer on which one thread sleeps and which any other thread sets. Setting it to ring soon when it is already
 * set needs no system call, so a queue that is mostly emptied by other threads does not wake its worker for
 * nothing.
 */
#ifndef TUTTI_WAKE_TIMER_H
#define TUTTI_WAKE_TIMER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tutti/tutti.h"

typedef struct tutti_wake_timer {
    int fd;                 /* timerfd */
    atomic_int on;          /* OFF, SOON, NOW; set by setters, cleared by the sleeper when it rings */
    _Atomic int64_t due_ns; /* when it rings, according to the last setter; a hint */
} tutti_wake_timer;

tutti_status tutti_wake_timer_open(tutti_wake_timer *alarm);
void tutti_wake_timer_close(tutti_wake_timer *alarm);

/* Rings after at most delay_ns; 0: at once. */
void tutti_wake_timer_set(tutti_wake_timer *alarm, int64_t delay_ns);
/* The same, when other threads have done all work for which the timer was set: it rings after delay_ns, and not
 * before half of that. So a timer that is postponed often enough never rings. One setter at a time may call it. */
void tutti_wake_timer_postpone(tutti_wake_timer *alarm, int64_t delay_ns);
/* Sleeps until the timer rings; false: most_ms passed first. Stores made before a tutti_wake_timer_set are visible
 * after the ring. */
bool tutti_wake_timer_sleep(tutti_wake_timer *alarm, int most_ms);

#endif
