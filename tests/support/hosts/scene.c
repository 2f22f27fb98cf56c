/*
 * A scenario for ranks of several hosts with a failure: see scene.h. The scene is one mapping that each run's
 * processes inherit; it is the only thing that they share apart from the communicator.
 */
#include "tests/support/hosts/scene.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"

const char *const scene_attentive[] = {SCENE_PEER_SETTING, NULL};

static scene *stage;

void scene_set(int victim, size_t count) {
    if (stage == NULL) stage = mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(stage, MAP_FAILED);
    memset(stage, 0, sizeof *stage);
    stage->victim = victim;
    stage->count = count;
}

scene *scene_now(void) {
    return stage;
}

void scene_run(const hosts_options *options, ranks_body body) {
    const char *failure = hosts_run(options, body);
    cr_assert(failure == NULL, "%s", failure);
}

tutti_status scene_keep_summing(ranks_context *context, int64_t limit_ms, int *rounds_out) {
    int64_t start_ns = tutti_now_ns();
    int *values = malloc(stage->count * sizeof *values), n = context->nranks;
    tutti_status status = values != NULL ? TUTTI_OK : tutti_fail(TUTTI_ERR_MEMORY, "no memory");
    for (*rounds_out = 0; status == TUTTI_OK; ++*rounds_out) {
        values[0] = tutti_now_ns() - start_ns > limit_ms * 1000000; /* all continue until every rank wants to end */
        for (size_t i = 1; i < stage->count; i++) values[i] = context->rank + (int)i;
        status = tutti_all_reduce(context->comm, values, values, stage->count, TUTTI_INT32, TUTTI_SUM, NULL);
        for (size_t i = 1; i < stage->count && status == TUTTI_OK; i++)
            if (values[i] != n * (n - 1) / 2 + n * (int)i)
                status = tutti_fail(TUTTI_ERR_DATA, "round %d, element %zu is %d", *rounds_out, i, values[i]);
        if (status == TUTTI_OK && values[0] == n) break;
    }
    free(values);
    return status;
}

tutti_status scene_warm_up(ranks_context *context, int *rounds_out) {
    TUTTI_TRY(scene_keep_summing(context, 200, rounds_out));
    atomic_fetch_add(&stage->warm, 1);
    while (atomic_load(&stage->warm) < context->nranks) usleep(1000); /* a rank that fails ends all ranks */
    return TUTTI_OK;
}

tutti_status scene_check_told(ranks_context *context, tutti_status status, const char *name, int64_t within_ms) {
    char text[1024];
    int64_t after_ms = (tutti_now_ns() - atomic_load(&stage->event_ns)) / 1000000;
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    RANKS_CHECK(status == TUTTI_ERR_PEER_DIED, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(atomic_load(&stage->event_ns) != 0, "reported before the event: %s", text);
    RANKS_CHECK(after_ms <= within_ms, "reported after %lld ms: %s", (long long)after_ms, text);
    RANKS_CHECK(name == NULL || strstr(text, name) != NULL, "'%s' is not named: %s", name, text);
    const char *teller = strstr(text, "(reported by "); /* the rank that detected it, not all ranks that forwarded it */
    RANKS_CHECK(teller == NULL || strstr(teller + 1, "(reported by ") == NULL, "it has several tellers: %s", text);
    int64_t start_ns = tutti_now_ns();
    int value = 0;
    for (int i = 0; i < 5; i++)
        RANKS_CHECK(tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL) != TUTTI_OK,
                    "a later call succeeded");
    RANKS_CHECK(tutti_now_ns() - start_ns < 500000000, "later calls do not answer at once");
    return TUTTI_OK;
}
