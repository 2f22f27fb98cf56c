/*
 * Functions that have a turn in a communicator's queue (tutti_submit): when they run, what they may call, and how
 * they end.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

TestSuite(task, .timeout = 90);

enum { COUNT = 1009, ROUNDS = 30, MOST = 4 };

static const int worlds[] = {1, 2, 3, 4, 0};

static void run(ranks_body body) {
    const char *failure = ranks_run_worlds(worlds, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---------------------------------------------------------------------------------------------------- the turn */

typedef struct chore {
    tutti_comm *comm;
    int round, sum_of;
    const int32_t *before; /* the sum that was started before; may be NULL */
    bool before_was_done;  /* when it ran */
    int32_t sums[COUNT], all[MOST], from_left;
    atomic_int entered, released;
} chore;

static void release(void *context) {
    atomic_fetch_add(&((chore *)context)->released, 1);
}

/* Collectives and messages, and a rank that is late. */
static tutti_status do_chore(void *context) {
    chore *c = context;
    int rank = tutti_comm_rank(c->comm), n = tutti_comm_size(c->comm);
    int32_t own = rank * 100 + c->round;
    atomic_store(&c->entered, 1);
    c->before_was_done =
        c->before == NULL || (c->before[0] == n * c->sum_of && c->before[COUNT - 1] == n * (COUNT - 1 + c->sum_of));
    if (c->round % n == rank) pause_ms(1);
    for (int i = 0; i < COUNT; i++) c->sums[i] = i + rank + c->round;
    TUTTI_TRY(tutti_all_reduce(c->comm, c->sums, c->sums, COUNT, TUTTI_INT32, TUTTI_SUM, NULL));
    TUTTI_TRY(tutti_group_begin(c->comm));
    TUTTI_TRY(tutti_recv(c->comm, &c->from_left, 1, TUTTI_INT32, (rank + n - 1) % n, 0, NULL));
    TUTTI_TRY(tutti_send(c->comm, &own, 1, TUTTI_INT32, (rank + 1) % n, 0, NULL));
    TUTTI_TRY(tutti_group_end(c->comm, NULL));
    TUTTI_TRY(tutti_all_gather(c->comm, &own, c->all, 1, TUTTI_INT32, NULL));
    return tutti_barrier(c->comm, NULL);
}

static tutti_status check_chore(const chore *c) {
    int rank = tutti_comm_rank(c->comm), n = tutti_comm_size(c->comm), left = (rank + n - 1) % n;
    RANKS_CHECK(c->before_was_done, "round %d: it ran before what was started before", c->round);
    for (int i = 0; i < COUNT; i++)
        RANKS_CHECK(c->sums[i] == n * (i + c->round) + n * (n - 1) / 2, "round %d: sum %d is %d", c->round, i,
                    c->sums[i]);
    for (int i = 0; i < n; i++)
        RANKS_CHECK(c->all[i] == i * 100 + c->round, "round %d: rank %d gave %d", c->round, i, c->all[i]);
    RANKS_CHECK(c->from_left == left * 100 + c->round, "round %d: the message is %d", c->round, c->from_left);
    RANKS_CHECK(atomic_load(&c->released) == 1, "released %d times", atomic_load(&c->released));
    return TUTTI_OK;
}

/* Between collectives with works before and after, and a blocking one; works are waited for in changing order. */
static tutti_status take_turns(ranks_context *context) {
    static _Thread_local chore chores[2];
    static _Thread_local int32_t before[COUNT], behind[COUNT], last[COUNT];
    int n = context->nranks;
    for (int round = 0; round < ROUNDS; round++) {
        tutti_work *works[4];
        tutti_work_details first, second;
        for (int i = 0; i < COUNT; i++) before[i] = behind[i] = last[i] = i + round;
        TUTTI_TRY(tutti_all_reduce(context->comm, before, before, COUNT, TUTTI_INT32, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.work = &works[0])));
        for (int i = 0; i < 2; i++) {
            memset(&chores[i], 0, sizeof chores[i]);
            chores[i].comm = context->comm;
            chores[i].round = 2 * round + i;
            chores[i].before = before;
            chores[i].sum_of = round;
            TUTTI_TRY(
                tutti_submit(context->comm, do_chore, release, &chores[i], &TUTTI_OPTIONS(.work = &works[i + 1])));
        }
        TUTTI_TRY(tutti_all_reduce(context->comm, behind, behind, COUNT, TUTTI_INT32, TUTTI_SUM,
                                   &TUTTI_OPTIONS(.work = &works[3])));
        while (round % 4 == 0 && atomic_load(&chores[0].entered) == 0) sched_yield();
        if (round % 2 == 0) TUTTI_TRY(tutti_all_reduce(context->comm, last, last, COUNT, TUTTI_INT32, TUTTI_SUM, NULL));
        for (int i = 0; i < 4; i++) TUTTI_TRY(tutti_work_wait(works[(i + round) % 4], -1));
        for (int i = 0; i < 2; i++) TUTTI_TRY(check_chore(&chores[i]));
        for (int i = 0; i < COUNT; i++)
            RANKS_CHECK(before[i] == n * (i + round) && behind[i] == before[i] &&
                            last[i] == (round % 2 == 0 ? before[i] : i + round),
                        "round %d: %d, %d and %d beside the functions", round, before[i], behind[i], last[i]);
        TUTTI_TRY(tutti_work_get(works[1], &first));
        TUTTI_TRY(tutti_work_get(works[2], &second));
        RANKS_CHECK(first.end_ns <= second.end_ns && first.start_ns <= second.start_ns,
                    "the second function was first");
        for (int i = 0; i < 4; i++) tutti_work_free(works[i]);
    }
    return TUTTI_OK;
}

Test(task, functions_have_a_turn_among_collectives_and_call_collectives) {
    run(take_turns);
}

/* The first call with memory looks for the GPU's driver. If a worker thread made it and then ended, the leak
 * sanitizer would report the memory that dlopen keeps for that thread. */
static tutti_status call_first(ranks_context *context) {
    int32_t one = 1;
    return tutti_all_reduce(context->comm, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL);
}

/* Without options the call waits. */
static tutti_status block(ranks_context *context) {
    static _Thread_local chore c;
    TUTTI_TRY(call_first(context));
    for (int round = 0; round < ROUNDS; round++) {
        memset(&c, 0, sizeof c);
        c.comm = context->comm;
        c.round = round;
        TUTTI_TRY(tutti_submit(context->comm, do_chore, release, &c, NULL));
        TUTTI_TRY(check_chore(&c));
    }
    return TUTTI_OK;
}

Test(task, without_a_work_the_call_waits_for_the_function) {
    run(block);
}

/* ----------------------------------------------------------------------------------------------------- its end */

static tutti_status give_up(void *context) {
    (void)context;
    return tutti_fail(TUTTI_ERR_DATA, "the ninth wheel is missing");
}

static tutti_status fail_alone(ranks_context *context) {
    static _Thread_local chore c;
    int32_t one = 1;
    tutti_work *work;
    memset(&c, 0, sizeof c);
    TUTTI_TRY(tutti_submit(context->comm, give_up, release, &c, &TUTTI_OPTIONS(.work = &work)));
    RANKS_EXPECT(TUTTI_ERR_DATA, tutti_work_wait(work, -1));
    RANKS_CHECK(strstr(tutti_work_error(work), "ninth wheel") != NULL, "'%s'", tutti_work_error(work));
    RANKS_CHECK(atomic_load(&c.released) == 1, "released %d times", atomic_load(&c.released));
    tutti_work_free(work);
    RANKS_EXPECT(TUTTI_ERR_DATA, tutti_submit(context->comm, give_up, NULL, NULL, NULL));
    RANKS_CHECK(strstr(tutti_last_error(), "ninth wheel") != NULL, "'%s'", tutti_last_error());
    TUTTI_TRY(tutti_all_reduce(context->comm, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    RANKS_CHECK(one == context->nranks, "the communicator computes %d", one);
    return TUTTI_OK;
}

Test(task, a_function_that_fails_ends_its_work_and_nothing_else) {
    run(fail_alone);
}

typedef struct queued {
    tutti_comm *comm;
    atomic_int entered, called, released;
} queued;

static tutti_status wait_for_all(void *context) {
    queued *q = context;
    atomic_store(&q->entered, 1);
    return tutti_barrier(q->comm, NULL);
}

static tutti_status note_call(void *context) {
    atomic_fetch_add(&((queued *)context)->called, 1);
    return TUTTI_OK;
}

static void note_release(void *context) {
    atomic_fetch_add(&((queued *)context)->released, 1);
}

/* Rank 0's first function waits for the other ranks, which do not come; three are behind it. */
static tutti_status queue_four(queued *q, tutti_work *works[4]) {
    for (int i = 0; i < 4; i++)
        TUTTI_TRY(tutti_submit(q->comm, i == 0 ? wait_for_all : note_call, note_release, q,
                               &TUTTI_OPTIONS(.work = &works[i])));
    while (atomic_load(&q->entered) == 0) pause_ms(1);
    return TUTTI_OK;
}

static tutti_status check_ended(queued *q, tutti_work *works[4]) {
    for (int i = 0; i < 4; i++) {
        RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_work_wait(works[i], -1));
        tutti_work_free(works[i]);
    }
    RANKS_CHECK(atomic_load(&q->called) == 0, "%d functions were called after the end", atomic_load(&q->called));
    RANKS_CHECK(atomic_load(&q->released) == 4, "released %d times, not 4", atomic_load(&q->released));
    return TUTTI_OK;
}

static tutti_status end_with_some_queued(ranks_context *context) {
    bool destroys = context->argument != NULL;
    queued q = {.comm = NULL};
    tutti_work *works[4];
    TUTTI_TRY(tutti_comm_split(context->comm, 0, 0, NULL, &q.comm));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == 0) {
        TUTTI_TRY(queue_four(&q, works));
        if (destroys) TUTTI_TRY(tutti_comm_destroy(q.comm));
        else TUTTI_TRY(tutti_comm_abort(q.comm, "enough"));
        TUTTI_TRY(check_ended(&q, works));
        if (!destroys) RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_submit(q.comm, note_call, note_release, &q, NULL));
        RANKS_CHECK(atomic_load(&q.released) == 4, "a call that fails has released its context");
    }
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    return context->rank == 0 && destroys ? TUTTI_OK : tutti_comm_destroy(q.comm);
}

static void end_all(void *destroys) {
    static const int some[] = {2, 3, 0};
    const char *failure = ranks_run_worlds(some, &(ranks_options){.argument = destroys}, end_with_some_queued);
    cr_assert(failure == NULL, "%s", failure);
}

Test(task, works_end_when_their_communicator_is_destroyed) {
    static int yes;
    end_all(&yes);
}

Test(task, works_end_when_their_communicator_is_aborted) {
    end_all(NULL);
}

static tutti_status wait_within(void *context) {
    return tutti_barrier(((chore *)context)->comm, NULL);
}

/* The last rank dies instead of joining. */
static tutti_status lose_one(ranks_context *context) {
    static chore c;
    tutti_work *works[2];
    int last = context->nranks - 1;
    c.comm = context->comm;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == last) {
        pause_ms(30);
        ranks_strike(context, SIGKILL);
    }
    ranks_forgive(context, last);
    for (int i = 0; i < 2; i++)
        TUTTI_TRY(tutti_submit(context->comm, wait_within, release, &c, &TUTTI_OPTIONS(.work = &works[i])));
    for (int i = 0; i < 2; i++) {
        RANKS_EXPECT(TUTTI_ERR_PEER_DIED, tutti_work_wait(works[i], -1));
        RANKS_CHECK(strstr(tutti_work_error(works[i]), "rank 2") != NULL, "'%s'", tutti_work_error(works[i]));
        tutti_work_free(works[i]);
    }
    RANKS_CHECK(atomic_load(&c.released) == 2, "released %d times", atomic_load(&c.released));
    return TUTTI_OK;
}

Test(task, a_rank_that_dies_is_named_by_works) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here, and cannot be killed");
    const char *failure = ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 30}, lose_one);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------- what is refused */

typedef struct attempts {
    tutti_comm *comm;
    tutti_status of_work, of_task, of_destroy, of_group;
} attempts;

static tutti_status try_what_would_wait(void *context) {
    attempts *a = context;
    tutti_work *work = NULL;
    int32_t one = 1;
    a->of_work = tutti_all_reduce(a->comm, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &work));
    a->of_task = tutti_submit(a->comm, give_up, NULL, NULL, NULL);
    a->of_destroy = tutti_comm_destroy(a->comm);
    TUTTI_TRY(tutti_group_begin(a->comm));
    TUTTI_TRY(tutti_all_reduce(a->comm, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    a->of_group = tutti_group_end(a->comm, &TUTTI_OPTIONS(.work = &work));
    RANKS_CHECK(work == NULL, "a call that was refused has given a work");
    return tutti_barrier(a->comm, NULL);
}

static tutti_status refuse(ranks_context *context) {
    tutti_comm *comm = context->comm;
    attempts a = {.comm = comm};
    chore c = {.comm = comm};
    int stream;
    TUTTI_TRY(call_first(context));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_submit(NULL, wait_within, release, &c, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_submit(comm, NULL, release, &c, NULL));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_submit(comm, wait_within, release, &c, &TUTTI_OPTIONS(.timeout_ms = 5)));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_submit(comm, wait_within, release, &c, &TUTTI_OPTIONS(.stream = &stream)));
    TUTTI_TRY(tutti_group_begin(comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_submit(comm, wait_within, release, &c, NULL));
    TUTTI_TRY(tutti_group_end(comm, NULL));
    RANKS_CHECK(atomic_load(&c.released) == 0, "a call that was refused has released its context");
    TUTTI_TRY(tutti_submit(comm, try_what_would_wait, NULL, &a, NULL));
    RANKS_CHECK(a.of_work == TUTTI_ERR_ARGUMENT && a.of_task == TUTTI_ERR_ARGUMENT &&
                    a.of_destroy == TUTTI_ERR_ARGUMENT && a.of_group == TUTTI_ERR_ARGUMENT,
                "within a function: %d, %d, %d, %d", a.of_work, a.of_task, a.of_destroy, a.of_group);
    return tutti_barrier(comm, NULL);
}

Test(task, a_call_that_would_wait_for_itself_is_refused) {
    run(refuse);
}

/* A forked child has none of the parent's threads. */
static tutti_status fork_within(ranks_context *context) {
    queued q = {.comm = context->comm};
    tutti_work *work;
    int state;
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank > 0) pause_ms(50);
    TUTTI_TRY(tutti_submit(context->comm, wait_for_all, note_release, &q, &TUTTI_OPTIONS(.work = &work)));
    pid_t child = fork();
    if (child == 0)
        _exit(tutti_submit(context->comm, note_call, NULL, &q, NULL) == TUTTI_ERR_FORKED &&
                      tutti_work_wait(work, -1) != TUTTI_NOT_YET
                  ? 0
                  : 1);
    RANKS_CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0,
                "the child ended with %x", (unsigned)state);
    TUTTI_TRY(tutti_work_wait(work, -1));
    tutti_work_free(work);
    return tutti_barrier(context->comm, NULL);
}

Test(task, a_forked_child_gets_an_error) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    const char *failure = ranks_run(&(ranks_options){.nranks = 2, .timeout_s = 30}, fork_within);
    cr_assert(failure == NULL, "%s", failure);
}
