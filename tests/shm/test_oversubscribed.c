/*
 * More ranks than cores: ranks that are all on one core spread over the others, and keep their affinity masks.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "tests/support/ranks.h"

enum { RANKS = 4, CALLS = 400, TURNS = 20 };

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

/* The most ranks on one core, and the number of cores with ranks. */
static tutti_status fullest(const ranks_context *context, int *most_out) {
    int32_t core = sched_getcpu(), cores[RANKS];
    TUTTI_TRY(tutti_all_gather(context->comm, &core, cores, 1, TUTTI_INT32, NULL));
    *most_out = 0;
    for (int i = 0; i < RANKS; i++) {
        int same = 0;
        for (int k = 0; k < RANKS; k++) same += cores[k] == cores[i];
        if (same > *most_out) *most_out = same;
    }
    return TUTTI_OK;
}

/* The system may put ranks back on one core at any time; so it is enough if they are spread evenly once. */
static tutti_status spread(ranks_context *context) {
    cpu_set_t before, after;
    RANKS_CHECK(sched_getaffinity(0, sizeof before, &before) == 0, "no affinity mask");
    bool even = CPU_COUNT(&before) < 2;
    for (int turn = 0; turn < TURNS; turn++) {
        int most;
        TUTTI_TRY(everyone_on(&before));
        for (int i = 0; i < CALLS; i++) TUTTI_TRY(tutti_barrier(context->comm, NULL));
        TUTTI_TRY(fullest(context, &most));
        even = even || most <= RANKS / 2;
        RANKS_CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&before, &after),
                    "%d cores may be used after %d calls, %d before", CPU_COUNT(&after), CALLS, CPU_COUNT(&before));
    }
    RANKS_CHECK(even, "in %d turns of %d calls the ranks never spread", TURNS, CALLS);
    return TUTTI_OK;
}

Test(oversubscribed, ranks_on_one_core_spread_and_keep_their_masks) {
    static const char *const crowded[] = {"TUTTI_CPUS=1", NULL};
    ranks_options options = {.nranks = RANKS, .environment = crowded};
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    const char *failure = ranks_run(&options, spread);
    cr_assert(failure == NULL, "%s", failure);
}
