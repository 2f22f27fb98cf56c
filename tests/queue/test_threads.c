/*
 * Several threads of a rank on one communicator.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <unistd.h>

#include "tests/support/ranks.h"

enum { THREADS = 4, CALLS = 200 };

static void *call_often(void *argument) {
    tutti_comm *comm = argument;
    for (int i = 0; i < CALLS; i++) {
        int one = 1;
        if (tutti_all_reduce(comm, &one, &one, 1, TUTTI_INT32, TUTTI_SUM, NULL) != TUTTI_OK) return "failed";
        if (one != tutti_comm_size(comm)) return "wrong sum";
    }
    return NULL;
}

/* Equal calls from several threads: whichever is first on each rank, they match. */
static tutti_status call_from_threads(ranks_context *context) {
    pthread_t threads[THREADS];
    void *wrong = NULL;
    for (int i = 0; i < THREADS; i++)
        RANKS_CHECK(pthread_create(&threads[i], NULL, call_often, context->comm) == 0, "no thread");
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        if (result != NULL) wrong = result;
    }
    RANKS_CHECK(wrong == NULL, "%s: %s", (const char *)wrong, tutti_last_error());
    return TUTTI_OK;
}

Test(threads, threads_may_share_a_communicator, .timeout = 120) {
    for (int kind = 0; kind < 2; kind++) {
        if (kind == 0 && !ranks_have_processes()) continue;
        const char *failure = ranks_run(
            &(ranks_options){.kind = kind == 0 ? RANKS_PROCESSES : RANKS_THREADS, .nranks = 2}, call_from_threads);
        cr_assert(failure == NULL, "%s", failure);
    }
}

enum { WAITS = 300 };

static void *wait_for_abort(void *work) {
    return tutti_work_wait(work, -1) == TUTTI_ERR_ABORTED ? NULL : "the receive did not end with the communicator";
}

/* The thread makes no call on the communicator, only one on the work, whose handle stays valid. */
static tutti_status destroy_beside_waits(ranks_context *context) {
    for (int i = 0; i < WAITS; i++) {
        tutti_comm *own;
        tutti_work *work;
        pthread_t thread;
        void *wrong;
        int value;
        TUTTI_TRY(tutti_comm_split(context->comm, context->rank, 0, NULL, &own));
        TUTTI_TRY(tutti_recv(own, &value, 1, TUTTI_INT32, 0, 0, &TUTTI_OPTIONS(.work = &work)));
        RANKS_CHECK(pthread_create(&thread, NULL, wait_for_abort, work) == 0, "no thread");
        usleep((unsigned)(i * 50));
        TUTTI_TRY(tutti_comm_destroy(own));
        pthread_join(thread, &wrong);
        tutti_work_free(work);
        RANKS_CHECK(wrong == NULL, "%s", (const char *)wrong);
    }
    return TUTTI_OK;
}

Test(threads, a_thread_that_waits_for_a_work_outlives_its_communicator, .timeout = 120) {
    const char *failure = ranks_run_worlds((const int[]){2, 0}, NULL, destroy_beside_waits);
    cr_assert(failure == NULL, "%s", failure);
}
