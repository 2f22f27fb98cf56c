/*
 * A rank stops (SIGSTOP) or never joins: first a report on standard error that names it, then the deadline.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/ranks.h"

enum { STOPPED = 1 };

static const char *const impatient[] = {"TUTTI_STALL_MS=300", "TUTTI_TIMEOUT_MS=1500", NULL};
static const char *const patient[] = {"TUTTI_STALL_MS=300", "TUTTI_TIMEOUT_MS=60000", NULL};

/* Redirects standard error to a file in memory; returns its descriptor. */
static int catch_errors(void) {
    int file = memfd_create("stderr", 0);
    dup2(file, STDERR_FILENO);
    return file;
}

static tutti_status check_report(int file) {
    static char text[65536];
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    RANKS_CHECK(strstr(text, "rank 1") != NULL, "the report does not name rank 1: '%s'", text);
    RANKS_CHECK(strstr(text, "all_reduce") != NULL, "the report does not name the call: '%s'", text);
    return TUTTI_OK;
}

/* The other ranks report and give up; then rank 0 wakes the stopped rank, which must get the error. */
static tutti_status stop_for_good(ranks_context *context) {
    static int values[1000];
    int errors = catch_errors();
    if (context->rank == STOPPED) {
        ranks_strike(context, SIGSTOP);
        tutti_status status = tutti_all_reduce(context->comm, values, values, 1000, TUTTI_INT32, TUTTI_SUM, NULL);
        int said = status != TUTTI_OK;
        return context->store->set(context->store->context, "woken", &said, sizeof said);
    }
    int64_t start_ns = tutti_now_ns();
    tutti_status status = tutti_all_reduce(context->comm, values, values, 1000, TUTTI_INT32, TUTTI_SUM, NULL);
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status),
                status != TUTTI_OK ? tutti_last_error() : "");
    RANKS_CHECK(strstr(tutti_last_error(), "rank 1") != NULL, "the error does not name it: %s", tutti_last_error());
    RANKS_CHECK(took_ms >= 1000 && took_ms < 6000, "the deadline of 1500 ms passed after %lld ms", (long long)took_ms);
    TUTTI_TRY(check_report(errors));
    if (context->rank != 0) return TUTTI_OK;
    int said = 0;
    size_t bytes;
    kill(ranks_pid(context, STOPPED), SIGCONT);
    TUTTI_TRY(context->store->get(context->store->context, "woken", &said, sizeof said, &bytes, 10000));
    RANKS_CHECK(said, "the woken rank's call went well although the others had given up");
    return TUTTI_OK;
}

Test(failure_stall, a_stopped_rank_is_reported_then_the_deadline_passes_and_it_learns_of_it) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    const char *failure =
        ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 30, .environment = impatient}, stop_for_good);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status stop_for_a_while(ranks_context *context) {
    int value = 1, errors = catch_errors();
    if (context->rank == STOPPED) raise(SIGSTOP);
    if (context->rank == 0) {
        tutti_work *work;
        TUTTI_TRY(
            tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &work)));
        RANKS_EXPECT(TUTTI_NOT_YET, tutti_work_wait(work, 1200));
        kill(ranks_pid(context, STOPPED), SIGCONT);
        TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
        TUTTI_TRY(check_report(errors));
    } else {
        TUTTI_TRY(tutti_all_reduce(context->comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, NULL));
    }
    RANKS_CHECK(value == context->nranks, "the sum is %d", value);
    return tutti_barrier(context->comm, NULL);
}

Test(failure_stall, a_rank_that_goes_on_in_time_is_only_reported) {
    if (!ranks_have_processes()) cr_skip_test("needs ranks as processes");
    const char *failure =
        ranks_run(&(ranks_options){.nranks = 3, .timeout_s = 30, .environment = patient}, stop_for_a_while);
    cr_assert(failure == NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------- deadlines of one's own */

static tutti_status hear_or_time_out(ranks_context *context) {
    char done;
    size_t bytes;
    if (context->rank == 1) return context->store->get(context->store->context, "done", &done, 1, &bytes, 20000);
    int64_t start_ns = tutti_now_ns();
    tutti_status status = tutti_barrier(context->comm, &TUTTI_OPTIONS(.timeout_ms = 200));
    int64_t took_ms = (tutti_now_ns() - start_ns) / 1000000;
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s'", tutti_status_name(status));
    RANKS_CHECK(strstr(tutti_last_error(), "rank 1") != NULL, "not named: %s", tutti_last_error());
    RANKS_CHECK(took_ms >= 150 && took_ms < 5000, "200 ms took %lld ms", (long long)took_ms);
    RANKS_CHECK(tutti_barrier(context->comm, NULL) != TUTTI_OK, "the communicator is whole after a timeout");
    return context->store->set(context->store->context, "done", "", 0);
}

Test(failure_stall, a_call_may_have_its_own_deadline) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, hear_or_time_out);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status receive_nothing(ranks_context *context) {
    int value;
    if (context->rank == 1) return tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, 1, NULL);
    tutti_status status = tutti_recv(context->comm, &value, 1, TUTTI_INT32, 1, 0, &TUTTI_OPTIONS(.timeout_ms = 200));
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s'", tutti_status_name(status));
    return TUTTI_OK;
}

static tutti_status receive_and_look(ranks_context *context) {
    tutti_status status = receive_nothing(context);
    if (context->rank == 0) return status;
    RANKS_CHECK(status != TUTTI_OK, "a receive without a message went well");
    return TUTTI_OK;
}

Test(failure_stall, a_receive_without_a_sender_times_out_and_breaks_the_communicator_everywhere) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, receive_and_look);
    cr_assert(failure == NULL, "%s", failure);
}

/* ----------------------------------------------------------------------------------------------- abort */

static void *abort_soon(void *comm) {
    usleep(50000);
    tutti_comm_abort(comm, "the test has had enough");
    return NULL;
}

static tutti_status abort_inside(ranks_context *context) {
    pthread_t thread;
    if (context->rank == 0) RANKS_CHECK(pthread_create(&thread, NULL, abort_soon, context->comm) == 0, "no thread");
    int64_t start_ns = tutti_now_ns();
    tutti_status status = TUTTI_OK;
    int value;
    if (context->rank == context->nranks - 1) status = tutti_recv(context->comm, &value, 1, TUTTI_INT32, 0, 0, NULL);
    else status = tutti_barrier(context->comm, NULL);
    char text[512];
    snprintf(text, sizeof text, "%s", status != TUTTI_OK ? tutti_last_error() : "");
    if (context->rank == 0) pthread_join(thread, NULL);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(tutti_now_ns() - start_ns < 2000000000LL, "the abort took its time");
    RANKS_CHECK(strstr(text, "had enough") != NULL, "the reason is missing: %s", text);
    status = tutti_barrier(context->comm, NULL);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED || status == TUTTI_ERR_BROKEN, "later: '%s'", tutti_status_name(status));
    return TUTTI_OK;
}

Test(failure_stall, abort_from_another_thread_ends_calls_here_and_on_peers) {
    const char *failure = ranks_run_worlds((const int[]){2, 3, 0}, NULL, abort_inside);
    cr_assert(failure == NULL, "%s", failure);
}

/* Destroy waits for no rank; calls under way fail. */
static tutti_status destroy_under_way(ranks_context *context) {
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_split(context->comm, 0, 0, NULL, &comm));
    if (context->rank == 0) {
        tutti_work *work;
        int value = 1;
        TUTTI_TRY(tutti_all_reduce(comm, &value, &value, 1, TUTTI_INT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &work)));
        TUTTI_TRY(tutti_comm_destroy(comm));
        tutti_status status = tutti_work_wait(work, 5000);
        tutti_work_free(work);
        RANKS_CHECK(status < 0, "the work gave '%s'", tutti_status_name(status));
        return tutti_barrier(context->comm, NULL);
    }
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    return tutti_comm_destroy(comm);
}

Test(failure_stall, destroy_ends_what_is_under_way) {
    const char *failure = ranks_run_worlds((const int[]){2, 3, 0}, NULL, destroy_under_way);
    cr_assert(failure == NULL, "%s", failure);
}
