/*
 * Streams that ranks of one process share, in calls that go through host memory: two ranks in one stream would wait for
 * each other in the same call, which gives an error; all else is allowed. The GPUs are stand-ins
 * (support/standins/standin_cuda.c), or a real one.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_call.h"

TestSuite(stream_shared, .timeout = 120);

enum { RANKS = 3, ITEMS = 10, TURNS = 9 };

static void run(const char *gpus, ranks_body body) {
    if (cuda_real_gpus() == 0) setenv("STANDIN_GPUS", gpus, 1);
    setenv("TUTTI_ALGORITHM", "staged", 1);
    tutti_settings_reload();
    const char *failure = ranks_run(&(ranks_options){.kind = RANKS_THREADS, .nranks = RANKS, .timeout_s = 50}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status open_rank(const ranks_context *context, cuda_rank *rank, void **memory_out) {
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, rank));
    return cuda_alloc(rank, sizeof(int32_t[ITEMS]), memory_out);
}

static tutti_status call_and_wait(const ranks_context *context, void *memory, tutti_stream stream) {
    tutti_work *work = NULL;
    tutti_options options = TUTTI_OPTIONS(.stream = stream, .memory = TUTTI_MEMORY_CUDA, .work = &work);
    TUTTI_TRY(tutti_all_reduce(context->comm, memory, memory, ITEMS, TUTTI_INT32, TUTTI_MAX, &options));
    tutti_status status = tutti_work_wait(work, 20000);
    tutti_work_free(work);
    return status;
}

/* All ranks use the default stream of one GPU: the rank that calls first would wait in it for a rank whose work is
 * queued behind. */
static tutti_status share_stream(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    tutti_status status = call_and_wait(context, memory, NULL);
    RANKS_CHECK(status == TUTTI_ERR_ARGUMENT, "'%s' (%s)", tutti_status_name(status), tutti_last_error());
    RANKS_CHECK(strstr(tutti_last_error(), "use the same stream") != NULL, "%s", tutti_last_error());
    TUTTI_TRY(rank.device->stream_sync(NULL)); /* the communicator still works */
    return cuda_rank_close(&rank, NULL);
}

Test(stream_shared, ranks_of_one_process_in_one_stream_get_an_error) {
    run("1", share_stream);
}

/* One rank after another uses the stream, but never two in the same call. */
static tutti_status take_turns(ranks_context *context) {
    static tutti_stream stream; /* rank 0's stream */
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    if (context->rank == 0) stream = rank.streams[0];
    for (int turn = 0; turn < TURNS; turn++) {
        TUTTI_TRY(tutti_barrier(context->comm, &TUTTI_OPTIONS(.memory = TUTTI_MEMORY_HOST)));
        bool has_it = turn % context->nranks == context->rank;
        TUTTI_TRY(call_and_wait(context, memory, has_it ? stream : rank.streams[1]));
    }
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_shared, a_stream_may_pass_from_rank_to_rank) {
    run("1", take_turns);
}

/* Each GPU has a default stream of its own, all with the same handle. */
static tutti_status use_default_streams(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    TUTTI_TRY(open_rank(context, &rank, &memory));
    for (int turn = 0; turn < TURNS; turn++) TUTTI_TRY(call_and_wait(context, memory, NULL));
    return cuda_rank_close(&rank, context->comm);
}

Test(stream_shared, default_streams_of_different_gpus_are_different_ones) {
    if (cuda_real_gpus() > 0) cr_skip("each rank needs its own GPU");
    run("3", use_default_streams);
}
