/*
 * Asynchronous redistributions (options.work): they have the results of blocking ones, in the order of the calls,
 * whatever else happens between the same ranks.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tutti/tensor.h>

#include "tests/support/ranks.h"

TestSuite(tensor_works, .timeout = 120);

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ------------------------------------------------------------------------------------------------- pairs of tensors */

/* A tensor in two layouts, with all its objects. */
typedef struct couple {
    tutti_sbp from[2], to[2];
    int64_t shape[2];
    tutti_tensor *src, *dst;
    void *private[2];
} couple;

/* `privately`: in memory that other processes cannot read. */
static tutti_status make_tensor(tutti_placement *placement, const tutti_sbp *sbp, const int64_t *shape, bool privately,
                                void **private_out, tutti_tensor **tensor_out) {
    const tutti_layout layout = TUTTI_LAYOUT(.placement = placement, .sbp = sbp, .type = TUTTI_FLOAT32, .ndims = 2,
                                             .shape = shape, .name = "weight");
    int me = tutti_placement_coordinate(placement, -1);
    int64_t first[2], end[2];
    *private_out = NULL;
    if (!privately || me < 0) return tutti_tensor_create(&layout, tensor_out);
    TUTTI_TRY(tutti_layout_box(&layout, me, first, end));
    size_t bytes = (size_t)((end[0] - first[0]) * (end[1] - first[1])) * 4;
    *private_out = bytes > 0 ? malloc(bytes) : NULL;
    return tutti_tensor_wrap(&layout, *private_out, tensor_out);
}

static tutti_status make_couple(tutti_placement *from, tutti_placement *to, const char *src, const char *dst,
                                int64_t rows, int64_t columns, bool privately, couple *c) {
    int naxes;
    memset(c, 0, sizeof *c);
    c->shape[0] = rows;
    c->shape[1] = columns;
    TUTTI_TRY(tutti_sbp_parse(src, c->from, 2, &naxes));
    TUTTI_TRY(tutti_sbp_parse(dst, c->to, 2, &naxes));
    TUTTI_TRY(make_tensor(from, c->from, c->shape, privately, &c->private[0], &c -> src));
    return make_tensor(to, c->to, c->shape, privately, &c->private[1], &c -> dst);
}

static void destroy_couple(couple *c) {
    tutti_tensor_destroy(c->src);
    tutti_tensor_destroy(c->dst);
    free(c->private[0]);
    free(c->private[1]);
    memset(c, 0, sizeof *c);
}

static size_t bytes_of(const tutti_local *local) {
    return local->count * sizeof(float);
}

/* Small fractions, whose sums depend on their order. `term`: partial values differ on each rank. */
static tutti_status fill(const tutti_tensor *tensor, int64_t columns, int version, int term) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    for (size_t i = 0; i < local.count; i++) {
        int64_t row = local.first[0] + (int64_t)i / local.shape[1],
                column = local.first[1] + (int64_t)i % local.shape[1];
        ((float *)local.data)[i] = (float)(row * columns + column + 1) / (float)(version + 3 + 7 * term);
    }
    return TUTTI_OK;
}

static tutti_status spoil(const tutti_tensor *tensor) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    if (local.count > 0) memset(local.data, 0xa5, bytes_of(&local));
    return TUTTI_OK;
}

/* The content of the target, in memory that the caller owns. */
static tutti_status keep(const tutti_tensor *tensor, char **bytes_out) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    *bytes_out = malloc(bytes_of(&local) + 1);
    if (local.count > 0) memcpy(*bytes_out, local.data, bytes_of(&local));
    return TUTTI_OK;
}

static tutti_status compare(const tutti_tensor *tensor, const char *bytes, const char *what) {
    tutti_local local;
    TUTTI_TRY(tutti_tensor_local(tensor, &local));
    RANKS_CHECK(local.count == 0 || memcmp(local.data, bytes, bytes_of(&local)) == 0,
                "%s: differs from the blocking call's result", what);
    return TUTTI_OK;
}

/* The expected result, by a blocking call; then overwrites the target. */
static tutti_status expect(couple *c, int version, int term, char **bytes_out) {
    TUTTI_TRY(fill(c->src, c->shape[1], version, term));
    TUTTI_TRY(tutti_tensor_redistribute(c->src, c->dst, NULL));
    TUTTI_TRY(keep(c->dst, bytes_out));
    return spoil(c->dst);
}

/* ------------------------------------------------------------------------------------------------------ each pair */

/* Checks whether a work is accepted: on all ranks if none has more than one communicating step; then its result is
 * the blocking call's. */
static tutti_status try_pair(tutti_comm *comm, couple *c, int term, const char *what, int taken[2]) {
    tutti_plan *plan;
    tutti_plan_details details;
    tutti_work *work = NULL;
    char *expected;
    TUTTI_TRY(expect(c, 1, term, &expected));
    TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(c->src), tutti_tensor_layout(c->dst), 1, &plan));
    TUTTI_TRY(tutti_plan_get(plan, &details));
    tutti_plan_destroy(plan);
    TUTTI_TRY(tutti_all_reduce(comm, &details.steps, &details.steps, 1, TUTTI_INT32, TUTTI_MAX, NULL));
    tutti_status status = tutti_tensor_redistribute(c->src, c->dst, &TUTTI_OPTIONS(.work = &work));
    RANKS_CHECK(status == (details.steps <= 1 ? TUTTI_OK : TUTTI_ERR_UNSUPPORTED) &&
                    (work != NULL) == (status == TUTTI_OK),
                "%s, %d steps: %s (%s)", what, details.steps, tutti_status_name(status),
                status != TUTTI_OK ? tutti_last_error() : "");
    if (status != TUTTI_OK) {
        RANKS_CHECK(strstr(tutti_last_error(), "leave options.work NULL") != NULL, "%s: '%s'", what,
                    tutti_last_error());
        taken[1]++;
        TUTTI_TRY(tutti_tensor_redistribute(c->src, c->dst, NULL)); /* nothing was sent */
    } else {
        taken[0] += details.steps;
        TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
    }
    TUTTI_TRY(compare(c->dst, expected, what));
    free(expected);
    return TUTTI_OK;
}

static tutti_status try_all_pairs(ranks_context *context) {
    static const char *const one[] = {"B", "S0", "S1", "P(sum)", "P(max)"};
    static const char *const two[] = {"B,B", "S0,B", "B,S1", "S0,S0", "S1,P(sum)", "P(sum),S0", "P(sum),P(max)"};
    static const int64_t shapes[][2] = {{13, 7}, {240, 130}};
    int n = context->nranks, taken[2] = {0, 0};
    tutti_placement *placement;
    bool square = n == 4 || n == 8;
    for (int axes = 1; axes <= (square ? 2 : 1); axes++) {
        int count = axes == 1 ? 5 : 7, sizes[2] = {axes == 1 ? n : 2, n / 2};
        const char *const *all = axes == 1 ? one : two;
        TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, sizes, axes, &placement));
        for (int i = 0; i < count * count; i++) {
            couple c;
            char what[80];
            const int64_t *shape = shapes[i % 2];
            bool privately = i / 2 % 2 == 1;
            snprintf(what, sizeof what, "%s to %s of %dx%d%s", all[i / count], all[i % count], (int)shape[0],
                     (int)shape[1], privately ? ", private" : "");
            TUTTI_TRY(
                make_couple(placement, placement, all[i / count], all[i % count], shape[0], shape[1], privately, &c));
            TUTTI_TRY(try_pair(context->comm, &c, context->rank, what, taken));
            destroy_couple(&c);
        }
        tutti_placement_destroy(placement);
    }
    RANKS_CHECK(n == 1 || taken[0] >= 10, "%d plans with a step that talks have taken works", taken[0]);
    RANKS_CHECK(!square || taken[1] > 0, "no plan had several steps and refused works");
    return TUTTI_OK;
}

static void try_with(const int *sizes, const char *plan) {
    const char *environment[] = {plan, NULL};
    for (const int *size = sizes; *size > 0; size++) {
        const ranks_options options = {.nranks = *size,
                                       .kind = ranks_have_processes() ? RANKS_PROCESSES : RANKS_THREADS,
                                       .timeout_s = 90,
                                       .environment = ranks_have_processes() ? environment : NULL};
        const char *failure = ranks_run(&options, try_all_pairs);
        cr_assert(failure == NULL, "%d ranks, %s: %s", *size, plan, failure);
    }
}

Test(tensor_works, have_the_results_of_blocking_calls) {
    static const int worlds[] = {1, 2, 3, 4, 8, 0};
    try_with(worlds, "TUTTI_PLAN=");
}

Test(tensor_works, have_the_results_of_blocking_calls_by_every_route) {
    static const int some[] = {2, 3, 4, 0};
    if (!ranks_have_processes()) cr_skip_test("a process has one TUTTI_PLAN");
    try_with(some, "TUTTI_PLAN=pieces,all_to_all");
    try_with(some, "TUTTI_PLAN=pieces,messages");
    try_with(some, "TUTTI_PLAN=pieces,reads");
}

Test(tensor_works, have_the_results_of_blocking_calls_with_threads) {
    static const int some[] = {2, 3, 4, 0};
    for (const int *size = some; *size > 0; size++) {
        const char *failure =
            ranks_run(&(ranks_options){.nranks = *size, .kind = RANKS_THREADS, .timeout_s = 90}, try_all_pairs);
        cr_assert(failure == NULL, "%d threads: %s", *size, failure);
    }
}

/* Ranks that are in one placement only, in both, and in neither, which do not call. */
static tutti_status cross(ranks_context *context) {
    static const char *const ways[][2] = {{"S0", "S1"}, {"S1", "S0"}, {"S0", "B"}, {"B", "S1"}, {"P(sum)", "S0"}};
    tutti_placement *left, *right;
    int two = 2, taken[2] = {0, 0}, me = context->rank;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){0, 1}, &two, 1, &left));
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){2, 1}, &two, 1, &right));
    for (int i = 0; i < 10 && me < 3; i++) {
        tutti_comm *all;
        tutti_placement *three;
        couple c;
        TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, (int[]){0, 1, 2}, (int[]){3}, 1, &three));
        TUTTI_TRY(tutti_placement_comm(three, 1, &all));
        TUTTI_TRY(make_couple(left, right, ways[i / 2][0], ways[i / 2][1], i % 2 ? 200 : 20, 30, false, &c));
        TUTTI_TRY(try_pair(all, &c, me, ways[i / 2][0], taken));
        destroy_couple(&c);
        tutti_placement_destroy(three);
    }
    tutti_placement_destroy(left);
    tutti_placement_destroy(right);
    return tutti_barrier(context->comm, NULL);
}

Test(tensor_works, ranks_may_be_in_one_placement_or_none) {
    static const int some[] = {3, 4, 0};
    const char *failure = ranks_run_worlds(some, NULL, cross);
    cr_assert(failure == NULL, "%s", failure);
}

/* ------------------------------------------------------------------------------------------------------- in order */

enum { COUPLES = 12, PLANS = 4, CALLS = 400 };

/* Pairs of a few plans: the same plan is in flight several times. */
typedef struct stage {
    tutti_placement *line;
    tutti_comm *comm;
    couple couples[COUPLES];
    char *expected[COUPLES];
    tutti_plan *plans[COUPLES]; /* one for each of the first PLANS pairs, also used by similar pairs */
    tutti_work *works[COUPLES];
    int32_t sum, sum_expected;
    tutti_work *sum_work;
} stage;

static tutti_status prepare(ranks_context *context, stage *s) {
    static const char *const ways[PLANS][2] = {{"S0", "S1"}, {"S1", "B"}, {"S1", "S0"}, {"P(sum)", "S1"}};
    static const int64_t rows[PLANS] = {90, 300, 5, 40};
    memset(s, 0, sizeof *s);
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &context->nranks, 1, &s->line));
    TUTTI_TRY(tutti_placement_comm(s->line, 1, &s->comm));
    for (int i = 0; i < COUPLES; i++) {
        int like = i % PLANS;
        TUTTI_TRY(
            make_couple(s->line, s->line, ways[like][0], ways[like][1], rows[like], 50, i % 3 == 2, &s->couples[i]));
        TUTTI_TRY(expect(&s->couples[i], i, context->rank, &s->expected[i]));
        if (i < PLANS)
            TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(s->couples[i].src), tutti_tensor_layout(s->couples[i].dst),
                                        1, &s->plans[i]));
    }
    return TUTTI_OK;
}

static tutti_status finish_one(stage *s, int i) {
    if (s->works[i] == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_work_wait(s->works[i], -1));
    tutti_work_free(s->works[i]);
    s->works[i] = NULL;
    TUTTI_TRY(compare(s->couples[i].dst, s->expected[i], "a work between others"));
    return spoil(s->couples[i].dst);
}

static tutti_status redo(stage *s, int i, bool by_plan, const tutti_options *options) {
    const tutti_tensor *src = s->couples[i].src;
    if (!by_plan) return tutti_tensor_redistribute(src, s->couples[i].dst, options);
    return tutti_plan_run(s->plans[i % PLANS], &src, &s->couples[i].dst, options);
}

static tutti_status finish_sum(stage *s) {
    if (s->sum_work == NULL) return TUTTI_OK;
    TUTTI_TRY(tutti_work_wait(s->sum_work, -1));
    tutti_work_free(s->sum_work);
    s->sum_work = NULL;
    RANKS_CHECK(s->sum == s->sum_expected, "a sum of the caller's is %d, not %d", s->sum, s->sum_expected);
    return TUTTI_OK;
}

/* The same calls on all ranks; each rank decides on its own which works it waits for, and when. */
static tutti_status act(ranks_context *context, stage *s, uint64_t dice, unsigned *own) {
    int i = (int)((dice >> 8) % COUPLES), n = context->nranks;
    bool by_plan = (dice >> 32 & 1) != 0;
    if (rand_r(own) % 4 == 0) TUTTI_TRY(finish_one(s, rand_r(own) % COUPLES));
    if (rand_r(own) % 16 == 0) pause_ms(1);
    switch (dice % 8) {
    case 0: /* blocking */
        TUTTI_TRY(finish_one(s, i));
        TUTTI_TRY(redo(s, i, by_plan, NULL));
        TUTTI_TRY(compare(s->couples[i].dst, s->expected[i], "a blocking call between works"));
        return spoil(s->couples[i].dst);
    case 1: /* the caller's own call, on the communicator of the plans */
        TUTTI_TRY(finish_sum(s));
        s->sum = context->rank + (int32_t)(dice >> 40);
        s->sum_expected = n * (int32_t)(dice >> 40) + n * (n - 1) / 2;
        return tutti_all_reduce(s->comm, &s->sum, &s->sum, 1, TUTTI_INT32, TUTTI_SUM,
                                &TUTTI_OPTIONS(.work = &s->sum_work));
    case 2: {
        int32_t one = 1;
        TUTTI_TRY(tutti_all_reduce(s->comm, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL));
        RANKS_CHECK(one == n, "a blocking sum of the caller's is %d", one);
        return TUTTI_OK;
    }
    case 3: /* a plan is made and destroyed: its ranks communicate, and measure */
        if (dice >> 33 & 7) return TUTTI_OK;
        couple c;
        char *unseen;
        TUTTI_TRY(make_couple(s->line, s->line, "S0", "S1", 10 + (int64_t)(dice >> 40) % 500, 9, false, &c));
        TUTTI_TRY(expect(&c, 1, 0, &unseen));
        free(unseen);
        destroy_couple(&c);
        return TUTTI_OK;
    default: TUTTI_TRY(finish_one(s, i)); return redo(s, i, by_plan, &TUTTI_OPTIONS(.work = &s->works[i]));
    }
}

static tutti_status mix(ranks_context *context) {
    stage *s = malloc(sizeof *s);
    uint64_t dice = 88172645463325252;
    unsigned own = (unsigned)context->rank + 1;
    TUTTI_TRY(prepare(context, s));
    for (int call = 0; call < CALLS; call++) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        TUTTI_TRY(act(context, s, dice & UINT64_C(0xffffffffffff), &own));
    }
    for (int i = COUPLES - 1; i >= 0; i--) TUTTI_TRY(finish_one(s, i));
    TUTTI_TRY(finish_sum(s));
    for (int i = 0; i < COUPLES; i++) {
        tutti_plan_destroy(s->plans[i]);
        destroy_couple(&s->couples[i]);
        free(s->expected[i]);
    }
    tutti_placement_destroy(s->line);
    free(s);
    return TUTTI_OK;
}

Test(tensor_works, run_in_the_order_of_calls_among_others) {
    static const int worlds[] = {2, 3, 4, 0};
    const char *failure = ranks_run_worlds(worlds, NULL, mix);
    cr_assert(failure == NULL, "%s", failure);
}

Test(tensor_works, messages_are_sent_in_the_order_of_calls_among_others) {
    static const char *const environment[] = {"TUTTI_PLAN=messages", NULL};
    if (!ranks_have_processes()) cr_skip_test("a process has one TUTTI_PLAN");
    for (int n = 2; n <= 4; n++) {
        const char *failure = ranks_run(&(ranks_options){.nranks = n, .environment = environment}, mix);
        cr_assert(failure == NULL, "%d ranks: %s", n, failure);
    }
}

/* Rank 0 continues while the others, whose parts it needs, have not called; they wait for its message. */
static tutti_status go_on(ranks_context *context) {
    static const char *const ways[][2] = {{"S0", "S1"}, {"S1", "B"}, {"S1", "S0"}, {"S0", "P(sum)"}};
    tutti_placement *line;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &context->nranks, 1, &line));
    for (int i = 0; i < 8; i++) {
        couple c;
        char *expected;
        int word = i;
        tutti_work *work;
        TUTTI_TRY(make_couple(line, line, ways[i / 2][0], ways[i / 2][1], i % 2 ? 300 : 20, 40, i == 3, &c));
        TUTTI_TRY(expect(&c, 1, context->rank, &expected));
        if (context->rank > 0) TUTTI_TRY(tutti_recv(context->comm, &word, 1, TUTTI_INT32, 0, 0, NULL));
        TUTTI_TRY(tutti_tensor_redistribute(c.src, c.dst, &TUTTI_OPTIONS(.work = &work)));
        for (int peer = 1; peer < context->nranks && context->rank == 0; peer++)
            TUTTI_TRY(tutti_send(context->comm, &word, 1, TUTTI_INT32, peer, 0, NULL));
        TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
        TUTTI_TRY(compare(c.dst, expected, ways[i / 2][0]));
        free(expected);
        destroy_couple(&c);
    }
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor_works, the_caller_continues_before_others_have_called) {
    static const int worlds[] = {2, 3, 4, 0};
    const char *failure = ranks_run_worlds(worlds, NULL, go_on);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status take_wrong(ranks_context *context) {
    tutti_placement *line;
    tutti_plan *plan;
    tutti_work *work = NULL;
    couple c, other;
    char *expected;
    TUTTI_TRY(tutti_placement_create(context->comm, TUTTI_MEMORY_HOST, NULL, &context->nranks, 1, &line));
    TUTTI_TRY(make_couple(line, line, "S0", "S1", 20, 40, false, &c));
    TUTTI_TRY(make_couple(line, line, "S0", "S1", 20, 41, false, &other));
    TUTTI_TRY(expect(&c, 1, context->rank, &expected));
    TUTTI_TRY(tutti_plan_create(tutti_tensor_layout(c.src), tutti_tensor_layout(c.dst), 1, &plan));
    const tutti_tensor *src = other.src;
    if (context->rank == 0) {
        RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_plan_run(plan, &src, &c.dst, &TUTTI_OPTIONS(.work = &work)));
        RANKS_CHECK(work == NULL, "a wrong call has given a work");
    }
    src = c.src;
    TUTTI_TRY(tutti_plan_run(plan, &src, &c.dst, &TUTTI_OPTIONS(.work = &work)));
    TUTTI_TRY(tutti_work_wait(work, -1));
    tutti_work_free(work);
    TUTTI_TRY(compare(c.dst, expected, "after a wrong call"));
    free(expected);
    tutti_plan_destroy(plan);
    destroy_couple(&c);
    destroy_couple(&other);
    tutti_placement_destroy(line);
    return TUTTI_OK;
}

Test(tensor_works, wrong_arguments_are_errors_of_the_call) {
    static const int worlds[] = {2, 3, 0};
    const char *failure = ranks_run_worlds(worlds, NULL, take_wrong);
    cr_assert(failure == NULL, "%s", failure);
}
