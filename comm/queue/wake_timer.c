/*
 * The timer of a worker thread. See wake_timer.h.
 */
#include "comm/queue/wake_timer.h"

#include <errno.h>
#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/status.h"

enum { OFF, SOON, NOW };

tutti_status tutti_wake_timer_open(tutti_wake_timer *alarm) {
    atomic_init(&alarm->on, OFF);
    alarm->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return alarm->fd >= 0 ? TUTTI_OK : tutti_fail_errno(errno, "cannot create a timer for a worker thread");
}

void tutti_wake_timer_close(tutti_wake_timer *alarm) {
    if (alarm->fd >= 0) close(alarm->fd);
    alarm->fd = -1;
}

static void start(tutti_wake_timer *alarm, int64_t delay_ns) {
    struct itimerspec when = {.it_value.tv_nsec = delay_ns > 0 ? delay_ns : 1};
    atomic_store_explicit(&alarm->due_ns, tutti_now_ns() + delay_ns, memory_order_relaxed);
    timerfd_settime(alarm->fd, 0, &when, NULL);
}

void tutti_wake_timer_set(tutti_wake_timer *alarm, int64_t delay_ns) {
    int wanted = delay_ns > 0 ? SOON : NOW, on = atomic_load_explicit(&alarm->on, memory_order_seq_cst);
    do
        if (on >= wanted) return;
    while (!atomic_compare_exchange_weak_explicit(&alarm->on, &on, wanted, memory_order_seq_cst, memory_order_seq_cst));
    start(alarm, delay_ns);
}

void tutti_wake_timer_postpone(tutti_wake_timer *alarm, int64_t delay_ns) {
    int64_t left_ns = atomic_load_explicit(&alarm->due_ns, memory_order_relaxed) - tutti_now_ns();
    if (delay_ns <= 0 || atomic_load_explicit(&alarm->on, memory_order_seq_cst) != SOON)
        tutti_wake_timer_set(alarm, delay_ns);
    else if (left_ns < delay_ns / 2)
        start(alarm, delay_ns); /* `on` stays SOON; if the timer has just rung, it rings once more */
}

bool tutti_wake_timer_sleep(tutti_wake_timer *alarm, int most_ms) {
    struct pollfd waited = {.fd = alarm->fd, .events = POLLIN};
    if (poll(&waited, 1, most_ms) <= 0) return false;
    uint64_t rings;
    if (read(alarm->fd, &rings, sizeof rings) < 0) return true; /* set again meanwhile: check, then sleep again */
    /* Must precede the sleeper's check for work. */
    atomic_exchange_explicit(&alarm->on, OFF, memory_order_seq_cst);
    return true;
}
