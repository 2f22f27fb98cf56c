/*
 * Calls on CUDA memory run in stream order: only a caller that asks to wait waits. Works, streams, groups, messages,
 * and calls on host memory in between. The GPUs are stand-ins (support/standins/standin_cuda.c) that delay what is in
 * their streams, or real ones (support/gpu/cuda_call.h).
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap/base/common.h"
#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/reference.h"

TestSuite(stream_async, .timeout = 200);

#define ARENA_BYTES ((size_t)8 << 20)
#define CALLS       9

static const int worlds[] = {1, 2, 3, 4, 0};
static const char *const environment[] = {"TUTTI_CUDA_STAGE_BYTES=4096", "STANDIN_DELAY_US=300", NULL};

static void run_in(const int *sizes, ranks_body body) {
    setenv("TUTTI_CUDA_STAGE_BYTES", "4096", 1); /* for ranks that are threads */
    setenv("STANDIN_DELAY_US", "300", 1);
    tutti_settings_reload();
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 100, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static void run(ranks_body body) {
    run_in(worlds, body);
}

/* Opens the rank's place on its GPU, runs the body's part, closes it. */
#define WITH_RANK(name, part)                                                                                          \
    static tutti_status name(ranks_context *context) {                                                                 \
        cuda_rank rank;                                                                                                \
        tutti_status status = cuda_rank_open(context, ARENA_BYTES, &rank);                                             \
        if (status == TUTTI_OK) status = part(context, &rank);                                                         \
        return status == TUTTI_OK ? cuda_rank_close(&rank, context->comm) : status;                                    \
    }

static call call_number(int number, int nranks) {
    return (call){.kind = (call_kind)(number % CALL_KINDS),
                  .type = TUTTI_INT32,
                  .count = (size_t)(number * 211 % 3001),
                  .root = number % nranks,
                  .in_place = (call_mode)(number % CALL_MODES),
                  .seed = (uint64_t)number};
}

/* ---------------------------------------------------------------------------------------------- waiting */

/* The stream is held up by a gate that only this host thread opens, after the call. */
static tutti_status call_behind_gate(ranks_context *context, cuda_rank *rank) {
    cuda_gate gate;
    cuda_call mine;
    tutti_work *work = NULL;
    call c = {.kind = CALL_ALL_REDUCE, .type = TUTTI_INT64, .count = 3000, .seed = 7};
    TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[0], false)); /* the one in which the ranks meet */
    TUTTI_TRY(cuda_gate_create(rank, &gate));
    TUTTI_TRY(cuda_call_prepare(rank, &c, context->rank, context->nranks, rank->streams[0], &mine));
    TUTTI_TRY(cuda_gate_close(rank, &gate, rank->streams[0]));
    /* The call would hang if it waited for the stream. */
    TUTTI_TRY(call_start(&mine.there, context->comm, &TUTTI_OPTIONS(.stream = rank->streams[0], .work = &work)));
    RANKS_EXPECT(TUTTI_NOT_YET, tutti_work_wait(work, 50));
    RANKS_CHECK(!tutti_work_done(work), "it is done, but its stream has not come to it");
    cuda_gate_open(&gate);
    TUTTI_TRY(tutti_work_wait(work, -1));
    TUTTI_TRY(tutti_work_wait(work, 0));
    tutti_work_free(work);
    TUTTI_TRY(cuda_call_check(rank, &mine, rank->streams[0]));
    cuda_call_release(&mine);
    cuda_gate_destroy(rank, &gate);
    return TUTTI_OK;
}
WITH_RANK(gate_body, call_behind_gate)

Test(stream_async, a_call_returns_while_its_stream_is_busy) {
    run(gate_body);
}

static void count_callback(tutti_status status, void *context) {
    if (status == TUTTI_OK) atomic_fetch_add((atomic_int *)context, 1);
}

static tutti_status wait_backwards(ranks_context *context, cuda_rank *rank) {
    cuda_call calls[CALLS];
    tutti_work *works[CALLS];
    atomic_int called = 0;
    for (int i = 0; i < CALLS; i++) {
        tutti_stream stream = rank->streams[i % CUDA_STREAMS];
        call c = call_number(i + 1, context->nranks);
        tutti_options options = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = stream, .work = &works[i]);
        TUTTI_TRY(cuda_call_prepare(rank, &c, context->rank, context->nranks, stream, &calls[i]));
        TUTTI_TRY(call_start(&calls[i].there, context->comm, &options));
        if (i % 2 == 0) TUTTI_TRY(tutti_work_on_done(works[i], count_callback, &called));
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        tutti_work_details details;
        TUTTI_TRY(tutti_work_wait(works[i], i % 3 == 0 ? 60000 : -1));
        TUTTI_TRY(tutti_work_get(works[i], &details));
        RANKS_CHECK(details.status == TUTTI_OK && details.sequence == (uint64_t)i + 1, "work %d: sequence %llu", i,
                    (unsigned long long)details.sequence);
        TUTTI_TRY(cuda_call_check(rank, &calls[i], rank->streams[i % CUDA_STREAMS]));
        cuda_call_release(&calls[i]);
        tutti_work_free(works[i]);
    }
    tutti_deadline deadline = tutti_deadline_after_ms(20000);
    while (atomic_load(&called) < (CALLS + 1) / 2) {
        RANKS_CHECK(!tutti_deadline_passed(&deadline), "only %d callbacks came", atomic_load(&called));
        usleep(1000);
    }
    return TUTTI_OK;
}
WITH_RANK(backwards_body, wait_backwards)

Test(stream_async, works_of_several_streams_are_waited_for_in_any_order) {
    run(backwards_body);
}

/* --------------------------------------------------------------------------------------- streams, events */

/* The result of one call is the input of the next, in another stream behind an event; no thread waits on the host. */
static tutti_status chain(ranks_context *context, cuda_rank *rank) {
    const tutti_device *device = rank->device;
    void *buffer;
    tutti_event_handle event;
    int64_t values[64], expected = 1;
    for (int i = 0; i < 64; i++) values[i] = 1;
    TUTTI_TRY(cuda_alloc(rank, sizeof values, &buffer));
    TUTTI_TRY(device->event_create(&event));
    TUTTI_TRY(cuda_put(rank, buffer, values, sizeof values, rank->streams[0]));
    for (int round = 0; round < 8; round++) {
        tutti_stream now = rank->streams[round % CUDA_STREAMS], next = rank->streams[(round + 1) % CUDA_STREAMS];
        TUTTI_TRY(
            tutti_all_reduce(context->comm, buffer, buffer, 64, TUTTI_INT64, TUTTI_SUM, &TUTTI_OPTIONS(.stream = now)));
        TUTTI_TRY(device->event_record(event, now));
        TUTTI_TRY(device->stream_wait_event(next, event));
        expected *= context->nranks;
    }
    tutti_stream last = rank->streams[8 % CUDA_STREAMS];
    TUTTI_TRY(cuda_fetch(rank, values, buffer, sizeof values, last));
    TUTTI_TRY(device->event_destroy(event));
    for (int i = 0; i < 64; i++)
        RANKS_CHECK(values[i] == expected, "element %d is %lld instead of %lld", i, (long long)values[i],
                    (long long)expected);
    return TUTTI_OK;
}
WITH_RANK(chain_body, chain)

Test(stream_async, results_are_there_in_stream_order) {
    run(chain_body);
}

/* ------------------------------------------------------------------------------------- host calls between */

static tutti_status mixed(ranks_context *context, cuda_rank *rank) {
    cuda_call calls[CALLS];
    for (int i = 0; i < CALLS; i++) {
        tutti_stream stream = rank->streams[i % CUDA_STREAMS];
        call c = call_number(3 * i + 1, context->nranks), on_host = call_number(5 * i + 2, context->nranks);
        TUTTI_TRY(cuda_call_prepare(rank, &c, context->rank, context->nranks, stream, &calls[i]));
        TUTTI_TRY(
            call_start(&calls[i].there, context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = stream)));
        if (i % 4 != 3) TUTTI_TRY(call_run(&on_host, context->comm)); /* the library looks up its pointer */
    }
    for (int i = 0; i < CALLS; i++) {
        TUTTI_TRY(cuda_call_check(rank, &calls[i], rank->streams[i % CUDA_STREAMS]));
        cuda_call_release(&calls[i]);
    }
    return TUTTI_OK;
}
WITH_RANK(mixed_body, mixed)

Test(stream_async, calls_on_host_memory_go_in_between) {
    run(mixed_body);
}

/* ----------------------------------------------------------------------------------------------- messages */

#define MESSAGE_ITEMS 5000

static void fill_items(int32_t *items, int count, int from, int to) {
    for (int i = 0; i < count; i++) items[i] = from * 1000003 + to * 10007 + i;
}

static tutti_status expect_items(const int32_t *items, int count, int from, int to) {
    for (int i = 0; i < count; i++)
        RANKS_CHECK(items[i] == from * 1000003 + to * 10007 + i, "item %d of %d from rank %d is %d", i, count, from,
                    items[i]);
    return TUTTI_OK;
}

typedef struct mailbox {
    int32_t out[MESSAGE_ITEMS], in[MESSAGE_ITEMS];
    void *out_there, *in_there;
} mailbox;

static tutti_status open_mailbox(cuda_rank *rank, mailbox *box, int self, int to) {
    TUTTI_TRY(cuda_alloc(rank, sizeof box->out, &box->out_there));
    TUTTI_TRY(cuda_alloc(rank, sizeof box->in, &box->in_there));
    fill_items(box->out, MESSAGE_ITEMS, self, to);
    memset(box->in, 0xee, sizeof box->in);
    TUTTI_TRY(cuda_put(rank, box->out_there, box->out, sizeof box->out, rank->streams[0]));
    TUTTI_TRY(cuda_put(rank, box->in_there, box->in, sizeof box->in, rank->streams[0]));
    return rank->device->stream_sync(rank->streams[0]);
}

static tutti_status fetch(cuda_rank *rank, mailbox *box) {
    return cuda_fetch(rank, box->in, box->in_there, sizeof box->in, rank->streams[0]);
}

/* Around the ring, from CUDA memory or the host's to either: every combination of the two sides. */
static tutti_status around(ranks_context *context, cuda_rank *rank) {
    static mailbox boxes[8]; /* indexed by rank: ranks may be threads */
    mailbox *box = &boxes[context->rank];
    int n = context->nranks, to = (context->rank + 1) % n, from = (context->rank + n - 1) % n;
    TUTTI_TRY(open_mailbox(rank, box, context->rank, to));
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0]);
    for (int round = 0; round < 4; round++) {
        const int counts[] = {1, 0, 777, MESSAGE_ITEMS};
        size_t count = (size_t)counts[round];
        bool sends_cuda = (round + context->rank) % 2 == 0, takes_cuda = (round / 2 + context->rank) % 2 == 0;
        tutti_work *send = NULL, *receive = NULL;
        options.work = &receive;
        options.memory = takes_cuda ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST;
        TUTTI_TRY(tutti_recv(context->comm, takes_cuda ? box->in_there : box->in, MESSAGE_ITEMS, TUTTI_INT32,
                             round % 2 == 0 ? from : TUTTI_ANY_SOURCE, round, &options));
        options.work = &send;
        options.memory = sends_cuda ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_HOST;
        options.stream = rank->streams[1]; /* the other stream is held up by the receive */
        TUTTI_TRY(rank->device->stream_sync(rank->streams[1]));
        TUTTI_TRY(
            tutti_send(context->comm, sends_cuda ? box->out_there : box->out, count, TUTTI_INT32, to, round, &options));
        options.stream = rank->streams[0];
        TUTTI_TRY(tutti_work_wait(send, -1));
        TUTTI_TRY(tutti_work_wait(receive, -1));
        tutti_work_details details;
        TUTTI_TRY(tutti_work_get(receive, &details));
        RANKS_CHECK(details.source == from && details.tag == round && details.count == count,
                    "%zu items of tag %lld from rank %d came instead of %zu", details.count, (long long)details.tag,
                    details.source, count);
        tutti_work_free(send);
        tutti_work_free(receive);
        if (takes_cuda) TUTTI_TRY(fetch(rank, box));
        TUTTI_TRY(expect_items(box->in, counts[round], from, context->rank));
        RANKS_CHECK(takes_cuda == false || counts[round] > 777 || round > 1 || box->in[1] == (int32_t)0xeeeeeeee,
                    "the receive wrote more than came");
    }
    return TUTTI_OK;
}
WITH_RANK(around_body, around)

Test(stream_async, messages_go_between_both_kinds_of_memory) {
    run(around_body);
}

/* Messages in both directions in one stream, and a collective behind them: outside of a group, each receive would
 * hold up the send. */
static tutti_status grouped(ranks_context *context, cuda_rank *rank) {
    static mailbox boxes[8];
    mailbox *box = &boxes[context->rank];
    int n = context->nranks, to = (context->rank + 1) % n, from = (context->rank + n - 1) % n;
    tutti_options inside = TUTTI_OPTIONS(.stream = rank->streams[0]);
    int32_t host_value = 1;
    void *there;
    TUTTI_TRY(cuda_alloc(rank, sizeof host_value, &there));
    for (int round = 0; round < 4; round++) {
        tutti_work *work = NULL;
        int32_t sum = 0;
        host_value = 1;
        size_t used = rank->used;
        TUTTI_TRY(open_mailbox(rank, box, context->rank, to));
        TUTTI_TRY(cuda_put(rank, there, &host_value, sizeof host_value, rank->streams[0]));
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0]));
        TUTTI_TRY(tutti_group_begin(context->comm));
        TUTTI_TRY(tutti_recv(context->comm, box->in_there, MESSAGE_ITEMS, TUTTI_INT32, from, 5, &inside));
        TUTTI_TRY(tutti_send(context->comm, box->out_there, MESSAGE_ITEMS, TUTTI_INT32, to, 5, &inside));
        TUTTI_TRY(tutti_all_reduce(context->comm, there, there, 1, TUTTI_INT32, TUTTI_SUM, &inside));
        TUTTI_TRY(tutti_all_reduce(context->comm, &host_value, &host_value, 1, TUTTI_INT32, TUTTI_SUM, NULL));
        tutti_options options = TUTTI_OPTIONS(.work = round % 2 == 0 ? &work : NULL);
        TUTTI_TRY(tutti_group_end(context->comm, &options));
        if (work != NULL) TUTTI_TRY(tutti_work_wait(work, -1));
        tutti_work_free(work);
        RANKS_CHECK(host_value == n, "the call on host memory gave %d", (int)host_value);
        TUTTI_TRY(cuda_fetch(rank, &sum, there, sizeof sum, rank->streams[0]));
        TUTTI_TRY(fetch(rank, box));
        RANKS_CHECK(sum == n, "the call on CUDA memory gave %d", (int)sum);
        TUTTI_TRY(expect_items(box->in, MESSAGE_ITEMS, from, context->rank));
        rank->used = used;
    }
    return TUTTI_OK;
}
WITH_RANK(grouped_body, grouped)

Test(stream_async, a_group_posts_its_messages_before_any_stream_waits) {
    run(grouped_body);
}

/* A message that is too long gives an error to the rank that waits for it, and breaks nothing. */
static tutti_status truncated(ranks_context *context, cuda_rank *rank) {
    static mailbox boxes[8];
    mailbox *box = &boxes[context->rank];
    tutti_work *work = NULL;
    TUTTI_TRY(open_mailbox(rank, box, context->rank, 0));
    tutti_options options = TUTTI_OPTIONS(.stream = rank->streams[0], .work = &work);
    tutti_received received;
    RANKS_EXPECT(TUTTI_ERR_ARGUMENT, tutti_recv(context->comm, box->in_there, 1, TUTTI_INT32, 0, 0,
                                                &TUTTI_OPTIONS(.stream = rank->streams[0], .received = &received)));
    if (context->rank == 0) {
        TUTTI_TRY(tutti_send(context->comm, box->out_there, 100, TUTTI_INT32, context->nranks - 1, 3,
                             &TUTTI_OPTIONS(.stream = rank->streams[1])));
    }
    if (context->rank == context->nranks - 1) {
        TUTTI_TRY(tutti_recv(context->comm, box->in_there, 99, TUTTI_INT32, 0, 3, &options));
        RANKS_EXPECT(TUTTI_ERR_TRUNCATED, tutti_work_wait(work, -1));
        tutti_work_free(work);
        TUTTI_TRY(rank->device->stream_sync(rank->streams[0])); /* the communicator still works */
    }
    call c = call_number(1, context->nranks);
    return cuda_call_run(rank, &c, context->comm, rank->streams[0], true);
}
WITH_RANK(truncated_body, truncated)

Test(stream_async, a_message_that_is_too_long_is_an_error_and_breaks_nothing) {
    run(truncated_body);
}

/* ------------------------------------------------------------------------------------------ communicators */

static tutti_status many_comms(ranks_context *context, cuda_rank *rank) {
    for (int round = 0; round < 6; round++) {
        tutti_comm *comm = NULL;
        TUTTI_TRY(tutti_comm_split(context->comm, context->rank % 2, context->rank, NULL, &comm));
        call c = call_number(round + 1, tutti_comm_size(comm));
        TUTTI_TRY(cuda_call_run(rank, &c, comm, rank->streams[round % CUDA_STREAMS], round % 2 == 0));
        TUTTI_TRY(tutti_comm_error(comm));
        TUTTI_TRY(tutti_comm_destroy(comm)); /* at once after the stream has passed it */
        c = call_number(round + 2, context->nranks);
        TUTTI_TRY(cuda_call_run(rank, &c, context->comm, rank->streams[0], false));
    }
    return TUTTI_OK;
}
WITH_RANK(many_comms_body, many_comms)

Test(stream_async, communicators_come_and_go) {
    run(many_comms_body);
}
