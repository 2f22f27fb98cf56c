/*
 * Random calls on CUDA memory against the reference: kind, type, count, place, stream, works or not, how many are in
 * flight, which communicator, delays per rank, calls on host memory in between. All from one printed seed:
 * TUTTI_TEST_SEED repeats a run, TUTTI_TEST_CALLS makes it longer or shorter. GPUs are stand-ins, or real ones
 * (support/gpu/cuda_call.h).
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "bootstrap/base/settings.h"
#include "tests/support/gpu/cuda_call.h"
#include "tests/support/reference.h"

TestSuite(stream_random, .timeout = 280);

enum { MOST_IN_FLIGHT = 6, MOST_COUNT = 3000, COMMS = 3 };

typedef struct plan {
    uint64_t seed;
    int calls;
} plan;

static plan the_plan;

/* Draw number `draw` for call `index`; equal on all ranks. */
static uint64_t draw(int index, int number) {
    return reference_hash(the_plan.seed, (uint64_t)index, (uint64_t)number);
}

/* A draw that each rank makes for itself. */
static uint64_t draw_own(const ranks_context *context, int index, int number) {
    return draw(index, 1000 * (context->rank + 1) + number);
}

static call draw_call(int index, int nranks) {
    call c = {.kind = (call_kind)(draw(index, 0) % CALL_KINDS),
              .type = (tutti_type)(draw(index, 1) % TUTTI_TYPE_COUNT),
              .reduction = (tutti_reduction)(draw(index, 2) % TUTTI_REDUCTION_COUNT),
              .root = (int)(draw(index, 3) % (uint64_t)nranks),
              .in_place = (call_mode)(draw(index, 4) % CALL_MODES),
              .seed = draw(index, 5)};
    uint64_t size = draw(index, 6);
    c.count = size % 4 == 0 ? size / 4 % 3 : size % 4 == 1 ? size / 4 % MOST_COUNT : size / 4 % 200; /* mostly small */
    if (!call_reduces(c.kind) || !reference_supports(c.type, c.reduction)) c.reduction = TUTTI_MAX;
    return c;
}

/* One of several calls that are in flight together. */
typedef struct pending {
    cuda_call state;
    tutti_work *work;
    tutti_stream stream;
    int index;
} pending;

static tutti_status fail_call(const pending *one, tutti_status status) {
    char text[1024];
    const call *c = &one->state.host.call;
    snprintf(text, sizeof text, "%s", tutti_last_error());
    return tutti_fail(status, "seed %llu, call %d, %s of %zu %s, %s, root %d: %s", (unsigned long long)the_plan.seed,
                      one->index, call_name(c->kind), c->count, tutti_type_name(c->type),
                      tutti_reduction_name(c->reduction), c->root, text);
}

static tutti_status start(const ranks_context *context, cuda_rank *rank, tutti_comm *comm, int index, pending *one) {
    call c = draw_call(index, tutti_comm_size(comm));
    *one = (pending){.index = index, .stream = rank->streams[draw_own(context, index, 0) % CUDA_STREAMS]};
    TUTTI_TRY(cuda_call_prepare(rank, &c, tutti_comm_rank(comm), tutti_comm_size(comm), one->stream, &one->state));
    if (draw_own(context, index, 1) % 40 == 0) usleep((useconds_t)(draw_own(context, index, 2) % 3000));
    bool works = draw_own(context, index, 3) % 2 == 0; /* each rank decides for itself */
    bool says =
        c.count == 0 || c.kind >= CALL_BARRIER || draw_own(context, index, 4) % 2 == 0; /* else looked up by pointer */
    tutti_options options = TUTTI_OPTIONS(.stream = one->stream, .memory = says ? TUTTI_MEMORY_CUDA : TUTTI_MEMORY_ASK,
                                          .work = works ? &one->work : NULL);
    tutti_status status = call_start(&one->state.there, comm, &options);
    return status == TUTTI_OK ? TUTTI_OK : fail_call(one, status);
}

static tutti_status finish(cuda_rank *rank, pending *one) {
    tutti_status status = one->work != NULL ? tutti_work_wait(one->work, -1) : TUTTI_OK;
    if (status == TUTTI_OK) status = cuda_call_check(rank, &one->state, one->stream);
    return status == TUTTI_OK ? TUTTI_OK : fail_call(one, status);
}

/* Makes some calls at once, and checks them in order or in reverse; with a call on host memory among them. */
static tutti_status run_batch(const ranks_context *context, cuda_rank *rank, tutti_comm *comm, int first, int count) {
    pending batch[MOST_IN_FLIGHT];
    int started = 0;
    tutti_status status = TUTTI_OK;
    for (; started < count && status == TUTTI_OK; started++)
        status = start(context, rank, comm, first + started, &batch[started]);
    if (status == TUTTI_OK && draw(first, 10) % 3 == 0) {
        call on_host = draw_call(first + 500000, tutti_comm_size(comm));
        status = call_run(&on_host, comm);
    }
    bool backwards = draw_own(context, first, 5) % 2 == 0;
    for (int i = 0; i < started && status == TUTTI_OK; i++)
        status = finish(rank, &batch[backwards ? started - 1 - i : i]);
    for (int i = 0; i < started; i++) {
        tutti_work_free(batch[i].work);
        cuda_call_release(&batch[i].state);
    }
    return status;
}

static tutti_status run_all(const ranks_context *context, cuda_rank *rank) {
    tutti_comm *comms[COMMS] = {context->comm};
    TUTTI_TRY(tutti_comm_split(context->comm, 0, -context->rank, NULL, &comms[1]));
    TUTTI_TRY(tutti_comm_split(context->comm, context->rank % 2, context->rank, NULL, &comms[2]));
    for (int first = 0; first < the_plan.calls;) {
        int count = 1 + (int)(draw(first, 11) % MOST_IN_FLIGHT);
        TUTTI_TRY(run_batch(context, rank, comms[draw(first, 12) % COMMS], first, count));
        rank->used = 0;
        first += count;
    }
    for (int i = 1; i < COMMS; i++) TUTTI_TRY(tutti_comm_destroy(comms[i]));
    return TUTTI_OK;
}

static tutti_status body(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)32 << 20, &rank));
    TUTTI_TRY(run_all(context, &rank));
    return cuda_rank_close(&rank, context->comm);
}

static const char *const environment[] = {"TUTTI_CUDA_STAGE_BYTES=4096", "TUTTI_CUDA_SLOT_BYTES=4096", NULL};

static void run(const char *gpus, int calls, const int *sizes) {
    const char *seed = getenv("TUTTI_TEST_SEED"), *length = getenv("TUTTI_TEST_CALLS");
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    the_plan.seed = seed != NULL ? strtoull(seed, NULL, 10) : (uint64_t)time.tv_nsec + (uint64_t)time.tv_sec;
    the_plan.calls = length != NULL ? atoi(length) : calls;
    setenv("STANDIN_GPUS", gpus, 1);
    setenv("TUTTI_CUDA_STAGE_BYTES", "4096", 1); /* for ranks that are threads */
    setenv("TUTTI_CUDA_SLOT_BYTES", "4096", 1);
    tutti_settings_reload();
    cuda_shared_arenas = 0x5; /* only some ranks share memory, so both paths occur */
    fprintf(stderr, "TUTTI_TEST_SEED=%llu\n", (unsigned long long)the_plan.seed);
    const char *failure = ranks_run_worlds(sizes, &(ranks_options){.timeout_s = 130, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

Test(stream_random, calls_of_ranks_that_share_a_gpu_give_what_the_reference_gives) {
    run("1", 150, (const int[]){2, 4, 0});
}

Test(stream_random, calls_through_the_host_give_what_the_reference_gives) {
    setenv("TUTTI_ALGORITHM", "staged", 1);
    run("2", 100, (const int[]){3, 0});
}
