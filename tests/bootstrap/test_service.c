/*
 * Services: their threads start when there is work, run side by side up to the limit, and end after a second without
 * work.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdatomic.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/thread.h"

#define PATIENCE_NS (20 * TUTTI_NS_PER_S)

static int jobs;                        /* under the lock */
static atomic_int begun, ended, rounds; /* jobs, and rounds with and without a job */
static atomic_bool may_end;

static bool take(int64_t *nap_ns_out) {
    *nap_ns_out = TUTTI_NS_PER_S;
    atomic_fetch_add(&rounds, 1);
    if (jobs == 0) return false;
    jobs--;
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
    atomic_fetch_add(&begun, 1);
    while (!atomic_load(&may_end)) poll(NULL, 0, 1);
    atomic_fetch_add(&ended, 1);
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    return true;
}

static void add(tutti_service *service, int count) {
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    for (int i = 0; i < count; i++) {
        jobs++;
        cr_assert(tutti_service_wake(service));
    }
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
}

static int threads(void) {
    return tutti_thread_count(TUTTI_THREAD_CALLBACK);
}

static void await(const atomic_int *count, int wanted) {
    for (int64_t end_ns = tutti_now_ns() + PATIENCE_NS; atomic_load(count) < wanted && tutti_now_ns() < end_ns;)
        poll(NULL, 0, 1);
    cr_assert_eq(atomic_load(count), wanted);
}

static void await_no_threads(void) {
    for (int64_t end_ns = tutti_now_ns() + PATIENCE_NS; threads() > 0 && tutti_now_ns() < end_ns;) poll(NULL, 0, 1);
    cr_assert_eq(threads(), 0);
}

#define SERVICE(most)                                                                                                  \
    {.thread = TUTTI_THREAD_CALLBACK, .lock = TUTTI_LOCK_CALLBACKS, .round = take, .most_threads = most}

TestSuite(service, .timeout = 60);

Test(service, threads_start_when_all_are_busy_and_end_after_a_second_without_work) {
    static tutti_service service = SERVICE(3);
    cr_assert_eq(threads(), 0);
    add(&service, 5);
    await(&begun, 3);
    cr_assert_eq(threads(), 3, "%d threads", threads());
    atomic_store(&may_end, true);
    await(&ended, 5);
    const int64_t ended_ns = tutti_now_ns();
    await_no_threads();
    cr_assert_geq(tutti_now_ns() - ended_ns, TUTTI_NS_PER_S / 2, "they ended at once");
}

Test(service, an_idle_thread_takes_the_next_work) {
    static tutti_service service = SERVICE(3);
    atomic_store(&may_end, true);
    for (int i = 1; i <= 20; i++) {
        add(&service, 1);
        await(&ended, i);
        poll(NULL, 0, 2);
    }
    cr_assert_eq(threads(), 1, "%d threads", threads());
}

Test(service, it_starts_again_after_its_threads_have_ended) {
    static tutti_service service = SERVICE(1);
    atomic_store(&may_end, true);
    for (int i = 1; i <= 2; i++) {
        add(&service, 1);
        await(&ended, i);
        await_no_threads();
    }
}

Test(service, a_wake_during_a_round_is_not_lost) {
    static tutti_service service = SERVICE(1);
    add(&service, 1);
    await(&begun, 1);
    tutti_lock(TUTTI_LOCK_CALLBACKS);
    for (int i = 0; i < 100; i++) tutti_service_wake(&service);
    tutti_unlock(TUTTI_LOCK_CALLBACKS);
    atomic_store(&may_end, true);
    await(&rounds, 2); /* a hundred wakes of a single thread are one */
    poll(NULL, 0, 100);
    cr_assert_eq(atomic_load(&rounds), 2);
}
