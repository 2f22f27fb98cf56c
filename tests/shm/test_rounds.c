/*
 * Calls of many rounds (comm/shm/coll/shared.h, staging), while signals stop ranks for a moment at any place: results,
 * whichever rank is ahead of the others.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include "tests/support/call.h"
#include "tests/support/ranks.h"

enum { CHUNK = 2048, BATCH = 8 };

static const char *const four_slots[] = {"TUTTI_CHUNK_BYTES=2048", NULL};
static const char *const crowded[] = {"TUTTI_CHUNK_BYTES=2048", "TUTTI_CPUS=2", NULL};

static const call_kind kinds[] = {CALL_ALL_REDUCE,     CALL_REDUCE,           CALL_BROADCAST,    CALL_ALL_GATHER,
                                  CALL_REDUCE_SCATTER, CALL_ALL_TO_ALL,       CALL_GATHER,       CALL_SCATTER,
                                  CALL_ALL_GATHER_V,   CALL_REDUCE_SCATTER_V, CALL_ALL_TO_ALL_V, CALL_GATHER_V,
                                  CALL_SCATTER_V};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ------------------------------------------------------------------------------------------------ pauses */

static void pause_a_moment(int signal) {
    (void)signal;
    nanosleep(&(struct timespec){.tv_nsec = 150000}, NULL);
}

/* Each process has its own period, so that sometimes one is late and sometimes another. Threads share a timer; its
 * signal stops any one of them. */
static void begin_pauses(int rank) {
    struct sigaction action = {.sa_handler = pause_a_moment, .sa_flags = SA_RESTART};
    struct itimerval every = {.it_interval.tv_usec = 400 + 130 * rank, .it_value.tv_usec = 300};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void end_pauses(void) {
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 0}, NULL);
}

/* ------------------------------------------------------------------------------------------------- calls */

/* From a round and a bit less to 20 rounds. */
static call call_at(int turn, int nranks) {
    call c = {.kind = kinds[turn % KINDS], .type = TUTTI_INT32, .reduction = TUTTI_SUM, .seed = (uint64_t)turn + 1};
    c.count = (size_t)((turn * 7 % 20 + 1) * CHUNK / 4 + turn * 13 % 64 - 32);
    if (c.kind != CALL_ALL_REDUCE && c.kind != CALL_REDUCE && c.kind != CALL_BROADCAST) c.count /= (size_t)nranks;
    c.root = turn / KINDS % nranks;
    c.in_place = (call_mode)(turn % CALL_MODES);
    c.shared = turn % 5 == 4 ? CALL_MIXED : CALL_NEVER; /* some ranks stage, others lend */
    return c;
}

/* The buffers of some calls are filled before and compared after all of them, so that the calls follow each other as
 * closely as possible. */
static tutti_status run_batch(ranks_context *context, int first) {
    call_state states[BATCH];
    tutti_status status = TUTTI_OK;
    int made = 0;
    for (; made < BATCH && status == TUTTI_OK; made++) {
        call c = call_at(first + made, context->nranks);
        status = call_prepare(&c, context->rank, context->nranks, &states[made]);
    }
    for (int i = 0; i < BATCH && status == TUTTI_OK; i++) status = call_start(&states[i], context->comm, NULL);
    for (int i = 0; i < BATCH && status == TUTTI_OK; i++) status = call_check(&states[i]);
    for (int i = 0; i < made; i++) call_release(&states[i]);
    return status;
}

static tutti_status compute(ranks_context *context) {
    enum { BATCHES = 60 };
    tutti_status status = TUTTI_OK;
    begin_pauses(context->rank);
    for (int i = 0; i < BATCHES && status == TUTTI_OK; i++) status = run_batch(context, i * BATCH);
    end_pauses();
    return status;
}

static void run(const char *const *environment, const int *worlds) {
    ranks_adopt(environment);
    const char *failure = ranks_run_worlds(worlds, &(ranks_options){.environment = environment}, compute);
    cr_assert(failure == NULL, "%s", failure);
}

Test(rounds, ranks_may_be_late_at_any_place) {
    run(four_slots, (const int[]){2, 3, 0});
}

Test(rounds, ranks_that_share_cores_may_be_late_at_any_place) {
    run(crowded, (const int[]){2, 4, 7, 0});
}
