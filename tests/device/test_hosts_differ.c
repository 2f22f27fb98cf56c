/*
 * Calls on CUDA memory that differ between hosts, or that one host does not make: the error names them on all
 * ranks, long before any deadline where both calls are known. The GPUs and NCCL are stand-ins (support/standins/),
 * the hosts network namespaces. Like NCCL, its stand-in does not compare calls: most calls that differ hang in it,
 * some succeed.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/base/deadline.h"
#include "bootstrap/base/settings.h"
#include "comm/gpu/stream.h"
#include "tests/support/gpu/nccl_scene.h"
#include "tests/support/hosts/hosts.h"

TestSuite(hosts_differ, .timeout = 200);

enum { COUNT = 256 };

/* Reports and deadlines come too late to be the source of the error. */
#define PATIENT "TUTTI_STALL_MS=60000", "TUTTI_TIMEOUT_MS=60000"
#define TOLD_MS 20000

static const char *const nccl[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=nccl", PATIENT, NULL};
static const char *const staged[] = {"STANDIN_GPUS=8", "TUTTI_ALGORITHM=staged", PATIENT, NULL};
/* Ranks 0 and 2 share a GPU, and 3 and 4: only the engine "staged" supports that. */
static const char *const shared[] = {"STANDIN_GPUS=5", "STANDIN_IDS=a,b,a,c,c", PATIENT, NULL};

static void run(const int *ranks_per_host, const char *const *environment, ranks_body body) {
    HOSTS_NEED(0);
    nccl_set_stage();
    const char *failure = hosts_run(
        &(hosts_options){.ranks_per_host = ranks_per_host, .timeout_s = 150, .environment = environment}, body);
    cr_assert(failure == NULL, "%s", failure);
}

static tutti_status check_engine(const tutti_comm *comm) {
    const char *forced = tutti_setting_text(TUTTI_SETTING_ALGORITHM), *wanted = *forced != '\0' ? forced : "staged";
    RANKS_CHECK(strcmp(comm->cuda.streams->engine->name, wanted) == 0, "\"%s\" did it",
                comm->cuda.streams->engine->name);
    return TUTTI_OK;
}

/* ------------------------------------------------------------------------------------------ calls that differ */

typedef struct some_call {
    enum { SUM, BROADCAST, REDUCE, BARRIER } kind;
    tutti_type type;
    size_t count;
    tutti_reduction reduction;
    const char *words;
} some_call;

static const some_call usual = {SUM, TUTTI_INT32, COUNT, TUTTI_SUM, "all_reduce(int32, 256, sum)"};
/* Reduced by NCCL's sends and our kernel: any reduction of this type sends as much. */
static const some_call usual_short = {SUM, TUTTI_INT16, COUNT, TUTTI_SUM, "all_reduce(int16, 256, sum)"};

static const struct {
    const some_call *others;
    some_call odd;
} cases[] = {
    {&usual, {BROADCAST, TUTTI_INT32, COUNT, TUTTI_SUM, "broadcast(int32, 256, root 0)"}},
    {&usual, {REDUCE, TUTTI_INT32, COUNT, TUTTI_SUM, "reduce(int32, 256, sum, root 0)"}},
    {&usual, {BARRIER, TUTTI_INT32, 0, TUTTI_SUM, "barrier"}},
    {&usual, {SUM, TUTTI_INT32, COUNT - 1, TUTTI_SUM, "all_reduce(int32, 255, sum)"}},
    {&usual, {SUM, TUTTI_FLOAT32, COUNT, TUTTI_SUM, "all_reduce(float32, 256, sum)"}},
    {&usual, {SUM, TUTTI_INT32, COUNT, TUTTI_MAX, "all_reduce(int32, 256, max)"}},
    {&usual_short, {SUM, TUTTI_INT16, COUNT, TUTTI_MAX, "all_reduce(int16, 256, max)"}},
};

static tutti_status make(tutti_comm *comm, const some_call *c, void *memory, const tutti_options *options) {
    switch (c->kind) {
    case BROADCAST: return tutti_broadcast(comm, memory, c->count, c->type, 0, options);
    case REDUCE: return tutti_reduce(comm, memory, memory, c->count, c->type, c->reduction, 0, options);
    case BARRIER: return tutti_barrier(comm, options);
    default: return tutti_all_reduce(comm, memory, memory, c->count, c->type, c->reduction, options);
    }
}

static tutti_status make_and_wait(tutti_comm *comm, const some_call *c, cuda_rank *rank, void *memory) {
    tutti_work *work = NULL;
    TUTTI_TRY(
        make(comm, c, memory, &TUTTI_OPTIONS(.stream = rank->streams[0], .memory = TUTTI_MEMORY_CUDA, .work = &work)));
    tutti_status status = tutti_work_wait(work, -1);
    if (status != TUTTI_OK) tutti_fail(status, "%s", tutti_work_error(work));
    tutti_work_free(work);
    return status;
}

/* The rank whose call differs: the second one of the first host. Calls of different hosts are not compared. */
enum { ODD = 1 };

/* The error must show ranks and calls: "rank 1 barrier", "rank 0 all_reduce(...)". */
static tutti_status check_told(const tutti_comm *comm, tutti_status status, const some_call *odd,
                               const some_call *own) {
    char text[1024], odd_rank[128], other_rank[128];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    snprintf(odd_rank, sizeof odd_rank, "rank %d %s", ODD, odd->words);
    snprintf(other_rank, sizeof other_rank, " %s", own->words);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH, "%s: '%s' (%s)", odd->words, tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, odd_rank) != NULL && strstr(text, other_rank) != NULL, "'%s' or '%s' is not in: %s",
                odd_rank, other_rank, text);
    return check_engine(comm);
}

/* One rank makes a different call. A rank that already has all data finds out at a later call. */
static tutti_status differ(const ranks_context *context, tutti_comm *comm, cuda_rank *rank, size_t at) {
    void *memory;
    const some_call *own = cases[at].others, *odd = &cases[at].odd;
    bool is_odd = context->rank == ODD;
    TUTTI_TRY(cuda_alloc(rank, 4096, &memory));
    TUTTI_TRY(rank->device->fill(memory, 0, 4096, rank->streams[0]));
    TUTTI_TRY(make_and_wait(comm, own, rank, memory));
    TUTTI_TRY(nccl_meet(context)); /* otherwise an error found in the second call could end another rank's first */
    int64_t start_ns = tutti_now_ns(), end_ns = start_ns + TOLD_MS * TUTTI_NS_PER_MS;
    tutti_status status = make_and_wait(comm, is_odd ? odd : own, rank, memory);
    while (status == TUTTI_OK && tutti_now_ns() < end_ns) status = make_and_wait(comm, own, rank, memory);
    TUTTI_TRY(check_told(comm, status, odd, own));
    RANKS_CHECK(tutti_now_ns() < end_ns, "the error came after %lld ms",
                (long long)(tutti_now_ns() - start_ns) / 1000000);
    return rank->device->stream_sync(rank->streams[0]);
}

static tutti_status differ_in_turn(ranks_context *context) {
    cuda_rank rank;
    TUTTI_TRY(cuda_rank_open(context, (size_t)1 << 20, &rank));
    bool is_staged = strcmp(tutti_setting_text(TUTTI_SETTING_ALGORITHM), "staged") == 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tutti_comm *comm;
        if (is_staged && cases[i].odd.kind == REDUCE) continue; /* a rank that only sends fails in a later call there */
        TUTTI_TRY(tutti_comm_split(context->comm, 0, context->rank, NULL, &comm));
        TUTTI_TRY(differ(context, comm, &rank, i));
        TUTTI_TRY(nccl_meet(context)); /* no rank may leave earlier */
        TUTTI_TRY(tutti_comm_destroy(comm));
    }
    return TUTTI_OK;
}

Test(hosts_differ, calls_by_nccl_are_shown_on_all_ranks) {
    run((const int[]){2, 1, 0}, nccl, differ_in_turn);
}

Test(hosts_differ, calls_where_ranks_share_gpus_are_shown_on_all_ranks) {
    run((const int[]){3, 2, 0}, shared, differ_in_turn);
}

Test(hosts_differ, calls_through_host_memory_are_shown_on_all_ranks) {
    run((const int[]){2, 1, 0}, staged, differ_in_turn);
}

/* ---------------------------------------------------------------------------------------------- many calls */

/* Without waiting: ranks may be hundreds of calls apart. Calls in graphs do not count. */
static tutti_status run_ahead(ranks_context *context) {
    cuda_rank rank;
    void *memory;
    some_call odd = cases[3].odd;
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    tutti_options options = TUTTI_OPTIONS(.memory = TUTTI_MEMORY_CUDA, .stream = rank.streams[0]);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++)
            TUTTI_TRY(make(context->comm, i % 7 == 0 ? &cases[0].odd : &usual, memory, &options));
        TUTTI_TRY(nccl_capture(rank.streams[0], true));
        TUTTI_TRY(make(context->comm, &usual, memory, &options));
        TUTTI_TRY(nccl_capture(rank.streams[0], false));
    }
    TUTTI_TRY(rank.device->stream_sync(rank.streams[0]));
    RANKS_EXPECT(TUTTI_OK, tutti_comm_error(context->comm));
    TUTTI_TRY(nccl_meet(context));
    bool is_odd = context->rank == ODD;
    tutti_status status = make_and_wait(context->comm, is_odd ? &odd : &usual, &rank, memory);
    TUTTI_TRY(check_told(context->comm, status, &odd, &usual));
    RANKS_CHECK(strstr(tutti_last_error(), "#601") != NULL, "%s", tutti_last_error());
    return nccl_meet(context);
}

Test(hosts_differ, hundreds_of_equal_calls_are_no_difference) {
    run((const int[]){2, 1, 1, 0}, nccl, run_ahead);
}

/* ----------------------------------------------------------------------------------------------- no call */

/* The absent rank does not make the second call; the errors of all others say that `missing` has not made it. */
static tutti_status await_absent(ranks_context *context, bool is_absent, int missing, int present) {
    cuda_rank rank;
    void *memory;
    char missing_words[64], present_words[32];
    TUTTI_TRY(nccl_open_rank(context, &rank, &memory));
    TUTTI_TRY(nccl_sum_and_wait(context->comm, &rank, memory));
    TUTTI_TRY(nccl_meet(context));
    if (is_absent) {
        TUTTI_TRY(nccl_meet(context));
        return nccl_check_streams(&rank);
    }
    tutti_status status = nccl_wait_within(context->comm, &rank, memory, 1500);
    char text[1024];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    snprintf(missing_words, sizeof missing_words, "; missing: rank %d (host ", missing);
    snprintf(present_words, sizeof present_words, "rank %d (", present);
    TUTTI_TRY(nccl_meet(context));
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT, "'%s' (%s)", tutti_status_name(status), text);
    RANKS_CHECK(strstr(text, missing_words) != NULL && strstr(text, present_words) == NULL,
                "'%s' is not in, or '%s' is: %s", missing_words, present_words, text);
    RANKS_CHECK(strstr(text, "its last call: all_reduce(int32, 256, sum) on CUDA memory #1)") != NULL, "%s", text);
    return nccl_check_streams(&rank);
}

/* Only the absent rank's own host can know. */
static tutti_status miss_rank(ranks_context *context) {
    int last = context->nranks - 1;
    return await_absent(context, context->rank == last, last, last - 1);
}

Test(hosts_differ, a_rank_that_makes_no_call_is_named_at_the_deadline) {
    run((const int[]){2, 2, 0}, nccl, miss_rank);
}
