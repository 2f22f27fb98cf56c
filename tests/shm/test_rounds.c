/*
 * Calls of many rounds (comm/shm/coll/shared.h, staging), while signals stop ranks for a moment at any place: results,
 * whichever rank is ahead of the others.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#include "comm/base/comm.h"
#include "comm/shm/peer.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"

enum { CHUNK = 2048, BATCH = 8 };

static const char *const four_slots[] = {"TUTTI_CHUNK_BYTES=2048", "TUTTI_CPUS=4", NULL};
static const char *const crowded[] = {"TUTTI_CHUNK_BYTES=2048", "TUTTI_CPUS=2", NULL};
static const char *const unreadable[] = {"TUTTI_CHUNK_BYTES=2048", "TUTTI_CPUS=4", "TUTTI_FAULT=peer_read:0:1000",
                                         NULL};

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

/* From a round and a bit less to 20 rounds. Every fourth batch has longer scatters, from one root after the other. */
static call call_at(int turn, int nranks) {
    call c = {.kind = kinds[turn % KINDS], .type = TUTTI_INT32, .reduction = TUTTI_SUM, .seed = (uint64_t)turn + 1};
    c.root = turn / KINDS % nranks;
    if (turn / BATCH % 4 == 3) {
        c.kind = turn % 3 == 2 ? CALL_SCATTER_V : CALL_SCATTER;
        c.root = turn % nranks;
    }
    int rounds = turn * 7 % 20 + (turn / BATCH % 4 == 3 ? 12 : 1);
    c.count = (size_t)(rounds * CHUNK / 4 + turn * 13 % 64 - 32);
    if (c.kind != CALL_ALL_REDUCE && c.kind != CALL_REDUCE && c.kind != CALL_BROADCAST) c.count /= (size_t)nranks;
    c.in_place = (call_mode)(turn % CALL_MODES);
    c.shared = turn % 5 == 4 ? CALL_MIXED : CALL_NEVER; /* some ranks stage, others lend */
    return c;
}

/* Long scatters of ranks with a core each ask whether a rank may read the root's memory (comm/shm/coll/copy.c). */
static tutti_status check_reads(const ranks_context *context) {
    const char *fault = getenv("TUTTI_FAULT");
    bool refused = fault != NULL && *fault != '\0';
    int expected = refused ? TUTTI_PEER_UNREADABLE : TUTTI_PEER_READABLE;
    if (!context->comm->spins) expected = TUTTI_PEER_UNKNOWN;
    for (int rank = 0; rank < context->nranks && ranks_have_processes(); rank++) {
        tutti_peer *peer = context->comm->members[rank].process;
        int readable = atomic_load(&peer->readable);
        RANKS_CHECK(peer->self || readable == expected, "rank %d is %d, not %d", rank, readable, expected);
    }
    return TUTTI_OK;
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
    return status == TUTTI_OK ? check_reads(context) : status;
}

/* The root overwrites its input as soon as the call has returned. */
static tutti_status reuse(ranks_context *context) {
    enum { COUNT = 20 * CHUNK / sizeof(int32_t), TURNS = 300 };
    size_t all = (size_t)context->nranks * COUNT;
    int32_t *input = calloc(all, sizeof *input), *output = calloc(COUNT, sizeof *output);
    RANKS_CHECK(input != NULL && output != NULL, "no memory");
    begin_pauses(context->rank);
    for (int turn = 0; turn < TURNS; turn++) {
        for (size_t i = 0; i < all; i++) input[i] = turn;
        TUTTI_TRY(tutti_scatter(context->comm, input, output, COUNT, TUTTI_INT32, turn % context->nranks, NULL));
        for (size_t i = 0; i < all; i++) input[i] = -1;
        for (size_t i = 0; i < COUNT; i++)
            RANKS_CHECK(output[i] == turn, "element %zu of scatter %d is %d", i, turn, output[i]);
    }
    end_pauses();
    free(input);
    free(output);
    return check_reads(context);
}

static void run_body(const char *const *environment, const int *worlds, tutti_status (*body)(ranks_context *)) {
    ranks_adopt(environment);
    const char *failure = ranks_run_worlds(worlds, &(ranks_options){.environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static void run(const char *const *environment, const int *worlds) {
    run_body(environment, worlds, compute);
}

Test(rounds, ranks_may_be_late_at_any_place) {
    run(four_slots, (const int[]){2, 3, 0});
}

Test(rounds, the_root_of_a_scatter_may_reuse_its_buffer) {
    run_body(four_slots, (const int[]){2, 3, 4, 0}, reuse);
}

Test(rounds, scatters_work_where_the_memory_of_the_root_cannot_be_read) {
    if (ranks_have_processes()) run(unreadable, (const int[]){2, 3, 0});
}

Test(rounds, ranks_that_share_cores_may_be_late_at_any_place) {
    run(crowded, (const int[]){2, 4, 7, 0});
}
