/*
 * Starts that fail: every rank names the rank that is missing, has died, gives another number of ranks, knows another
 * secret or has no memory, long before the deadline where it can know that.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

TestSuite(start_failure, .timeout = 120);

enum { SOON_MS = 3000 };

static void run(int nranks, ranks_body body) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    const char *failure = ranks_run(&(ranks_options){.nranks = nranks, .no_comm = true, .timeout_s = 40}, body);
    cr_assert(failure == NULL, "%s", failure);
}

/* The creation must fail with that status, within that time, and with these words in its text. */
static tutti_status expect(ranks_context *context, int nranks, const tutti_store *store, tutti_status expected,
                           int64_t most_ms, const char *words) {
    tutti_comm *comm;
    int64_t start_ns = tutti_now_ns();
    tutti_status status = tutti_comm_create(context->rank, nranks, store, "start", NULL, &comm);
    int64_t ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(status == expected, "'%s' (%s)", tutti_status_name(status),
                status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), words) != NULL, "no \"%s\" in: %s", words, tutti_last_error());
    RANKS_CHECK(ms <= most_ms, "the error took %lld ms: %s", (long long)ms, tutti_last_error());
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------------ deaths */

/* A store with which a rank reads where its host's ranks meet, and then dies. */
typedef struct fatal_store {
    const tutti_store *inner;
    const ranks_context *context;
    bool fatal;
} fatal_store;

static tutti_status fatal_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes_out,
                              int64_t timeout_ms) {
    const fatal_store *f = context;
    const char *last = strrchr(key, '/');
    tutti_status status = f->inner->get(f->inner->context, key, value, capacity, bytes_out, timeout_ms);
    if (f->fatal && last != NULL && strcmp(last, "/peer_table") == 0) ranks_strike(f->context, SIGKILL);
    return status;
}

static tutti_status fatal_set(void *context, const char *key, const void *value, size_t bytes) {
    const fatal_store *f = context;
    return f->inner->set(f->inner->context, key, value, bytes);
}

static tutti_status fatal_add(void *context, const char *key, int64_t amount, int64_t *value_out) {
    const fatal_store *f = context;
    return f->inner->add(f->inner->context, key, amount, value_out);
}

static tutti_status fatal_check(void *context, const char *key, int *exists_out) {
    const fatal_store *f = context;
    return f->inner->check(f->inner->context, key, exists_out);
}

static tutti_status die_after_the_table(ranks_context *context, int victim, const char *words) {
    fatal_store fatal = {.inner = context->store, .context = context, .fatal = context->rank == victim};
    const tutti_store store = {.struct_bytes = sizeof store,
                               .context = &fatal,
                               .set = fatal_set,
                               .get = fatal_get,
                               .add = fatal_add,
                               .check = fatal_check};
    return expect(context, context->nranks, &store, TUTTI_ERR_PEER_DIED, SOON_MS, words);
}

static tutti_status member_dies(ranks_context *context) {
    return die_after_the_table(context, 3, "rank 3 (host ");
}

Test(start_failure, a_rank_that_dies_before_the_ranks_of_its_host_meet_is_named_soon) {
    run(5, member_dies);
}

static tutti_status leader_dies(ranks_context *context) {
    return die_after_the_table(context, 0, "rank 0 (pid ");
}

Test(start_failure, a_leader_that_dies_before_the_ranks_of_its_host_meet_is_named_soon) {
    run(5, leader_dies);
}

/* ------------------------------------------------------------------------------------------- missing ranks */

static tutti_status one_does_not_come(ranks_context *context) {
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "1500", 1);
    tutti_settings_reload();
    if (context->rank == 6 || context->rank == 3) return TUTTI_OK;
    return expect(context, context->nranks, context->store, TUTTI_ERR_TIMEOUT, 1500 + SOON_MS,
                  "these have not joined before the deadline (TUTTI_CONNECT_TIMEOUT_MS): 3, 6");
}

Test(start_failure, ranks_that_do_not_come_are_named_on_all) {
    run(9, one_does_not_come);
}

static tutti_status first_does_not_come(ranks_context *context) {
    setenv("TUTTI_CONNECT_TIMEOUT_MS", "1000", 1);
    tutti_settings_reload();
    if (context->rank == 0) return TUTTI_OK;
    return expect(context, context->nranks, context->store, TUTTI_ERR_TIMEOUT, 1000 + SOON_MS,
                  "rank 0 has not gathered");
}

Test(start_failure, a_rank_0_that_does_not_come_is_named_on_all) {
    run(4, first_does_not_come);
}

/* -------------------------------------------------------------------------------------------- what differs */

static tutti_status one_says_more(ranks_context *context) {
    int nranks = context->rank == 4 ? 64 : context->nranks;
    return expect(context, nranks, context->store, TUTTI_ERR_CONFIG, SOON_MS, "WORLD_SIZE must be equal everywhere");
}

Test(start_failure, a_rank_that_gives_another_number_of_ranks_is_found_soon) {
    run(6, one_says_more);
}

static tutti_status first_says_more(ranks_context *context) {
    int nranks = context->rank == 0 ? 64 : context->nranks;
    return expect(context, nranks, context->store, TUTTI_ERR_CONFIG, SOON_MS, "WORLD_SIZE must be equal everywhere");
}

Test(start_failure, a_rank_0_that_gives_another_number_of_ranks_is_found_soon) {
    run(6, first_says_more);
}

static tutti_status one_knows_another_secret(ranks_context *context) {
    setenv("TUTTI_SECRET", context->rank == 1 ? "password" : "another", 1);
    tutti_settings_reload();
    return expect(context, context->nranks, context->store, TUTTI_ERR_REFUSED, SOON_MS,
                  "does not know this job's secret");
}

Test(start_failure, a_rank_with_another_secret_is_found_soon_by_all_others) {
    run(2, one_knows_another_secret);
}

static tutti_status one_has_no_memory(ranks_context *context) {
    if (context->rank == 2) setenv("TUTTI_FAULT", "segment_shortage:0:1", 1);
    tutti_settings_reload();
    return expect(context, context->nranks, context->store, TUTTI_ERR_MEMORY, SOON_MS,
                  "no shared memory for a communicator");
}

Test(start_failure, shortage_on_one_rank_is_an_error_on_all) {
    run(4, one_has_no_memory);
}
