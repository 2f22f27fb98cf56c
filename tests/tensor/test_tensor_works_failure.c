/*
 * Asynchronous redistributions (options.work) when a rank is lost, when they are aborted, and when the objects that
 * they use are destroyed: all works end, the rank is named, and no call hangs.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tutti/tensor.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

TestSuite(tensor_works_failure, .timeout = 200);

enum { VICTIM = 1, RANKS = 3, ROWS = 61, COLUMNS = 90, WORKS = 4, TIMEOUT_MS = 600 };

typedef struct way {
    const char *name, *plan; /* the step, and TUTTI_PLAN */
    const char *src, *dst;   /* sbp */
} way;

static const way ways[] = {
    {"all_reduce", "all_reduce", "P(sum)", "B"},
    {"reduce_scatter", "reduce_scatter", "P(sum)", "S1"},
    {"all_gather", "", "S1", "B"},
    {"all_to_all", "all_to_all", "S0", "S1"},
    {"messages", "messages", "S0", "S1"},
    {"by reading", "reads", "S0", "S1"},
    {"all_gather of 3 ranks by reading", "reads", "S1", "B"},
};
enum { WAYS = sizeof ways / sizeof *ways };

typedef enum fate { DIES, DIES_AT_WORK, STOPS, STAYS_AWAY } fate;

static struct scene {
    const way *way;
    fate fate;
    atomic_llong since_ns; /* when the victim was lost */
    atomic_int given_up;   /* ranks that have their errors */
} * scene;                  /* shared memory */

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* --------------------------------------------------------------------------------------------------------- tensors */

typedef struct kit {
    tutti_placement *line;
    tutti_tensor *src, *dst;
    tutti_plan *plan;
    int64_t shape[2];
    tutti_sbp sbp[2];
    tutti_work *works[WORKS];
} kit;

static int32_t value_of(const tutti_local *local, size_t i) {
    return (int32_t)((local->first[0] + (int64_t)i / local->shape[1]) * COLUMNS + local->first[1] +
                     (int64_t)i % local->shape[1]);
}

static tutti_status make_kit(const ranks_context *context, const char *src, const char *dst, kit *k) {
    int naxes;
    tutti_local local;
    memset(k, 0, sizeof *k);
    k->shape[0] = ROWS;
    k->shape[1] = COLUMNS;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &context->nranks, 1, &k->line));
    TUTTI_TRY(tutti_sbp_parse(src, &k->sbp[0], 1, &naxes));
    TUTTI_TRY(tutti_sbp_parse(dst, &k->sbp[1], 1, &naxes));
    tutti_layout layouts[2];
    for (int i = 0; i < 2; i++)
        layouts[i] = TUTTI_LAYOUT(.placement = k->line, .sbp = &k->sbp[i], .type = TUTTI_INT32, .ndims = 2,
                                  .shape = k->shape, .name = "weight");
    TUTTI_TRY(tutti_tensor_create(&layouts[0], &k->src));
    TUTTI_TRY(tutti_tensor_create(&layouts[1], &k->dst));
    TUTTI_TRY(tutti_tensor_local(k->src, &local));
    for (size_t i = 0; i < local.count; i++) ((int32_t *)local.data)[i] = value_of(&local, i);
    return tutti_plan_create(&layouts[0], &layouts[1], 1, &k->plan);
}

static void destroy_kit(kit *k) {
    tutti_plan_destroy(k->plan);
    tutti_tensor_destroy(k->src);
    tutti_tensor_destroy(k->dst);
    tutti_placement_destroy(k->line);
    memset(k, 0, sizeof *k);
}

static tutti_status run_plan(kit *k, tutti_work **work) {
    return tutti_plan_run(k->plan, (const tutti_tensor *const *)&k->src, &k->dst,
                          &TUTTI_OPTIONS(.work = work, .timeout_ms = scene != NULL ? TIMEOUT_MS : 0));
}

static tutti_status check_target(const kit *k) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(k->dst, &local));
    for (size_t i = 0; i < local.count; i++)
        RANKS_CHECK(((int32_t *)local.data)[i] == value_of(&local, i), "element %zu is %d", i,
                    ((int32_t *)local.data)[i]);
    return TUTTI_OK;
}

/* ----------------------------------------------------------------------------------------------- a rank is lost */

static void wait_for(atomic_int *number, int value) {
    while (atomic_load(number) < value) pause_ms(1);
}

static tutti_status be_lost(const ranks_context *context, kit *k) {
    if (scene->fate == DIES_AT_WORK) {
        for (int i = 0; i < WORKS; i++) TUTTI_TRY(run_plan(k, &k->works[i]));
        pause_ms(context->rank);
    }
    atomic_store(&scene->since_ns, tutti_now_ns());
    if (scene->fate == DIES || scene->fate == DIES_AT_WORK) ranks_strike(context, SIGKILL);
    else if (scene->fate == STOPS) ranks_strike(context, SIGSTOP);
    wait_for(&scene->given_up, RANKS - 1);
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 50 && status == TUTTI_OK; i++) { /* messages of the others may have arrived */
        tutti_work *work;
        status = run_plan(k, &work);
        if (status != TUTTI_OK) break;
        status = tutti_work_wait(work, -1);
        tutti_work_free(work);
    }
    RANKS_CHECK(status != TUTTI_OK, "%s: the victim's own work went well although the others had given up",
                scene->way->name);
    return TUTTI_OK;
}

/* Works that were done before the loss may have succeeded. */
static tutti_status check_works(const ranks_context *context, kit *k) {
    bool dies = scene->fate == DIES || scene->fate == DIES_AT_WORK;
    int failed = 0;
    for (int i = 0; i < WORKS; i++) {
        tutti_status status = tutti_work_wait(k->works[i], -1);
        const char *text = tutti_work_error(k->works[i]);
        if (status == TUTTI_OK && scene->fate == DIES_AT_WORK && failed == 0) continue;
        RANKS_CHECK(status == (dies ? TUTTI_ERR_PEER_DIED : TUTTI_ERR_TIMEOUT), "%s: work %d of rank %d: '%s' (%s)",
                    scene->way->name, i, context->rank, tutti_status_name(status), text);
        RANKS_CHECK(strstr(text, "rank 1") != NULL, "%s: rank 1 is not named: %s", scene->way->name, text);
        /* The next ones report a broken communicator; an all_reduce gets the work directly, and its error names no
         * tensor. */
        bool first = failed == 0 && scene->way != &ways[0];
        RANKS_CHECK(!first || dies || strstr(text, "'weight'") != NULL, "%s: the tensor is not named: %s",
                    scene->way->name, text);
        failed++;
    }
    double after_s = (double)(tutti_now_ns() - atomic_load(&scene->since_ns)) / 1e9;
    RANKS_CHECK(failed > 0 || scene->fate == DIES_AT_WORK, "%s: all works have succeeded", scene->way->name);
    RANKS_CHECK(after_s < (dies ? 3.0 : 5.0), "%s: errors after %.2f s", scene->way->name, after_s);
    for (int i = 0; i < WORKS; i++) tutti_work_free(k->works[i]);
    return TUTTI_OK;
}

/* From then on calls fail at once, with works or without. */
static tutti_status check_later(kit *k) {
    tutti_work *work;
    int64_t start_ns = tutti_now_ns();
    tutti_status status = run_plan(k, NULL), other = run_plan(k, &work);
    if (other == TUTTI_OK) {
        other = tutti_work_wait(work, -1);
        tutti_work_free(work);
    }
    if (scene->fate == DIES_AT_WORK) return TUTTI_OK; /* it may have progressed so far that nothing failed before */
    RANKS_CHECK(status != TUTTI_OK && other != TUTTI_OK, "%s: later calls: '%s' and '%s'", scene->way->name,
                tutti_status_name(status), tutti_status_name(other));
    RANKS_CHECK(tutti_now_ns() - start_ns < 300 * 1000000LL, "%s: later calls wait", scene->way->name);
    return TUTTI_OK;
}

static tutti_status lose_one(ranks_context *context) {
    static kit k;
    tutti_plan_details details;
    char text[200];
    TUTTI_TRY(make_kit(context, scene->way->src, scene->way->dst, &k));
    TUTTI_TRY(tutti_plan_describe(k.plan, text, sizeof text));
    TUTTI_TRY(tutti_plan_get(k.plan, &details));
    RANKS_CHECK(strstr(text, scene->way->name) != NULL && details.steps == 1, "the plan is '%s', not %s", text,
                scene->way->name);
    TUTTI_TRY(run_plan(&k, NULL));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        TUTTI_TRY(be_lost(context, &k));
    } else {
        if (scene->fate != DIES_AT_WORK)
            while (atomic_load(&scene->since_ns) == 0) pause_ms(1);
        for (int i = 0; i < WORKS; i++) TUTTI_TRY(run_plan(&k, &k.works[i]));
        while (atomic_load(&scene->since_ns) == 0) pause_ms(1);
        TUTTI_TRY(check_works(context, &k));
        atomic_fetch_add(&scene->given_up, 1);
        wait_for(&scene->given_up, RANKS - 1);
        if (context->rank == 0 && scene->fate == STOPS) kill(ranks_pid(context, VICTIM), SIGCONT);
        TUTTI_TRY(check_later(&k));
    }
    destroy_kit(&k);
    RANKS_CHECK(tutti_comm_error(context->comm) == TUTTI_OK, "the caller's communicator is broken");
    return TUTTI_OK;
}

static void lose_in_each(fate f) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    for (int i = 0; i < WAYS; i++) {
        char plan[64];
        const char *environment[] = {"TUTTI_STALL_MS=60000", "TUTTI_TIMEOUT_MS=5000", plan, NULL};
        snprintf(plan, sizeof plan, "TUTTI_PLAN=%s", ways[i].plan);
        if (scene == NULL) scene = mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(scene, MAP_FAILED);
        *scene = (struct scene){.way = &ways[i], .fate = f};
        const char *failure =
            ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 30, .environment = environment}, lose_one);
        cr_assert(failure == NULL, "%s: %s", ways[i].name, failure);
    }
}

Test(tensor_works_failure, a_rank_that_dies_is_named_by_works_in_each_kind_of_step) {
    lose_in_each(DIES);
}

Test(tensor_works_failure, a_rank_that_dies_during_works_ends_the_works_of_the_others) {
    lose_in_each(DIES_AT_WORK);
}

Test(tensor_works_failure, a_rank_that_stops_is_named_by_works_in_each_kind_of_step) {
    lose_in_each(STOPS);
}

Test(tensor_works_failure, a_rank_that_does_not_call_is_named_by_works_in_each_kind_of_step) {
    lose_in_each(STAYS_AWAY);
}

/* ---------------------------------------------------------------------------------------------------- aborted,
 * destroyed */

static const int worlds[] = {2, 3, 0};

static void run(ranks_body body) {
    const char *failure = ranks_run_worlds(worlds, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status abort_works(ranks_context *context) {
    kit k;
    TUTTI_TRY(make_kit(context, "S0", "S1", &k));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == 0) {
        for (int i = 0; i < WORKS; i++) TUTTI_TRY(run_plan(&k, &k.works[i]));
        TUTTI_TRY(tutti_placement_abort(k.line, "enough"));
        tutti_plan_destroy(k.plan); /* while they end */
        k.plan = NULL;
        for (int i = 0; i < WORKS; i++) {
            RANKS_EXPECT(TUTTI_ERR_ABORTED, tutti_work_wait(k.works[i], -1));
            RANKS_CHECK(strstr(tutti_work_error(k.works[i]), "enough") != NULL, "'%s'", tutti_work_error(k.works[i]));
            tutti_work_free(k.works[i]);
        }
    }
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank > 0) RANKS_EXPECT(TUTTI_ERR_ABORTED, run_plan(&k, NULL));
    destroy_kit(&k);
    return tutti_barrier(context->comm, NULL);
}

Test(tensor_works_failure, aborted_works_end) {
    run(abort_works);
}

/* Rank 0 destroys the plan at once; the others call later. */
static tutti_status destroy_plan(ranks_context *context) {
    kit k;
    TUTTI_TRY(make_kit(context, "S0", "S1", &k));
    for (int round = 0; round < 3; round++) {
        tutti_local local;
        TUTTI_TRY(tutti_tensor_local(k.dst, &local));
        memset(local.data, 0, local.count * 4);
        TUTTI_TRY(tutti_barrier(context->comm, NULL));
        if (context->rank > 0) pause_ms(40);
        int64_t start_ns = tutti_now_ns();
        for (int i = 0; i < WORKS; i++) TUTTI_TRY(run_plan(&k, &k.works[i]));
        tutti_plan_destroy(k.plan);
        RANKS_CHECK(context->rank > 0 || tutti_now_ns() - start_ns > 20 * 1000000LL, "the plan was destroyed at once");
        TUTTI_TRY(check_target(&k));
        for (int i = 0; i < WORKS; i++) {
            TUTTI_TRY(tutti_work_wait(k.works[i], -1));
            tutti_work_free(k.works[i]);
        }
        TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(k.src), tutti_tensor_layout(k.dst), 1, &k.plan));
    }
    destroy_kit(&k);
    return TUTTI_OK;
}

Test(tensor_works_failure, a_plan_is_destroyed_when_its_works_have_ended) {
    run(destroy_plan);
}

/* A process is forked while a work is in progress: in the child, all calls fail, but all objects can be destroyed. */
static tutti_status fork_at_work(ranks_context *context) {
    kit k;
    int state = 0;
    TUTTI_TRY(make_kit(context, "S0", "S1", &k));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank > 0) pause_ms(100);
    for (int i = 0; i < WORKS; i++) TUTTI_TRY(run_plan(&k, &k.works[i]));
    pid_t child = context->rank == 0 ? fork() : -1;
    if (child == 0) {
        alarm(10);
        bool refused = run_plan(&k, NULL) == TUTTI_ERR_FORKED && run_plan(&k, &k.works[0]) == TUTTI_ERR_FORKED;
        destroy_kit(&k);
        _exit(refused ? 0 : 1);
    }
    RANKS_CHECK(context->rank > 0 ||
                    (waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0),
                "the child ended with 0x%x", (unsigned)state);
    for (int i = 0; i < WORKS; i++) {
        TUTTI_TRY(tutti_work_wait(k.works[i], -1));
        tutti_work_free(k.works[i]);
    }
    TUTTI_TRY(check_target(&k));
    destroy_kit(&k);
    return TUTTI_OK;
}

Test(tensor_works_failure, a_forked_child_gets_errors_and_can_destroy_all_objects) {
    if (!ranks_have_processes()) cr_skip_test("ranks are threads here");
    const char *failure = ranks_run(&(ranks_options){.nranks = 2, .timeout_s = 30}, fork_at_work);
    cr_assert(failure == NULL, "%s", failure);
}
