/*
 * CUDA memory on several hosts, by way of pinned host memory and by NCCL: collectives and messages give what the
 * reference gives. The GPUs and NCCL are stand-ins (support/standins/standin_cuda.c, standin_nccl.c), the hosts network
 * namespaces.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/gpu/stream.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/hosts/hosts.h"

TestSuite(hosts_cuda, .timeout = 200);

#define STAGE_BYTES 4096 /* so that even little data goes in pieces */

static const char *const staged[] = {"STANDIN_GPUS=4", "TUTTI_ALGORITHM=staged", "TUTTI_CUDA_STAGE_BYTES=4096", NULL};

static const char *const nccl[] = {"STANDIN_GPUS=4", "TUTTI_ALGORITHM=nccl", "STANDIN_NCCL_ORDER=ranks",
                                   "TUTTI_STALL_MS=500", NULL};

static void run(const int *ranks_per_host, const char *const *environment, ranks_body body) {
    HOSTS_NEED(0);
    const char *failure = hosts_run(
        &(hosts_options){.ranks_per_host = ranks_per_host, .timeout_s = 90, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status with_rank(ranks_context *context, tutti_status (*body)(ranks_context *, cuda_rank *)) {
    cuda_rank rank;
    tutti_status status = cuda_rank_open(context, (size_t)8 << 20, &rank);
    if (status == TUTTI_OK) status = body(context, &rank);
    if (status == TUTTI_OK && strcmp(context->comm->cuda.streams->engine->name, getenv("TUTTI_ALGORITHM")) != 0)
        status = tutti_fail(TUTTI_ERR_DATA, "another engine did it: %s", context->comm->cuda.streams->engine->name);
    if (status == TUTTI_OK) status = cuda_rank_close(&rank, context->comm);
    return status;
}

/* ---------------------------------------------------------------------------------------------- collectives */

static tutti_status all_sizes(ranks_context *context, cuda_rank *rank) {
    return cuda_sweep_sizes(rank, context, STAGE_BYTES);
}

static tutti_status sizes_body(ranks_context *context) {
    return with_rank(context, all_sizes);
}

Test(hosts_cuda, collectives_give_what_the_reference_gives) {
    run((const int[]){2, 1, 0}, staged, sizes_body);
}

static tutti_status some_by_nccl(ranks_context *context, cuda_rank *rank) {
    static const call_kind kinds[] = {CALL_ALL_REDUCE, CALL_ALL_GATHER_V, CALL_ALL_TO_ALL, CALL_BROADCAST,
                                      CALL_BARRIER};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        call c = {.kind = kinds[i], .type = TUTTI_INT32, .count = 3001, .root = 2, .in_place = CALL_MIXED, .seed = i};
        TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[i % CUDA_STREAMS], i % 2 == 0));
    }
    return TUTTI_OK;
}

static tutti_status some_body(ranks_context *context) {
    return with_rank(context, some_by_nccl);
}

Test(hosts_cuda, collectives_by_nccl_give_what_the_reference_gives) {
    run((const int[]){2, 1, 0}, nccl, some_body);
}

/* Rank 0 makes a different call: rank 1 of its host detects it, and the other host gets the error too. */
static tutti_status differ(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    size_t count = context->rank == 0 ? 100 : 101;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    TUTTI_TRY(cuda_alloc(&rank, 4096, &memory));
    TUTTI_TRY(rank.device->fill(memory, 0, 4096, rank.streams[0]));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA))); /* it compares calls itself */
    TUTTI_TRY(rank.device->stream_sync(NULL));
    TUTTI_TRY(tutti_barrier(context->comm, NULL));
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 10 && status == TUTTI_OK; i++) {
        tutti_work *work = NULL;
        status = tutti_all_reduce(context->comm, memory, memory, count, TUTTI_INT32, TUTTI_SUM,
                                  &TUTTI_OPTIONS(.stream = rank.streams[0], .work = &work));
        if (status == TUTTI_OK) status = tutti_work_wait(work, -1);
        tutti_work_free(work);
        count = 100;
    }
    char text[1024];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, "(int32, 100, sum)") != NULL && strstr(text, "(int32, 101, sum)") != NULL, "%s", text);
    return rank.device->stream_sync(rank.streams[0]);
}

Test(hosts_cuda, calls_that_differ_within_a_host_are_shown_on_all) {
    run((const int[]){2, 1, 0}, nccl, differ);
}

/* ------------------------------------------------------------------------------------------------- messages */

enum { ITEMS = 40000 };

typedef struct mailbox {
    int32_t out[ITEMS], in[ITEMS];
    void *out_there, *in_there;
} mailbox;

static int32_t item(int from, int to, int at) {
    return from * 1000003 + to * 10007 + at;
}

static tutti_status open_mailbox(cuda_rank *rank, mailbox *box, int self, int to) {
    for (int i = 0; i < ITEMS; i++) box->out[i] = item(self, to, i);
    TUTTI_TRY(cuda_alloc(rank, sizeof box->out, &box->out_there));
    TUTTI_TRY(cuda_alloc(rank, sizeof box->in, &box->in_there));
    return cuda_put(rank, box->out_there, box->out, sizeof box->out, rank->streams[0]);
}

static tutti_status check(const mailbox *box, int count, int from, int to) {
    for (int i = 0; i < count; i++)
        RANKS_CHECK(box->in[i] == item(from, to, i), "item %d of %d from rank %d is %d", i, count, from, box->in[i]);
    return TUTTI_OK;
}

/* Around the ring at once, so between hosts and within one; the receiver's memory is the GPU's or the host's. */
static tutti_status around(ranks_context *context, cuda_rank *rank) {
    static mailbox box;
    int n = context->nranks, to = (context->rank + 1) % n, from = (context->rank + n - 1) % n;
    TUTTI_TRY(open_mailbox(rank, &box, context->rank, to));
    TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA)));
    const int counts[] = {0, 1, 777, ITEMS};
    for (int round = 0; round < 8; round++) {
        int count = counts[round % 4];
        bool takes_cuda = (round / 4 + context->rank) % 2 == 0;
        tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0]);
        memset(box.in, 0, sizeof box.in);
        TUTTI_TRY(tutti_group_begin(context->comm));
        TUTTI_TRY(
            tutti_recv(context->comm, takes_cuda ? box.in_there : box.in, ITEMS, TUTTI_INT32, from, round, &options));
        TUTTI_TRY(tutti_send(context->comm, box.out_there, (size_t)count, TUTTI_INT32, to, round, &options));
        TUTTI_TRY(tutti_group_end(context->comm, NULL));
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
        if (takes_cuda) TUTTI_TRY(cuda_fetch(rank, box.in, box.in_there, sizeof box.in, rank->streams[0]));
        TUTTI_TRY(check(&box, count, from, context->rank));
    }
    return TUTTI_OK;
}

static tutti_status around_body(ranks_context *context) {
    return with_rank(context, around);
}

Test(hosts_cuda, messages_arrive_in_both_kinds_of_memory) {
    run((const int[]){2, 1, 0}, staged, around_body);
    run((const int[]){1, 1, 0}, staged, around_body);
}
