/*
 * Ranks that are all on one core spread over the others, and keep their affinity masks.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/ranks.h"

enum { RANKS = 4, CALLS = 400, TURNS = 20, PAUSE_US = 5000 };

static tutti_status everyone_on(const cpu_set_t *allowed) {
    cpu_set_t one;
    int first = 0;
    while (!CPU_ISSET(first, allowed)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    RANKS_CHECK(sched_setaffinity(0, sizeof one, &one) == 0 && sched_setaffinity(0, sizeof *allowed, allowed) == 0,
                "cannot move to core %d", first);
    return TUTTI_OK;
}

/* The most ranks on one core. */
static tutti_status fullest(const ranks_context *context, int *most_out) {
    int32_t core = sched_getcpu(), cores[RANKS];
    TUTTI_TRY(tutti_all_gather(context->comm, &core, cores, 1, TUTTI_INT32, NULL));
    *most_out = 0;
    for (int i = 0; i < context->nranks; i++) {
        int same = 0;
        for (int k = 0; k < context->nranks; k++) same += cores[k] == cores[i];
        if (same > *most_out) *most_out = same;
    }
    return TUTTI_OK;
}

typedef tutti_status (*some_call)(ranks_context *context);

/* Puts all ranks on one core, and makes CALLS calls; TURNS times, with pauses: ranks that are put back at once move
 * seldom. Counts the turns after which each core has at most `most` ranks. */
static tutti_status count_spread(ranks_context *context, some_call call, int most, int *turns_out) {
    cpu_set_t before, after;
    RANKS_CHECK(sched_getaffinity(0, sizeof before, &before) == 0, "no affinity mask");
    if (CPU_COUNT(&before) < 2) {
        *turns_out = TURNS;
        return TUTTI_OK;
    }
    *turns_out = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        int found;
        usleep(PAUSE_US);
        TUTTI_TRY(everyone_on(&before));
        for (int i = 0; i < CALLS; i++) TUTTI_TRY(call(context));
        TUTTI_TRY(fullest(context, &found));
        if (found <= most) ++*turns_out;
        RANKS_CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&before, &after),
                    "%d cores may be used after %d calls, %d before", CPU_COUNT(&after), CALLS, CPU_COUNT(&before));
    }
    return TUTTI_OK;
}

static tutti_status barrier(ranks_context *context) {
    return tutti_barrier(context->comm, NULL);
}

/* A message to the other one of two ranks, and one back. */
static tutti_status message(ranks_context *context) {
    int peer = 1 - context->rank;
    char byte = 0;
    if (context->rank == 0) TUTTI_TRY(tutti_send(context->comm, &byte, 1, TUTTI_UINT8, peer, 0, NULL));
    TUTTI_TRY(tutti_recv(context->comm, &byte, 1, TUTTI_UINT8, peer, 0, NULL));
    if (context->rank == 1) TUTTI_TRY(tutti_send(context->comm, &byte, 1, TUTTI_UINT8, peer, 0, NULL));
    return TUTTI_OK;
}

static tutti_status message_with_work(ranks_context *context) {
    int peer = 1 - context->rank;
    char byte = 0;
    tutti_work *work;
    if (context->rank == 0) TUTTI_TRY(tutti_send(context->comm, &byte, 1, TUTTI_UINT8, peer, 0, NULL));
    TUTTI_TRY(tutti_recv(context->comm, &byte, 1, TUTTI_UINT8, peer, 0, &TUTTI_OPTIONS(.work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    TUTTI_TRY(status);
    if (context->rank == 1) TUTTI_TRY(tutti_send(context->comm, &byte, 1, TUTTI_UINT8, peer, 0, NULL));
    return TUTTI_OK;
}

static tutti_status messages_in_group(ranks_context *context) {
    int peer = 1 - context->rank;
    char out = 0, in = 0;
    TUTTI_TRY(tutti_group_begin(context->comm));
    TUTTI_TRY(tutti_send(context->comm, &out, 1, TUTTI_UINT8, peer, 0, NULL));
    TUTTI_TRY(tutti_recv(context->comm, &in, 1, TUTTI_UINT8, peer, 0, NULL));
    return tutti_group_end(context->comm, NULL);
}

/* The system may put ranks back on one core at any time; so it is enough if they are spread evenly once. */
static tutti_status spread_crowded(ranks_context *context) {
    int turns;
    TUTTI_TRY(count_spread(context, barrier, RANKS / 2, &turns));
    RANKS_CHECK(turns > 0, "in %d turns of %d calls the ranks never spread", TURNS, CALLS);
    return TUTTI_OK;
}

/* The system itself needs longer than CALLS calls in nearly all turns. */
static tutti_status spread_pair(ranks_context *context) {
    static const struct {
        const char *name;
        some_call call;
    } ways[] = {{"barrier", barrier},
                {"send and recv", message},
                {"recv with a work", message_with_work},
                {"messages in a group", messages_in_group}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int turns;
        TUTTI_TRY(count_spread(context, ways[i].call, 1, &turns));
        RANKS_CHECK(turns > TURNS / 4, "%s: in only %d of %d turns of %d calls the ranks spread", ways[i].name, turns,
                    TURNS, CALLS);
    }
    return TUTTI_OK;
}

static void run(int nranks, const char *setting, tutti_status (*body)(ranks_context *context)) {
    const char *const environment[] = {setting, NULL};
    ranks_options options = {.nranks = nranks, .environment = environment};
    const char *failure = ranks_run(&options, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* One after the other: they would share the cores otherwise. */
Test(oversubscribed, ranks_on_one_core_spread_and_keep_their_masks) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    run(RANKS, "TUTTI_CPUS=1", spread_crowded);
    run(2, "TUTTI_CPUS=2", spread_pair);
}
