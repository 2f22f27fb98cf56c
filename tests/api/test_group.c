/*
 * Group calls: calls between begin and end start together and end as one operation.
 */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

static const int worlds[] = {1, 2, 3, 4, 7, 0};

static void run(ranks_body body) {
    setenv("TUTTI_EAGER_BYTES", "256", 1); /* too large to be buffered in the exchange below */
    setenv("TUTTI_CHUNK_BYTES", "512", 1);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(worlds, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

enum { COUNT = 5000 };

/* Every rank sends to every rank, itself included, then receives: without a group this would deadlock. */
static tutti_status record_exchange(const ranks_context *context, int *out, int *in) {
    TUTTI_TRY(tutti_group_begin(context->comm));
    for (int peer = 0; peer < context->nranks; peer++) {
        for (int i = 0; i < COUNT; i++) out[peer * COUNT + i] = context->rank * 1000000 + peer * 10000 + i;
        TUTTI_TRY(tutti_send(context->comm, out + peer * COUNT, COUNT, TUTTI_INT32, peer, 5, NULL));
    }
    for (int peer = 0; peer < context->nranks; peer++)
        TUTTI_TRY(tutti_recv(context->comm, in + peer * COUNT, COUNT, TUTTI_INT32, peer, 5, NULL));
    return TUTTI_OK;
}

static tutti_status check_exchange(const ranks_context *context, const int *in) {
    for (int peer = 0; peer < context->nranks; peer++)
        for (int i = 0; i < COUNT; i++)
            RANKS_CHECK(in[peer * COUNT + i] == peer * 1000000 + context->rank * 10000 + i, "from %d, element %d: %d",
                        peer, i, in[peer * COUNT + i]);
    return TUTTI_OK;
}

static tutti_status exchange(const ranks_context *context, int *out, int *in) {
    TUTTI_TRY(record_exchange(context, out, in));
    TUTTI_TRY(tutti_group_end(context->comm, NULL));
    TUTTI_TRY(check_exchange(context, in));
    for (int i = 0; i < context->nranks * COUNT; i++) in[i] = -1;
    tutti_work *work;
    TUTTI_TRY(record_exchange(context, out, in));
    TUTTI_TRY(tutti_group_end(context->comm, &TUTTI_OPTIONS(.work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    tutti_work_free(work);
    return status == TUTTI_OK ? check_exchange(context, in) : status;
}

static tutti_status exchange_body(ranks_context *context) {
    size_t bytes = (size_t)context->nranks * COUNT * sizeof(int);
    int *out = malloc(bytes), *in = calloc(1, bytes);
    tutti_status status = out != NULL && in != NULL ? exchange(context, out, in) : TUTTI_ERR_MEMORY;
    free(out);
    free(in);
    return status;
}

Test(group, sends_and_receives_are_all_posted_before_any_waits) {
    run(exchange_body);
}

static tutti_status mix_body(ranks_context *context) {
    int n = context->nranks, next = (context->rank + 1) % n, before = (context->rank + n - 1) % n;
    int own = context->rank, got = -1, sum = 0;
    float values[300], maximum[300];
    for (int i = 0; i < 300; i++) values[i] = (float)(context->rank * i);
    TUTTI_TRY(tutti_group_begin(context->comm));
    TUTTI_TRY(tutti_recv(context->comm, &got, 1, TUTTI_INT32, before, 1, NULL));
    TUTTI_TRY(tutti_all_reduce(context->comm, &own, &sum, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    TUTTI_TRY(tutti_send(context->comm, &own, 1, TUTTI_INT32, next, 1, NULL));
    TUTTI_TRY(tutti_all_reduce(context->comm, values, maximum, 300, TUTTI_FLOAT32, TUTTI_MAX, NULL));
    TUTTI_TRY(tutti_group_end(context->comm, NULL));
    RANKS_CHECK(got == before && sum == n * (n - 1) / 2, "got %d, sum %d", got, sum);
    for (int i = 0; i < 300; i++) RANKS_CHECK(maximum[i] == (float)((n - 1) * i), "element %d: %g", i, maximum[i]);
    return TUTTI_OK;
}

Test(group, messages_and_collectives_mix) {
    run(mix_body);
}

static tutti_status rules_body(ranks_context *context) {
    int value = 1;
    tutti_work *work;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_group_end(context->comm, NULL));
    TUTTI_TRY(tutti_group_begin(context->comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_group_begin(context->comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM,
                                                      &TUTTI_OPTIONS(.work = &work)));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_send(context->comm, &value, 1, TUTTI_INT32, context->nranks, 0, NULL));
    TUTTI_TRY(tutti_group_end(context->comm, NULL));
    TUTTI_TRY(tutti_group_begin(context->comm)); /* dropped: otherwise rank 0 would wait for a message from itself */
    TUTTI_TRY(tutti_recv(context->comm, &value, 1, TUTTI_INT32, context->rank, 0, NULL));
    TUTTI_TRY(tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    TUTTI_TRY(tutti_group_cancel(context->comm));
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_group_cancel(context->comm));
    TUTTI_TRY(tutti_group_begin(context->comm)); /* an empty group */
    TUTTI_TRY(tutti_group_end(context->comm, NULL));
    TUTTI_TRY(tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    RANKS_CHECK(value == context->nranks, "the sum is %d", value);
    return TUTTI_OK;
}

Test(group, wrong_calls_are_refused_and_the_group_can_still_end) {
    run(rules_body);
}

/* On rank 0 the second part cannot be started. The first part is under way then, and rank 1 waits for the second: the
 * group's end returns the error at once, the communicator breaks on both ranks, and no part writes to the buffers
 * afterwards. */
static tutti_status lose_a_part(ranks_context *context) {
    enum { BIG = 1 << 20 };
    char *in = calloc(BIG, 1), *out = calloc(BIG, 1);
    int peer = 1 - context->rank;
    tutti_comm *comm;
    if (context->rank == 0) setenv("TUTTI_FAULT", "group_start:1", 1);
    tutti_settings_reload();
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "part", NULL, &comm));
    TUTTI_TRY(tutti_group_begin(comm));
    TUTTI_TRY(tutti_recv(comm, in, BIG, TUTTI_UINT8, peer, 1, NULL));
    TUTTI_TRY(tutti_send(comm, out, BIG, TUTTI_UINT8, peer, 1, NULL));
    int64_t start_ns = tutti_now_ns();
    tutti_status status = tutti_group_end(comm, NULL);
    if (context->rank == 0) RANKS_CHECK(status == TUTTI_ERR_MEMORY, "'%s'", tutti_last_error());
    else RANKS_CHECK(status != TUTTI_OK && status != TUTTI_ERR_TIMEOUT, "'%s'", tutti_last_error());
    RANKS_CHECK(tutti_now_ns() - start_ns < 20 * INT64_C(1000000000), "the error came late");
    RANKS_CHECK(tutti_comm_error(comm) != TUTTI_OK, "the communicator stayed whole");
    (void)tutti_comm_destroy(comm);
    free(in);
    free(out);
    return TUTTI_OK;
}

Test(group, a_part_that_cannot_be_started_ends_those_under_way) {
    if (!ranks_have_processes()) cr_skip_test("ranks have to be processes");
    const char *failure = ranks_run(
        &(ranks_options){.kind = RANKS_PROCESSES, .nranks = 2, .timeout_s = 60, .no_comm = true}, lose_a_part);
    cr_assert(failure == NULL, "%s", failure);
}
