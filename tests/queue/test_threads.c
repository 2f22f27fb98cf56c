/*
 * Several threads of a rank on one communicator.
 */
#include <criterion/criterion.h>
#include <pthread.h>

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
