/*
 * Messages in flight together with other calls: none holds up what does not depend on it.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

enum { LARGE = 20000 }; /* ints; far beyond the eager limit */

static void run(const int *sizes, ranks_body body) {
    setenv("TUTTI_EAGER_BYTES", "1024", 1);
    setenv("TUTTI_CHUNK_BYTES", "1024", 1);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(sizes, NULL, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status say(const ranks_context *context, const char *key) {
    return context->store->set(context->store->context, key, "", 0);
}

static tutti_status hear(const ranks_context *context, const char *key) {
    char nothing;
    size_t bytes;
    return context->store->get(context->store->context, key, &nothing, 1, &bytes, 30000);
}

/* Rank 0 waits for rank 1, which sends only after rank 2's messages have come through. */
static tutti_status independent(ranks_context *context) {
    int *buffer = calloc(LARGE, sizeof *buffer), first = 0;
    tutti_work *work;
    tutti_status status = TUTTI_OK;
    if (buffer == NULL) return TUTTI_ERR_MEMORY;
    if (context->rank == 0) {
        TUTTI_TRY_GOTO(status, tutti_recv(context->comm, &first, 1, TUTTI_INT32, 1, 0, &TUTTI_OPTIONS(.work = &work)),
                       done);
        for (int i = 0; i < 10 && status == TUTTI_OK; i++)
            status = tutti_recv(context->comm, buffer, LARGE, TUTTI_INT32, 2, 0, NULL);
        if (status == TUTTI_OK && tutti_work_done(work)) status = tutti_fail(TUTTI_ERR_DATA, "rank 1 came too early");
        say(context, "through");
        if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
        tutti_work_free(work);
    } else if (context->rank == 1) {
        TUTTI_TRY_GOTO(status, hear(context, "through"), done);
        status = tutti_send(context->comm, &first, 1, TUTTI_INT32, 0, 0, NULL);
    } else if (context->rank == 2) {
        for (int i = 0; i < 10 && status == TUTTI_OK; i++)
            status = tutti_send(context->comm, buffer, LARGE, TUTTI_INT32, 0, 0, NULL);
    }
done:
    free(buffer);
    return status;
}

Test(p2p_progress, a_receive_that_waits_for_one_peer_does_not_hold_up_another) {
    run((const int[]){3, 4, 0}, independent);
}

/* Rank 0 sits in a barrier that rank 1 enters only when its large message to rank 0's posted receive is through. */
static tutti_status serve_inside_collective(ranks_context *context) {
    int *buffer = calloc(LARGE, sizeof *buffer);
    tutti_work *work = NULL;
    tutti_status status = buffer != NULL ? TUTTI_OK : TUTTI_ERR_MEMORY;
    for (int round = 0; round < 5 && status == TUTTI_OK; round++) {
        if (context->rank == 0)
            status = tutti_recv(context->comm, buffer, LARGE, TUTTI_INT32, 1, round, &TUTTI_OPTIONS(.work = &work));
        if (context->rank == 1) {
            usleep(3000);
            buffer[LARGE - 1] = round + 1;
            status = tutti_send(context->comm, buffer, LARGE, TUTTI_INT32, 0, round, NULL);
        }
        if (status == TUTTI_OK) status = tutti_barrier(context->comm, NULL);
        if (context->rank != 0 || status != TUTTI_OK) continue;
        status = tutti_work_wait(work, -1);
        tutti_work_free(work);
        if (status == TUTTI_OK && buffer[LARGE - 1] != round + 1)
            status = tutti_fail(TUTTI_ERR_DATA, "round %d: the last element is %d", round, buffer[LARGE - 1]);
    }
    free(buffer);
    return status;
}

Test(p2p_progress, a_rank_inside_a_collective_serves_the_message_that_another_waits_for) {
    run((const int[]){2, 3, 4, 0}, serve_inside_collective);
}

/* Rank 0 computes (sleeps) with a posted receive; the sender must not need it to call anything. */
static tutti_status serve_while_computing(ranks_context *context) {
    int *buffer = calloc(LARGE, sizeof *buffer);
    tutti_work *work = NULL;
    tutti_status status = buffer != NULL ? TUTTI_OK : TUTTI_ERR_MEMORY;
    if (status == TUTTI_OK && context->rank == 0) {
        status = tutti_recv(context->comm, buffer, LARGE, TUTTI_INT32, 1, 0, &TUTTI_OPTIONS(.work = &work));
        if (status == TUTTI_OK) status = say(context, "posted");
        if (status == TUTTI_OK) status = hear(context, "sent"); /* calls no library function meanwhile */
        if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
        tutti_work_free(work);
    } else if (status == TUTTI_OK && context->rank == 1) {
        status = hear(context, "posted");
        if (status == TUTTI_OK) status = tutti_send(context->comm, buffer, LARGE, TUTTI_INT32, 0, 0, NULL);
        if (status == TUTTI_OK) status = say(context, "sent");
    }
    free(buffer);
    return status;
}

Test(p2p_progress, a_posted_receive_is_served_while_its_rank_computes) {
    run((const int[]){2, 0}, serve_while_computing);
}

enum { OUTSTANDING = 200 };

/* Receives are posted last to first; each send has its own tag. */
static tutti_status many_outstanding(ranks_context *context) {
    int n = context->nranks, next = (context->rank + 1) % n, before = (context->rank + n - 1) % n;
    int (*out)[500] = calloc(OUTSTANDING, sizeof *out), (*in)[500] = calloc(OUTSTANDING, sizeof *in);
    tutti_work *works[2 * OUTSTANDING] = {NULL};
    tutti_status status = out != NULL && in != NULL ? TUTTI_OK : TUTTI_ERR_MEMORY;
    for (int i = 0; i < OUTSTANDING && status == TUTTI_OK; i++) {
        out[i][0] = out[i][499] = context->rank * 1000 + i;
        status = tutti_send(context->comm, out[i], i % 2 == 0 ? 1 : 500, TUTTI_INT32, next, i,
                            &TUTTI_OPTIONS(.work = &works[i]));
    }
    for (int i = OUTSTANDING - 1; i >= 0 && status == TUTTI_OK; i--)
        status = tutti_recv(context->comm, in[i], 500, TUTTI_INT32, before, i,
                            &TUTTI_OPTIONS(.work = &works[OUTSTANDING + i]));
    for (int i = 0; i < 2 * OUTSTANDING; i++) {
        if (works[i] != NULL && status == TUTTI_OK) status = tutti_work_wait(works[i], -1);
        tutti_work_free(works[i]);
    }
    for (int i = 0; i < OUTSTANDING && status == TUTTI_OK; i++)
        if (in[i][i % 2 == 0 ? 0 : 499] != before * 1000 + i)
            status = tutti_fail(TUTTI_ERR_DATA, "message %d is %d", i, in[i][0]);
    free(out);
    free(in);
    return status;
}

Test(p2p_progress, many_sends_and_receives_may_be_outstanding_in_any_order) {
    run((const int[]){1, 2, 3, 4, 7, 0}, many_outstanding);
}

/* Messages of one communicator never reach another, even with equal peers and tags. */
static tutti_status separate_communicators(ranks_context *context) {
    tutti_comm *other;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &other));
    int next = (context->rank + 1) % context->nranks, mine = 1, theirs = 2, got_mine = 0, got_theirs = 0;
    TUTTI_TRY(tutti_send(context->comm, &mine, 1, TUTTI_INT32, next, 0, NULL));
    TUTTI_TRY(tutti_send(other, &theirs, 1, TUTTI_INT32, next, 0, NULL));
    TUTTI_TRY(tutti_recv(other, &got_theirs, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, TUTTI_ANY_TAG, NULL));
    TUTTI_TRY(tutti_recv(context->comm, &got_mine, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, TUTTI_ANY_TAG, NULL));
    RANKS_CHECK(got_mine == mine && got_theirs == theirs, "got %d and %d", got_mine, got_theirs);
    return tutti_comm_destroy(other);
}

Test(p2p_progress, messages_stay_on_their_communicator) {
    run((const int[]){1, 2, 3, 4, 0}, separate_communicators);
}

enum { DELAYS = 24, HUGE_COUNT = 1 << 20 };

/* The sender begins to wait at various times, so that the receiver has copied nothing, some or all by itself then. */
static tutti_status wait_late(ranks_context *context) {
    int *buffer = malloc(HUGE_COUNT * sizeof *buffer);
    if (buffer == NULL) return TUTTI_ERR_MEMORY;
    tutti_status status = TUTTI_OK;
    for (int round = 0; round < DELAYS && status == TUTTI_OK; round++) {
        for (int i = 0; i < HUGE_COUNT; i++) buffer[i] = context->rank == 0 ? i + round : -1;
        TUTTI_TRY_GOTO(status, tutti_barrier(context->comm, NULL), done);
        if (context->rank == 1) {
            status = tutti_recv(context->comm, buffer, HUGE_COUNT, TUTTI_INT32, 0, 0, NULL);
            for (int i = 0; i < HUGE_COUNT && status == TUTTI_OK; i++)
                if (buffer[i] != i + round)
                    status = tutti_fail(TUTTI_ERR_DATA, "round %d, element %d: %d", round, i, buffer[i]);
            continue;
        }
        tutti_work *work;
        TUTTI_TRY_GOTO(status,
                       tutti_send(context->comm, buffer, HUGE_COUNT, TUTTI_INT32, 1, 0, &TUTTI_OPTIONS(.work = &work)),
                       done);
        usleep((useconds_t)(round * 50));
        status = tutti_work_wait(work, -1);
        tutti_work_free(work);
    }
done:
    free(buffer);
    return status;
}

Test(p2p_progress, a_large_send_may_be_waited_for_at_any_time) {
    run((const int[]){2, 0}, wait_late);
}
