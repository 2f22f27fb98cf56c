/*
 * Global tensors when a rank dies, stops, or does not call: in each kind of step the others get an error that names
 * the rank, all their objects can be destroyed, and the caller's communicator can be used for tensors again.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tutti/tensor.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

enum { VICTIM = 1, RANKS = 3, TIMEOUT_MS = 600, ROWS = 37, COLUMNS = 90 };

static const char *const impatient[] = {"TUTTI_STALL_MS=60000", "TUTTI_TIMEOUT_MS=600", "TUTTI_CONNECT_TIMEOUT_MS=600",
                                        NULL};

typedef enum act { REDISTRIBUTE, CREATE_PLAN, FROM_LOCAL } act;

typedef struct way {
    const char *name, *plan; /* the step, and TUTTI_PLAN */
    const char *src, *dst;   /* sbp */
    bool from_victim;        /* only the victim has the source */
    act act;
} way;

static const way ways[] = {
    {"all_reduce", "all_reduce", "P(sum)", "B", false, REDISTRIBUTE},
    {"reduce_scatter", "reduce_scatter", "P(sum)", "S0", false, REDISTRIBUTE},
    {"all_gather", "", "S0", "B", false, REDISTRIBUTE},
    {"broadcast", "", "B", "B", true, REDISTRIBUTE},
    {"all_to_all", "all_to_all", "S0", "S1", false, REDISTRIBUTE},
    {"messages", "messages", "S0", "S1", false, REDISTRIBUTE},
    {"by reading", "reads", "S0", "S1", false, REDISTRIBUTE},
    {"all_gather of 3 ranks by reading", "reads", "S1", "B", false, REDISTRIBUTE},
    {"agreement", "", "S0", "S1", false, CREATE_PLAN},
    {"from_local", "", "S0", "S1", false, FROM_LOCAL},
};
enum { WAYS = sizeof ways / sizeof *ways };

typedef enum fate { DIES, STOPS, STAYS_AWAY } fate;

static struct scene {
    const way *way;
    fate fate;
    atomic_llong since_ns;    /* when the victim was lost */
    atomic_int given_up, met; /* ranks that have their error; ranks that have destroyed all objects */
} * scene;                     /* shared memory */

static void set_scene(const way *w, fate f) {
    if (scene == NULL) scene = mmap(NULL, sizeof *scene, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(scene, MAP_FAILED);
    *scene = (struct scene){.way = w, .fate = f};
}

/* All objects of a rank. */
typedef struct kit {
    tutti_placement *from, *to;
    tutti_tensor *src, *dst, *extra;
    tutti_plan *plan;
    int64_t shape[2], local_shape[2];
    char data[ROWS * COLUMNS * 4];
} kit;

static tutti_layout layout_of(kit *k, tutti_placement *placement, const char *text, tutti_sbp *sbp) {
    int naxes;
    (void)tutti_sbp_parse(text, sbp, 1, &naxes);
    return TUTTI_LAYOUT(.placement = placement, .sbp = sbp, .type = TUTTI_INT32, .ndims = 2, .shape = k->shape,
                        .name = "weight");
}

static void destroy_kit(kit *k) {
    tutti_plan_destroy(k->plan);
    tutti_tensor_destroy(k->src);
    tutti_tensor_destroy(k->dst);
    tutti_tensor_destroy(k->extra);
    tutti_placement_destroy(k->from);
    tutti_placement_destroy(k->to);
    memset(k, 0, sizeof *k); /* so that the leak sanitizer detects undestroyed objects */
}

static tutti_status redistribute(kit *k) {
    return tutti_tensor_redistribute(k->src, k->dst, &TUTTI_OPTIONS(.timeout_ms = TIMEOUT_MS));
}

/* The call under test; `again`: with other arguments than the warm-up. */
static tutti_status act_once(kit *k, bool again) {
    tutti_sbp sbp[2];
    tutti_plan *plan;
    if (scene->way->act == REDISTRIBUTE) return redistribute(k);
    k->shape[0] = again ? ROWS - 1 : ROWS;
    tutti_layout src = layout_of(k, k->from, scene->way->src, &sbp[0]),
                 dst = layout_of(k, k->to, scene->way->dst, &sbp[1]);
    if (scene->way->act == FROM_LOCAL) {
        k->local_shape[0] = 3;
        k->local_shape[1] = COLUMNS;
        tutti_tensor_destroy(k->extra);
        k->extra = NULL;
        return tutti_tensor_from_local(&src, k->local_shape, k->data, &k->extra);
    }
    TUTTI_TRY(tutti_plan_create(&src, &dst, 1, &plan));
    tutti_plan_destroy(k->plan);
    k->plan = plan;
    return TUTTI_OK;
}

static tutti_status make_kit(const ranks_context *context, kit *k) {
    tutti_sbp sbp[2];
    const way *w = scene->way;
    int all[] = {0, 1, 2}, alone[] = {VICTIM}, one = 1, three = 3;
    k->shape[0] = ROWS;
    k->shape[1] = COLUMNS;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, w->from_victim ? alone : all,
                                     w->from_victim ? &one : &three, 1, &k->from));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, all, &three, 1, &k->to));
    tutti_layout src = layout_of(k, k->from, w->src, &sbp[0]), dst = layout_of(k, k->to, w->dst, &sbp[1]);
    TUTTI_TRY(tutti_tensor_create(&src, &k->src));
    return tutti_tensor_create(&dst, &k->dst);
}

/* Whether the plan has the step that is tested. */
static tutti_status check_step(kit *k) {
    tutti_plan *plan;
    char text[200];
    if (scene->way->act != REDISTRIBUTE) return TUTTI_OK;
    TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(k->src), tutti_tensor_layout(k->dst), 1, &plan));
    TUTTI_TRY(tutti_plan_describe(plan, text, sizeof text));
    tutti_plan_destroy(plan);
    RANKS_CHECK(strstr(text, scene->way->name) != NULL, "the plan is '%s', not %s", text, scene->way->name);
    return TUTTI_OK;
}

static void wait_for(atomic_int *number, int value) {
    while (atomic_load(number) < value) usleep(1000);
}

/* The victim's part, until it continues; does not return if it dies. */
static tutti_status be_lost(const ranks_context *context, kit *k) {
    atomic_store(&scene->since_ns, tutti_now_ns());
    if (scene->fate == DIES) ranks_strike(context, SIGKILL);
    else if (scene->fate == STOPS) ranks_strike(context, SIGSTOP);
    else wait_for(&scene->given_up, RANKS - 1);
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 50 && status == TUTTI_OK; i++) status = act_once(k, true); /* a root need not wait for others */
    RANKS_CHECK(status != TUTTI_OK, "%s: the victim's own calls went well although the others had given up",
                scene->way->name);
    return TUTTI_OK;
}

/* Checks the error of the others. */
static tutti_status check_error(const ranks_context *context, tutti_status status) {
    char text[2048], rank[16];
    double after_s = (double)(tutti_now_ns() - atomic_load(&scene->since_ns)) / 1e9;
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    /* The communicator of the broadcast begins with the root. */
    snprintf(rank, sizeof rank, "rank %d", scene->way->from_victim ? 0 : VICTIM);
    RANKS_CHECK(status == (scene->fate == DIES ? TUTTI_ERR_PEER_DIED : TUTTI_ERR_TIMEOUT), "%s: rank %d got '%s' (%s)",
                scene->way->name, context->rank, tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, rank) != NULL, "%s: %s is not named: %s", scene->way->name, rank, text);
    RANKS_CHECK(!scene->way->from_victim || strstr(text, "whose ranks 0,1,2 are 1,0,2 here") != NULL,
                "the error does not identify the ranks: %s", text);
    RANKS_CHECK(strstr(text, "'weight'") != NULL, "%s: the tensor is not named: %s", scene->way->name, text);
    RANKS_CHECK(after_s < (scene->fate == DIES ? 2.5 : 5.0), "%s: an error after %.2f s", scene->way->name, after_s);
    return TUTTI_OK;
}

/* With the same placements, calls of a broken group return its error at once; new placements, made after all are
 * destroyed, work. */
static tutti_status go_on(const ranks_context *context, kit *k) {
    static kit new;
    int pair[] = {0, 2}, both = 2, three = 3;
    tutti_sbp sbp[2];
    tutti_local local;
    int64_t start_ns = tutti_now_ns();
    tutti_status later = act_once(k, true);
    RANKS_CHECK(later != TUTTI_OK, "%s: a later call went well", scene->way->name);
    RANKS_CHECK(tutti_now_ns() - start_ns < 300 * 1000000LL, "%s: a later call waits", scene->way->name);
    destroy_kit(k);
    bool all = scene->fate != DIES;
    atomic_fetch_add(&scene->met, 1);
    wait_for(&scene->met, all ? RANKS : RANKS - 1);
    RANKS_CHECK(tutti_comm_error(context->comm) == TUTTI_OK, "the caller's communicator is broken");
    memset(&new, 0, sizeof new);
    new.shape[0] = ROWS;
    new.shape[1] = 2;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, all ? NULL : pair, all ? &three : &both, 1,
                                     &new.from));
    tutti_layout src = layout_of(&new, new.from, "S0", &sbp[0]), dst = layout_of(&new, new.from, "B", &sbp[1]);
    TUTTI_TRY(tutti_tensor_create(&src, &new.src));
    TUTTI_TRY(tutti_tensor_create(&dst, &new.dst));
    TUTTI_TRY(tutti_tensor_local(new.src, &local));
    for (size_t i = 0; i < local.count; i++) ((int32_t *)local.data)[i] = (int32_t)(2 * local.first[0] + (int64_t)i);
    TUTTI_TRY(redistribute(&new));
    TUTTI_TRY(tutti_tensor_local(new.dst, &local));
    for (size_t i = 0; i < local.count; i++)
        RANKS_CHECK(((int32_t *)local.data)[i] == (int32_t)i, "element %zu is wrong afterwards", i);
    destroy_kit(&new);
    return TUTTI_OK;
}

static tutti_status lose_one(ranks_context *context) {
    static _Thread_local kit k;
    memset(&k, 0, sizeof k);
    TUTTI_TRY(make_kit(context, &k));
    TUTTI_TRY(check_step(&k));
    TUTTI_TRY(act_once(&k, false));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        TUTTI_TRY(be_lost(context, &k));
    } else {
        while (atomic_load(&scene->since_ns) == 0) usleep(100);
        TUTTI_TRY(check_error(context, act_once(&k, true)));
        atomic_fetch_add(&scene->given_up, 1);
        wait_for(&scene->given_up, RANKS - 1);
        if (context->rank == 0 && scene->fate == STOPS) kill(ranks_pid(context, VICTIM), SIGCONT);
    }
    return go_on(context, &k);
}

static void lose_in_each(fate f) {
    for (int i = 0; i < WAYS; i++) {
        char plan[64];
        const char *environment[] = {impatient[0], impatient[1], impatient[2], plan, NULL};
        snprintf(plan, sizeof plan, "TUTTI_PLAN=%s", ways[i].plan);
        set_scene(&ways[i], f);
        const char *failure =
            ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 30, .environment = environment}, lose_one);
        cr_assert(failure == NULL, "%s: %s", ways[i].name, failure);
    }
}

Test(tensor_failure, a_rank_that_dies_is_named_in_each_kind_of_step) {
    lose_in_each(DIES);
}

Test(tensor_failure, a_rank_that_stops_is_named_in_each_kind_of_step) {
    lose_in_each(STOPS);
}

Test(tensor_failure, a_rank_that_does_not_call_is_named_in_each_kind_of_step) {
    lose_in_each(STAYS_AWAY);
}

/* --------------------------------------------------------------------------- ranks that name different ranks */

/* Rank 0 redistributes between ranks 0 and 1, the others between all. */
static tutti_status name_others(ranks_context *context) {
    static _Thread_local kit k;
    int all[] = {0, 1, 2}, n = context->rank == 0 ? 2 : 3;
    tutti_sbp sbp[2];
    memset(&k, 0, sizeof k);
    k.shape[0] = ROWS;
    k.shape[1] = COLUMNS;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, all, &n, 1, &k.from));
    tutti_layout src = layout_of(&k, k.from, "S0", &sbp[0]), dst = layout_of(&k, k.from, "B", &sbp[1]);
    TUTTI_TRY(tutti_tensor_create(&src, &k.src));
    TUTTI_TRY(tutti_tensor_create(&dst, &k.dst));
    int64_t start_ns = tutti_now_ns();
    tutti_status status = tutti_tensor_redistribute(k.src, k.dst, NULL);
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    char text[2048];
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    destroy_kit(&k);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_BROKEN, "rank %d: '%s' (%s)", context->rank,
                tutti_status_name(status), text);
    RANKS_CHECK(took_ms < 4000, "an error after %lld ms", (long long)took_ms);
    RANKS_CHECK(strstr(text, context->rank == 0 ? "ranks 0,1 create a communicator"
                                                : "ranks 0,1,2 create a communicator") != NULL &&
                    strstr(text, "'weight'") != NULL,
                "ranks or tensor are not named: %s", text);
    return TUTTI_OK;
}

Test(tensor_failure, ranks_that_name_different_ranks_get_an_error_by_the_deadline_of_connections) {
    static const char *const connects_soon[] = {"TUTTI_CONNECT_TIMEOUT_MS=900", "TUTTI_STALL_MS=60000", NULL};
    const char *failure =
        ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 30, .environment = connects_soon}, name_others);
    cr_assert(failure == NULL, "%s", failure);
}

/* -------------------------------------------------------------------------------------- before the first
 * communicator */

/* The victim is lost before the ranks have made a communicator for their tensors from the caller's. */
static tutti_status lose_before_all(ranks_context *context) {
    static _Thread_local kit k;
    memset(&k, 0, sizeof k);
    TUTTI_TRY(make_kit(context, &k));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    if (context->rank == VICTIM) {
        atomic_store(&scene->since_ns, tutti_now_ns());
        if (scene->fate == DIES) ranks_strike(context, SIGKILL);
        wait_for(&scene->given_up, RANKS - 1);
    } else {
        while (atomic_load(&scene->since_ns) == 0) usleep(100);
        tutti_status status = act_once(&k, false);
        RANKS_CHECK(status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DIED, "rank %d: '%s' (%s)", context->rank,
                    tutti_status_name(status), status != TUTTI_OK ? tutti_last_error() : "");
        RANKS_CHECK(strstr(tutti_last_error(), "rank 1") != NULL, "not named: %s", tutti_last_error());
        RANKS_CHECK(strstr(tutti_last_error(), "'weight'") != NULL, "the tensor is not named: %s", tutti_last_error());
        atomic_fetch_add(&scene->given_up, 1);
        wait_for(&scene->given_up, RANKS - 1);
    }
    destroy_kit(&k);
    RANKS_CHECK(tutti_comm_error(context->comm) != TUTTI_OK || context->rank == VICTIM,
                "the caller's communicator is whole");
    return TUTTI_OK;
}

static void lose_first(act what, fate f) {
    for (int i = 0; i < WAYS; i++) {
        if (ways[i].act != what) continue;
        set_scene(&ways[i], f);
        const char *failure =
            ranks_run(&(ranks_options){.nranks = RANKS, .timeout_s = 30, .environment = impatient}, lose_before_all);
        cr_assert(failure == NULL, "%s: %s", ways[i].name, failure);
    }
}

Test(tensor_failure, a_rank_that_is_lost_before_the_first_call_ends_it) {
    lose_first(CREATE_PLAN, DIES);
    lose_first(FROM_LOCAL, DIES);
    lose_first(CREATE_PLAN, STAYS_AWAY);
    lose_first(FROM_LOCAL, STAYS_AWAY);
}
