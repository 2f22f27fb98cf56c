/*
 * A rank that comes late, aborts or destroys under NCCL's stand-in: the others get an error, and no stream waits for
 * ever. See test_nccl_failure.c.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/deadline.h"
#include "tests/support/gpu/nccl_scene.h"

enum { VICTIM = 1 };

static void skip_on_gpus(void) {
    if (cuda_real_gpus() > 0) cr_skip("ranks need GPUs of their own");
}

TestSuite(nccl_end, .init = skip_on_gpus, .timeout = 120);

static const char *const plain[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", NULL};

static tutti_status come_late(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank == VICTIM) { /* joins after the others have given up */
        TUTTI_TRY(nccl_meet(context));
        RANKS_CHECK(nccl_sum_and_wait(context->comm, &rank, memory) != TUTTI_OK, "the late rank got no error");
        return nccl_check_streams(&rank);
    }
    tutti_status status = nccl_wait_within(context->comm, &rank, memory, 700);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    TUTTI_TRY(nccl_meet(context));
    return nccl_check_streams(&rank);
}

Test(nccl_end, a_rank_that_does_not_come_is_a_timeout) {
    nccl_set_stage();
    nccl_run_as(3, RANKS_PROCESSES, plain, come_late);
    nccl_run_as(3, RANKS_THREADS, plain, come_late);
}

static void *abort_soon(void *argument) {
    usleep(100000);
    tutti_comm_abort(argument, "the test has seen enough");
    return NULL;
}

static tutti_status be_aborted(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    pthread_t thread;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank == VICTIM) { /* makes no second call, but aborts */
        pthread_create(&thread, NULL, abort_soon, context->comm);
        pthread_join(thread, NULL);
        return nccl_check_streams(&rank);
    }
    tutti_status status = nccl_sum_and_wait(context->comm, &rank, memory);
    RANKS_CHECK(status == TUTTI_ERR_ABORTED, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "seen enough") != NULL, "%s", tutti_last_error());
    return nccl_check_streams(&rank);
}

Test(nccl_end, an_abort_ends_what_is_under_way_on_all_ranks) {
    nccl_set_stage();
    nccl_run_as(3, RANKS_PROCESSES, plain, be_aborted);
    nccl_run_as(3, RANKS_THREADS, plain, be_aborted);
}

/* Two communicators hang in one stream: aborts that waited for each other would hang for ever. */
static tutti_status abort_two(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *other;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &other));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_sum_and_wait(other, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank != VICTIM) {
        TUTTI_TRY(nccl_sum(context->comm, &rank, memory, NULL));
        TUTTI_TRY(nccl_sum(other, &rank, memory, NULL));
        usleep(100000);
        TUTTI_TRY(tutti_comm_abort(other, "the one behind"));
        TUTTI_TRY(tutti_comm_abort(context->comm, "the one in front"));
    }
    TUTTI_TRY(nccl_check_streams(&rank));
    TUTTI_TRY(nccl_meet(context)); /* no rank may leave earlier */
    return tutti_comm_destroy(other);
}

Test(nccl_end, aborts_do_not_wait_for_each_other) {
    nccl_set_stage();
    nccl_run_as(2, RANKS_PROCESSES, plain, abort_two);
    nccl_set_stage();
    nccl_run_as(2, RANKS_THREADS, plain, abort_two);
}

/* The communicator is destroyed while another rank has neither made the call nor destroyed it. */
static tutti_status destroy_early(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    tutti_comm *comm;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
    TUTTI_TRY(nccl_sum_and_wait(comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (context->rank == VICTIM) TUTTI_TRY(nccl_meet(context));
    else nccl_sum(comm, &rank, memory, NULL); /* refused if another rank has destroyed it already */
    TUTTI_TRY(tutti_comm_destroy(comm));
    if (context->rank != VICTIM) TUTTI_TRY(nccl_meet(context));
    return nccl_check_streams(&rank);
}

Test(nccl_end, destroying_waits_for_no_rank) {
    nccl_set_stage();
    nccl_run_as(3, RANKS_PROCESSES, plain, destroy_early);
    nccl_run_as(3, RANKS_THREADS, plain, destroy_early);
}
