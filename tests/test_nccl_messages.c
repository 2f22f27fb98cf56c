/*
 * Messages on CUDA memory that go by NCCL, where TUTTI_CUDA_MESSAGES asks for it. GPUs and NCCL are stand-ins
 * (support/standin_cuda.c, standin_nccl.c), which count what they are asked.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/nccl_scene.h"

TestSuite(nccl_messages, .timeout = 240);

static const int worlds[] = {2, 3, 4, 0};

#define ITEMS 30000

static const char *const with_messages[] = {"STANDIN_GPUS=8", "TUTTI_CUDA_MESSAGES=nccl", NULL};

typedef struct mailbox {
    int32_t out[ITEMS], in[ITEMS];
    void *out_there, *in_there;
} mailbox;

static int32_t item(int from, int round, int at) {
    return from * 1000003 + round * 10007 + at;
}

static tutti_status open_mailbox(cuda_rank *rank, mailbox *box) {
    TUTTI_TRY(cuda_alloc(rank, sizeof box->out, &box->out_there));
    return cuda_alloc(rank, sizeof box->in, &box->in_there);
}

static tutti_status fill_mailbox(cuda_rank *rank, mailbox *box, int self, int round) {
    for (int i = 0; i < ITEMS; i++) box->out[i] = item(self, round, i);
    TUTTI_TRY(rank->device->copy(box->out_there, box->out, sizeof box->out, rank->streams[0]));
    return rank->device->stream_sync(rank->streams[0]); /* messages may be in other streams */
}

static tutti_status check_mailbox(cuda_rank *rank, mailbox *box, int count, int from, int round, tutti_stream stream) {
    TUTTI_TRY(rank->device->copy(box->in, box->in_there, sizeof box->in, stream));
    TUTTI_TRY(rank->device->stream_sync(stream));
    for (int i = 0; i < count; i++)
        RANKS_CHECK(box->in[i] == item(from, round, i), "item %d of round %d from rank %d is %d", i, round, from,
                    box->in[i]);
    return TUTTI_OK;
}

static tutti_status meet_there(tutti_comm *comm) {
    return tutti_barrier(comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA));
}

/* Around the ring, both directions in one group, in one stream or in two. */
static tutti_status exchanges(ranks_context *context, cuda_rank *rank) {
    static mailbox boxes[8]; /* by rank: they may be threads */
    mailbox *box = &boxes[context->rank];
    int n = context->nranks, to = (context->rank + 1) % n, from = (context->rank + n - 1) % n;
    const int counts[] = {ITEMS, 1, 0, 777};
    TUTTI_TRY(open_mailbox(rank, box));
    TUTTI_TRY(meet_there(context->comm));
    int sent = nccl_count("ncclSend");
    for (int round = 0; round < 8; round++) {
        int count = counts[round % 4];
        tutti_work *work = NULL;
        tutti_options receiving = TUTTI_OPTIONS(.stream = rank->streams[0]), sending = receiving;
        if (round % 2 == 1) sending.stream = rank->streams[1];
        TUTTI_TRY(fill_mailbox(rank, box, context->rank, round));
        TUTTI_TRY(tutti_group_begin(context->comm));
        TUTTI_TRY(tutti_send(context->comm, box->out_there, (size_t)count, TUTTI_INT32, to, 3, &sending));
        TUTTI_TRY(tutti_recv(context->comm, box->in_there, (size_t)count, TUTTI_INT32, from, 3, &receiving));
        TUTTI_TRY(tutti_group_end(context->comm, &TUTTI_OPTIONS(.work = round < 4 ? &work : NULL)));
        if (work != NULL) TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
        TUTTI_TRY(check_mailbox(rank, box, count, from, round, rank->streams[0]));
        TUTTI_TRY(rank->device->stream_sync(rank->streams[1]));
    }
    RANKS_CHECK(nccl_count("ncclSend") >= sent + 6, "they did not go by NCCL");
    return TUTTI_OK;
}

static tutti_status exchanges_body(ranks_context *context) {
    return nccl_with_rank(context, exchanges);
}

Test(nccl_messages, messages_of_a_group_go_by_nccl_as_one) {
    nccl_run(worlds, with_messages, exchanges_body);
}

/* From rank to rank, each in its stream behind the one before; what comes is told by the work. A message to oneself and one on
 * host memory go as ever. */
static tutti_status chain(ranks_context *context, cuda_rank *rank) {
    static mailbox boxes[8];
    mailbox *box = &boxes[context->rank];
    int self = context->rank, last = context->nranks - 1;
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0]);
    tutti_work *work = NULL;
    TUTTI_TRY(open_mailbox(rank, box));
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED,
                 tutti_recv(context->comm, box->in_there, 1, TUTTI_INT32, self == 0 ? last : 0, 0, &options));
    TUTTI_TRY(meet_there(context->comm));
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED,
                 tutti_recv(context->comm, box->in_there, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, 0, &options));
    TUTTI_TRY(fill_mailbox(rank, box, 0, 1));
    TUTTI_TRY(nccl_capture(rank->streams[0], true));
    RANKS_EXPECT(TUTTI_ERR_UNSUPPORTED,
                 tutti_send(context->comm, box->out_there, 1, TUTTI_INT32, self == 0 ? last : 0, 0, &options));
    TUTTI_TRY(nccl_capture(rank->streams[0], false));
    if (self > 0) {
        options.work = &work;
        TUTTI_TRY(tutti_recv(context->comm, box->in_there, ITEMS, TUTTI_INT32, self - 1, 9, &options));
        options.work = NULL;
    }
    if (self < last)
        TUTTI_TRY(tutti_send(context->comm, self == 0 ? box->out_there : box->in_there, ITEMS, TUTTI_INT32, self + 1, 9,
                             &options));
    if (self > 0) {
        tutti_work_details details;
        TUTTI_TRY(tutti_work_wait(work, -1));
        TUTTI_TRY(tutti_work_get(work, &details));
        RANKS_CHECK(details.source == self - 1 && details.tag == 9 && details.count == ITEMS, "%zu items of rank %d",
                    details.count, details.source);
        TUTTI_TRY(check_mailbox(rank, box, ITEMS, 0, 1, rank->streams[0]));
    }
    tutti_work_free(work);
    TUTTI_TRY(tutti_send(context->comm, box->out_there, 5, TUTTI_INT32, self, 1, &options));
    TUTTI_TRY(tutti_recv(context->comm, box->in_there, 5, TUTTI_INT32, self, 1, &options));
    TUTTI_TRY(check_mailbox(rank, box, 5, 0, 1, rank->streams[0]));
    int value = self, got = -1;
    if (self == 0) TUTTI_TRY(tutti_send(context->comm, &value, 1, TUTTI_INT32, last, 1, NULL));
    if (self == last) TUTTI_TRY(tutti_recv(context->comm, &got, 1, TUTTI_INT32, 0, 1, NULL));
    RANKS_CHECK(self != last || got == 0, "%d came by the host", got);
    return TUTTI_OK;
}

static tutti_status chain_body(ranks_context *context) {
    return nccl_with_rank(context, chain);
}

Test(nccl_messages, messages_go_from_rank_to_rank_in_stream_order) {
    nccl_run(worlds, with_messages, chain_body);
}
