/*
 * Clocks, deadlines and interrupts of waits: see deadline.h for the rule about pauses.
 */
#include "bootstrap/base/deadline.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "bootstrap/base/common.h"

int64_t tutti_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * TUTTI_NS_PER_S + now.tv_nsec;
}

void tutti_nap(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / TUTTI_NS_PER_S, .tv_nsec = ns % TUTTI_NS_PER_S}, NULL);
}

tutti_deadline tutti_deadline_after_ms(int64_t timeout_ms) {
    bool never = timeout_ms < 0 || timeout_ms > INT64_MAX / TUTTI_NS_PER_MS;
    return (tutti_deadline){.budget_ns = never ? INT64_MAX : timeout_ms * TUTTI_NS_PER_MS, .last_ns = tutti_now_ns()};
}

bool tutti_deadline_passed(tutti_deadline *deadline) {
    int64_t now = tutti_now_ns();
    int64_t step = tutti_min_i64(now - deadline->last_ns, TUTTI_DEADLINE_STEP_NS);
    deadline->last_ns = now;
    deadline->spent_ns += step;
    if (deadline->budget_ns == INT64_MAX) return false;
    deadline->budget_ns = deadline->budget_ns > step ? deadline->budget_ns - step : 0;
    return deadline->budget_ns == 0;
}

int tutti_deadline_left_ms(const tutti_deadline *deadline) {
    int64_t left_ms = deadline->budget_ns / TUTTI_NS_PER_MS + (deadline->budget_ns % TUTTI_NS_PER_MS != 0);
    return left_ms > INT32_MAX ? INT32_MAX : (int)left_ms;
}

static pthread_once_t ticks_once = PTHREAD_ONCE_INIT;
static double ns_per_tick;

static void calibrate_ticks(void) {
    int64_t start_ns = tutti_now_ns();
    uint64_t start = tutti_ticks();
    while (tutti_now_ns() - start_ns < 2 * TUTTI_NS_PER_MS) {}
    uint64_t ticks = tutti_ticks() - start;
    ns_per_tick = (double)(tutti_now_ns() - start_ns) / (double)(ticks > 0 ? ticks : 1);
}

int64_t tutti_ticks_to_ns(uint64_t ticks) {
    pthread_once(&ticks_once, calibrate_ticks);
    return (int64_t)((double)ticks * ns_per_tick);
}

/* --------------------------------------------------------------------------------------------------- interrupts */

#define ASK_EVERY_NS INT64_C(50000000)

static _Thread_local struct {
    int (*asked)(void *);
    void *context;
    int64_t last_ns;
} own;

tutti_status tutti_interrupt_set(int (*asked)(void *context), void *context) {
    own.asked = asked;
    own.context = context;
    return TUTTI_OK;
}

tutti_status tutti_interrupt_check(void) {
    if (own.asked == NULL) return TUTTI_OK;
    int64_t now_ns = tutti_now_ns();
    if (now_ns - own.last_ns < ASK_EVERY_NS) return TUTTI_OK;
    own.last_ns = now_ns;
    if (own.asked(own.context) == 0) return TUTTI_OK;
    return tutti_fail(TUTTI_ERR_INTERRUPTED,
                      "interrupted while waiting (Ctrl-C, or another signal whose handler asked to stop)");
}
