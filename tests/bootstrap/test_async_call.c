/*
 * Calls that may block without limit, on a thread of their own: a caller that waits gets the result, and one that
 * gives up leaves nothing behind.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "bootstrap/base/common.h"
#include "bootstrap/machine/async_call.h"

#define PATIENCE_MS 20000

static atomic_int destroyed;

typedef struct question {
    tutti_async_call call; /* first */
    sem_t may_end;         /* posted when the call may return, as a name server's answer would */
    int number, square;
} question;

static void run(tutti_async_call *call) {
    question *q = (question *)call;
    while (sem_wait(&q->may_end) != 0) {}
    q->square = q->number * q->number;
}

static void destroy(tutti_async_call *call) {
    question *q = (question *)call;
    sem_destroy(&q->may_end);
    free(q);
    atomic_fetch_add(&destroyed, 1);
}

static question *ask(int number, unsigned may_end) {
    question *q = NULL;
    cr_assert_eq(tutti_calloc(1, sizeof *q, &q), TUTTI_OK);
    sem_init(&q->may_end, 0, may_end);
    q->number = number;
    tutti_async_call_init(&q->call, run, destroy);
    return q;
}

static void await_destroyed(int count) {
    for (int ms = 0; atomic_load(&destroyed) < count && ms < PATIENCE_MS; ms++) poll(NULL, 0, 1);
    poll(NULL, 0, 20); /* time for one too many */
    cr_assert_eq(atomic_load(&destroyed), count, "%d destroyed, not %d", atomic_load(&destroyed), count);
}

TestSuite(async_call, .timeout = 60);

Test(async_call, a_caller_that_waits_gets_the_result) {
    question *q = ask(7, 0);
    cr_assert_eq(tutti_async_call_start(&q->call), 0);
    cr_assert_not(tutti_async_call_wait(&q->call, 0), "it has not been answered");
    cr_assert_not(tutti_async_call_wait(&q->call, 30), "it has not been answered");
    sem_post(&q->may_end);
    cr_assert(tutti_async_call_wait(&q->call, PATIENCE_MS));
    cr_assert(tutti_async_call_wait(&q->call, 0), "it stays answered");
    cr_assert_eq(q->square, 49);
    tutti_async_call_release(&q->call);
    await_destroyed(1);
}

Test(async_call, an_abandoned_call_is_destroyed_when_it_returns) {
    question *q = ask(7, 0);
    cr_assert_eq(tutti_async_call_start(&q->call), 0);
    cr_assert_not(tutti_async_call_wait(&q->call, 10));
    tutti_async_call_release(&q->call);
    poll(NULL, 0, 30);
    cr_assert_eq(atomic_load(&destroyed), 0, "the thread still uses it");
    sem_post(&q->may_end);
    await_destroyed(1);
}

Test(async_call, a_call_that_was_not_started_is_destroyed_at_once) {
    question *q = ask(7, 0);
    tutti_async_call_release(&q->call);
    cr_assert_eq(atomic_load(&destroyed), 1);
}

/* The caller's release and the end of the call come in all orders. */
Test(async_call, every_one_of_many_is_destroyed_once) {
    enum { COUNT = 200 };
    for (int i = 0; i < COUNT; i++) {
        question *q = ask(i, 1);
        cr_assert_eq(tutti_async_call_start(&q->call), 0);
        if (i % 3 > 0 && tutti_async_call_wait(&q->call, i % 3 == 1 ? 0 : PATIENCE_MS)) cr_assert_eq(q->square, i * i);
        tutti_async_call_release(&q->call);
    }
    await_destroyed(COUNT);
}
