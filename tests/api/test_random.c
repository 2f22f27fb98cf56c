/*
 * Random calls against the reference: kind, type, count, place, memory, blocking or not, how many are in flight, delays
 * per rank, and messages in between. All from one printed seed: TUTTI_TEST_SEED repeats a run, TUTTI_TEST_CALLS
 * makes it longer or shorter.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/call.h"
#include "tests/support/ranks.h"
#include "tests/support/reference.h"

enum { MOST_IN_FLIGHT = 6, MOST_COUNT = 1500 };

typedef struct plan {
    uint64_t seed;
    int calls;
} plan;

/* Draw number `draw` for call `index`; equal on all ranks. */
static uint64_t draw(const plan *p, int index, int number) {
    return reference_hash(p->seed, (uint64_t)index, (uint64_t)number);
}

static call draw_call(const plan *p, int index, int nranks) {
    call c = {.kind = (call_kind)(draw(p, index, 0) % CALL_KINDS),
              .type = (tutti_type)(draw(p, index, 1) % TUTTI_TYPE_COUNT),
              .reduction = (tutti_reduction)(draw(p, index, 2) % TUTTI_REDUCTION_COUNT),
              .root = (int)(draw(p, index, 3) % (uint64_t)nranks),
              .in_place = (call_mode)(draw(p, index, 4) % CALL_MODES),
              .shared = (call_mode)(draw(p, index, 5) % CALL_MODES),
              .seed = draw(p, index, 6)};
    uint64_t size = draw(p, index, 7);
    c.count = size % 4 == 0 ? size / 4 % 3 : size % 4 == 1 ? size / 4 % MOST_COUNT : size / 4 % 70; /* mostly small */
    if (!call_reduces(c.kind) || !reference_supports(c.type, c.reduction)) c.reduction = TUTTI_MAX;
    return c;
}

/* One of several calls that are in flight together. */
typedef struct pending {
    call_state state;
    tutti_work *work;
    int index;
} pending;

static tutti_status fail_call(const plan *p, const pending *one, tutti_status status) {
    char text[1024];
    const call *c = &one->state.call;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    return tutti_fail(status, "seed %llu, call %d, %s of %zu %s, %s, root %d: %s", (unsigned long long)p->seed,
                      one->index, call_name(c->kind), c->count, tutti_type_name(c->type),
                      tutti_reduction_name(c->reduction), c->root, text);
}

static tutti_status start(const plan *p, const ranks_context *context, int index, pending *one) {
    call c = draw_call(p, index, context->nranks);
    one->index = index;
    one->work = NULL;
    TUTTI_TRY(call_prepare(&c, context->rank, context->nranks, &one->state));
    uint64_t delay = reference_hash(p->seed, (uint64_t)index, 100 + (uint64_t)context->rank);
    if (delay % 50 == 0) usleep((useconds_t)(delay / 50 % 800));
    /* Each rank decides for itself whether the call blocks. */
    bool blocking = delay / 7 % 2 == 0;
    tutti_status status = call_start(&one->state, context->comm, blocking ? NULL : &TUTTI_OPTIONS(.work = &one->work));
    return status == TUTTI_OK ? TUTTI_OK : fail_call(p, one, status);
}

static tutti_status finish(const plan *p, pending *one) {
    tutti_status status = one->work != NULL ? tutti_work_wait(one->work, -1) : TUTTI_OK;
    if (status == TUTTI_OK) status = call_check(&one->state);
    return status == TUTTI_OK ? TUTTI_OK : fail_call(p, one, status);
}

static void release(pending *one) {
    if (one->work != NULL) tutti_work_wait(one->work, -1);
    tutti_work_free(one->work);
    call_release(&one->state);
}

/* A message to the next rank, started before a batch of collectives and finished after it. */
typedef struct message {
    uint64_t *out, *in;
    size_t count;
    tutti_work *works[2];
} message;

static tutti_status start_message(const plan *p, const ranks_context *context, int index, message *m) {
    int n = context->nranks, next = (context->rank + 1) % n, before = (context->rank + n - 1) % n;
    m->count = draw(p, index, 20) % 600;
    for (size_t i = 0; i < m->count; i++) m->out[i] = draw(p, index, (int)i) + (uint64_t)context->rank;
    int64_t tag = (int64_t)(draw(p, index, 21) % 3);
    bool receive_first = (draw(p, index, 22) + (uint64_t)context->rank) % 2 == 0;
    for (int i = 0; i < 2; i++) {
        if ((i == 0) == receive_first)
            TUTTI_TRY(tutti_recv(context->comm, m->in, m->count, TUTTI_UINT64, before, tag,
                                 &TUTTI_OPTIONS(.work = &m->works[i])));
        else
            TUTTI_TRY(tutti_send(context->comm, m->out, m->count, TUTTI_UINT64, next, tag,
                                 &TUTTI_OPTIONS(.work = &m->works[i])));
    }
    return TUTTI_OK;
}

static tutti_status finish_message(const plan *p, const ranks_context *context, int index, const message *m) {
    int before = (context->rank + context->nranks - 1) % context->nranks;
    for (int i = 0; i < 2; i++) TUTTI_TRY(tutti_work_wait(m->works[i], -1));
    for (size_t i = 0; i < m->count; i++)
        RANKS_CHECK(m->in[i] == draw(p, index, (int)i) + (uint64_t)before, "seed %llu, message %d, element %zu differs",
                    (unsigned long long)p->seed, index, i);
    return TUTTI_OK;
}

static tutti_status run_batch(const plan *p, const ranks_context *context, int first, int count, message *m) {
    pending batch[MOST_IN_FLIGHT];
    int started = 0;
    tutti_status status = start_message(p, context, first, m);
    for (; started < count && status == TUTTI_OK; started++)
        status = start(p, context, first + started, &batch[started]);
    /* Odd ranks wait in the opposite order: works may be waited for in any order. */
    for (int i = 0; i < started && status == TUTTI_OK; i++)
        status = finish(p, &batch[context->rank % 2 == 0 ? i : started - 1 - i]);
    if (status == TUTTI_OK) status = finish_message(p, context, first, m);
    for (int i = 0; i < started; i++) release(&batch[i]);
    for (int i = 0; i < 2; i++) {
        if (m->works[i] != NULL) tutti_work_wait(m->works[i], -1);
        tutti_work_free(m->works[i]);
        m->works[i] = NULL;
    }
    return status;
}

static tutti_status run_plan(ranks_context *context) {
    const plan *p = context->argument;
    message m = {.out = calloc(600, sizeof *m.out), .in = calloc(600, sizeof *m.in)};
    tutti_status status = m.out != NULL && m.in != NULL ? TUTTI_OK : TUTTI_ERR_MEMORY;
    for (int index = 0; index < p->calls && status == TUTTI_OK;) {
        int count = 1 + (int)(draw(p, index, 30) % MOST_IN_FLIGHT);
        status = run_batch(p, context, index, count, &m);
        index += count;
    }
    free(m.out);
    free(m.in);
    return status;
}

static void run(ranks_kind kind, int nranks, int share) {
    const char *seed = getenv("TUTTI_TEST_SEED"), *calls = getenv("TUTTI_TEST_CALLS");
    plan p = {.seed = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 1000 + (uint64_t)getpid() % 1000,
              .calls = (calls != NULL ? atoi(calls) : 10000) / share};
    if (kind == RANKS_PROCESSES && !ranks_have_processes()) cr_skip_test("needs ranks as processes");
    setenv("TUTTI_CHUNK_BYTES", "512", 1);
    setenv("TUTTI_EAGER_BYTES", "512", 1);
    tutti_settings_reload();
    printf("%d %s, %d calls: TUTTI_TEST_SEED=%llu\n", nranks, kind == RANKS_PROCESSES ? "processes" : "threads",
           p.calls, (unsigned long long)p.seed);
    fflush(stdout);
    const char *failure =
        ranks_run(&(ranks_options){.kind = kind, .nranks = nranks, .timeout_s = 200, .argument = &p}, run_plan);
    cr_assert(failure == NULL, "%s", failure);
}

Test(random, three_processes_make_ten_thousand_calls) {
    run(RANKS_PROCESSES, 3, 1);
}

Test(random, two_threads_make_a_fifth_of_them) {
    run(RANKS_THREADS, 2, 5);
}

Test(random, five_processes_make_a_tenth_of_them) {
    run(RANKS_PROCESSES, 5, 10);
}

Test(random, four_threads_make_a_tenth_of_them) {
    run(RANKS_THREADS, 4, 10);
}
