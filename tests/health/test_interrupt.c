/*
 * A waiting thread that asks its program whether to go on (tutti_interrupt_set): what ends, what goes on, and what
 * the other ranks report. Rank 0 is interrupted after 200 ms of waiting for ranks that come late or never.
 */
#include <criterion/criterion.h>
#include <time.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

typedef struct patience {
    int64_t until_ns; /* from then on the check says stop */
    int times;        /* number of times that the check was called */
} patience;

static int asked(void *context) {
    patience *p = context;
    p->times++;
    return tutti_now_ns() >= p->until_ns;
}

static patience for_ms(int64_t ms) {
    return (patience){.until_ns = tutti_now_ns() + ms * 1000000};
}

static void sleep_ms(int ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static tutti_status all_reduce(ranks_context *context, int *value, tutti_work **work) {
    return tutti_all_reduce(context->comm, value, value, 1, TUTTI_INT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = work));
}

static tutti_status check_time(int64_t start_ns) {
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(took_ms >= 190 && took_ms < 1200, "it ended after %lld ms", (long long)took_ms);
    return TUTTI_OK;
}

/* The other ranks call after rank 0 has given up, and get the error. */
static tutti_status blocking_body(ranks_context *context) {
    int value = 1;
    if (context->rank != 0) {
        sleep_ms(600);
        RANKS_EXPECT(TUTTI_ERR_ABORTED, all_reduce(context, &value, NULL));
        return TUTTI_OK;
    }
    int64_t start_ns = tutti_now_ns();
    patience p = for_ms(200);
    TUTTI_TRY(tutti_interrupt_set(asked, &p));
    RANKS_EXPECT(TUTTI_ERR_INTERRUPTED, all_reduce(context, &value, NULL));
    TUTTI_TRY(tutti_interrupt_set(NULL, NULL));
    TUTTI_TRY(check_time(start_ns));
    RANKS_CHECK(p.times >= 2, "it was asked %d times", p.times);
    RANKS_EXPECT(TUTTI_ERR_INTERRUPTED, all_reduce(context, &value, NULL)); /* broken for good */
    return TUTTI_OK;
}

static tutti_status recv_body(ranks_context *context) {
    int value = 0;
    if (context->rank != 0) {
        sleep_ms(600);
        RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, 0, NULL));
        return TUTTI_OK;
    }
    int64_t start_ns = tutti_now_ns();
    patience p = for_ms(200);
    TUTTI_TRY(tutti_interrupt_set(asked, &p));
    RANKS_EXPECT(TUTTI_ERR_INTERRUPTED, tutti_recv(context->comm, &value, 1, TUTTI_INT32, 1, 0, NULL));
    TUTTI_TRY(tutti_interrupt_set(NULL, NULL));
    return check_time(start_ns);
}

/* A message's work goes on when its waiter has given up. (An operation that the waiter runs itself would not.) */
static tutti_status wait_body(ranks_context *context) {
    int value = context->rank;
    if (context->rank != 0) {
        sleep_ms(600);
        if (context->rank == 1) TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, 0, 0, NULL));
        return TUTTI_OK;
    }
    tutti_work *work;
    int64_t start_ns = tutti_now_ns();
    patience p = for_ms(200);
    TUTTI_TRY(tutti_interrupt_set(asked, &p));
    TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, 1, 0, &TUTTI_OPTIONS(.work = &work)));
    RANKS_EXPECT(TUTTI_ERR_INTERRUPTED, tutti_work_wait(work, -1));
    TUTTI_TRY(check_time(start_ns));
    RANKS_CHECK(!tutti_work_done(work), "the message has ended");
    TUTTI_TRY(tutti_interrupt_set(NULL, NULL));
    TUTTI_TRY(tutti_work_wait(work, -1));
    tutti_work_free(work);
    RANKS_CHECK(value == 1, "%d came", value);
    return tutti_comm_error(context->comm);
}

/* A check that is called and never says stop does not disturb the call. */
static tutti_status patient_body(ranks_context *context) {
    int value = 1;
    patience p = {.until_ns = INT64_MAX};
    TUTTI_TRY(tutti_interrupt_set(asked, &p));
    if (context->rank == 1) sleep_ms(400);
    TUTTI_TRY(all_reduce(context, &value, NULL));
    RANKS_CHECK(value == context->nranks, "the sum is %d", value);
    RANKS_CHECK(context->rank == 1 || (p.times >= 2 && p.times <= 12), "asked %d times in 400 ms", p.times);
    return TUTTI_OK;
}

static void run(ranks_body body) {
    const char *failure = ranks_run_worlds((const int[]){2, 3, 0}, NULL, body);
    cr_assert_null(failure, "%s", failure);
}

Test(interrupt, ends_a_blocking_collective_and_the_others_learn_of_it) {
    run(blocking_body);
}

Test(interrupt, ends_a_blocking_receive) {
    run(recv_body);
}

Test(interrupt, ends_a_wait_and_the_message_goes_on) {
    run(wait_body);
}

Test(interrupt, is_no_interrupt_when_the_program_wants_to_go_on) {
    run(patient_body);
}

/* A creation that the others do not join ends at the caller's deadline, not after a minute. */
static tutti_status late_body(ranks_context *context) {
    if (context->rank != 0) return TUTTI_OK;
    tutti_comm *comm;
    int64_t start_ns = tutti_now_ns();
    RANKS_EXPECT(TUTTI_ERR_TIMEOUT, tutti_comm_create(0, 2, context->store, "late",
                                                      &TUTTI_COMM_OPTIONS(.connect_timeout_ms = 200), &comm));
    return check_time(start_ns);
}

Test(interrupt, a_creation_keeps_its_own_deadline) {
    run(late_body);
}
