/*
 * A rank that stops while it writes into the others' buffers: these ranks get their error, and when the stopped rank
 * goes on, it writes into no memory that they have allocated since.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/ranks.h"

enum { STOPPED = 1, COUNT = 3 << 18, BYTES = COUNT * (int)sizeof(float), BLOCKS = 8, PATTERN = 0x5a };

static const char *const impatient[] = {"TUTTI_TIMEOUT_MS=1000", NULL};

/* Allocates blocks of the failed buffer's size, in its place if the heap allows that; wakes the stopped rank; checks
 * the blocks. */
static tutti_status check_later_blocks(ranks_context *context, const void *failed) {
    const tutti_store *store = context->store;
    unsigned char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        void *block;
        TUTTI_TRY(tutti_mem_alloc(BYTES, &block));
        RANKS_CHECK(block != failed, "the failed call's buffer was handed out again");
        blocks[i] = memset(block, PATTERN, BYTES);
    }
    int said = 0;
    size_t bytes;
    if (context->rank == 0) {
        TUTTI_TRY(store->get(store->context, "blocks", &said, sizeof said, &bytes, 10000));
        kill(ranks_pid(context, STOPPED), SIGCONT);
    } else {
        TUTTI_TRY(store->set(store->context, "blocks", &said, sizeof said));
    }
    TUTTI_TRY(store->get(store->context, "woken", &said, sizeof said, &bytes, 10000));
    RANKS_CHECK(said == 1, "the stopped rank has not learnt of the failure");
    for (int i = 0; i < BLOCKS; i++)
        for (size_t k = 0; k < BYTES; k++)
            RANKS_CHECK(blocks[i][k] == PATTERN, "byte %zu of block %d was overwritten", k, i);
    return TUTTI_OK;
}

static tutti_status stop_while_pushing(ranks_context *context) {
    if (context->rank == STOPPED) setenv("TUTTI_FAULT", "push_stop:3", 1);
    tutti_settings_reload();
    tutti_comm *comm;
    TUTTI_TRY(tutti_comm_create(context->rank, context->nranks, context->store, "push", NULL, &comm));
    void *buffer;
    TUTTI_TRY(tutti_mem_alloc(BYTES, &buffer));
    memset(buffer, 0, BYTES);
    TUTTI_TRY(tutti_barrier(comm, NULL)); /* all ranks enter the call in time */
    ranks_forgive(context, STOPPED);
    tutti_status status = tutti_all_reduce(comm, buffer, buffer, COUNT, TUTTI_FLOAT32, TUTTI_SUM, NULL);
    if (context->rank == STOPPED) {
        /* The other ranks had done their part before they gave up, so the call itself may succeed here. */
        int said = status != TUTTI_OK || tutti_barrier(comm, NULL) != TUTTI_OK;
        return context->store->set(context->store->context, "woken", &said, sizeof said);
    }
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status),
                status != TUTTI_OK ? tutti_last_error() : "");
    RANKS_CHECK(strstr(tutti_last_error(), "rank 1") != NULL, "the error does not name it: %s", tutti_last_error());
    TUTTI_TRY(tutti_mem_free(buffer));
    TUTTI_TRY(check_later_blocks(context, buffer));
    return tutti_comm_destroy(comm);
}

Test(failure_push, a_stopped_rank_that_goes_on_writes_into_no_later_block) {
    if (!ranks_have_processes()) cr_skip_test("this build cannot detect writes across processes");
    ranks_options options = {.kind = RANKS_PROCESSES, .nranks = 3, .no_comm = true, .environment = impatient};
    const char *failure = ranks_run(&options, stop_while_pushing);
    cr_assert(failure == NULL, "%s", failure);
}

/* An abort in the middle of many calls: every rank leaves, and the memory that it frees may be used at once. */
static tutti_status abort_while_pushing(ranks_context *context) {
    for (int round = 0; round < 20; round++) {
        tutti_comm *comm;
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
        void *buffer;
        TUTTI_TRY(tutti_mem_alloc(BYTES, &buffer));
        memset(buffer, 0, BYTES);
        tutti_work *work;
        TUTTI_TRY(
            tutti_all_reduce(comm, buffer, buffer, COUNT, TUTTI_FLOAT32, TUTTI_SUM, &TUTTI_OPTIONS(.work = &work)));
        if (context->rank == round % context->nranks) TUTTI_TRY(tutti_comm_abort(comm, "for a test"));
        tutti_status status = tutti_work_wait(work, -1);
        RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_ABORTED, "'%s'", tutti_status_name(status));
        tutti_work_free(work);
        memset(buffer, round, BYTES);
        for (size_t k = 0; k < BYTES; k++)
            RANKS_CHECK(((unsigned char *)buffer)[k] == round, "round %d: byte %zu was overwritten later", round, k);
        TUTTI_TRY(tutti_mem_free(buffer));
        TUTTI_TRY(tutti_comm_destroy(comm));
    }
    return tutti_barrier(context->comm, NULL);
}

Test(failure_push, no_rank_writes_after_an_aborted_call_has_returned) {
    const char *failure = ranks_run_worlds((const int[]){2, 3, 0}, NULL, abort_while_pushing);
    cr_assert(failure == NULL, "%s", failure);
}
